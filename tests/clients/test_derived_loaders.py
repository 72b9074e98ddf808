"""Loaders of libraries that derive from torch's class, and so from ours if `slipring.torch.install()` comes before."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import slipring.torch  # noqa: E402
from tests.clients.points import Points  # noqa: E402
from tests.support.torch_datasets import assert_same  # noqa: E402


def ours(loader_class):
    """Return the library's class as it would be after `install()`."""
    return type("Ours", (loader_class, slipring.torch.DataLoader), {})


@pytest.mark.parametrize("threads", [False, True])
def test_monais_processes_and_threads_give_the_batches_of_torchs_loader(threads):
    data = pytest.importorskip("monai.data", reason="pip install -r requirements-clients.txt")
    from monai.transforms import Compose, EnsureTyped, RandFlipd, RandGaussianNoised
    from monai.utils import set_determinism

    # Threads draw nothing: torch seeds the generators of the whole process at any time.
    chance = [] if threads else [RandFlipd("image", prob=0.5), RandGaussianNoised("image", prob=0.7)]
    rows = [{"image": np.arange(i, i + 64, dtype=np.float32).reshape(1, 8, 8), "i": i} for i in range(24)]

    def batches(loader_class):
        set_determinism(7)
        try:
            dataset = data.Dataset(rows, Compose([*chance, EnsureTyped("image", track_meta=False)]))
            options = {"num_workers": 2, "use_thread_workers": threads, "shuffle": True}
            loader = loader_class(dataset, batch_size=5, generator=torch.Generator().manual_seed(3), **options)
            return [batch for _ in range(2) for batch in loader]
        finally:
            set_determinism(None)

    theirs = batches(data.ThreadDataLoader)
    assert_same(batches(ours(data.ThreadDataLoader)), theirs)
    assert len(theirs) == 10


@pytest.mark.parametrize("num_workers", [0, 1])
def test_litdatas_loader_which_has_its_own_iterators(tmp_path, monkeypatch, num_workers):
    pytest.importorskip("litdata", reason="pip install --no-deps litdata obstore lightning-utilities")
    from litdata.streaming.dataloader import CacheDataLoader
    from torch.utils.data._utils import worker

    monkeypatch.setattr(worker, "_worker_loop", worker._worker_loop)  # litdata replaces it for good

    def epochs(loader_class, folder):
        """Run an epoch that fills the cache, and three epochs that read it."""
        options = {"cache_dir": str(folder), "batch_size": 4, "chunk_bytes": None, "num_workers": num_workers}
        np.random.seed(1)  # for the order of chunks
        filled = list(loader_class(Points(), **options))
        reader = loader_class(Points(), persistent_workers=num_workers > 0, **options)
        return [filled, *(list(reader) for _ in range(3))]

    theirs = epochs(CacheDataLoader, tmp_path / "theirs")
    assert_same(epochs(ours(CacheDataLoader), tmp_path / "ours"), theirs)
    assert len(theirs[0]) == 6


@pytest.mark.parametrize("num_workers", [0, 2])
def test_scvis_loader_whose_sampler_yields_lists_of_indices(num_workers):
    dataloaders = pytest.importorskip("scvi.dataloaders", reason="pip install scvi-tools")
    import anndata
    from scvi.data import AnnDataManager, fields

    cells = anndata.AnnData(np.arange(210 * 12, dtype=np.float32).reshape(210, 12))
    cells.obs["batch"] = ["x", "y", "z"] * 70
    manager = AnnDataManager([fields.LayerField("X", None), fields.CategoricalObsField("batch", "batch")])
    manager.register_fields(cells)

    def epochs(loader_class):
        torch.manual_seed(1)
        loader = loader_class(manager, shuffle=True, batch_size=32, num_workers=num_workers)
        return [list(loader) for _ in range(2)]

    theirs = epochs(dataloaders.AnnDataLoader)
    assert_same(epochs(ours(dataloaders.AnnDataLoader)), theirs)
    assert len(theirs[0]) == 7


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.leaks_ok("the library keeps shared memory until the process ends")
def test_mosaicmls_loader_which_ends_workers_itself_and_whose_datasets_state_needs_arguments(
    tmp_path, num_workers, persistent
):
    streaming = pytest.importorskip("streaming", reason="pip install mosaicml-streaming")
    folder = str(tmp_path / "data")
    with streaming.MDSWriter(out=folder, columns={"i": "int", "x": "ndarray:float32:4"}, size_limit=1 << 12) as out:
        for i in range(200):
            out.write({"i": i, "x": np.full(4, i, np.float32)})

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

    (batches, states), theirs = epochs(ours(streaming.StreamingDataLoader)), epochs(streaming.StreamingDataLoader)
    assert_same(batches, theirs[0])
    assert states == theirs[1] and len(batches) == 50
