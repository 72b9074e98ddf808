"""A bad block: the error names column and batch, loses only this block, and ends nothing."""

import contextlib
import re
import signal

import numpy as np
import pytest

import slipring
from slipring.errors import BlockError
from tests.support.options import grouped
from tests.support.processes import LONG_S
from tests.support.signals import Raised, handling

pa = pytest.importorskip("pyarrow")

WAYS = [{}, {"num_workers": 1}, {"num_workers": 1, "start_method": "fork"}]


def good(at, n=5):
    return {"x": np.arange(at, at + n), "y": np.ones((n, 2), np.float32), "t": [str(i) for i in range(at, at + n)]}


def tensors(values):
    return pa.FixedSizeListArray.from_arrays(pa.array(values, pa.float32()), 2)


class Listed:
    """Blocks of a list; an exception would end a generator."""

    def __init__(self, blocks):
        self.blocks, self.at = blocks, 0

    def __iter__(self):
        return self

    def __next__(self):
        at = self.at
        if at >= len(self.blocks):
            raise StopIteration
        self.at = at + 1
        return self.blocks[at]


class Failing(Listed):
    """Raises the exceptions among the blocks, and then continues."""

    def __next__(self):
        block = super().__next__()
        if isinstance(block, Exception):
            raise block
        return block


def all_of(blocks, batch_size=4, **way):
    """Read to the end, past errors; return the rows of x, and the errors."""
    source = (lambda worker, workers: Failing(blocks)) if "start_method" in way else Failing(blocks)
    got, errors = [], []
    with slipring.stream(source, batch_size, timeout=LONG_S if way else 0, **grouped(**way)) as loader:
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return got, errors
            except (BlockError, OSError) as error:
                errors.append(error)
                continue
            assert batch["t"].to_pylist() == [str(i) for i in batch["x"]]
            got += batch["x"].tolist()


