"""MONAI's loaders, whose workers are processes or, by a multiprocessing context of MONAI's own, threads."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
data = pytest.importorskip("monai.data", reason="pip install -r requirements-clients.txt")

from monai.transforms import Compose, EnsureTyped, RandFlipd, RandGaussianNoised  # noqa: E402
from monai.utils import set_determinism  # noqa: E402

import slipring.torch  # noqa: E402
from tests.support.torch_datasets import assert_same  # noqa: E402


@pytest.fixture(params=["processes", "threads"])
def workers(request):
    """Return arguments of MONAI's ThreadDataLoader."""
    return {"num_workers": 2, "use_thread_workers": request.param == "threads"}


class Ours(data.ThreadDataLoader, slipring.torch.DataLoader):
    """MONAI's loader, a subclass of ours because `slipring.torch.install()` came before its import."""


def batches(loader_class, random, **options):
    """Return two epochs of images, with random flips and noise if `random` is true."""
    chance = [RandFlipd("image", prob=0.5), RandGaussianNoised("image", prob=0.7)] if random else []
    rows = [{"image": np.arange(i, i + 64, dtype=np.float32).reshape(1, 8, 8), "i": i} for i in range(24)]
    set_determinism(7)
    try:
        dataset = data.Dataset(rows, Compose([*chance, EnsureTyped("image", track_meta=False)]))
        generator = torch.Generator().manual_seed(3)
        loader = loader_class(dataset, batch_size=5, shuffle=True, generator=generator, **options)
        return [batch for _ in range(2) for batch in loader]
    finally:
        set_determinism(None)


def test_monais_workers_give_the_batches_that_they_give_with_torchs_loader(workers):
    # Threads draw nothing: torch seeds the generators of the whole process at any time.
    random = not workers["use_thread_workers"]
    theirs = batches(data.ThreadDataLoader, random, **workers)
    ours = batches(Ours, random, **workers)
    assert len(ours) == 10
    assert_same(ours, theirs)
