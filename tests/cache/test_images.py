"""Datasets of images with a cache: the same batches as without one, for any number of workers."""

import os
import random

import numpy as np
import pytest

import slipring
from slipring import images
from slipring.errors import CacheMismatch, ImageError
from tests.support.options import grouped

pytest.importorskip("PIL")
from PIL import Image

from tests.support.pictures import encoded, pixels
from tests.support.shards import files, shard

N = 24
CROP = images.RandomResizedCrop((16, 20), flip=0.5)


def pictures():
    draw = random.Random(3)
    for number in range(N):
        array = pixels(draw.randint(20, 90), draw.randint(20, 90), number)
        kind = number % 6
        if kind == 0:
            yield encoded(array, "PNG")
        elif kind == 1:
            yield encoded(array[..., 0], "JPEG")  # grey
        elif kind == 2:
            yield encoded(array, "JPEG", progressive=True, subsampling="4:2:0")
        elif kind == 3:
            exif = Image.Exif()
            exif[0x0112] = 1 + number % 8
            yield encoded(array, "JPEG", exif=exif.tobytes())
        else:
            yield encoded(array, "JPEG", subsampling="4:4:4" if kind == 4 else "4:2:2")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("train")
    for number, data in enumerate(pictures()):
        folder = root / ["cat", "dog"][number % 2]
        folder.mkdir(exist_ok=True)
        (folder / f"{number:03}.jpg").write_bytes(data)
    return root


def epochs(data, n=2, **options):
    with slipring.Loader(data, 7, shuffle=True, seed=5, **grouped(**{"num_workers": 1, **options})) as loader:
        return [(np.asarray(batch).tobytes(), targets.tolist()) for _ in range(n) for batch, targets in loader]


@pytest.mark.parametrize(
    ("form", "what", "options"),
    [
        ({}, "pixels", {"num_workers": 0}),
        ({"exif": True}, "pixels", {"num_workers": 3}),
        ({"side": 24, "exif": True}, "encoded", {"num_workers": 2, "start_method": "thread"}),
        ({"side": 24, "reducing_gap": 2.0}, "pixels", {"num_workers": 1}),
        ({"layout": "NCHW", "dtype": "float32", "mean": [0.5] * 3}, "pixels", {"num_workers": 1}),
        ({"layout": "NCHW", "dtype": "float32", "mean": [0.5] * 3}, "encoded", {"num_workers": 2, "chunk_size": 2}),
        ({"side": 200}, "encoded", {"num_workers": 1}),
    ],
)
def test_batches_are_the_same_with_and_without_a_cache(root, form, what, options):
    expected = epochs(images.Folder(root, CROP, **form), chunk_size=options.get("chunk_size"))
    data = images.Folder(root, CROP, **form, cache="64MiB", what=what)
    assert epochs(data, **options) == expected
    stats = data.cache.stats()
    assert (stats.entries, stats.misses, stats.hits) == (N, N, N)