BAD = {
    "another dtype": (
        {**good(0), "y": np.ones((5, 2))}, "y",
        "column 'y' is float64 of shape (2,) per row, but float32 of shape (2,) per row in the first block",
    ),
    "another shape": (
        {**good(0), "y": np.ones((5, 3), np.float32)}, "y", "column 'y' is float32 of shape (3,) per row, but",
    ),
    "another type": ({**good(0), "t": [b"a"] * 5}, "t", "column 't' is binary, but string in the first block"),
    "a column missing": ({"x": [1], "t": ["a"]}, "y", "column 'y' is missing: the block has 'x', 't'"),
    "nested": (
        {**good(0), "y": {"ids": [1, 2, 3, 4, 5], "mask": [1] * 5}}, "y",
        "column 'y' is a dict (['ids', 'mask']): give each of its parts as a column of its own",
    ),
    "masked": (
        {**good(0), "y": np.ma.masked_equal(np.eye(5, 2, dtype=np.float32), 1)}, "y",
        "column 'y' has 2 masked values: name it in fill_null= or null_mask=, or fill",
    ),
    "one more": ({**good(0), "z": np.arange(5)}, "z", "column 'z' is one that the first block does not have"),
    "fewer rows": ({**good(0), "y": np.ones((4, 2), np.float32)}, "y", "column 'y' has 4 rows, but 'x' of the same"),
    "no rows": ({**good(0), "x": 3}, "x", "column 'x' is 3, but an array with a row for each is expected"),
    "ragged": ({**good(0), "y": [[1], [1, 2]]}, "y", "column 'y' cannot be made an array"),
    "objects": ({**good(0), "t": [object()] * 5}, "t", "column 't' is neither numbers nor what Arrow"),
    "nulls": (
        pa.record_batch({"x": pa.array([1, None]), "y": tensors([1, 2, 3, 4]), "t": ["a", "b"]}), "x",
        "column 'x' has numbers or tensors in each row, but 1 of 2 values are null: name it in fill_null=",
    ),
    "nulls in a tensor": (
        pa.record_batch({"x": [1, 2], "y": tensors([1, None, 3, None]), "t": ["a", "b"]}), "y",
        "column 'y' has numbers or tensors in each row, but 2 of 4 values are null",
    ),
    "a name twice": (
        pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), "x", "column 'x' is there 2 times",
    ),
    "no columns": ({}, "x", "column 'x' is missing"),
    "no block": ((1, 2), None, "expected a pyarrow.RecordBatch, a pyarrow.Table or a dict of arrays, but came (1, 2)"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_block_is_an_error_that_says_all_and_costs_no_row_of_others(what):
    bad, column, text = BAD[what]
    rows, [error] = all_of([good(0), good(5, 2), bad, good(7), good(12)])
    assert rows == list(range(17))
    assert type(error) is BlockError and isinstance(error, ValueError)
    assert f"block 2 of the stream, for batch 1 of batch_size=4: {text}" in str(error)
    assert (error.column, error.block, error.batch) == (column, 2, 1)


@pytest.mark.parametrize("way", WAYS)
def test_empty_blocks_are_skipped_wherever_they_are(way):
    empty = [{"x": [], "y": [], "t": []}, pa.table({"other": pa.array([], pa.int8())})]
    assert all_of([*empty, good(0), *empty, good(5), *empty], **way) == (list(range(10)), [])
    assert all_of(empty, **way) == all_of([], **way) == ([], [])


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_of_the_source_comes_as_it_is_and_the_stream_continues(way):
    rows, errors = all_of([OSError("server 1"), good(0), OSError("server 2"), OSError("server 3"), good(5)], **way)
    assert rows == list(range(10)) and all(type(error) is OSError for error in errors)
    assert [re.search(r"server \d", str(error))[0] for error in errors] == ["server 1", "server 2", "server 3"]


@pytest.mark.parametrize(("shuffle_buffer", "text"), [(0, False), (40, True)])
# pyarrow's calls import modules: Python drops a handler's exceptions in the callbacks of the import locks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signals_handler_that_raises_ends_the_iteration_and_costs_the_next_no_row(shuffle_buffer, text):
    blocks = [{"x": np.arange(at, at + 6)} for at in range(0, 6_000 if text else 60_000, 6)]
    if text:
        blocks = [{**block, "t": [str(i) for i in block["x"]]} for block in blocks]
    late = 0

    def handler(*_):
        raise Raised

    with (
        handling(handler, signal.SIGVTALRM),
        contextlib.ExitStack() as stack,
        slipring.stream(lambda worker, workers: Listed(blocks), 10, shuffle_buffer=shuffle_buffer) as loader,
    ):
        stack.callback(signal.setitimer, signal.ITIMER_VIRTUAL, 0)
        for _ in range(10):
            iterator = iter(loader)
            next(iterator)
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.002)
                for _ in iterator:
                    pass
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except Raised:
                late += 1
                with contextlib.suppress(slipring.errors.Closed):  # the exception came in the loop, not in next()
                    next(iterator)
        got = np.zeros(6 * len(blocks), np.int64)
        for batch in loader:
            got[batch["x"]] += 1
    assert late
    assert np.flatnonzero(got != 1).tolist() == []


@pytest.mark.parametrize("options", [{}, {"shuffle_buffer": 16}], ids=str)
def test_rows_with_objects_in_their_fields_are_refused(options):
    """Their bytes are pointers: a copy of them would crash."""
    rows = [{"x": np.array([("text" * 50, 1)] * 5, [("text", object), ("number", "i4")])} for _ in range(5)]
    with pytest.raises(BlockError, match="'x' has Python objects in the fields"):
        next(iter(slipring.stream(rows, 8, **options)))


@pytest.mark.parametrize("text", ["abc", b"abc", np.str_("abc")], ids=repr)
def test_a_text_is_no_column_of_its_letters(text):
    with pytest.raises(BlockError, match=r"column 'x' is .*abc"):
        next(iter(slipring.stream([{"x": text}], 4)))
