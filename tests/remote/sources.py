"""The datasets that read URLs; each reads the same files from any root."""

import slipring
from slipring import images
from slipring.arrow import TableDataset
from tests.support.options import grouped

CROP = images.CenterCrop(20)
MAPS = ("Tar", "Parquet", "Folder", "TableDataset", "TableDataset of IPC", "TableDataset of a stream")


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


def plain(batch):
    """Return a batch in a form for comparison."""
    if isinstance(batch, dict):
        return batch["label"].tolist(), list(batch["text"])
    pictures, labels = batch
    return pictures.tobytes(), labels.tolist()


class Together:
    """The samples of several datasets as text, in order: one worker reads them all."""

    def __init__(self, datasets):
        self.datasets = datasets

    def __len__(self):
        return sum(map(len, self.datasets))

    def __getitem__(self, i):
        for data in self.datasets:
            if i < len(data):
                sample = data[i]
                return repr(sample if isinstance(sample, dict) else (sample[0].tobytes(), sample[1]))
            i -= len(data)
        raise IndexError


def listed(data, **options):
    """Return the batches of a loader of such a dataset."""
    with slipring.Loader(data, 16, collate_fn=list, timeout=100, **grouped(**options)) as loader:
        return [sample for batch in loader for sample in batch]
