"""Datasets of images in loaders: the same bytes in every kind of worker, and errors that name the file."""

import errno
import os
import random
import shutil
import sys
import threading

import numpy as np
import pytest

import slipring
from slipring import Workers, images
from slipring.errors import ImageError
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels
from tests.support.processes import LONG_S

N = 37


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("train")
    draw = random.Random(3)
    for number in range(N):
        folder = root / ["cat", "dog", "Zebra"][number % 3] / ["", "deep/er"][number % 4 == 0]
        folder.mkdir(parents=True, exist_ok=True)
        array = pixels(draw.randint(20, 90), draw.randint(20, 90), number)
        format = ["JPEG", "JPEG", "JPEG", "PNG"][number % 4]
        ending = {"JPEG": ".JPG", "PNG": ".png"}[format] if number % 5 else ".jpeg"  # some have the wrong suffix
        (folder / f"{number:03}{ending}").write_bytes(encoded(array, format))
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "list.csv").write_text("no folder")
    return root


def crops(root, **options):
    return images.Folder(root, images.RandomResizedCrop((16, 20)), **options)


def test_classes_and_samples_are_those_of_imagefolder(root):
    data = images.Folder(root)
    assert data.classes == ["Zebra", "cat", "dog"]
    assert data.class_to_idx == {"Zebra": 0, "cat": 1, "dog": 2}
    expected = []
    for number, name in enumerate(data.classes):
        for folder, _, files in sorted(os.walk(root / name)):
            expected += [(os.path.join(folder, file), number) for file in sorted(files) if not file.endswith(".txt")]
    assert data.samples == expected and len(data) == N
    assert data.targets.tolist() == [target for _, target in expected]


def test_a_folder_without_classes_or_images_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="one per class"):
        images.Folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"class folders empty .* allow_empty=True"):
        images.Folder(tmp_path)
    assert len(images.Folder(tmp_path, allow_empty=True)) == 0


@pytest.mark.parametrize(
    ("source", "given", "meant"),
    [
        (images.Folder, "extension", "extensions"),
        (images.TarStream, "shufle", "shuffle"),
        (images.Parquet, "on_eror", "on_error"),
    ],
)
def test_a_misspelt_option_names_the_nearest_one(source, given, meant):
    name = source.__name__
    with pytest.raises(TypeError, match=rf"{name}.__init__\(\) got .* argument '{given}'. Did you mean '{meant}'"):
        source("unread/", **{given: 1})


def test_a_target_transform_is_called_with_each_target(root):
    data = crops(root, target_transform=lambda target: 10 * target)
    with slipring.Loader(data, 5, num_workers=1) as loader:
        targets = [target for _, batch in loader for target in batch.tolist()]
    assert targets == (10 * data.targets).tolist()
    assert images.Bytes([(encoded(pixels(8, 8)), 3)], target_transform=str)[0][1] == "3"


def epochs(data, n=2, **options):
    options = {"batch_size": 8, "shuffle": True, "seed": 5, **options}
    with slipring.Loader(data, **grouped(**options)) as loader:
        return [[(x.tobytes(), y.tolist()) for x, y in loader] for _ in range(n)]


@pytest.fixture(scope="module")
def plain(root):
    return epochs(crops(root), num_workers=0)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 3},
        {"num_workers": 2, "start_method": "thread"},
        {"num_workers": 1, "start_method": "spawn"},
        {"num_workers": 2, "chunk_size": 3},
    ],
    ids=str,
)
def test_batches_are_the_same_from_every_kind_of_worker(root, plain, options):
    assert epochs(crops(root), **options) == plain


def test_epochs_and_rows_have_crops_of_their_own(root):
    data = images.Folder(root, images.RandomResizedCrop(16))
    first, second = epochs(data, batch_size=1, shuffle=False, num_workers=2)
    assert sum(a == b for a, b in zip(first, second)) < N / 4
    twice = slipring.Loader(data, sampler=[5, 5, 5, 5], batch_size=4, seed=1)
    with twice:
        ((batch, _),) = twice
        assert len({row.tobytes() for row in batch}) == 4


