"""The causes that a loop may wait for: a rule for each, in the order in which they are tried.

A rule returns (cause, text, advice), or None if its cause does not apply. The code of an advice stands in backticks
and is complete: an argument of a loader or a dataset, an expression, or a command. tests/monitor/test_advice.py
executes it.
"""

import numpy as np

from slipring._core.ring._ring import MAX_SLOTS
from slipring._core.ring.text import megabytes, seconds
from slipring._observe.shares import EXPLAINS, collating, shares
from slipring._observe.snapshot import index_text, states

BOUND = 0.10  # of its time: a loop that waits longer is bound by its data
RARE = 0.25  # of the batches at most: then some samples are slow, not the dataset
OUTLIER = 6.0  # times the median: a slow sample
TINY = 200e3  # ns to make a batch
LONG = 1e9  # ns of an unfinished step, to be reported by itself
BUSY = 0.75  # of its time: a worker that does not wait for tasks
COPIED = 0.2  # of the batches: copied because slots are short
GROWN = 64 << 20  # bytes that a worker has copied of its parent's memory, to be reported
SHORT = 0.25  # of the memory that was available: copies of the parent's memory
LOST = 0.2  # of the time of remote reads: failed attempts and the pauses after them are the cause
# Name of a count of failed reads -> (description, advice).
REPEATED = {
    "refused": (
        "refused with 429 or 5xx",
        "The server limits requests, or cannot serve them: request less at once (fewer workers or "
        "`fetch_threads`, larger shards or row groups), and keep the data that was read "
        "(`slipring.Storage(disk_cache=folder)`).",
    ),
    "timeouts": (
        "no answer in time",
        "Find out why the server stalls. If its answers are only slow, give them more time "
        "(`slipring.Storage(attempt_timeout=60, timeout=300)`).",
    ),
    "broken": (
        "broken connections or answers",
        "The server, a proxy or the network breaks connections off: see their logs, and the warnings of "
        "`logging.getLogger('slipring')`, which reports the first failure.",
    ),
}


def _epoch_start(f, known):
    if f.first_wait < EXPLAINS * f.all_wait or not f.first_wait:
        return None
    steady = f.steady_wait / max(1.0, f.steady_wait + f.steady_step)
    if steady >= BOUND:
        return None
    n = int((f.waited[f.first] > 0).sum())
    each = f.first_wait / n / 1e9
    advice = "Keep the workers (`persistent_workers=True`), or make what they do at their start cheaper."
    if known.persistent:
        advice = (
            "The workers stay, and still their first batches take that long: have fewer, longer epochs. "
            "`sampler=numpy.random.permutation(10 * len(dataset)) % len(dataset)` makes one of ten."
        )
    return (
        "epoch_start",
        f"It waits at the beginning of each epoch ({seconds(each)}, {n} seen), and hardly later.",
        advice,
    )


def _copy(f, known):
    copied = f.table["copy_ns"].astype(np.float64)
    if not f.has_loop or not copied.any():
        return None
    period = f.snapshot.segment_info["loop_ns"] / max(1, f.snapshot.segment_info["loop_steps"])
    ring_wait = f.waited[~f.first].sum() / max(1.0, (~f.first).sum())
    if copied.mean() < EXPLAINS * period or ring_wait > EXPLAINS * period:
        return None
    rate = f.table["bytes"].sum() / max(1.0, copied.sum()) * 1e3
    return (
        "copy",
        f"Batches are there, and their copy to the device takes {seconds(copied.mean() / 1e9)} of the "
        f"{seconds(period / 1e9)} of a step ({rate:,.0f} MB/s).",
        "Send fewer bytes (uint8 in place of float32), and convert and normalise batches on the device: "
        "`device=slipring.torch.Device(device, transform=normalize)`.",
    )


def retries(f, known=None):
    """Check for remote reads that fail and are repeated, which takes a large part of the time to fetch."""
    reads = f.snapshot.segment_info["reads"]
    spent = reads["ns"] + reads["lost_ns"]
    failed = {name: reads[name] for name in REPEATED if reads[name]}
    if not failed or reads["lost_ns"] < LOST * spent or spent < EXPLAINS * f.snapshot.stages["fetch"].total_s * 1e9:
        return None
    counts = ", ".join(f"{REPEATED[name][0]}: {count:,}" for name, count in failed.items())
    share = sum(failed.values()) / reads["attempts"]
    return (
        "retries",
        f"{share:.0%} of the {reads['attempts']:,} remote reads failed and were repeated ({counts}). That took "
        f"{reads['lost_ns'] / spent:.0%} of the time of all reads.",
        REPEATED[max(failed, key=failed.get)][1],
    )


