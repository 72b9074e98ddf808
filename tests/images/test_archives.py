"""Images in tar shards and in tables."""

import os
import pickle

import numpy as np
import pytest

import slipring
from slipring import images
from slipring.errors import ImageError
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels
from tests.support.shards import files, plain, shard

FIT = images.Resize((12, 16))


@pytest.fixture
def shards(tmp_path):
    return [shard(tmp_path / f"{k}.tar", files(10, 10 * k)) for k in range(3)]


def test_samples_of_shards_can_be_had_in_any_order(shards):
    data = images.Tar(shards, FIT)
    assert len(data) == 30 and data.keys[13] == "a/0013"
    data = pickle.loads(pickle.dumps(data))  # a spawned worker's copy
    before = len(os.listdir("/proc/self/fd"))
    for number in (29, 0, 13, 9, 10):
        image, label = data[number]
        assert label == number % 7 and np.array_equal(image, plain(number, FIT))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("ending", "content"),
    [("cls", b"seven"), ("json", b"{broken"), ("txt", b"\xff")],
    ids=["cls", "json", "txt"],
)
def test_a_target_that_cannot_be_read_is_named(tmp_path, ending, content):
    path = shard(tmp_path / "0.tar", [("a/7.jpg", encoded(pixels(8, 8))), (f"a/7.{ending}", content)])
    with pytest.raises(ImageError, match=rf"a/7 in .*0\.tar \(index 0\): the target \.{ending} is broken") as caught:
        images.Tar(path, target=ending)[0]
    assert caught.value.path == f"a/7 in {path}" and caught.value.index == 0


@pytest.mark.parametrize(
    ("target", "want"), [("json", {"number": 4}), ("txt;json", {"number": 4}), (None, "a/0004"), ("cls", 4)]
)
def test_targets_are_decoded_by_their_suffix(shards, target, want):
    assert images.Tar(shards, FIT, target=target)[4][1] == want


def test_an_index_is_kept_beside_the_shard_and_made_again_with_it(shards):
    first = images.Tar(shards, FIT, index="sidecar")
    kept = [path.with_name(path.name + ".index.npz") for path in shards]
    assert all(path.exists() for path in kept)
    stamps = [path.stat().st_mtime_ns for path in kept]
    again = images.Tar(shards, FIT, index="sidecar")
    assert [path.stat().st_mtime_ns for path in kept] == stamps
    assert again[17][1] == first[17][1]
    shard(shards[0], files(4))
    assert len(images.Tar(shards, FIT, index="sidecar")) == 24
    for damaged in (b"rubbish", kept[1].read_bytes()[:-3], b""):
        kept[1].write_bytes(damaged)
        assert len(images.Tar(shards, FIT, index="sidecar")) == 24
    assert sorted(path.name for path in shards[0].parent.iterdir()) == sorted(
        name for path in shards for name in (path.name, path.name + ".index.npz")
    )


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_user_who_may_read_a_shard_may_read_its_index(shards, mode):
    shards[0].chmod(mode)
    images.Tar(shards[0], FIT, index="sidecar")
    kept = shards[0].with_name(shards[0].name + ".index.npz")
    assert kept.stat().st_mode & 0o777 == mode


def test_an_index_that_cannot_be_kept_is_made_again_and_that_is_said_once(shards, caplog):
    for path in shards:
        path.with_name(path.name + ".index.npz").mkdir()  # no file can replace a folder
    before = sorted(shards[0].parent.iterdir())
    for _ in range(2):
        assert len(images.Tar(shards, FIT, index="sidecar")) == 30
    assert sorted(shards[0].parent.iterdir()) == before
    assert [record.getMessage() for record in caplog.records] == [
        f"indices cannot be kept in {shards[0].parent}: Is a directory. They are made again each time, "
        "as with index='memory'"
    ]


def test_files_of_no_sample_are_passed_over(tmp_path):
    more = [("README", b"text"), ("a/.DS_Store", b""), ("__meta__.json", b"{}")]
    data = images.Tar(shard(tmp_path / "more.tar", [*more, *files(3)]), FIT)
    assert list(data.keys) == ["a/0000", "a/0001", "a/0002"]


