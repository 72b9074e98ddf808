"""The shares of the workers' time: the cause if no other applies, and the number of workers that would help."""

from slipring._core.ring._ring import MAX_WORKERS
from slipring._core.ring.text import digits, seconds
from slipring._observe.snapshot import part_shares, parts_text

EXPLAINS = 0.5  # of the waiting: a cause must explain so much of it
ON_CPU = 0.6  # of its time: a worker that computes, and does not wait for something
CROWDED = 0.15  # of its busy time: a worker that is ready to run, and has no processor
LOCKED = 0.5, 1.4  # processors that threads have together if they wait for Python's lock
PER_CPU = 4  # most workers per processor to advise, if they wait
THREADS = "`workers=slipring.Workers(fetch_threads=8)`"
PROCESSES = "`workers=slipring.Workers(start_method='forkserver')`"
WRITING, COLLATE = "writing samples into the batch", "collate_fn"
SMALLER = "Have smaller samples: uint8 in place of float32 (`sample.astype('uint8')`), or a crop."
# The part that takes most of the workers' time -> advice.
IF_COMPUTING = {
    WRITING: SMALLER,
    COLLATE: "Make it cheaper (stack arrays once, no copies, no lists of numbers), or leave it to slipring "
    "(`collate_fn=None`).",
    "augment": "Use cheaper operations (bilinear in place of bicubic), or fewer: `slipring bench-dataset "
    "module:factory` shows the effect. A cache of decoded images does not help here.",
    "your_code": "Change the image in place, replace Python loops by NumPy, or use operations of `slipring.images`.",
}
IF_WAITING = {
    WRITING: SMALLER,
    COLLATE: "It waits for something: do that in the dataset, where threads wait for several samples at once "
    f"({THREADS}), or not at all.",
    "your_code": "Your function waits for something, such as a file or a lock: read that once, before the first "
    "sample. `py-spy dump --subprocesses --pid {pid}` shows what the workers wait for.",
    "read": f"Reading is slow: a faster disk, larger files, a cache ({{cache}}), threads in each worker ({THREADS}).",
}
CHEAPER = {"augment": "make augmentation cheaper", "your_code": "make your code cheaper"}


def shares(f, known):
    """Return the (cause, text, advice) of workers that have enough tasks, with the shares of what they do."""
    parts = part_shares(float(f.table["fetch_ns"].sum()), lambda field: f.table[field].sum())
    each, collate, largest = float(f.made_in.mean()) / 1e9, collating(f), _largest(parts)
    text = parts_text(parts)
    if collate >= EXPLAINS:
        largest = WRITING if known.own_collate is False else COLLATE
        text = f"{collate:.0%} {largest}"
    # Threads that wait for the lock are neither on a processor nor ready to run, and all together have about one.
    locked = f.snapshot.threads and f.n_workers > 1 and LOCKED[0] < f.on_cpu * f.busy * f.n_workers < LOCKED[1]
    waits = (f.computing < ON_CPU and not locked) or (parts.get("read", 0.0) > EXPLAINS > collate)
    text = (
        f"The workers are {f.busy:.0%} busy, and {'wait' if waits else 'compute'}: they have a processor for "
        f"{f.on_cpu:.0%} of the time that a batch takes, which is {seconds(each)}{text and f' ({text})'}."
    )
    if f.queued >= CROWDED:
        text += f" For {f.queued:.0%} of it they are ready to run, and have no processor."
    cause, page = "storage" if waits else "compute", "`docs/observing.md` says what helps for each share."
    processes = f"Threads share Python's lock, and processes do not ({PROCESSES})."
    if locked:
        return cause, f"{text} Threads that wait for Python's lock have one processor together.", f"{processes} {page}"
    # Only datasets of slipring.images and slipring.clips report the parts of fetching, and take a cache.
    cache = "`cache=budget`" if parts else "`slipring.cached(dataset, budget)`"
    if waits and largest not in IF_WAITING:
        largest = "read"
    advice = (IF_WAITING if waits else IF_COMPUTING).get(largest, "").format(pid=f.snapshot.consumer_pid, cache=cache)
    cheaper = CHEAPER.get(largest, f"make the samples cheaper (smaller files, a cache: {cache})")
    alone = processes if f.snapshot.threads and not waits else ""
    return cause, text, " ".join(filter(None, [advice, more(f, known, waits, cheaper), alone, page]))


def collating(f):
    """Return the share of the workers' time after fetching: collation, and writing into the slot."""
    fetch, collate = float(f.table["fetch_ns"].sum()), float(f.table["collate_ns"].sum())
    return collate / max(1.0, fetch + collate)


def _largest(parts):
    """Return the largest part of fetching: "read", "decode", "augment" or "your_code"; "" if it was not reported."""
    kinds = {name: parts.get(name, 0.0) for name in ("read", "augment", "your_code")}
    kinds["decode"] = parts.get("decode", 0.0) + parts.get("resize", 0.0)  # from a cache, an image is only resized
    kinds[""] = 1 - sum(kinds.values())
    return max(kinds, key=kinds.get)


def more(f, known, waits, cheaper):
    """Return the advice on the number of workers; empty if they are enough.

    `waits`: whether they wait, and do not compute. `cheaper` is what to do if there are too few processors.
    """
    if known.saturated:
        few, rate, many, its = known.saturated
        found = f"{many} made {digits(its)} batches/s, and {few} made {digits(rate)}"
        shared = " Look for what they share: a lock, a connection, a disk." if waits else ""
        return f"More workers than `num_workers={few}` bring hardly anything: {found}.{shared}"
    n, cpus = f.enough, min(f.cpus, MAX_WORKERS // PER_CPU)
    most = PER_CPU * cpus if waits else cpus
    if n <= f.n_workers or (waits and known.tuned and n > most):  # a tuned loader tries them itself, up to its bound
        return ""
    if n <= most:
        return f"`num_workers={n}` would be enough; there are {f.n_workers}."
    if not waits:
        use = f"use `num_workers={most}`, and " if f.n_workers < most and not known.tuned else ""
        return f"The {cpus} processors of this process are too few to keep up with the step: {use}{cheaper}."
    if f.n_workers >= most:
        return '`num_workers="auto"` finds out how many workers help; a stream needs a number.'
    return f"Have more workers, `num_workers={most}` for a start, because their waits overlap."
