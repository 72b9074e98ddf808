"""scvi-tools, whose loader reads whole batches: its sampler yields lists of indices, with batch_size=None."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
scvi_dataloaders = pytest.importorskip("scvi.dataloaders", reason="pip install scvi-tools")

import anndata  # noqa: E402
from scvi.data import AnnDataManager, fields  # noqa: E402

import slipring.torch  # noqa: E402
from tests.support.torch_datasets import assert_same  # noqa: E402


class Ours(scvi_dataloaders.AnnDataLoader, slipring.torch.DataLoader):
    """scvi's loader, a subclass of ours because `slipring.torch.install()` came before its import."""


@pytest.fixture(scope="module")
def manager():
    cells = anndata.AnnData(np.arange(210 * 12, dtype=np.float32).reshape(210, 12))
    cells.obs["batch"] = ["x", "y", "z"] * 70
    found = AnnDataManager([fields.LayerField("X", None), fields.CategoricalObsField("batch", "batch")])
    found.register_fields(cells)
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_cells_are_as_over_torchs_loader(manager, num_workers):
    def epochs(loader_class):
        torch.manual_seed(1)
        loader = loader_class(manager, shuffle=True, batch_size=32, num_workers=num_workers)
        return [list(loader) for _ in range(2)]

    theirs = epochs(scvi_dataloaders.AnnDataLoader)
    assert_same(epochs(Ours), theirs)
    assert len(theirs[0]) == 7