def test_batches_of_truncated_files_are_the_same_with_and_without_a_cache(tmp_path):
    (tmp_path / "cat").mkdir()
    for number in range(12):
        data = encoded(pixels(80, 90, number), "JPEG", progressive=number % 3 > 0)
        (tmp_path / "cat" / f"{number:02}.jpg").write_bytes(data[: len(data) * (number + 9) // 22])
    expected = epochs(images.Folder(tmp_path, CROP, truncated="fill"))
    assert epochs(images.Folder(tmp_path, CROP, truncated="fill", cache="8MiB")) == expected


@pytest.mark.parametrize(("budget", "form"), [(1, {}), ("30KB", {"side": 24}), ("60KB", {})])
def test_batches_are_the_same_where_the_cache_is_too_small(root, form, budget):
    data = images.Folder(root, CROP, **form, cache=budget)
    assert epochs(data) == epochs(images.Folder(root, CROP, **form))
    assert data.cache.stats().entries < N and data.cache.stats().refused > 0


@pytest.mark.parametrize("transform", [None, [images.Resize(20), images.CenterCrop(16)], images.CenterCrop(100)])
def test_single_samples_are_the_same_with_other_transforms(root, transform):
    plain = images.Folder(root, transform, exif=True)
    kept = images.Folder(root, transform, exif=True, cache="64MiB")
    for _ in range(2):
        for index in range(N):
            ours, theirs = kept[index], plain[index]
            assert ours[1] == theirs[1] and np.array_equal(ours[0], theirs[0])
            assert ours[0].flags.writeable


def test_side_shrinks_the_shorter_side_and_enlarges_nothing(tmp_path):
    sizes = [(60, 80), (80, 60), (20, 70), (31, 30)]
    rows = [(encoded(pixels(*size), "PNG"), i) for i, size in enumerate(sizes)]
    data = images.Bytes(rows, side=30, cache="1MiB")
    for _ in range(2):
        assert [data[i][0].shape[:2] for i in range(4)] == [(30, 40), (40, 30), (20, 70), (31, 30)]
    plain = images.Bytes(rows, images.Resize(30))
    for i in (0, 1):  # Resize shrinks
        assert np.array_equal(data[i][0], plain[i][0])


def test_targets_of_all_kinds_come_from_the_cache(tmp_path):
    path = shard(tmp_path / "a.tar", files(6))
    data = images.Tar(path, CROP, target="json", cache="1MiB")
    first = [data[i][1] for i in range(6)]
    assert first == [{"number": i} for i in range(6)] == [data[i][1] for i in range(6)]
    os.unlink(path)
    assert data[3][1] == {"number": 3}


@pytest.mark.parametrize("what", ["pixels", "encoded"])
def test_a_hit_reads_no_file(tmp_path, what):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(encoded(pixels(40, 30), "JPEG"))
    data = images.Folder(tmp_path, images.CenterCrop(24), cache="1MiB", what=what)
    first, target = data[0]
    (tmp_path / "cat" / "a.jpg").unlink()
    assert np.array_equal(data[0][0], first) and data[0][1] == target == 0


def test_images_of_a_table_are_kept_until_the_file_is_replaced(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, cache = tmp_path / "a.parquet", slipring.Cache("64MiB")
    pq.write_table(pa.table({"image": list(pictures()), "label": list(range(N))}), path)
    data = images.Parquet(path, CROP, cache=cache)
    assert epochs(data) == epochs(images.Parquet(path, CROP)) and cache.stats().hits == cache.stats().entries == N
    pq.write_table(pa.table({"image": list(pictures())[1:], "label": list(range(N - 1))}), path)
    with pytest.raises(CacheMismatch):
        images.Parquet(path, CROP, cache=cache)


class WithPath(images.Folder):
    def read(self, index):
        data, target = super().read(index)
        return data, (target, self.name(index))


def test_a_folder_whose_targets_are_others_keeps_those(root):
    plain, kept = WithPath(root, CROP), WithPath(root, CROP, cache="64MiB")
    for _ in range(2):
        assert [kept[i][1] for i in range(4)] == [plain[i][1] for i in range(4)]


def test_a_folder_that_reads_other_bytes_does_not_share_a_folders_entries(root):
    cache = slipring.Cache("64MiB")
    first = images.Folder(root, CROP, cache=cache)
    first[0]
    with pytest.raises(CacheMismatch):
        WithPath(root, CROP, cache=cache)[0]
    named = slipring.Cache("64MiB", name=f"test-{os.getpid()}-folders")
    with pytest.raises(ValueError, match="fingerprint"):
        WithPath(root, CROP, cache=named)[0]


def test_a_targets_transform_is_called_once_per_sample(root):
    called = []
    data = images.Folder(root, CROP, cache="64MiB", target_transform=lambda target: called.append(target) or -target)
    assert data[1][1] == -data.targets[1] and data[1][1] == -data.targets[1] and len(called) == 2


class Late(images.Folder):
    def __init__(self, root, version):
        super().__init__(root, CROP, cache="64MiB")
        self.version = version

    def fingerprint(self):
        return f"{super().fingerprint()} {self.version}"


def test_a_fingerprint_may_depend_on_attributes_that_are_set_later(root):
    assert Late(root, 3)[0][1] == 0


def test_one_set_of_bytes_may_be_cached_twice_in_one_cache_and_other_parts_of_it_not():
    rows = [{"a": data, "b": data, "label": 0} for data in pictures()]
    cache = slipring.Cache("64MiB")
    first = images.Bytes(rows, CROP, image="a", target="label", cache=cache)
    second = images.Bytes(rows, CROP, image="a", target="label", cache=cache)
    assert first[0][0].shape == second[0][0].shape and len(cache) == 1
    with pytest.raises(CacheMismatch):
        images.Bytes(rows, CROP, image="b", target="label", cache=cache)


class Gone:
    """A target whose class does not exist in the next program."""


def test_a_target_that_does_not_come_back_any_more_is_read_again(monkeypatch):
    rows = [(next(pictures()), Gone())]
    data = images.Bytes(rows, CROP, cache="1MiB")
    assert isinstance(data[0][1], Gone) and len(data.cache) == 1
    monkeypatch.delattr(__import__(__name__, fromlist=["Gone"]), "Gone")
    assert data[0][1] is rows[0][1] and data.cache.stats().refused_other == 1


def test_a_stream_takes_no_cache_and_kept_images_have_no_smaller_scale(tmp_path, root):
    with pytest.raises(ValueError, match="a stream has none"):
        images.TarStream(shard(tmp_path / "a.tar", files(3)), cache="1MiB")
    with pytest.raises(ValueError, match="reducing_gap"):
        images.Folder(root, CROP, reducing_gap=2.0, cache="1MiB")


def test_one_cache_serves_loaders_with_other_crops(root):
    cache = slipring.Cache("64MiB")
    for transform in (CROP, images.CenterCrop(16)):
        epochs(images.Folder(root, transform, cache=cache), 1)
    assert cache.stats().misses == N and cache.stats().hits == N


@pytest.mark.parametrize("other", [{"side": 24}, {"what": "encoded"}, {"exif": True}, {"truncated": "fill"}], ids=str)
def test_images_of_another_form_are_refused(root, other):
    cache = slipring.Cache("64MiB")
    images.Folder(root, CROP, cache=cache)
    with pytest.raises(CacheMismatch, match="the cache holds pixels of 24 images of Folder; this is"):
        images.Folder(root, CROP, cache=cache, **other)


def replaced(path, size=None, at=None):
    status = os.stat(path)
    other = encoded(pixels(30, 30, 99), "PNG")
    path.write_bytes(other.ljust(status.st_size if size is None else size, b"\0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns if at is None else at))


@pytest.mark.parametrize("change", [{"size": 30_000}, {"at": 10**18}], ids=str)
def test_a_folder_whose_file_was_replaced_is_refused_by_a_cache_with_a_name(tmp_path, change):
    (tmp_path / "cat").mkdir()
    for number in range(2):
        (tmp_path / "cat" / f"{number}.png").write_bytes(encoded(pixels(60, 60, number), "PNG"))
    name = f"test-{os.getpid()}-{random.getrandbits(32)}"
    with slipring.Cache("8MiB", name=name) as first, slipring.Cache("8MiB", name=name) as second:
        images.Folder(tmp_path, CROP, cache=first)[0]
        images.Folder(tmp_path, CROP, cache=second)[0]
        assert second.stats().hits == 1
        replaced(tmp_path / "cat" / "1.png", **change)
        with pytest.raises(CacheMismatch):
            images.Folder(tmp_path, CROP, cache=second)


def test_a_folder_of_a_file_system_whose_file_was_replaced_is_refused(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    (tmp_path / "cat").mkdir()
    path = tmp_path / "cat" / "a.png"
    path.write_bytes(encoded(pixels(60, 60), "PNG"))
    cache = slipring.Cache("8MiB")
    storage = slipring.Storage(fsspec.filesystem("file"))
    for _ in range(2):
        images.Folder(str(tmp_path), CROP, cache=cache, storage=storage)
    replaced(path, at=10**18)
    with pytest.raises(CacheMismatch):
        images.Folder(str(tmp_path), CROP, cache=cache, storage=storage)


def test_a_file_that_is_gone_is_an_error_when_it_is_read_and_not_before(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(encoded(pixels(60, 60), "PNG"))
    (tmp_path / "cat" / "b.png").symlink_to(tmp_path / "nowhere")
    data = images.Folder(tmp_path, CROP, cache="1MiB")
    assert data[0][1] == 0
    with pytest.raises(ImageError, match=r"b\.png"):
        data[1]


def test_a_shard_that_has_changed_is_another_dataset(tmp_path):
    cache, path = slipring.Cache("64MiB"), tmp_path / "a.tar"
    images.Tar(shard(path, files(3)), cache=cache)
    images.Tar(path, cache=cache)
    with pytest.raises(CacheMismatch):
        images.Tar(shard(path, files(4)), cache=cache)


def test_bytes_with_a_name_want_a_fingerprint():
    rows = [(data, 0) for data in pictures()]
    cache = slipring.Cache("64MiB", name=f"test-{os.getpid()}-{random.getrandbits(32)}")
    with pytest.raises(ValueError, match="give fingerprint="):
        images.Bytes(rows, cache=cache)
    assert images.Bytes(rows, CROP, cache=cache, fingerprint="v1")[0][0].shape == (16, 20, 3)
    with pytest.raises(CacheMismatch):
        images.Bytes(rows, CROP, cache=cache, fingerprint="v2")


@pytest.mark.parametrize("what", ["pixels", "encoded"])
def test_a_bad_file_is_an_error_each_time_and_named(tmp_path, what):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(encoded(pixels(30, 30), "JPEG"))
    (tmp_path / "cat" / "b.jpg").write_bytes(encoded(pixels(30, 30), "JPEG")[:200])
    data = images.Folder(tmp_path, CROP, cache="1MiB", what=what)
    for _ in range(2):
        with pytest.raises(ImageError, match=r"b\.jpg \(index 1\)"):
            data[1]
        assert data[0][1] == 0
    skipping = images.Folder(tmp_path, CROP, cache="1MiB", what=what, on_error="skip")
    assert epochs(skipping) == epochs(images.Folder(tmp_path, CROP, on_error="skip"))


def test_a_bomb_is_refused_before_it_is_kept():
    data = images.Bytes([(encoded(np.zeros((60, 60, 3), np.uint8), "PNG"), 0)], max_pixels=1000, cache="1MiB")
    with pytest.raises(ImageError, match="raise max_pixels"):
        data[0]


def test_cached_warns_that_random_transforms_give_one_result_for_all_epochs(root):
    steps = [images.CenterCrop(16), images.RandomHorizontalFlip()]
    with pytest.warns(UserWarning, match=r"the transform of Folder.* draws random numbers.*cached\(...\).map"):
        slipring.cached(images.Folder(root, steps), "8MiB")
    steps = [images.Resize(20), images.CenterCrop(16), images.RandomHorizontalFlip(1)]
    slipring.cached(images.Folder(root, steps), "8MiB")  # a warning is an error in these tests


def test_cached_warns_of_other_libraries_random_transforms_inside_wrappers():
    class Subset:
        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index

    compose, crop, resize = (
        type(name, (), {"__module__": "torchvision.transforms.transforms"})()
        for name in ("Compose", "RandomCrop", "Resize")
    )
    inner = Subset(None)
    inner.transform, compose.transforms = compose, [resize]
    slipring.cached(Subset(inner), "8MiB")
    compose.transforms = [resize, crop]
    with pytest.warns(UserWarning, match="torchvision's RandomCrop draws random numbers"):
        slipring.cached(Subset(inner), "8MiB")