@pytest.mark.parametrize("kind", ["slipring", "torch"])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "chunk_size": 2}], ids=str)
def test_with_rng_sample_other_ranks_draw_the_same_crops_although_batches_are_made_whole(root, kind, options):
    torch = pytest.importorskip("torch") if kind == "torch" else None
    data = images.Folder(root, images.RandomResizedCrop(16))
    data.targets = np.arange(N)  # so that a batch names its samples

    def crops_of(n, **options):
        found = {}
        for rank in range(n):
            sampler = slipring.BatchSampler(N, 12 // n, shuffle=True, seed=4, rank=rank, world_size=n, drop_last=True)
            options |= {"batch_sampler": sampler, "rng": "sample"}
            if torch:
                from slipring.torch import DataLoader

                loader = DataLoader(data, generator=torch.Generator().manual_seed(4), **grouped(**options))
            else:
                loader = slipring.Loader(data, seed=4, **grouped(**options))
            with loader:
                for shown, targets in loader:
                    found.update(zip(targets.tolist(), [crop.tobytes() for crop in np.asarray(shown)]))
        return found

    want = crops_of(1)
    assert len(want) == len(set(want.values())) == 36 and crops_of(3, **options) == want


def test_torchs_loader_has_the_same_bytes_for_the_same_seeds_and_counts_skipped_samples(spoiled):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    runs = []
    for workers in (0, 2):
        torch.manual_seed(11)
        data = crops(spoiled[0], on_error="skip")
        with DataLoader(data, batch_size=8, shuffle=True, num_workers=workers, rng="batch") as loader:
            runs.append([(x.numpy().tobytes(), y.tolist()) for x, y in loader])
            assert loader.stats().skipped_samples >= 2
    assert runs[0] == runs[1]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_a_batch_is_decoded_in_its_slot(root, dtype):
    pytest.importorskip("torch")
    data = crops(root, dtype=dtype, layout="NCHW")
    with slipring.Loader(data, 8, num_workers=1) as loader:
        x, _ = next(iter(loader))
        assert tuple(x.shape) == (8, 3, 16, 20) and str(x.dtype).removeprefix("torch.") == dtype
        assert loader.stats().pickled_leaves == 0


@pytest.mark.parametrize("given", ["bfloat16", "ml_dtypes.bfloat16"])
def test_bfloat16_needs_ml_dtypes_alone_and_gives_the_values_of_torch(root, given, monkeypatch):
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    with slipring.Loader(crops(root, dtype="bfloat16"), 8, num_workers=1, seed=1) as loader:
        wanted = next(iter(loader))[0].view(torch.uint16).numpy().copy()
    if given == "bfloat16":
        monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    dtype = given if given == "bfloat16" else ml_dtypes.bfloat16
    with slipring.Loader(crops(root, dtype=dtype), 8, num_workers=1, seed=1) as loader:
        x, _ = next(iter(loader))
        assert x.dtype == ml_dtypes.bfloat16 and np.array_equal(x.view(np.uint16), wanted)
        assert loader.stats().pickled_leaves == 0
    for name in ("torch", "ml_dtypes"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="dtype='bfloat16' needs torch or ml_dtypes: install one of them"):
        crops(root, dtype="bfloat16")


@pytest.fixture
def spoiled(root, tmp_path):
    shutil.copytree(root, tmp_path / "spoiled")
    paths = [path for path, _ in images.Folder(tmp_path / "spoiled").samples]
    with open(paths[4], "r+b") as file:
        file.truncate(os.path.getsize(paths[4]) // 2)
    open(paths[5], "wb").close()
    return tmp_path / "spoiled", paths


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_file_is_named_with_path_and_index(spoiled, workers):
    root, paths = spoiled
    with slipring.Loader(crops(root), 8, num_workers=workers) as loader, pytest.raises(ImageError) as caught:
        next(iter(loader))
    assert caught.value.index == 4 and caught.value.path == paths[4]
    assert paths[4] in str(caught.value) and "index 4" in str(caught.value)
    cause = caught.value.__cause__
    assert (cause.index, cause.row) == (4, 4) and not hasattr(caught.value, "_slipring_position")


@pytest.mark.parametrize("workers", [0, 1])
def test_the_row_of_a_sample_that_a_wrapped_dataset_cannot_give_is_that_of_the_batch(workers):
    def refuse(sample):
        if sample[1] == 5:
            raise ValueError("corrupt row")
        return sample

    rows = slipring.cached([(encoded(pixels(8, 8)), index) for index in range(8)], "1MiB").map(refuse)
    data = images.Bytes(rows, images.CenterCrop(4), cache="1MiB")
    _ = data[1]  # it is not read again, so positions differ in the inner call
    options = grouped(num_workers=workers, start_method="fork")
    with slipring.Loader(data, 4, sampler=[0, 1, 2, 3, 4, 1, 5, 6], **options) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ValueError, match="corrupt row") as caught:
            next(batches)
    assert (caught.value.__cause__.index, caught.value.__cause__.row) == (5, 2)


@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": 0},
        {"num_workers": 2, "start_method": "thread"},
        {"num_workers": 2, "chunk_size": 3},
        {"num_workers": 1, "collate_fn": slipring.default_collate},
    ],
    ids=["inline", "threads", "chunks", "one by one"],
)
def test_the_next_good_file_replaces_a_bad_one_which_is_counted(spoiled, how):
    root, _ = spoiled
    data = images.Folder(root, images.Resize((8, 8)), on_error="skip")
    with slipring.Loader(data, 8, **grouped(**how)) as loader:
        for epoch in (1, 2):
            crop, target = next(batches := iter(loader))
            assert all(np.array_equal(crop[i], crop[6]) and target[i] == target[6] for i in (4, 5))
            for _ in batches:
                pass
            assert loader.stats().skipped_samples == 3 * epoch  # the sample after the fourth is bad, too