def _sample(f, known):
    slowest = f.table["slowest_ns"].astype(np.float64)
    rows = np.maximum(f.table["rows"], 1)
    usual = np.median(f.table["fetch_ns"] / rows)
    slow = (slowest > OUTLIER * max(usual, np.median(slowest))) & (slowest > EXPLAINS * f.table["fetch_ns"])
    if not slow.any() or slow.mean() > RARE:
        return None
    # The wait for a slow batch includes the batches after it, which were not begun in time.
    excess = (slowest[slow] - usual).sum()
    if excess < EXPLAINS * f.waited[~f.first].sum() or excess < 1e6:
        return None
    if f.queued * f.made_in.sum() > EXPLAINS * excess:
        return None  # a worker without a processor is slow with any sample
    order = np.argsort(slowest[slow])[::-1]
    found = {}
    for row in f.table[slow][order]:
        found.setdefault(index_text(row["slowest_index"]), float(row["slowest_ns"]) / 1e9)
    worth = [(name, s) for name, s in found.items() if s > max(found.values()) / 4]
    named = ", ".join(f"{name} ({seconds(s)})" for name, s in worth[:4])
    look = "Look at these"
    index = str(worth[0][0]).removeprefix("index ")
    if index.isdecimal():
        look += f" (`dataset[{index}]`)"
    passing = "" if known.in_order is False else "`in_order=False` lets other batches pass them, "
    return (
        "sample",
        f"A few samples take {slowest[slow].mean() / max(1.0, usual):.0f} times as long as the others: {named}.",
        f"{look}; {passing}a larger `prefetch_factor` hides them.",
    )


def _ray(f, known):
    """Check for workers that wait for blocks of Ray Data, which another process makes."""
    # Ray starts its tasks during the first batch of each worker, once in a loader's life.
    waited, spent = known.block_wait_ns - f.first_fetches, known.block_ns - f.first_fetches
    if waited <= 0 or waited < EXPLAINS * spent:
        return None
    return (
        "ray",
        f"The workers wait for blocks of Ray Data for {min(1.0, waited / spent):.0%} of the time that a batch takes.",
        "Give the Ray pipeline more tasks or actors at once (`dataset.map_batches(function, concurrency=8)`), or make "
        "its blocks larger (`ray.data.read_parquet(path, override_num_blocks=16)`). A larger `prefetch_blocks` helps "
        "if blocks come from other nodes. A faster disk or more workers of the loader do not help.",
    )


def _slots(f, known):
    """Check for slots that are too few: for the workers, or because the program keeps most of them."""
    n, copied = f.snapshot.segment_info["n_slots"], known.copied_share or 0.0
    held = sum(state in ("leased", "broadcast", "parked") for state in states(f.snapshot.slots))
    idle = f.busy < BUSY  # else the workers have enough slots
    if idle and 1 < f.n_workers >= n - 1:
        return (
            "slots",
            f"{n} slots are too few for {f.n_workers} workers, which are idle {1 - f.busy:.0%} of their time.",
            f"Give {_of_slots(2 * f.n_workers + 16)}, or more.",
        )
    if n <= f.n_workers + 2 or not (copied >= COPIED or (idle and n - held <= f.n_workers + 1)):
        return None
    what = f"{held} batches, of {n} slots"
    allowed = f.snapshot.segment_info.get("budget")
    if copied >= COPIED and allowed and allowed < n * int(f.table["bytes"].max()):
        return (
            "slots",
            f"{copied:.0%} of all batches were copied, because the budget of the pool allows this loader "
            f"{megabytes(allowed)} now, which is less than its {n} slots can use.",
            "Give the pool more, such as `workers=slipring.Workers(pool='node', memory='64GiB')`, or keep "
            "fewer batches.",
        )
    if copied >= COPIED:
        what = f"batches: {copied:.0%} of all were copied, as few of the {n} slots were left"
    return (
        "slots",
        f"The program, or a computation on a device, keeps {what}.",
        f"Release batches (`del batch`, or keep copies of needed data), or give {_of_slots(2 * n)}. If no variable "
        "keeps them, the device is slower than the loop: wait for its computations (`jax.block_until_ready(outputs)`).",
    )


def _of_slots(n):
    return f"`memory=slipring.Memory(slots={min(n, MAX_SLOTS)})`"


