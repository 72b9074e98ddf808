"""litdata's cache, whose loader has its own iterators: subclasses of torch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
litdata = pytest.importorskip("litdata", reason="pip install --no-deps litdata obstore lightning-utilities")

from litdata.streaming.dataloader import CacheDataLoader  # noqa: E402

import slipring.torch  # noqa: E402
from tests.clients.points import Points  # noqa: E402
from tests.support.torch_datasets import assert_same  # noqa: E402


class Ours(CacheDataLoader, slipring.torch.DataLoader):
    """litdata's loader, a subclass of ours because `slipring.torch.install()` came before its import."""


def epochs(loader_class, folder, num_workers):
    """Run an epoch that fills the cache, and three epochs that read it."""
    options = {"cache_dir": str(folder), "batch_size": 4, "chunk_bytes": None, "num_workers": num_workers}
    np.random.seed(1)  # for the order of chunks
    filled = list(loader_class(Points(), **options))
    reader = loader_class(Points(), persistent_workers=num_workers > 0, **options)
    return [filled, *(list(reader) for _ in range(3))]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_epoch_of_litdatas_loader_is_as_over_torchs(tmp_path, monkeypatch, num_workers):
    from torch.utils.data._utils import worker

    monkeypatch.setattr(worker, "_worker_loop", worker._worker_loop)  # litdata replaces it for good
    theirs = epochs(CacheDataLoader, tmp_path / "theirs", num_workers)
    assert_same(epochs(Ours, tmp_path / "ours", num_workers), theirs)
    assert len(theirs[0]) == 6
