"""Adapters that keep the next batch on a device, and pinned batches: `make test-cuda`."""

import functools

import numpy as np
import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]

from slipring.adapters import di_engine, megengine  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.adapters import Images  # noqa: E402
from tests.support.datasets import Values  # noqa: E402


def experience(n):
    return {"obs": torch.full((10_000,), float(n)), "action": n}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("ready", [False, True])
def test_di_engines_batches_are_on_the_device(ready, num_workers):
    numbers = iter(range(1 << 20))

    def source(batch_size):
        made = [functools.partial(experience, next(numbers)) for _ in range(batch_size)]
        return [one() for one in made] if ready else made

    loader = di_engine.AsyncDataLoader(source, 8, "cuda", num_workers=num_workers)
    for k in range(20):
        batch = next(loader)
        assert batch["obs"].is_cuda and batch["action"].is_cuda
        assert batch["action"].tolist() == list(range(8 * k, 8 * k + 8))
        assert bool((batch["obs"] == batch["action"][:, None]).all())
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_megengines_preload_puts_the_next_batch_on_the_device(num_workers):
    sampler = megengine.SequentialSampler(Images(), 4)
    on_host = list(megengine.DataLoader(Images(), sampler, num_workers=num_workers))
    on_device = list(megengine.DataLoader(Images(), sampler, num_workers=num_workers, preload=True))
    assert len(on_device) == len(on_host) > 1
    for ours, expected in zip(on_device, on_host, strict=True):
        for tensor, array in zip(ours, expected, strict=True):
            assert tensor.is_cuda and np.array_equal(tensor.cpu().numpy(), array)


@pytest.mark.parametrize("options", [{}, {"preload": 0}, {"num_workers": 0}, {"persistent_workers": True}])
def test_pin_memory_gives_pinned_batches(options):
    samples = [(torch.full((50_000,), k, dtype=torch.int32), {"k": k, "name": str(k)}) for k in range(24)]
    with DataLoader(Values(samples), 8, **grouped(**{"num_workers": 2, "pin_memory": True, **options})) as loader:
        for _ in range(2):
            on_device = []
            for images, labels in loader:
                assert images.is_pinned() and labels["k"].is_pinned()
                assert labels["name"] == [str(int(k)) for k in labels["k"]]
                on_device.append(images.to("cuda", non_blocking=True))
                del images, labels
            assert torch.cat(on_device)[:, -1].tolist() == list(range(24))
