"""The shares of the workers' time: the cause if no other applies, and the number of workers that would help."""

from slipring._core.ring._ring import MAX_WORKERS
from slipring._core.ring.text import digits, seconds
from slipring._observe.snapshot import part_shares, parts_text

EXPLAINS = 0.5  # of the waiting: a cause must explain so much of it
ON_CPU = 0.6  # of its time: a worker that computes, and does not wait for something
CROWDED = 0.15  # of its busy time: a worker that is ready to run, and has no processor
PER_CPU = 4  # most workers per processor to advise, if they wait
PROCESSES = "`workers=slipring.Workers(start_method='forkserver')`"
# The part that dominates the workers' time -> advice.
SMALLER = {
    "writing samples into the batch": "Have smaller samples: uint8 in place of float32 (`sample.astype('uint8')`), or "
    "a crop.",
}
IF_COMPUTING = SMALLER | {
    "augment": "`dataset.step_times()` and `slipring bench-dataset module:factory` measure each step. Use cheaper "
    "operations (bilinear in place of bicubic), or fewer. A cache of decoded images does not help here.",
    "augment clips": "Use cheaper operations (bilinear in place of bicubic), or fewer: `slipring bench-dataset "
    "module:factory` shows the effect. A cache does not help here.",
    "your_code": "Change the image in place, replace Python loops by NumPy, or use operations of `slipring.images`.",
    "collate_fn": "Make it cheaper (stack arrays once, no copies, no lists of numbers), or leave it to slipring "
    "(`collate_fn=None`).",
}


CHEAPER = {"augment": "make augmentation cheaper", "your_code": "make your code cheaper"}


def shares(f, known):
    """Return the (cause, text, advice) of workers that have enough tasks, with the shares of what they do."""
    parts = part_shares(float(f.table["fetch_ns"].sum()), lambda field: f.table[field].sum())
    cause, largest, text = _found(f, known, parts)
    # Only datasets of slipring.images and slipring.clips report the parts of fetching, and take a cache.
    cache = "`cache=budget`" if parts else "`slipring.cached(dataset, budget)`"
    waits = cause == "storage" or f.computing < ON_CPU
    subject = "augment clips" if largest == "augment" and known.clips else largest  # Videos have no step_times()
    advice = [(_if_waiting(f, known, cache) if waits else IF_COMPUTING).get(subject)]
    cheaper = CHEAPER.get(largest, f"make the samples cheaper (smaller files, a cache: {cache})")
    advice.append(more(f, known, waits, cheaper))
    if f.snapshot.threads and cause == "compute":
        advice.append(f"Threads share Python's lock, and processes do not ({PROCESSES}).")
    return cause, text, " ".join(filter(None, advice))


def _found(f, known, parts):
    """Return the cause, the part that dominates the time, and the text."""
    each, told, collate = float(f.made_in.mean()) / 1e9, parts_text(parts), collating(f)
    took = f"{seconds(each)}{f' ({told})' if told else ''}"
    busy = f"The workers are {f.busy:.0%} busy"
    if collate >= EXPLAINS:
        what = "writing samples into the batch" if known.own_collate is False else "collate_fn"
        text = f"{busy}, and {collate:.0%} of that goes into {what} ({seconds(each * collate)} for each batch)."
        return "collate", what, text
    largest = _largest(parts)
    if f.computing < ON_CPU or parts.get("read", 0.0) > EXPLAINS:
        text = f"{busy}, and wait in the dataset for most of it: they have a processor for {f.on_cpu:.0%} of the time "
        text += f"that a batch takes, which is {took}."
        return "storage", "your_code" if largest == "your_code" else "read", text
    return "compute", largest, f"{busy}, and compute: to make a batch takes {took}.{_crowded(f)}"


def _if_waiting(f, known, cache):
    side_by_side = "" if known.saturated else ", or more workers, which wait side by side"
    threads = "(`workers=slipring.Workers(fetch_threads=8)`)"
    return SMALLER | {
        "collate_fn": "It waits for something: do that in the dataset, where threads wait for several samples at once "
        f"{threads}, or not at all.",
        "your_code": "Your function waits for something, such as a file or a lock: read that once, before the first "
        f"sample. `py-spy dump --subprocesses --pid {f.snapshot.consumer_pid}` shows what the workers wait for.",
        "read": f"Reading is slow: a faster disk, larger files, a cache ({cache}), threads in each worker "
        f"{threads}{side_by_side}.",
    }


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


def _crowded(f):
    """Return the text for a shortage of CPUs; empty if there is none."""
    return f" For {f.queued:.0%} of that they are ready to run, and have no processor." if f.queued >= CROWDED else ""


def more(f, known, waiting, cheaper):
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
