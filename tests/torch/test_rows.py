"""With torch's rules, too, a batch that is made row by row equals the collated list."""

import numpy as np
import pytest
import torch

from slipring.torch.collate import default_collate
from tests.support.drawn import LEAVES, check_rows
from tests.support.inside import TORCH, RowWriter
from tests.support.trip import Trip

LAYOUTS = [
    lambda tensor: tensor,
    lambda tensor: tensor.transpose(0, -1) if tensor.dim() else tensor,
    lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor,
    lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    lambda tensor: tensor.to_sparse(),
    lambda tensor: tensor[..., ::2] if tensor.dim() else tensor,
]
DTYPES = [torch.uint8, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.bool]


def tensor(rng):
    shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
    made = torch.ones(shape).mul(rng.randrange(3)).to(rng.choice(DTYPES))
    if made.is_complex() and rng.random() < 0.5:
        return made.conj()
    return rng.choice(LAYOUTS)(made) if rng.random() < 0.6 else made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(30))
def test_any_samples_make_the_batch_or_the_error_that_their_list_makes(seed):
    check_rows(seed, [*LEAVES[:10], *[tensor] * 6], TORCH, default_collate)


@pytest.mark.parametrize("number", [np.float64(1.5), np.complex128(1j), np.float32(2), np.int64(3), np.bool_(True)])
def test_numpys_numbers_leave_the_arrays_beside_them_in_their_rows(number):
    trip = Trip()
    fill = trip.claim(range(2))
    with fill:
        rows = RowWriter(0, 2, TORCH)
        for row in range(2):
            rows.put(row, (np.full(3, row), number))
            assert rows.in_place
        trip.encoder.publish(fill, [rows.batch(default_collate)])
    del rows
    got, want = trip.take(fill.slot), torch.utils.data.default_collate([(np.ones(3), number)] * 2)
    assert got[1].dtype is want[1].dtype and got[1].tolist() == want[1].tolist()