class Failing(images.Bytes):
    number = None

    def read(self, index):
        if index == 0:
            raise OSError(self.number, os.strerror(self.number))
        return super().read(index)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ESTALE])
def test_errors_of_the_machine_skip_no_file(number):
    data = Failing([(encoded(pixels(8, 8)), 0)] * 2, on_error="skip")
    data.number = number
    with pytest.raises(ImageError, match=os.strerror(number)):
        data[0]


def test_names_that_are_no_utf_8_are_names_like_others(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"cl\xe4ss")
    os.mkdir(folder)
    for number in range(3):
        with open(os.path.join(folder, b"\xff%d.jpg" % number), "wb") as file:
            file.write(encoded(pixels(20, 30)) if number else b"")
    data = images.Folder(tmp_path, images.Resize((8, 8)), on_error="skip")
    assert data.classes == [os.fsdecode(b"cl\xe4ss")]
    assert os.fsencode(data.samples[2][0]) == os.path.join(folder, b"\xff2.jpg")
    with slipring.Loader(data, 3, num_workers=1) as loader:  # a worker logs the name: pytest cannot report it
        assert next(iter(loader))[0].shape == (3, 8, 8, 3)
    data.on_error = "raise"
    with slipring.Loader(data, 3, num_workers=1) as loader, pytest.raises(ImageError) as caught:
        next(iter(loader))
    assert caught.value.path == data.samples[0][0]


def test_if_no_file_can_be_read_the_search_ends_and_one_that_has_gone_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"nothing")
    data = images.Folder(tmp_path, on_error="skip")
    with pytest.raises(ImageError, match="none of the 3 images"):
        data[1]
    data.on_error = "raise"
    os.unlink(tmp_path / "a" / "1.jpg")
    with pytest.raises(ImageError, match=r"1\.jpg \(index 1\): .*No such file"):
        data[1]


