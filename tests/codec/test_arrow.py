"""Arrow data comes out of a slot unchanged, and without a copy."""

import datetime

import numpy as np
import pytest

from slipring.errors import CorruptBatch

pa = pytest.importorskip("pyarrow")

ARRAYS = {
    "ints": lambda: pa.array([1, None, 3]),
    "bools": lambda: pa.array([True, None, False] * 7),
    "text": lambda: pa.array(["a", None, "ü" * 50, ""]),
    "fixed size": lambda: pa.array([b"abc", None], pa.binary(3)),
    "lists": lambda: pa.array([[1, 2], None, [], [3, None]]),
    "structs": lambda: pa.array([{"a": 1, "b": "x"}, None]),
    "maps": lambda: pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())),
    "dictionary": lambda: pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "times": lambda: pa.array([datetime.datetime(2024, 1, 1), None], pa.timestamp("us", "UTC")),
    "nulls": lambda: pa.nulls(3),
    "empty text": lambda: pa.array([], pa.string()),
    "a slice with nulls": lambda: pa.array([None, 1, 2, None, 4]).slice(1, 3),
    "a slice of text": lambda: pa.array(list("abcdefg")).slice(2, 3),
    "union": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
    ),
    "run ends": lambda: pa.RunEndEncodedArray.from_arrays([2, 5], ["a", "b"]),
}
TABLES = {
    "empty batch": lambda: pa.RecordBatch.from_pydict({"a": pa.array([], pa.int8())}),
    "batch slice": lambda: pa.RecordBatch.from_pydict({"a": list(range(10))}).slice(3, 4),
    "table of chunks": lambda: pa.concat_tables([pa.table({"a": [1]}), pa.table({"a": [2, 3]})]),
    "table of dictionaries": lambda: pa.concat_tables(
        [pa.table({"a": pa.array(v).dictionary_encode()}) for v in (["x", "y"], ["z", "x"])]
    ),
    "table without columns": lambda: pa.table({}),
    "with metadata": lambda: pa.table({"a": [1]}).replace_schema_metadata({"mine": "kept"}),
    "two columns of a name": lambda: pa.table([[1], [2]], names=["a", "a"]),
    "no chunks": lambda: pa.chunked_array([], pa.int64()),
    "dictionary chunks": lambda: pa.chunked_array(
        [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c"]).dictionary_encode()]
    ),
}


@pytest.mark.parametrize("make", [*ARRAYS.values(), *TABLES.values()], ids=[*ARRAYS, *TABLES])
def test_arrow_data_arrives_as_it_was(trip, make):
    sent = make()
    got = trip({"data": sent})["data"]
    assert type(got) is type(sent)
    got.validate(full=True)
    assert got.equals(sent)
    if hasattr(sent, "schema"):
        assert got.schema.equals(sent.schema, check_metadata=True)
    else:
        assert got.type == sent.type
    assert trip.pickled(sent) == 0


def test_arrow_data_is_read_where_it_lies(trip):
    # 800,000 bytes in the slot, which the lease keeps.
    got = trip(pa.array(np.arange(100_000)))
    assert trip.free == 3
    values = got.to_numpy(zero_copy_only=True)
    del got
    assert trip.free == 3 and values[99_999] == 99_999
    del values
    assert trip.free == 4


def test_a_slice_sends_only_itself(trip):
    assert trip.bytes_of(pa.array(np.arange(100_000)).slice(5, 10)) < 2000


def test_other_values_of_pyarrow_are_pickled(trip):
    for sent in (pa.scalar(5), pa.int32(), pa.schema([("a", pa.int8())])):
        assert trip([sent])[0].equals(sent)
        assert trip.pickled(sent) == 1


def test_a_stream_that_cannot_be_read_or_lacks_its_batch_is_a_corrupt_batch():
    from slipring import arrow

    sink = pa.BufferOutputStream()
    schema = pa.schema([("a", pa.int8())]).with_metadata({"slipring.kind": "batch"})
    pa.ipc.new_stream(sink, schema).close()
    for stream in (b"", b"garbage", b"\xff\xff\xff\xff\x10\0\0\0" + bytes(16), sink.getvalue()):
        with pytest.raises(CorruptBatch, match="Arrow stream that cannot be read"):
            arrow.restore(memoryview(bytearray(stream)))
