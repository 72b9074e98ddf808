"""What limits a dataset, and how many workers are enough for it, according to the rows of a sweep."""

import dataclasses

from slipring._cli.sweep import ENOUGH


@dataclasses.dataclass(frozen=True)
class Finding:
    """The conclusion from a sweep."""

    limit: str  # the cause of a verdict, "memory" if more workers failed, or "no_workers" if only the loop was measured
    sentence: str
    workers: int  # that are enough
    start_method: str
    samples_per_s: float  # with these workers
    more_may_help: bool  # adding workers may increase the rate further


def judge(rows, processors):
    """Return the `Finding`; None if no case has figures."""
    first = rows[0].case
    good = [row for row in rows if not row.error]
    curve = sorted((row for row in good if _alike(row.case, first)), key=lambda row: row.case.workers)
    if not curve:
        return None
    best = max(row.samples_per_s for row in curve)
    enough = next(row for row in curve if row.samples_per_s >= ENOUGH * best)
    number, rate = enough.case.workers, f"{enough.samples_per_s:,.0f} samples/s"
    rising = enough is curve[-1] and len(curve) > 1
    failed = next((row for row in rows if row.error and row.case.workers > number and _alike(row.case, first)), None)
    # If the loop itself is fast enough, the fewest workers show why more of them do not help.
    shown = next((row for row in curve if row.cause and row.case.workers >= number), enough)
    limit, text = shown.cause or "no_workers", shown.text or "Only batches that the loop makes itself were measured."
    if rising and failed is not None:
        limit, text = "memory", f"What limits is memory: {failed.case} failed with {failed.error}."
    helps = rising and (limit == "storage" or number < processors)
    workers = "1 worker" if number == 1 else f"{number} workers"
    if rising and limit != "memory":
        more = "more may help, because waits overlap" if limit == "storage" else "more may help"
        more = f"{more}; there are {processors} processors" if helps else f"{processors} processors serve no more"
        answer = f"With {workers}, the most that was measured, it is still faster than with fewer ({rate}): {more}."
    elif number:
        answer = f"{workers} {'is' if number == 1 else 'are'} enough ({rate})."
    else:
        answer = f"No workers are needed ({rate})."
    sentence = " ".join([text, answer, *_others(good, enough)])
    return Finding(limit, sentence, number, enough.case.start_method, enough.samples_per_s, helps)


def _alike(case, first):
    """Return whether two cases differ in the number of workers only."""
    return case.batch_size == first.batch_size and (not case.workers or case.start_method == first.start_method)


def _others(good, enough):
    """Yield sentences about threads and batch sizes, if they are faster."""
    size = enough.case.batch_size
    of_size = [row for row in good if row.case.workers and row.case.batch_size == size]
    threads = [row for row in of_size if row.case.start_method == "thread"]
    others = [row.samples_per_s for row in of_size if row.case.start_method != "thread"]
    if threads and others and threads[-1].samples_per_s > max(others) / ENOUGH:
        yield f"Threads are faster: {threads[-1].samples_per_s:,.0f} samples/s with {threads[-1].case.workers}."
    fastest = max(good, key=lambda row: row.samples_per_s)
    if fastest.case.batch_size != size and fastest.samples_per_s > enough.samples_per_s / ENOUGH:
        yield f"Batches of {fastest.case.batch_size} give {fastest.samples_per_s:,.0f} samples/s."
