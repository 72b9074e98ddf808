"""The datasets that read URLs; each reads the same files from any root."""

import slipring
from slipring import images
from slipring.arrow import TableDataset
from tests.support.options import grouped
from tests.support.processes import LONG_S

CROP = images.CenterCrop(20)


def source(kind, root, **options):
    """Return the dataset; `root` is a folder or a URL."""
    if kind == "Tar":
        return images.Tar([f"{root}/0.tar", f"{root}/1.tar"], CROP, **options)
    if kind == "TarStream":
        return images.TarStream([f"{root}/0.tar", f"{root}/1.tar"], CROP, **options)
    if kind == "Parquet":
        return images.Parquet(f"{root}/rows.parquet", CROP, **options)
    if kind == "Folder":
        return images.Folder(f"{root}/classes", CROP, **options)
    name = {"TableDataset": "rows.parquet", "TableDataset of IPC": "rows.arrow"}.get(kind, "stream.arrow")
    return TableDataset(f"{root}/{name}", columns=["label", "text"], **options)


def rows(data, **options):
    """Return the batches of a loader in a form for comparison."""
    with slipring.Loader(data, 8, timeout=LONG_S, seed=3, **grouped(**options)) as loader:
        return [plain(batch) for batch in loader]


def plain(batch):
    """Return a batch in a form for comparison."""
    if isinstance(batch, dict):
        return batch["label"].tolist(), list(batch["text"])
    pictures, labels = batch
    return pictures.tobytes(), labels.tolist()
