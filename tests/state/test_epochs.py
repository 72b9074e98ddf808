"""Three epochs of a stateful iterable dataset after a resume in the middle of one, with each loader.

The watchdog of `tests/conftest.py` prints the traceback of every thread if an epoch does not end.
"""

import json

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring import Loader, Workers  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support import stateful  # noqa: E402
from tests.support.torch_datasets import Counting  # noqa: E402


class Laps(stateful.Laps, stateful.Range, data.IterableDataset):
    """Its state has the number of its passes."""


class Own(stateful.OwnIterator, stateful.Range, data.IterableDataset):
    """It is its own iterator."""


def loader(face, dataset, num_workers, persistent):
    options = {"batch_size": 4, "num_workers": num_workers, "persistent_workers": persistent and num_workers > 0}
    if face == "torch":
        return DataLoader(dataset, multiprocessing_context="fork" if num_workers else None, **options)
    return Loader(dataset, workers=Workers(start_method="fork"), **options)


def epochs(batches, later):
    """Return the rest of an epoch and the two epochs after it, as lists of numbers."""
    return [[torch.as_tensor(batch).tolist() for batch in each] for each in (batches, later, later)]


@pytest.mark.parametrize("face", ["slipring", "torch"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("dataset", [Counting, Laps, Own])
def test_three_epochs_after_a_resume_are_those_without_it(face, dataset, num_workers, persistent):
    with (
        loader(face, dataset(), num_workers, persistent) as one,
        loader(face, dataset(), num_workers, persistent) as other,
    ):
        batches = iter(one)
        for _ in range(3):
            next(batches)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert epochs(other, other) == epochs(batches, one)
