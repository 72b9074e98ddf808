"""TableDataset: nulls become values, and masks have their positions."""

import pickle

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from slipring.arrow import TableDataset  # noqa: E402
from slipring.streams import Stream  # noqa: E402
from tests.support.nulls import COLUMNS, UNFIT  # noqa: E402


def write(path, columns, form="file"):
    """Write a file of two row groups."""
    table = pa.table(columns)
    if form == "parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return str(path)


@pytest.mark.parametrize("what", COLUMNS)
def test_record_batches_have_no_nulls_and_a_mask_as_streams_do(tmp_path, what):
    column, value, _, _ = COLUMNS[what]
    options = {"fill_null": {"x": value}, "null_mask": ["x"]}
    for form, chosen in (("parquet", options), ("file", options), ("file", {"null_mask": ["x"]})):
        path = write(tmp_path / form, {"x": column}, form)
        rows = TableDataset(path, returns="record_batch", **chosen).take([3, 0, 2, 1])
        assert rows.schema.names == ["x", "x_mask"] and rows.schema.field("x").type == column.type
        [made] = Stream([rows], 4)
        [expected] = Stream([pa.record_batch({"x": column.take(pa.array([3, 0, 2, 1]))})], 4, **chosen)
        for name in ("x", "x_mask"):
            assert made[name].dtype == expected[name].dtype and np.array_equal(made[name], expected[name]), name


def table(tmp_path):
    return write(tmp_path / "t", {
        "age": pa.array([31, None, 45, None], pa.int32()), "text": ["a", None, "c", "d"], "id": range(4),
    })  # fmt: skip


OPTIONS = {"fill_null": {"age": -1, "text": ""}, "null_mask": ["age"]}
FILLED = [
    {"age": 31, "text": "a", "id": 0, "age_mask": False},
    {"age": -1, "text": "", "id": 1, "age_mask": True},
    {"age": 45, "text": "c", "id": 2, "age_mask": False},
    {"age": -1, "text": "d", "id": 3, "age_mask": True},
]


def test_rows_have_the_values_and_the_masks_in_every_kind_of_dataset(tmp_path):
    path, order = table(tmp_path), [3, 0, 0, 2, 1]
    expected = [FILLED[i] for i in order]
    dataset = TableDataset(path, **OPTIONS)
    assert dataset.__getitems__(order) == expected and dataset[1] == FILLED[1]
    assert dataset.schema.names == [*FILLED[0]] and dataset.schema.field("age_mask").type == pa.bool_()
    assert pickle.loads(pickle.dumps(dataset)).__getitems__(order) == expected
    assert TableDataset(path, decode=dict, **OPTIONS).__getitems__(order) == expected
    assert TableDataset(path, decode_batch=lambda rows: rows.to_pylist(), **OPTIONS).__getitems__(order) == expected
    assert TableDataset(path, returns="record_batch", **OPTIONS).take([]).schema == dataset.schema


def test_a_value_that_the_type_does_not_have_is_refused_when_the_dataset_is_made(tmp_path):
    column, value, text = UNFIT[0]  # tests/streams has all of them
    path = write(tmp_path / "t", {"x": column})
    with pytest.raises(ValueError, match="fill_null has ") as caught:
        TableDataset(path, fill_null={"x": value})
    assert text in str(caught.value)


def test_columns_that_cannot_be_filled_and_names_that_are_taken_are_refused(tmp_path):
    path = write(tmp_path / "t", {"x": [1, None], "x_mask": [1, 2], "v": pa.array(["a", None], pa.string_view())})
    for options, text in (
        ({"fill_null": {"z": 0}}, "fill_null has column 'z', but .* has 'x', 'x_mask', 'v'"),
        ({"null_mask": ["z"]}, "null_mask has column 'z', but .* has 'x', 'x_mask', 'v'"),
        ({"null_mask": ["x"]}, "whose mask is 'x_mask', but .* has a column of that name: leave it out with columns="),
        ({"fill_null": {"v": "b"}}, "column 'v' is string_view, which Arrow cannot fill"),
    ):
        with pytest.raises(ValueError, match=text):
            TableDataset(path, **options)
    assert TableDataset(path, ["x"], null_mask=["x"])[1] == {"x": 0, "x_mask": True}
    assert TableDataset(path, ["v"], null_mask=["v"])[1] == {"v": None, "v_mask": True}
