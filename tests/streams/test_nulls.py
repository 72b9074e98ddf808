"""Nulls of columns that become arrays: a fill value, and a mask of their positions."""

import numpy as np
import pytest

import slipring
from slipring.errors import BlockError
from slipring.streams import ShardStream, Stream
from tests.support.nulls import COLUMNS, UNFIT
from tests.support.options import grouped

pa = pytest.importorskip("pyarrow")


def read(column, at=1, **options):
    """Return all rows of a column, which comes in two blocks, as one batch."""
    batch = pa.record_batch({"x": column})
    [made] = Stream([batch.slice(0, at), batch.slice(at)], len(column), **options)
    return made


@pytest.mark.parametrize("what", COLUMNS)
def test_nulls_become_the_value_that_fills_them_or_zeros_with_a_mask(what):
    column, value, filled, expected = COLUMNS[what]
    made = read(column, fill_null={"x": value})
    assert list(made) == ["x"] and made["x"].tolist() == filled
    made = read(column, null_mask=["x"])
    assert list(made) == ["x", "x_mask"] and made["x_mask"].dtype == bool
    mask = np.array(expected, bool)
    assert made["x_mask"].tolist() == mask.tolist()
    assert (made["x"][mask].view(f"u{made['x'].itemsize}") == 0).all()


def test_text_is_filled_and_keeps_its_nulls_where_only_a_mask_is_asked_for():
    text = pa.array(["a", None, "c", None])
    made = read(text, fill_null={"x": "none"}, null_mask=["x"])
    assert made["x"].to_pylist() == ["a", "none", "c", "none"] and made["x_mask"].tolist() == [False, True] * 2
    made = read(text, null_mask=["x"])
    assert made["x"].to_pylist() == ["a", None, "c", None] and made["x_mask"].tolist() == [False, True] * 2


def test_masked_arrays_and_lists_with_none_are_filled_too():
    blocks = [
        {"x": np.ma.masked_equal(np.eye(2, dtype=np.float32), 1), "y": [1, None]},
        {"x": np.eye(2, dtype=np.float32), "y": np.array([3, 4])},
    ]
    for options in ({}, {"fill_null": {"x": 1.0}}, {"null_mask": ["y"]}):
        with pytest.raises(BlockError, match="name it in fill_null= or null_mask="):
            next(iter(Stream(blocks, 4, **options)))
    [made] = Stream(blocks, 4, fill_null={"x": -1, "y": 9}, null_mask=["x"])
    assert made["x"].dtype == np.float32 and made["x"].tolist() == [[-1, 0], [0, -1], [1, 0], [0, 1]]
    assert made["x_mask"].tolist() == [[True, False], [False, True], [False, False], [False, False]]
    assert made["y"].tolist() == [1, 9, 3, 4]


def test_nan_is_a_value_and_no_null():
    made = read(pa.array([1.0, float("nan"), None, 2.0]), fill_null={"x": 0}, null_mask=["x"])
    assert np.array_equal(made["x"], [1, np.nan, 0, 2], equal_nan=True)
    assert made["x_mask"].tolist() == [False, False, True, False]
    made = read(pa.array([1.0, None]), fill_null={"x": float("nan")})
    assert np.array_equal(made["x"], [1, np.nan], equal_nan=True)


@pytest.mark.parametrize(("column", "value", "text"), UNFIT, ids=[text for _, _, text in UNFIT])
def test_a_value_that_the_type_does_not_have_is_refused_even_before_a_null_comes(column, value, text):
    for block in (column, column.slice(0, 1)):
        with pytest.raises(BlockError) as caught:
            read(block, fill_null={"x": value})
        assert text in str(caught.value) and "fill_null has " in str(caught.value)
        assert caught.value.column == "x"


@pytest.mark.parametrize(
    ("column", "options", "text"),
    [
        (pa.array(["a", None], pa.string_view()), {"fill_null": {"x": "b"}}, "is string_view, which Arrow cannot fill"),
        (pa.array([[], None], pa.list_(pa.int8(), 0)), {"null_mask": ["x"]}, "cannot fill: lists of 0 values"),
        (np.ma.masked_equal([1j, 2j], 2j), {"null_mask": ["x"]}, "is complex128, which Arrow cannot fill"),
    ],
    ids=["views", "empty lists", "complex"],
)
def test_types_that_arrow_cannot_fill_are_refused(column, options, text):
    with pytest.raises(BlockError, match=f"column 'x' .*{text}"):
        next(iter(Stream([{"x": column}], 2, **options)))


