"""The causes within fetching, whose parts a dataset may report; and the number of workers that would help."""

from slipring._core.ring._ring import MAX_WORKERS
from slipring._core.ring.text import digits, seconds
from slipring._observe.snapshot import part_shares, parts_text

EXPLAINS = 0.5  # of the waiting: a cause must explain so much of it
ON_CPU = 0.6  # of its time: a worker that computes, and does not wait for something
CROWDED = 0.15  # of its busy time: a worker that is ready to run, and has no processor
PER_CPU = 4  # most workers per processor to advise, if they wait
PROCESSES = "`workers=slipring.Workers(start_method='forkserver')`"
# The largest part of fetching -> (what to do about it, what else helps if there are too few processors).
COMPUTING = {
    "augment": (
        "`dataset.step_times()` and `slipring bench-dataset module:factory` measure each step. Use cheaper operations "
        "(bilinear in place of bicubic), or fewer. A cache of decoded images does not help here.",
        "make augmentation cheaper",
    ),
    "your_code": (
        "Change the image in place, replace Python loops by NumPy, or use operations of `slipring.images`.",
        "make your code cheaper",
    ),
}


def fetching(f, known):
    """Return the (cause, text, advice) of workers that spend their time on fetching, with the shares of its parts."""
    shares = part_shares(float(f.table["fetch_ns"].sum()), lambda field: f.table[field].sum())
    largest, parts = _largest(shares), parts_text(shares)
    each = f"{seconds(float(f.made_in.mean()) / 1e9)}{f' ({parts})' if parts else ''}"
    waits = f.computing < ON_CPU
    # Only datasets of slipring.images report the parts of fetching.
    cache = "`cache=budget`" if shares else "`slipring.cached(dataset, budget)`"
    if waits or shares.get("read", 0.0) > EXPLAINS:
        advice = _of_waits(f, known, cache)
        if largest == "your_code":
            advice = (
                "Your function waits for something, such as a file or a lock: read that once, before the first sample. "
                f"`py-spy dump --subprocesses --pid {f.snapshot.consumer_pid}` shows what the workers wait for."
            )
        return (
            "storage",
            f"The workers are {f.busy:.0%} busy, and wait in the dataset for most of it: they have a processor for "
            f"{f.on_cpu:.0%} of the time that a batch takes, which is {each}.",
            f"{advice} {more(f, known, True)}".strip(),
        )
    advice, cheaper = COMPUTING.get(largest, ("", f"make the samples cheaper (smaller files, a cache: {cache})"))
    shared = f"Threads share Python's lock, and processes do not ({PROCESSES})." if f.snapshot.threads else ""
    return (
        "compute",
        f"The workers are {f.busy:.0%} busy, and compute: to make a batch takes {each}.{_crowded(f)}",
        " ".join(filter(None, (advice, more(f, known, cheaper=cheaper), shared))),
    )


def _of_waits(f, known, cache):
    side_by_side = "" if known.saturated else ", or more workers, which wait side by side"
    return (
        f"Reading is slow: a faster disk, larger files, a cache ({cache}), threads in each worker "
        f"(`workers=slipring.Workers(fetch_threads=8)`){side_by_side}."
    )


def _largest(shares):
    """Return the largest part of fetching: "read", "decode", "augment" or "your_code"; "" if it was not reported."""
    kinds = {name: shares.get(name, 0.0) for name in ("read", "augment", "your_code")}
    kinds["decode"] = shares.get("decode", 0.0) + shares.get("resize", 0.0)  # from a cache, an image is only resized
    kinds[""] = 1 - sum(kinds.values())
    return max(kinds, key=kinds.get)


def _crowded(f):
    """Return the text for a shortage of CPUs; empty if there is none."""
    return f" For {f.queued:.0%} of that they are ready to run, and have no processor." if f.queued >= CROWDED else ""


def more(f, known, waiting=False, cheaper="make the samples cheaper"):
    """Return the advice on the number of workers; empty if they are enough.

    `waiting`: whether they wait, and do not compute. `cheaper` is what to do if there are too few processors.
    """
    if known.saturated:
        few, rate, many, its = known.saturated
        found = f"{many} made {digits(its)} batches/s, and {few} made {digits(rate)}"
        shared = " Look for what they share: a lock, a connection, a disk." if waiting else ""
        return f"More workers than `num_workers={few}` bring hardly anything: {found}.{shared}"
    n, most = f.enough, min(f.cpus, MAX_WORKERS // PER_CPU)
    if not n or n <= f.n_workers:
        return ""
    if n > PER_CPU * most and waiting:
        if known.tuned:
            return ""  # the loader tries them itself, up to its upper bound
        if f.n_workers >= PER_CPU * most:
            return '`num_workers="auto"` finds out how many workers help; a stream needs a number.'
        return (
            f"Have more workers, `num_workers={PER_CPU * most}` for a start: the step by itself takes little time. If "
            "they bring nothing, they wait for one another, such as for a lock."
        )
    if n > most and not waiting:
        use = f"use `num_workers={most}`, and " if f.n_workers < most and not known.tuned else ""
        remedy = f"{use}{cheaper}, or give it more processors."
        if n > PER_CPU * most:  # the number itself would be no advice
            return f"This process may use {most} processors, and no number of workers on them would keep up: {remedy}"
        return f"{n} workers would keep up with the step, and this process may use {most} processors: {remedy}"
    return f"`num_workers={n}` would be enough; there are {f.n_workers}."
