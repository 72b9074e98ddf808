"""Columns of images in tables: bytes of every type, paths in their place, and nulls."""

import os

import numpy as np
import pytest

import slipring
from slipring import Workers, images
from slipring.errors import ImageError
from tests.support.pictures import encoded, pixels

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FIT = images.Resize((12, 16))
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PICTURES = [encoded(pixels(30, 40, number), "PNG") for number in range(6)]


def stored(path, column, labels=None):
    """Write a table with this column of images, in the format of the path's ending."""
    table = pa.table({"image": column, "label": range(len(column)) if labels is None else labels})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with {".arrow": pa.ipc.new_file, ".stream": pa.ipc.new_stream}[path.suffix](str(path), table.schema) as sink:
            sink.write_table(table, max_chunksize=2)
    return path


@pytest.fixture(params=[".parquet", ".arrow", ".stream"])
def table(request, tmp_path):
    return tmp_path / f"rows{request.param}"


def kept(folder, numbers):
    for number in numbers:
        path = folder / "photos" / f"{number} ü.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(PICTURES[number])
        yield str(path)


def all_of(data, **options):
    with slipring.Loader(data, 4, **options) as loader:
        batches = [(pictures.copy(), labels.tolist()) for pictures, labels in loader]
    return np.concatenate([pictures for pictures, _ in batches]), [label for _, labels in batches for label in labels]


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 1, "workers": Workers(fetch_threads=3)}], ids=str
)
def test_rows_with_paths_in_place_of_bytes_are_read(table, tmp_path, monkeypatch, options):
    absolute = list(kept(tmp_path, range(6)))
    rows = [
        {"bytes": None, "path": absolute[0]},
        {"bytes": PICTURES[1], "path": "none.png"},
        {"bytes": None, "path": os.path.relpath(absolute[2], tmp_path)},
        {"bytes": PICTURES[3], "path": None},
        {"bytes": None, "path": (tmp_path / "photos" / "4 ü.png").as_uri()},
        {"bytes": None, "path": "./photos/../photos/5 ü.png"},
    ]
    data = images.Parquet(stored(table, pa.array(rows, IMAGE)), FIT)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    pictures, labels = all_of(data, **options)
    want, _ = all_of(images.Bytes([(picture, 0) for picture in PICTURES], FIT))
    assert labels == [0, 1, 2, 3, 4, 5] and np.array_equal(pictures, want)
    assert data.read(-1) == (PICTURES[5], 5)


def test_a_relative_path_begins_in_the_folder_of_its_own_table(tmp_path):
    tables = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.png").write_bytes(PICTURES[number])
        tables.append(stored(folder / "rows.parquet", pa.array([{"bytes": None, "path": "a.png"}] * 3, IMAGE)))
    data = images.Parquet(tables)
    assert [data.read(n)[0] for n in range(6)] == [PICTURES[0]] * 3 + [PICTURES[1]] * 3


def test_a_file_that_a_row_names_and_that_is_missing_is_named_or_skipped(table, tmp_path):
    paths = list(kept(tmp_path, range(3)))
    os.unlink(paths[1])
    stored(table, pa.array([{"bytes": None, "path": path} for path in paths], IMAGE))
    with pytest.raises(ImageError, match=rf"row 1 of .*{table.name} \(index 1\): .*No such file .*1 ü\.png"):
        images.Parquet(table, FIT)[1]
    assert all_of(images.Parquet(table, FIT, on_error="skip"))[1] == [0, 2, 2]
    stored(table, pa.array([{"bytes": None, "path": "\0.png"}], IMAGE))
    with pytest.raises(ImageError, match=r"column .image. has the path .*: path must be a path that a file system can"):
        images.Parquet(table, FIT)[0]


def test_images_behind_paths_are_cached(table, tmp_path):
    paths = list(kept(tmp_path, range(6)))
    data = images.Parquet(
        stored(table, pa.array([{"bytes": None, "path": p} for p in paths], IMAGE)), FIT, cache="8MiB"
    )
    first = all_of(data)
    for path in paths:
        os.unlink(path)
    again = all_of(data)
    assert np.array_equal(first[0], again[0]) and first[1] == again[1]


NULL_WITH_BYTES = pa.StructArray.from_arrays(
    [pa.array(PICTURES[:3]), pa.array(["a", "b", "c"])], ["bytes", "path"], mask=pa.array([False, True, False])
)
BYTES = pa.array([PICTURES[0], None, PICTURES[2]])


@pytest.mark.parametrize(
    "column",
    [
        NULL_WITH_BYTES,
        pa.concat_arrays([NULL_WITH_BYTES] * 2).slice(3),
        pa.array([{"bytes": PICTURES[0], "path": ""}, {"bytes": None, "path": None}, {"bytes": PICTURES[2]}], IMAGE),
        pa.array([{"bytes": value} for value in BYTES.to_pylist()]),
        BYTES,
        BYTES.cast(pa.large_binary()),
        BYTES.cast(pa.binary_view()),
    ],
    ids=["struct", "part", "fields", "bytes alone", "bytes", "large", "view"],
)
def test_a_null_is_the_same_error_in_every_format(table, column):
    data = images.Parquet(stored(table, column), FIT)
    for number in (0, 2):
        assert data.read(number) == (PICTURES[number], number)
    with pytest.raises(ImageError, match=r"row 1 .*column 'image' is null: it has neither bytes nor a path"):
        data[1]
    assert all_of(images.Parquet(table, FIT, on_error="skip"))[1] == [0, 2, 2]


def test_structs_without_bytes_are_refused(table):
    with pytest.raises(TypeError, match=r"column 'image' must hold encoded images as bytes, not struct<path: string>"):
        images.Parquet(stored(table, pa.array([{"path": "a.png"}])))[0]