def test_columns_that_no_block_has_and_masks_of_a_name_that_is_taken_are_refused():
    block = {"x": [1, 2], "x_mask": [1, 2]}
    with pytest.raises(BlockError, match="column 'z' of fill_null is missing: the block has 'x', 'x_mask'"):
        next(iter(Stream([block], 2, fill_null={"z": 0})))
    with pytest.raises(BlockError, match="column 'x_mask' has the name of a mask") as caught:
        next(iter(Stream([block], 2, null_mask=["x"])))
    assert caught.value.column == "x_mask"
    [made] = Stream([block], 2, columns=["x"], null_mask=["x"])
    assert made["x_mask"].tolist() == [False, False]
    with pytest.raises(ValueError, match=r"fill_null has column 'z', which columns=\['x'\] leaves out"):
        Stream([block], 2, columns=["x"], fill_null={"z": 0})
    with pytest.raises(ValueError, match="null_mask has column 'x', whose mask is 'x_mask', but columns="):
        Stream([block], 2, columns=["x", "x_mask"], null_mask=["x"])


def blocks(worker=0, num_workers=1):
    for at in range(worker * 10, 60, num_workers * 10):
        yield pa.record_batch({
            "x": pa.array([None if i % 3 else i for i in range(at, at + 10)], pa.int32()),
            "t": pa.array([None if i % 2 else str(i) for i in range(at, at + 10)]),
        })  # fmt: skip


OPTIONS = {"fill_null": {"x": -1}, "null_mask": ["x", "t"]}


def assert_filled(batches):
    """Check that these are all rows of `blocks`, in any order."""
    rows = []
    for batch in batches:
        assert list(batch) == ["x", "t", "x_mask", "t_mask"] and batch["x"].dtype == np.int32
        rows += zip(batch["x"].tolist(), batch["t"].to_pylist(), batch["x_mask"].tolist(), batch["t_mask"].tolist())
    expected = [(-1 if i % 3 else i, None if i % 2 else str(i), i % 3 > 0, i % 2 > 0) for i in range(60)]
    assert sorted(rows, key=str) == sorted(expected, key=str)


WORKERS = {"num_workers": 2, "start_method": "forkserver"}


@pytest.mark.parametrize(("way", "shuffle_buffer"), [({}, 20), (WORKERS, 0)], ids=str)
def test_filled_columns_come_from_workers_and_after_a_resume(way, shuffle_buffer):
    options = {"shuffle_buffer": shuffle_buffer, "seed": 1, "timeout": 60 if way else 0, **OPTIONS, **way}
    with slipring.stream(blocks, 7, **grouped(**options)) as loader:
        batches = iter(loader)
        begun = [next(batches) for _ in range(2)]
        state = loader.state_dict()
    with slipring.stream(blocks, 7, **grouped(**options)) as loader:
        loader.load_state_dict(state)
        assert_filled([*begun, *loader])


def test_a_stream_of_shards_fills_nulls():
    assert_filled(ShardStream(range(6), lambda shard: blocks(shard, 6), 7, **OPTIONS))


@pytest.mark.parametrize("kind", ["M8[D]", "M8[25s]", "m8[10ms]", "M8[2ns]", ">M8[s]", ">i4"])
def test_values_of_numpy_stay_the_same_whatever_their_unit(kind):
    """Arrow has no multiples of a unit; its dates have 32 bits."""
    values = np.array([1, 3_000_000_000 if kind == "M8[D]" else 2, 3])
    values = values.astype(">i4") if kind == ">i4" else values.view(kind.replace(">", "")).astype(kind)
    column = np.ma.array(values, mask=[False, False, True])
    (batch,) = slipring.stream([{"x": column}], 8, null_mask=["x"])
    assert (batch["x"][:2] == column.data[:2]).all() and batch["x"][2].astype(np.int64) == 0
    assert batch["x_mask"].tolist() == [False, False, True]


def test_a_time_that_the_unit_does_not_have_cannot_fill_nulls():
    column = np.ma.array(np.array([1, 2]).view("M8[25s]"), mask=[False, True])
    (batch,) = slipring.stream([{"x": column}], 8, fill_null={"x": np.datetime64(50, "s")})
    assert (batch["x"].astype(np.int64) == [1, 2]).all()
    with pytest.raises(BlockError, match=r"fill_null has .* for column 'x'"):
        next(iter(slipring.stream([{"x": column}], 8, fill_null={"x": np.datetime64(26, "s")})))
