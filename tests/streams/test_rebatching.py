"""Blocks of any number of rows become batches of an exact size."""

import weakref

import numpy as np
import pytest

import slipring
from slipring.streams import Stream

pa = pytest.importorskip("pyarrow")

WAYS = [{}, {"num_workers": 1}]


def rows(n):
    """Return a record batch with each kind of column; row i contains i in all of them."""
    at = np.arange(n)
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    inside = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(at, 6).astype(np.float32)), 6)
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(at, 4).astype(np.int16)), 2)
    return pa.record_batch(
        {
            "number": at,
            "half": at.astype(np.float16),
            "even": at % 2 == 0,
            "time": pa.array(at, pa.timestamp("us")),
            "day": pa.array(at.astype(np.int32), pa.date32()),
            "list": pa.FixedSizeListArray.from_arrays(pairs, 2),
            "tensor": pa.ExtensionArray.from_storage(tensor, inside),
            "text": [f"row {i}" for i in at],
            "bytes": pa.array([bytes([i % 256]) * i for i in at], pa.large_binary()),
            "maybe": [None if i % 3 else str(i) for i in at],
            "ragged": [list(range(i % 4)) for i in at],
            "struct": [{"a": int(i), "b": [str(i)]} for i in at],
            "word": pa.array([f"w{i % 3}" for i in at]).dictionary_encode(),
            "view": pa.array([f"view of a longer text {i}" for i in at], pa.string_view()),
        }
    )


def cut(batch, sizes):
    """Yield the batch in pieces of these sizes, in turn."""
    pieces, at = [], 0
    while at < batch.num_rows:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(batch.slice(at, size))
        at += size
    return pieces


def assert_rows(batch, expected):
    """Check that a batch has exactly the rows of a slice of the input."""
    assert list(batch) == expected.schema.names
    assert batch["number"].tolist() == expected["number"].to_pylist()
    assert batch["list"].tolist() == expected["list"].to_pylist() and batch["list"].dtype == np.int16
    assert np.array_equal(batch["tensor"], expected["tensor"].to_numpy_ndarray())
    assert batch["time"].dtype == "datetime64[us]" and batch["half"].dtype == np.float16
    for name in ("half", "even", "time", "day"):
        assert batch[name].tolist() == expected[name].to_pylist(), name
    for name in ("text", "bytes", "maybe", "ragged", "struct", "word", "view"):
        assert batch[name].to_pylist() == expected[name].to_pylist(), name
        assert batch[name].type == expected[name].type, name


@pytest.mark.parametrize(("sizes", "way"), [([1], {}), ([100], {}), ([0, 3, 50, 1, 13], {"num_workers": 1})])
def test_batches_have_exactly_the_rows_of_the_blocks(sizes, way):
    whole = rows(100)
    with slipring.stream(cut(whole, sizes), 16, **way) as loader:
        for epoch in range(2):
            batches = list(loader)
            assert [len(batch["number"]) for batch in batches] == [16] * 6 + [4], epoch
            for number, batch in enumerate(batches):
                assert_rows(batch, whole.slice(number * 16, 16))
    with slipring.stream(cut(whole, sizes), 16, drop_last=True, **way) as loader:
        assert [len(batch["number"]) for batch in loader] == [16] * 6


def test_tables_and_dicts_of_anything_are_blocks_too():
    torch = pytest.importorskip("torch")
    chunked = pa.chunked_array([[0, 1], [2]])
    blocks = [
        pa.table({"x": chunked, "t": ["a", "b", "c"]}),
        {"t": ["d", "e"], "x": np.array([3, 4])},
        {"t": np.array(["f"]), "x": torch.tensor([5]), },
        {"t": pa.array(["g", "h"]), "x": [6, 7]},
        {"t": np.array(["i"], object), "x": chunked.slice(0, 1)},
    ]  # fmt: skip
    with slipring.stream(blocks, 4) as loader:
        batches = list(loader)
    assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [0]]
    assert [list(slipring.StringList(batch["t"])) for batch in batches] == [list("abcd"), list("efgh"), ["i"]]


def test_an_object_with_arrows_interface_is_a_source_and_a_block():
    class Frame:  # as polars' and duckdb's are
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table({"x": [1, 2, 3]}).__arrow_c_stream__(requested_schema)

    for source in (Frame(), [Frame()], pa.table({"x": [1, 2, 3]})):
        with slipring.stream(source, 2) as loader:
            for _ in range(2):
                assert [batch["x"].tolist() for batch in loader] == [[1, 2], [3]]


def test_columns_are_chosen_and_ordered():
    blocks = [{"a": [1], "b": [2], "c": [3]}, {"c": [6], "a": [4], "d": [0]}]
    with slipring.stream(blocks, 2, columns=["c", "a"]) as loader:
        assert [(list(batch), batch["c"].tolist(), batch["a"].tolist()) for batch in loader] == [
            (["c", "a"], [3, 6], [1, 4])
        ]


