"""Columns of Arrow's view types, and times in nanoseconds, which pyarrow returns as Python values only with pandas."""

import numpy as np
import pytest

import slipring
from slipring.arrow import TableDataset, collate
from slipring.streams import Stream

pa = pytest.importorskip("pyarrow")

LONG = "a text of more than twelve bytes"
VIEWS = {
    "string_view": ["a", LONG, None, "d"],
    "binary_view": [b"a", LONG.encode(), None, b"d"],
    "list_view": [[1, 2], [3], [], None],
    "large_list_view": [[1, 2], [3], [], None],
    "list of string_view": [["a"], [LONG, None], [], None],
    "struct of binary_view": [{"x": b"a"}, {"x": LONG.encode()}, None, {"x": None}],
}
TYPES = {
    "string_view": pa.string_view(),
    "binary_view": pa.binary_view(),
    "list_view": pa.list_view(pa.int32()),
    "large_list_view": pa.large_list_view(pa.int32()),
    "list of string_view": pa.list_(pa.string_view()),
    "struct of binary_view": pa.struct([("x", pa.binary_view())]),
}
TIMES = [1, 10**18 + 1, 2000, None]
NANOSECONDS = [None if n is None else np.datetime64(n, "ns") for n in TIMES]
SPANS = [None if n is None else np.timedelta64(n % 10**13, "ns") for n in TIMES]


def arrays():
    stamps, spans = pa.array(TIMES, pa.timestamp("ns")), [n and n % 10**13 for n in TIMES]
    pairs = pa.array([[n, 5] for n in (1, 2, 3, 4)], pa.list_(pa.timestamp("ns"), 2))
    five = np.datetime64(5, "ns")
    yield "stamps", stamps, NANOSECONDS
    yield "stamps in a zone", stamps.cast(pa.timestamp("ns", "Europe/Paris")), NANOSECONDS
    yield "durations", pa.array(spans, pa.duration("ns")), SPANS
    yield "times of day", pa.array(spans, pa.time64("ns")), SPANS
    yield "dictionary", stamps.dictionary_encode(), NANOSECONDS
    yield "structs", pa.StructArray.from_arrays([stamps], ["t"]), [{"t": n} for n in NANOSECONDS]
    yield "pairs", pairs, [[np.datetime64(n, "ns"), five] for n in (1, 2, 3, 4)]
    for make in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view):
        kind = make(pa.timestamp("ns"))
        yield str(kind), pa.array([[5, None], [], None, [5]], kind), [[five, None], [], None, [five]]
    yield (
        "maps",
        pa.array([[("a", 5)], [], None, [("b", None)]], pa.map_(pa.string(), pa.timestamp("ns"))),
        [[("a", five)], [], None, [("b", None)]],
    )


def files_of(tmp_path, column):
    """Return the column's table in each kind of file that can hold it."""
    table, paths = pa.table({"x": column}), [tmp_path / "x.arrow"]
    with pa.ipc.new_file(paths[0], table.schema) as file:
        file.write_table(table)
    if not pa.types.is_dictionary(column.type):
        import pyarrow.parquet as pq

        paths.append(tmp_path / "x.parquet")
        pq.write_table(table, paths[1])
    return paths


def same(found, wanted):
    """Compare values and their types: a time of numpy equals one of `datetime`."""
    assert repr(found) == repr(wanted)
    return True


@pytest.mark.parametrize("name", VIEWS)
def test_view_types_keep_their_values_from_files_and_streams(name, tmp_path):
    values = VIEWS[name]
    column = pa.array(values, TYPES[name])
    for path in files_of(tmp_path, column):
        assert [row["x"] for row in TableDataset(path).__getitems__([3, 1, 0, 2])] == [values[i] for i in (3, 1, 0, 2)]
        data = TableDataset(path, returns="record_batch")
        with slipring.Loader(data, 2, num_workers=1, collate_fn=collate) as loader:
            assert [value for batch in loader for value in batch.column("x").to_pylist()] == values
        rows = TableDataset(path)
        with slipring.Loader(rows, 2, num_workers=1, collate_fn=list) as loader:
            assert [row["x"] for batch in loader for row in batch] == values
    blocks = pa.table({"x": column}).to_batches(max_chunksize=3)
    assert [value for batch in Stream(blocks, 2) for value in batch["x"].to_pylist()] == values


@pytest.mark.parametrize(("column", "values"), [pytest.param(*rest, id=name) for name, *rest in arrays()])
def test_times_in_nanoseconds_are_values_of_numpy_without_pandas(column, values, tmp_path):
    for path in files_of(tmp_path, column):
        data = TableDataset(path)
        assert same([row["x"] for row in data.__getitems__([3, 1, 0, 2])], [values[i] for i in (3, 1, 0, 2)])
        assert same(TableDataset(path, decode=lambda row: row["x"])[1], values[1])
        with slipring.Loader(data, 2, num_workers=1, collate_fn=list) as loader:
            assert same([row["x"] for batch in loader for row in batch], values)


def test_time_stamps_in_nanoseconds_become_an_array_in_a_loader_and_a_stream(tmp_path):
    column = pa.array(TIMES[:3], pa.timestamp("ns"))
    [path, _] = files_of(tmp_path, column)
    [streamed] = Stream(pa.table({"x": column}).to_batches(), 3)
    with slipring.Loader(TableDataset(path), 3, num_workers=1) as loader:
        [loaded] = [batch["x"].copy() for batch in loader]
    assert loaded.dtype == streamed["x"].dtype == "datetime64[ns]"
    assert loaded.tolist() == streamed["x"].tolist() == TIMES[:3]


def test_times_in_microseconds_stay_those_of_datetime(tmp_path):
    column = pa.array([1, 10**15 + 1], pa.timestamp("us", "UTC"))
    for path in files_of(tmp_path, column):
        assert same([row["x"] for row in TableDataset(path).__getitems__([0, 1])], column.to_pylist())


def test_targets_of_images_in_parquet_may_be_in_nanoseconds(tmp_path):
    import pyarrow.parquet as pq

    from slipring import images
    from tests.support.pictures import encoded, pixels

    table = {"image": [encoded(pixels(8, 8), "PNG")] * 2, "label": pa.array(TIMES[:2], pa.timestamp("ns"))}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    data = images.Parquet(tmp_path / "x.parquet", image="image", target="label")
    assert same([data[n][1] for n in range(2)], NANOSECONDS[:2])
