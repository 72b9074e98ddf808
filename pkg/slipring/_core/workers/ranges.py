"""Batches that several workers make: each reads a range of the rows, and the last one puts the ranges together."""

import contextlib

from slipring._core.codec._encode import ERROR, layout, lost, publish_range, range_lost, view
from slipring._core.codec._rows import LIST, RowWriter
from slipring._core.ring._ring import DIRECT, STAGED
from slipring._core.workers import error_record


def share_layout(encoder, rows):
    """Lay out the rows of the whole batch, or use the layout that another worker settled."""
    writer = rows.writer
    how = writer.propose_layout()
    if how == DIRECT:
        rows.adopt(*layout(writer))
        return
    settled = how == STAGED
    in_place = False
    try:
        if not settled and (laid_out := rows.reserve(writer.n_rows)) is not None:
            settled = in_place = encoder.settle_direct(writer, *laid_out)
    finally:
        if not settled:  # others wait for it
            encoder.settle_staged(writer)
    if not in_place:
        rows.give_up()


def staged(rows, n, dataset, finishes=False):
    """Return a list of the data of `n` rows of a range that is not in the slot; None: there is none.

    These are the leaves that have no rows, or the samples themselves. If the dataset `finishes` batches, there always
    is a list, so that a worker puts the ranges together.
    """
    check_count(rows.count, n, dataset)
    if not rows.in_place:
        return [rows.read_back()]
    kept = rows.kept()
    return [{"kept": kept}] if kept or finishes else None


def check_count(found, n, dataset):
    """Raise ValueError if a dataset's ``__getitems__`` has returned another number of samples than `n`."""
    if found != n:
        raise ValueError(f"{type(dataset).__name__}.__getitems__ returned {found} samples for {n} indices")


def end_with_error(encoder, writer, described, allocation_error):
    """End a range with an exception's record; return whether this worker must now put the ranges together."""
    for value in (described, error_record.shortened(described)):
        with contextlib.suppress(*error_record.NO_MEMORY):
            return encoder.stage(writer, [value], ERROR)
    # The other ranges have taken even the memory that an error can use elsewhere.
    return range_lost(writer, *allocation_error)


def range_results(writer):
    """Return the values that the ranges of a batch have staged, for `assembled`; None if the batch has been published.

    It is published if all its rows are in place, or if a range has failed.
    """
    results = []
    value = None
    for range_no in range(writer.n_ranges):
        if (allocation_error := lost(writer, range_no)) is not None:
            del value, results
            writer.indices()
            raise error_record.from_allocation_error(*allocation_error, writer.rows_of(range_no), writer.ring)
        kind, value = view(writer, range_no)
        if kind == ERROR:
            del value, results
            publish_range(writer, range_no)
            return None
        results.append(value)
    if all(result is None for result in results):
        publish_range(writer)
        return None
    writer.indices()  # from now on, messages refer to all rows
    return results


def assembled(writer, results, rules, skip_none):
    """Return a `RowWriter` with all samples of a batch: in their rows, or in a list if some ranges are staged."""
    if not any(type(result) is list for result in results):
        return _in_place(writer, 0, writer.n_rows, results, range(len(results)), rules)
    samples = []
    for range_no, result in enumerate(results):
        if type(result) is not list:
            result = _in_place(writer, *writer.rows_of(range_no), results, [range_no], rules).read_back()
        samples.extend(result)
    rows = RowWriter(0, len(samples), LIST, skip_none=skip_none)
    rows.take(samples)
    return rows


def _in_place(writer, first, end, results, numbers, rules):
    """Return a `RowWriter` with the rows of some ranges, and with the leaves that have no rows."""
    rows = RowWriter(first, end, rules, share_layout)
    rows.adopt(*layout(writer))
    for range_no in numbers:
        start, stop = writer.rows_of(range_no)
        rows.keep([] if results[range_no] is None else results[range_no]["kept"], stop - start)
    return rows