def test_arrays_with_gaps_and_in_other_orders_are_copied_as_they_look():
    values = np.arange(240, dtype=np.int32).reshape(10, 4, 6)
    blocks = [{"x": values[::2]}, {"x": np.asfortranarray(values)}, {"x": values[:, ::-1]}]
    expected = np.concatenate([block["x"] for block in blocks])
    assert np.array_equal(np.concatenate([batch["x"] for batch in Stream(blocks, 4)]), expected)
    drawn = np.concatenate([batch["x"] for batch in Stream(blocks, 4, shuffle_buffer=25)])
    assert sorted(drawn.tolist()) == sorted(expected.tolist()) != drawn.tolist()


def test_a_tensor_whose_dimensions_are_permuted_has_its_logical_shape():
    kind = pa.fixed_shape_tensor(pa.int64(), [2, 3], permutation=[1, 0])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(60)), 6)
    column = pa.ExtensionArray.from_storage(kind, storage)
    got = np.concatenate([batch["x"] for batch in Stream([pa.table({"x": column})], 4)])
    assert got.shape == (10, 3, 2) and np.array_equal(got, column.to_numpy_ndarray())


def test_numbers_lie_in_the_slot_and_are_copied_once():
    whole = pa.record_batch({"x": np.arange(40_000), "y": np.ones((40_000), np.float32)})
    for way in WAYS:
        with slipring.stream(cut(whole, [3000]), 1000, **way) as loader:
            assert sum(batch["x"].base is not None for batch in loader) == 40
            stats = loader.stats()
        assert (stats.kept_batches, stats.copied_batches, stats.pickled_leaves) == (0, 0, 0)


class Memory(bytearray):
    """The memory of an Arrow buffer, with weak references."""


def text_of(strings):
    """Return a string array, and its memory."""
    ends = np.cumsum([0, *map(len, strings)], dtype=np.int32)
    memory = Memory("".join(strings).encode())
    array = pa.StringArray.from_buffers(len(strings), pa.py_buffer(ends), pa.py_buffer(memory))
    return array, weakref.ref(memory)


@pytest.mark.parametrize("shuffle_buffer", [0, 8])
def test_a_block_is_let_go_of_when_its_last_row_is_copied(shuffle_buffer):
    alive = []

    def blocks():
        for i in range(30):
            # When the next block is requested, no earlier block exists any more, not even the last one.
            assert not any(ref() is not None for ref in alive), i
            numbers = np.arange(3 * i, 3 * i + 3)
            text, memory = text_of([str(n) for n in numbers])
            alive.extend([weakref.ref(numbers), memory])
            yield {"x": numbers, "text": text}
            del numbers, text

    batches = list(Stream(blocks(), 8, shuffle_buffer=shuffle_buffer))
    assert sorted(np.concatenate([batch["x"] for batch in batches]).tolist()) == list(range(90))
    for batch in batches:
        assert batch["text"].to_pylist() == [str(n) for n in batch["x"]]


def dictionaries(n, rows):
    """Blocks of numbers and of texts, whose dictionaries together have too many values for indices of 8 bits."""
    for block in range(n):
        words = [f"{block * rows + row}" for row in range(rows)]
        yield {
            "i": np.arange(rows) + block * rows,
            "d": pa.DictionaryArray.from_arrays(pa.array(range(rows), pa.int8()), words),
        }


@pytest.mark.parametrize(("n", "rows", "size", "shuffle"), [(5, 60, 200, 0), (10, 30, 20, 200)])
def test_dictionaries_that_are_too_many_together_get_wider_indices(n, rows, size, shuffle):
    batches = list(slipring.stream(dictionaries(n, rows), size, shuffle_buffer=shuffle, seed=0))
    found = [(i, text) for batch in batches for i, text in zip(batch["i"].tolist(), batch["d"].to_pylist())]
    assert sorted(found) == [(i, str(i)) for i in range(n * rows)]


def test_views_are_drawn_from_a_buffer_of_one_batch():
    blocks = [{"x": pa.array([f"{5 * i + j}" for j in range(5)], pa.string_view())} for i in range(40)]
    found = [int(text) for batch in slipring.stream(blocks, 5, shuffle_buffer=5) for text in batch["x"].to_pylist()]
    assert sorted(found) == list(range(200))


def test_a_chunked_array_with_an_empty_chunk_is_a_column():
    four = pa.array([1, 2, 3, 4], pa.int8()).slice(3, 1)
    (batch,) = slipring.stream([{"x": pa.chunked_array([four.slice(0, 0), four])}], 4)
    assert batch["x"].tolist() == [4]
