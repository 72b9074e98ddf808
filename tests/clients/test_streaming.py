"""MosaicML's streaming: its dataset's state_dict needs arguments, and its loader ends workers by a private method."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
streaming = pytest.importorskip("streaming", reason="pip install mosaicml-streaming")

import slipring.torch  # noqa: E402
from tests.support.torch_datasets import assert_same  # noqa: E402


class Ours(streaming.StreamingDataLoader, slipring.torch.DataLoader):
    """MosaicML's loader, a subclass of ours because `slipring.torch.install()` came before its import."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("shards") / "data")
    with streaming.MDSWriter(out=path, columns={"i": "int", "x": "ndarray:float32:4"}, size_limit=1 << 12) as out:
        for i in range(200):
            out.write({"i": i, "x": np.full(4, i, np.float32)})
    return path


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.leaks_ok("the library keeps shared memory until the process ends")
def test_every_epoch_of_a_streaming_dataset_is_as_over_torchs_loader(folder, num_workers, persistent):
    def epochs(loader_class):
        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(local=folder, shuffle=True, shuffle_seed=3, batch_size=8)
        loader = loader_class(data, batch_size=8, num_workers=num_workers, persistent_workers=persistent)
        found, states = [], []
        for _ in range(2):
            for number, batch in enumerate(loader):
                found.append(batch)
                if number == 5:
                    states.append(loader.state_dict())
        return found, states

    (batches, states), theirs = epochs(Ours), epochs(streaming.StreamingDataLoader)
    assert_same(batches, theirs[0])
    assert states == theirs[1] and len(batches) == 50