def _cache(f, known):
    late = f.table[(f.table["epoch"] > f.table["epoch"].min()) | (f.table["run"] > 1)]
    misses = int(late["misses"].sum())
    again = misses + int(late["hits"].sum())
    if not again or misses < 0.2 * again or not known.cache_full:
        return None
    need = f"; all samples would take {megabytes(known.cache_bytes)}" if known.cache_bytes else ""
    remedy = "Give the job more memory"
    if "budget" in known.cache_full:
        remedy = f"Give {f'`cache={known.cache_bytes}`' if known.cache_bytes else 'a larger budget'}"
    smaller = "with the rest of the work after the cache (`slipring.cached(dataset, budget).map(function)`)"
    if known.cached_images:
        smaller = "scaled images (`side=256`), or the files (`what='encoded'`)"
    elif known.clips:  # with random clips in it, a cache would repeat those of the first epoch
        smaller = "those of videos that were scaled down before"
    return (
        "cache",
        f"The cache is too small: {misses / again:.0%} of the lookups miss in later epochs ({known.cache_full}{need}).",
        f"{remedy}, or keep smaller entries: {smaller}.",
    )


def _tiny(f, known):
    each = float(f.made_in.mean())
    if f.busy > EXPLAINS or each > TINY:
        return None
    rows = max(1, int(f.table["rows"].max()))
    return (
        "tiny",
        f"Making a batch costs less than handing it over: it takes {seconds(each / 1e9)}.",
        f"Make batches larger (`batch_size={8 * rows}`), or leave workers out (`num_workers=0`).",
    )


def _pickled(f, known):
    """Check for pickled leaves: workers pickle them, or batches are there in time and the loop unpickles them."""
    text, share, least = "Collation and pickling take {:.0%} of the workers' time", collating(f), EXPLAINS
    if f.wait_share < BOUND:
        text, least = "Batches are there in time, and unpickling them takes {:.0%} of the loop's time", BOUND
        share = (known.unpickle_ns or 0.0) * len(f.table) / max(1.0, f.all)  # a part of the loop's step
    if share < least or (known.pickled or 0.0) < 1:
        return None
    return (
        "pickled",
        f"{text.format(share)}: each batch has {known.pickled:,.0f} pickled leaves.",
        "Return arrays (`numpy.asarray(values)`), tensors, numbers and text in place of other objects.",
    )


def _memory(f, known):
    """Check for copies of the parent's memory: they become too many for the machine, or are most of that memory."""
    sizes, free = known.copied_bytes, known.free_bytes
    total = sum(sizes)
    if not known.forked or max(sizes, default=0) < GROWN:
        return None
    short = free is not None and total > SHORT * (free + total)
    # Copies slow the workers down once, so they do not explain why a loop waits.
    much = f.wait_share < BOUND and 0 < EXPLAINS * (known.parent_bytes or 0) < total
    if not short and not much:
        return None
    left = f", and {megabytes(free)} are left" if free is not None else ""
    return (
        "memory",
        f"Workers copy the parent's memory as they read it: {megabytes(total / len(sizes))} each by now{left}.",
        "Keep text in `slipring.StringList(texts)` and numbers in arrays (`numpy.array(numbers)`), in place of lists "
        "of Python objects.",
    )


def _sampler(f, known):
    sampling = f.sampling_share
    if sampling < EXPLAINS:
        return None
    lately = f.table[~f.first]["waited_ns"]
    return (
        "sampler",
        f"For {sampling:.0%} of that time the loop waits for the sampler, and not for a worker: "
        f"{seconds(float(lately.mean()) * sampling / 1e9)} for each batch.",
        "Draw the indices at once (an array, in place of a loop), or use slipring's own sampling (`shuffle=True`): "
        "more workers do not help.",
    )


def _ok(f, known):
    if f.step_now >= max(LONG, EXPLAINS * f.all):
        return "ok", f"Not data-bound: the loop has been in its step for {seconds(f.step_now / 1e9)} now.", ""
    text = f"Not data-bound: the loop waits {f.wait_share:.1%} of its time, the workers are {f.busy:.0%} busy."
    return "ok", text + (f" {f.enough} would do." if f.busy <= EXPLAINS and 0 < f.enough < f.n_workers else ""), ""


# Rules about the workers alone: what they do, and how long.
OF_WORKERS = (retries, _sample, _cache, _tiny, _pickled, shares)
IF_BOUND = (_memory, _epoch_start, _copy, _sampler, _slots, _ray, *OF_WORKERS)
IF_NOT = (_memory, _pickled, _ok)


def first_of(rules, f, known):
    """Return the (cause, text, advice) of the first rule that applies; the last one always does."""
    return next(found for rule in rules if (found := rule(f, known)) is not None)