def test_a_shard_that_has_changed_since_is_noticed(shards):
    data = images.Tar(shards, FIT)
    shard(shards[1], files(12, 10))
    with pytest.raises(ImageError, match="has changed since its index was made"):
        data[12]


def test_a_file_that_is_no_shard_is_refused(tmp_path):
    text = tmp_path / "text.tar"
    text.write_text("no archive" * 1000)
    with pytest.raises(ValueError, match=r"text\.tar is no tar file, or a compressed or damaged one"):
        images.Tar(text)
    with pytest.raises(FileNotFoundError):
        images.Tar(tmp_path / "none.tar")
    with pytest.raises(ValueError, match="at least one shard"):
        images.Tar([])
    lacking = shard(tmp_path / "lacking.tar", [("a.jpg", b""), ("b.cls", b"3")])
    with pytest.raises(ValueError, match=r"sample a of .* has no target: none of its files ends in cls.* It has jpg\."):
        images.Tar(lacking)
    with pytest.raises(ValueError, match=r"has no image: .*webp, as image= says. It has cls\."):
        images.Tar(shard(tmp_path / "other.tar", [("b.cls", b"3")]))


@pytest.fixture
def rows():
    return [(encoded(pixels(30, 40, n), "JPEG"), n % 7) for n in range(25)]


def table(path, rows, struct=False):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    column = (
        [{"bytes": data, "path": f"{n}.jpg"} for n, (data, _) in enumerate(rows)] if struct else [d for d, _ in rows]
    )
    made = pa.table({"label": [label for _, label in rows], "image": column, "more": list(range(len(rows)))})
    pq.write_table(made, path, row_group_size=8)
    return path


@pytest.mark.parametrize(
    ("struct", "options"), [(False, {"num_workers": 0}), (True, {"num_workers": 2, "chunk_size": 3})], ids=str
)
def test_columns_of_images_are_decoded_in_batches(tmp_path, rows, struct, options):
    data = images.Parquet(table(tmp_path / "rows.parquet", rows, struct), FIT)
    want = images.Bytes(rows, FIT)
    with (
        slipring.Loader(data, 6, shuffle=True, seed=2, **grouped(**options)) as ours,
        slipring.Loader(want, 6, shuffle=True, seed=2, num_workers=0) as theirs,
    ):
        for (x, y), (a, b) in zip(ours, theirs, strict=True):
            assert np.array_equal(x, a) and y.tolist() == b.tolist()


def test_a_bad_row_is_named_or_passed_over(tmp_path, rows):
    rows[4] = (b"rubbish", 0)
    path = table(tmp_path / "rows.parquet", rows)
    with pytest.raises(ImageError, match=r"row 4 of .*rows.parquet \(index 4\)"):
        images.Parquet(path, FIT)[4]
    data = images.Parquet(path, FIT, on_error="skip")
    with slipring.Loader(data, 25, num_workers=1) as loader:
        x, y = next(iter(loader))
        assert np.array_equal(x[4], x[5]) and y[4] == y[5]


def test_a_column_of_images_must_hold_bytes_and_several_columns_are_a_dict_of_targets(tmp_path, rows):
    path = table(tmp_path / "rows.parquet", rows)
    with pytest.raises(TypeError, match=r"column 'more' must hold encoded images as bytes, not int64"):
        images.Parquet(path, FIT, image="more")[0]
    with pytest.raises(ValueError, match="picture"):
        images.Parquet(path, FIT, image="picture")
    assert images.Parquet(path, FIT, target=["label", "more"])[9][1] == {"label": 2, "more": 9}


def test_a_name_that_comes_twice_in_a_shard_is_refused(tmp_path):
    path = shard(tmp_path / "a.tar", [*files(2), ("again/0.JPG", b""), ("again/0.jpg", b"")])
    for kind in (images.Tar, images.TarStream):
        with pytest.raises(ValueError, match=r"a\.tar has again/0\.(jpg|JPG) twice"):
            list(kind(path, images.CenterCrop(8)))
