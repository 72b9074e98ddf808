"""What limits a dataset, and how many workers are enough for it, according to the rows of a sweep."""

import dataclasses

from slipring._cli.sweep import ENOUGH
from slipring._core.ring.text import seconds
from slipring._observe.snapshot import parts_text

IDLE = 0.5  # share of the workers' time without a task: with more, they are not the limit
MOST = 0.5  # share from which a part is the larger one
SLOWED = 1.5  # times as fast without transport: then transport is the limit


@dataclasses.dataclass(frozen=True)
class Finding:
    """The conclusion from a sweep."""

    # 'dataset CPU', 'dataset waiting', 'collation', 'transport', 'hand-over', 'consumer', 'memory' or 'GIL'
    limit: str
    sentence: str
    workers: int  # that are enough
    start_method: str
    samples_per_s: float  # with these workers
    more_may_help: bool  # adding workers may increase the rate further


def judge(rows, processors):
    """Return the `Finding`; None if no case has figures."""
    first = rows[0].case
    good = [row for row in rows if row.case.transport and not row.error]
    curve = [row for row in good if _alike(row.case, first)]
    if not curve:
        return None
    curve.sort(key=lambda row: row.case.workers)
    best = max(row.samples_per_s for row in curve)
    enough = next(row for row in curve if row.samples_per_s >= ENOUGH * best)
    most, number = curve[-1], enough.case.workers
    rising = enough is most and len(curve) > 1
    bare = next(
        (row for row in rows if not row.error and row.case == dataclasses.replace(enough.case, transport=False)),
        None,
    )
    failed = next((row for row in rows if row.error and row.case.workers > number and _alike(row.case, first)), None)
    limit = "memory" if rising and failed is not None else limit_of(enough, bare)
    parts = [f"{_limit_text(limit, enough, bare, failed, processors)}."]
    rate = f"{enough.samples_per_s:,.0f} samples/s"
    if rising and limit in ("dataset CPU", "dataset waiting", "collation"):
        parts.append(
            f"With {_workers(number)}, the most that was measured, it is still faster than with fewer ({rate})"
        )
        parts[-1] += (
            ": more may help, as waiting takes no processor."
            if limit == "dataset waiting"
            else f": more may help, there are {processors} processors."
            if number < processors
            else f"; more will hardly help on {processors} processors."
        )
    else:
        are = "is" if number == 1 else "are"
        parts.append(
            f"{_workers(number).capitalize()} {are} enough ({rate})." if number else f"No workers are needed ({rate})."
        )
    parts += _others(good, enough)
    helps = rising and (limit == "dataset waiting" or number < processors)
    return Finding(limit, " ".join(parts), number, enough.case.start_method, enough.samples_per_s, helps)


def _alike(case, first):
    """Return whether two cases differ in the number of workers only."""
    return case.batch_size == first.batch_size and (not case.workers or case.start_method == first.start_method)


def limit_of(row, bare=None):
    """Return what limits a case; `bare` is the same without transport."""
    busy, workers = row.busy_s, row.case.workers
    slowed = bare is not None and _slowed(row, bare)
    if workers and busy < (1 - IDLE) * workers * row.seconds:
        if row.consumer_wait_s < MOST * row.seconds:
            return "consumer"
        return "transport" if slowed else "hand-over"
    if slowed:
        return "transport"
    if row.cpu_s is not None and row.queued_s is not None:
        stood = busy - row.cpu_s - row.queued_s
        if stood > MOST * busy or (_threads(row) and stood > MOST / 2 * busy):
            return "GIL" if _threads(row) and row.cpu_s > MOST * row.seconds else "dataset waiting"
    return "collation" if row.collate_s > MOST * busy else "dataset CPU"


def _slowed(row, bare):
    """Return whether transport, and not slower reading, takes the time that is lost with it."""
    if bare.samples_per_s <= SLOWED * row.samples_per_s:
        return False
    lost = 1 / row.samples_per_s - 1 / bare.samples_per_s
    return _reading(row) - _reading(bare) < MOST * lost


def _reading(row):
    """Return the seconds of reading for a sample, as far as workers do not read concurrently."""
    return row.fetch_s / (max(1, row.batches * row.case.batch_size) * max(1, row.case.workers))


def _threads(row):
    return row.case.start_method == "thread" and row.case.workers > 1


def _limit_text(limit, row, bare, failed, processors):
    batches = max(1, row.batches)
    samples = batches * row.case.batch_size
    each = f"{seconds(row.fetch_s / samples)} for a sample"
    parts = parts_text(row.parts)
    parts = f" ({parts})" if parts else ""
    waits = f"{1 - (row.cpu_s or 0) / row.busy_s:.0%}" if row.busy_s else "most"
    return {
        "dataset CPU": f"What limits is the dataset's own computing: reading takes {each} of a worker's time{parts}",
        "dataset waiting": f"What limits is what the dataset waits for (storage, network, sleep, locks): {each}, of "
        f"which a worker runs on no processor for {waits}{parts}",
        "collation": f"What limits is collation: {seconds(row.collate_s / batches)} for a batch, "
        f"reading its samples {seconds(row.fetch_s / batches)}",
        "transport": "What limits is transport: without it there are "
        + (f"{bare.samples_per_s:,.0f} samples/s" if bare else "more")
        + f" in place of {row.samples_per_s:,.0f}",
        "hand-over": "What limits is handing over batches, whatever lies in them: "
        f"{seconds(row.seconds / batches)} for each, of which a worker reads and collates for "
        f"{seconds(row.busy_s / batches)}; larger batches help",
        "consumer": "What limits is the consumer, one process that only takes batches: workers wait for it",
        "memory": f"What limits is memory: {'' if failed is None else f'{failed.case} failed with {failed.error}'}",
        "GIL": "What limits is the GIL: worker threads wait for one another; use processes",
    }[limit]


def _workers(number):
    return "no worker" if number == 0 else "1 worker" if number == 1 else f"{number} workers"


def _others(good, enough):
    """Return sentences about start methods and batch sizes, if they matter."""
    parts = []
    methods = {
        row.case.start_method: row
        for row in good
        if row.case.workers and row.case.batch_size == enough.case.batch_size
        and row.case.workers == max(r.case.workers for r in good if r.case.start_method == row.case.start_method)
    }  # fmt: skip
    thread = methods.get("thread")
    others = [row.samples_per_s for name, row in methods.items() if name != "thread"]
    if thread is not None and others and limit_of(thread) == "GIL" and enough.case.start_method != "thread":
        parts.append(f"Threads give {thread.samples_per_s:,.0f} samples/s: they wait for the GIL.")
    elif thread is not None and others and thread.samples_per_s > max(others) / ENOUGH:
        parts.append(f"Threads are faster: {thread.samples_per_s:,.0f} samples/s with {thread.case.workers}.")
    fastest = max(good, key=lambda row: row.samples_per_s)
    if fastest.case.batch_size != enough.case.batch_size and fastest.samples_per_s > enough.samples_per_s / ENOUGH:
        parts.append(f"Batches of {fastest.case.batch_size} give {fastest.samples_per_s:,.0f} samples/s.")
    return parts
