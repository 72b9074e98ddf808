"""Hugging Face's datasets, which consist of Arrow tables, in our loaders."""

import numpy as np
import pytest

from slipring import Workers

datasets = pytest.importorskip("datasets", reason="pip install -r requirements-clients.txt")

import slipring  # noqa: E402

N = 40


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return datasets.Dataset.from_dict(
        {
            "image": rng.integers(0, 255, (N, 4, 6), np.uint8),
            "label": np.arange(N),
            "text": [f"text {i}" for i in range(N)],
        }
    )


def check(batches, table, kind, order=None):
    labels = []
    for batch in batches:
        assert type(batch["image"]) is kind
        # In the numpy format, the text of a sample is a numpy.str_, and that of a batch an array of them.
        assert type(batch["text"]) is (np.ndarray if kind is np.ndarray else list)
        labels += np.asarray(batch["label"]).tolist()
        for image, label, text in zip(batch["image"], batch["label"], batch["text"], strict=True):
            assert text == f"text {int(label)}"
            assert np.asarray(image).tolist() == table[int(label)]["image"]
    assert sorted(labels) == list(range(N))
    assert order is None or labels == order


@pytest.mark.parametrize("workers", [0, 2])
def test_numpy_batches_come_by_one_read_each(table, workers, monkeypatch):
    reads = []
    theirs = datasets.Dataset.__getitems__
    monkeypatch.setattr(datasets.Dataset, "__getitems__", lambda d, keys: (reads.append(len(keys)), theirs(d, keys))[1])
    with slipring.Loader(table.with_format("numpy"), 8, num_workers=workers) as loader:
        check(loader, table, np.ndarray, list(range(N)))
        assert loader.stats().pickled_leaves == 0
    assert workers or reads == [8] * 5


def test_torch_batches_are_shuffled_as_torchs_loader_shuffles_them(table):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    table = table.with_format("torch")

    def shuffled(cls):
        return cls(table, 8, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(3))

    theirs = [batch["label"].tolist() for batch in shuffled(torch.utils.data.DataLoader)]
    with shuffled(DataLoader) as loader:
        assert [batch["label"].tolist() for batch in loader] == theirs
        check(loader, table.with_format(None), torch.Tensor)


def test_a_memory_mapped_dataset_reaches_spawned_workers(table, tmp_path):
    datasets.disable_progress_bars()
    table.save_to_disk(tmp_path / "saved")
    mapped = datasets.load_from_disk(str(tmp_path / "saved")).with_format("numpy")
    with slipring.Loader(mapped, 8, num_workers=2, workers=Workers(start_method="spawn")) as loader:
        check(loader, table, np.ndarray)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_gives_each_worker_its_shards_and_says_where_it_is(table, workers):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    def loader():
        return DataLoader(table.to_iterable_dataset(num_shards=4).with_format("torch"), 4, num_workers=workers)

    check(loader(), table, torch.Tensor)

    first = loader()
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    state = first.state_dict()
    rest = [batch["label"].tolist() for batch in iterator]
    resumed = loader()
    resumed.load_state_dict(state)
    assert [batch["label"].tolist() for batch in resumed] == rest
    assert len(rest) == 6


def test_images_that_load_dataset_caches_by_their_paths_are_read(tmp_path, monkeypatch):
    from slipring import images
    from tests.support.pictures import encoded, pixels

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for number in range(6):
        path = tmp_path / "photos" / ["cat", "dog"][number % 2] / f"{number} ü.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(pixels(8, 9, number), "PNG"))
    made = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "photos"), split="train", cache_dir=str(tmp_path / "cache")
    )
    data = images.Parquet([file["filename"] for file in made.cache_files])
    assert len(data) == 6
    for row, (image, label) in zip(made, data, strict=True):
        assert np.array_equal(np.asarray(row["image"].convert("RGB")), image) and row["label"] == label
