"""Lists in Arrow files, collated from Arrow's own memory."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from slipring import tokens  # noqa: E402
from slipring.arrow import TableDataset  # noqa: E402
from tests.support.kinds import kinds, loaded  # noqa: E402

ROWS = 50
COLUMNS = {
    "input_ids": (pa.list_(pa.int32()), [list(range(i, i + i % 7)) for i in range(ROWS)]),
    "patches": (pa.large_list(pa.list_(pa.float32(), 3)), [[[i, 1.5, 2.5]] * (i % 4) for i in range(ROWS)]),
    "boxes": (pa.list_(pa.uint16(), 2), [[i, i + 1] for i in range(ROWS)]),
}


def table(**columns):
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


@pytest.fixture(params=["parquet", "arrow", "compressed", "stream"])
def files(request, tmp_path):
    """Two files of several row groups with the same rows."""
    rows, path = table(**COLUMNS), tmp_path / "rows"
    if request.param == "parquet":
        pq.write_table(rows, path, row_group_size=7)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd" if request.param == "compressed" else None)
        new = pa.ipc.new_stream if request.param == "stream" else pa.ipc.new_file
        with new(path, rows.schema, options=options) as writer:
            writer.write_table(rows, max_chunksize=9)
    return [path, path]


def expected(collate, indices):
    """The batch of the same rows as arrays."""
    types = {"input_ids": np.int32, "patches": np.float32, "boxes": np.uint16}
    samples = []
    for i in indices:
        arrays = {name: np.array(values[i % ROWS], types[name]) for name, (_, values) in COLUMNS.items()}
        samples.append({**arrays, "patches": arrays["patches"].reshape(-1, 3)})
    return collate(samples)


@kinds("inline", "fork")
def test_the_lists_of_rows_become_one_array_with_their_own_dtypes(files, kind):
    indices = np.random.default_rng(0).permutation(2 * ROWS).tolist()
    order = [indices[at : at + 20] for at in range(0, len(indices), 20)]
    collate = tokens.Jagged()
    batches = loaded(TableDataset(files), batch_sampler=order, collate_fn=collate, **kind)
    for found, asked in zip(batches, order, strict=True):
        for name, parts in expected(collate, asked).items():
            assert found[name]["values"].dtype == parts["values"].dtype
            assert np.array_equal(found[name]["values"], parts["values"])
            assert np.array_equal(found[name]["offsets"], parts["offsets"])


def test_spans_refer_to_the_memory_of_a_mapped_file_and_count_from_the_end_for_negative_indices(tmp_path):
    rows = table(input_ids=COLUMNS["input_ids"])
    with pa.ipc.new_file(tmp_path / "rows", rows.schema) as writer:
        writer.write_table(rows)
    ((flat,), starts, stops) = TableDataset(tmp_path / "rows").spans([-1, 6])["input_ids"]
    assert flat.dtype == np.int32 and not flat.flags.owndata and not flat.flags.writeable
    assert [flat[a:b].tolist() for a, b in zip(starts, stops)] == [COLUMNS["input_ids"][1][i] for i in (49, 6)]
    with pytest.raises(IndexError, match="index 50 of a TableDataset of 50 rows"):
        TableDataset(tmp_path / "rows").spans([50])


@pytest.mark.parametrize(
    "columns, options",
    [
        (COLUMNS, {"decode": lambda row: {"input_ids": row["input_ids"]}}),
        (COLUMNS, {"returns": "record_batch"}),
        ({**COLUMNS, "text": (pa.string(), ["a"] * ROWS)}, {}),
        ({**COLUMNS, "flags": (pa.list_(pa.bool_()), [[True]] * ROWS)}, {}),
        ({**COLUMNS, "weight": (pa.float32(), [None] * ROWS)}, {"null_mask": ["weight"]}),
    ],
)
def test_rows_that_are_not_lists_of_numbers_as_stored_have_no_spans(tmp_path, columns, options):
    pq.write_table(table(**columns), tmp_path / "rows")
    data = TableDataset(tmp_path / "rows", **options)
    assert data.spans is None
    if options.get("returns") != "record_batch":
        (batch,) = loaded(data, ROWS, collate_fn=tokens.Flat(fields=["input_ids"]))
        assert batch["input_ids"].tolist() == [one for row in COLUMNS["input_ids"][1] for one in row]


@pytest.mark.parametrize("value", [None, [1, None]])
def test_nulls_are_an_error_that_names_the_column(tmp_path, value):
    pq.write_table(table(input_ids=(pa.list_(pa.int32()), [[1], value])), tmp_path / "rows")
    with pytest.raises(ValueError, match="column 'input_ids' has nulls"):
        loaded(TableDataset(tmp_path / "rows"), 2, collate_fn=tokens.Flat())
