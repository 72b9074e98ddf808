"""A stream in torch's loader."""

import random

import numpy as np
import pytest

from slipring.streams import Stream

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader, Device  # noqa: E402


def blocks(worker, num_workers):
    for i in range(worker, 12, num_workers):
        yield {"x": np.arange(i * 5, i * 5 + 5), "y": np.full((5, 3), i, np.float32)}


@pytest.mark.parametrize(("workers", "shuffle_buffer"), [(0, 20), (2, 0)])
def test_batches_are_tensors_and_a_state_resumes(workers, shuffle_buffer):
    def loader():
        data = Stream(blocks, 8, shuffle_buffer=shuffle_buffer)
        generator = torch.Generator().manual_seed(4)
        random.seed(4)  # it seeds a stream if torch's loader has no workers
        return DataLoader(data, batch_size=None, num_workers=workers, generator=generator)

    whole = [(batch["x"].tolist(), batch["y"]) for batch in loader()]
    assert sorted(x for numbers, _ in whole for x in numbers) == list(range(60))
    assert all(type(y) is torch.Tensor and y.shape == (len(x), 3) for x, y in whole)
    first = loader()
    iterator = iter(first)
    seen = [next(iterator)["x"].tolist() for _ in range(3)]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert seen + [batch["x"].tolist() for batch in second] == [x for x, _ in whole]


def test_a_device_and_preload_are_torchs_loaders_own():
    loader = DataLoader(Stream(blocks, 8), batch_size=None, num_workers=1, device=Device("cpu", preload=2))
    assert [batch["x"].device.type for batch in loader] == ["cpu"] * 8