@pytest.mark.parametrize(
    ("samples", "where"),
    [
        (lambda d: [(d, 3)], {}),
        (lambda d: [{"jpg": d, "cls": 3}], {"image": "jpg", "target": "cls"}),
        (lambda d: [{"image": {"bytes": d, "path": None}, "label": 3}], {"image": "image", "target": "label"}),
        (lambda d: [[3, np.frombuffer(d, np.uint8)]], {"image": 1, "target": 0}),
    ],
)
def test_bytes_are_found_wherever_a_sample_has_them(samples, where):
    data = encoded(pixels(30, 40))
    x, y = images.Bytes(samples(data), images.Resize((10, 12)), **where)[0]
    want, _ = images.Bytes([(data, 3)], images.Resize((10, 12)))[0]
    assert y == 3 and np.array_equal(x, want)


def test_a_sample_without_bytes_is_refused_with_its_keys():
    with pytest.raises(TypeError, match=r"sample 0 has no 'jpg' .* the keys png, cls"):
        images.Bytes([{"png": b"", "cls": 1}], image="jpg", target="cls")[0]
    with pytest.raises(TypeError, match=r"must be encoded bytes, not int"):
        images.Bytes([(3, 4)])[0]
    with pytest.raises(TypeError, match="__len__"):
        images.Bytes(iter([]))


def test_an_index_out_of_range_is_an_index_error(root):
    data = crops(root)
    for index in (N, -N - 1):
        with pytest.raises(IndexError, match=f"has {N} images"):
            data[index]
    assert data[-1][1] == data[N - 1][1]


class Together(images.Folder):
    """Files that can be read only four at a time."""

    at_once = 4

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "barrier"}

    def read(self, index):
        self.__dict__.setdefault("barrier", threading.Barrier(self.at_once)).wait(LONG_S)
        return super().read(index)


def test_fetch_threads_read_files_concurrently_and_the_bytes_stay_the_same(root):
    options = {"n": 1, "batch_size": 12, "shuffle": False, "sampler": range(36), "num_workers": 1}
    together = Together(root, images.RandomResizedCrop((16, 20)))
    assert epochs(together, fetch_threads=4, **options) == epochs(crops(root), **options)


def test_a_file_that_threads_cannot_read_is_named_or_passed_over(root, tmp_path):
    shutil.copytree(root, tmp_path / "train")
    data = crops(tmp_path / "train")
    os.unlink(data.name(5))
    with (
        slipring.Loader(data, 37, workers=Workers(fetch_threads=4)) as loader,
        pytest.raises(ImageError, match="index 5") as caught,
    ):
        next(iter(loader))
    assert caught.value.path == data.name(5)
    data.on_error = "skip"
    with slipring.Loader(data, 37, workers=Workers(fetch_threads=4)) as loader:
        assert len(next(iter(loader))[1]) == N
        assert loader.stats().skipped_samples == 1


class Fewer(list):
    def __getitems__(self, indices):
        return [self[i] for i in indices if i != 1]


@pytest.mark.parametrize("cached", [False, True])
def test_a_dataset_that_returns_fewer_samples_than_indices_is_an_error(cached):
    """Pictures and targets would not match, and a cache would keep them so."""
    fewer = Fewer((encoded(pixels(20, 20)), i) for i in range(4))
    data = images.Bytes(fewer, images.CenterCrop(4), fingerprint="fewer", **({"cache": "8MiB"} if cached else {}))
    with (
        slipring.Loader(data, batch_size=4) as loader,
        pytest.raises(ValueError, match="3 samples for 4 indices"),
    ):
        next(iter(loader))
    with pytest.raises(ValueError, match="3 samples for 4 indices"):
        slipring.cached(fewer, "8MiB").__getitems__([0, 1, 2, 3])
