"""One sentence: whether the loop waits for data, why, and what would help.

The rules look at the batches that the flight recorder remembers, at what the workers do now, and at what the loader
knows of its memory and its cache. The verdict names the first cause that explains the waiting.
"""

from __future__ import annotations

import dataclasses
import math

from slipring._core.ring.process import cpus
from slipring._core.ring.text import FORKED, seconds
from slipring._observe.activity import activities, alive, at_work, is_here, sentence_of
from slipring._observe.causes import BOUND, IF_BOUND, IF_NOT, first_of, retries
from slipring._observe.rates import Figures
from slipring._observe.snapshot import states

FEW = 8  # batches; fewer allow no conclusion
HANGS = 10.0  # seconds for one sample or batch at least: a worker that hangs
TIMES = 10  # times as long as any before
NAMED_S = 1.0  # a shorter activity is not worth a sentence
NAMED = 4  # workers in one sentence


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The conclusion from a loader's figures.

    Attributes
    ----------
    cause : str
        "ok", "unknown", "compute", "storage", "retries", "ray", "sample", "sampler", "pickled", "epoch_start",
        "slots", "tiny", "memory", "cache", "copy", "rank", "no_workers", "hung", "starting" or "stopped".
    sentence : str
        The verdict in words.
    advice : str
        The remedy; empty if none is needed.
    wait_share : float
        How much of its time the loop has waited for batches, from 0 to 1.
    data_bound : bool
        Whether `wait_share` is a tenth or more.

    Examples
    --------
    >>> import slipring
    >>> with slipring.Loader(range(8), num_workers=2) as loader:
    ...     numbers = [int(batch[0]) for batch in loader]
    ...     verdict = loader.report().verdict
    >>> 0 <= verdict.wait_share <= 1
    True
    """

    cause: str
    sentence: str
    advice: str = ""
    wait_share: float = 0.0
    data_bound: bool = False

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice}".strip()


Verdict.__module__ = "slipring.monitor"  # its pickle and its repr have its public name


@dataclasses.dataclass(frozen=True)
class Known:
    """Facts that only the loader's own process knows; None: unknown."""

    copied_share: float | None = None  # the part of the batches that was copied because slots were short
    pickled: float | None = None  # pickled leaves per batch
    # Decoding batches with such leaves, in the loop's process, as an average over all batches.
    unpickle_ns: float | None = None
    private_bytes: tuple[int | None, ...] = ()  # of each worker
    # Of each worker: the part of these bytes that replaces memory of the parent, from which it was forked.
    copied_bytes: tuple[int, ...] = ()
    free_bytes: int | None = None  # memory available
    parent_bytes: int | None = None  # memory of the consumer's process alone
    cache_full: str = ""  # why a cache has refused entries; empty: it has not
    cache_bytes: int | None = None  # the size of all samples in the cache
    cached_images: bool = False  # whether the cache belongs to a dataset of slipring.images
    clips: bool = False  # whether the dataset is `slipring.clips.Videos`
    forked: bool = False  # whether workers began with their parent's memory
    own_collate: bool | None = None  # whether a `collate_fn` was given
    persistent: bool | None = None  # the loader's `persistent_workers`
    in_order: bool | None = None
    tuned: bool = False  # whether the loader finds the number of workers
    # Then: (workers, their batches per second, more workers, theirs), if more were hardly faster.
    saturated: tuple[int, float, int, float] | None = None
    lead: str = ""  # the rank that makes the batches; empty: this one does
    cpus: int | None = None  # that the loop's process may keep busy; None: it is this process
    # Of `slipring.ray.Loader`, summed over its workers: the ns spent waiting for Ray's blocks, and on all of fetching.
    block_wait_ns: float = 0.0
    block_ns: float = 0.0


def verdict(snapshot, known=None):
    """Return the `Verdict` on the loader that a snapshot shows."""
    if snapshot.segment_info["push"]:
        return _of_queue(snapshot)
    known = known or Known()
    f = Figures(snapshot, known.cpus or cpus())
    still = stopped(snapshot)
    if still is not None:
        return Verdict("stopped", *still)
    stuck = hung(snapshot, known.forked)
    if stuck is not None:
        return Verdict("hung", *stuck, 1.0, True)
    late = not_starting(snapshot, known.forked)
    if late is not None:
        return Verdict("starting", *late, 1.0, True)
    if not len(snapshot.participants) and snapshot.segment_info["loop_steps"] >= FEW:
        return _without_segment(f, known.lead)
    if len(f.table) < FEW:
        # If one of these batches hangs, this verdict stays: it must name the busy workers, and what they do.
        sentences = [f"Too early to tell: {len(f.table)} batches so far.", *under_way(snapshot)]
        if f.step_now >= NAMED_S * 1e9:
            sentences.append(f"The loop has been in its step for {seconds(f.step_now / 1e9)}.")
        return Verdict("unknown", " ".join(sentences), wait_share=f.wait_share)
    share = float(f.wait_share)
    bound = share >= BOUND
    cause, text, advice = first_of(IF_BOUND if bound else IF_NOT, f, known)
    begin = f"Data-bound: the loop waits {share:.0%} of its time. " if bound else ""
    return Verdict(cause, begin + text, advice, share, bound)


def _without_segment(f, lead):
    """Return the verdict on batches that were made in the loop, without a slot, or by the rank that `lead` names."""
    share = float(f.loop_share)
    bound = share >= BOUND
    if lead:
        begin = (
            f"{'Data-bound' if bound else 'Not data-bound'}: the loop waits {share:.1%} of its time for {lead}, which "
        )
        advice = "See the report of that rank." if bound else ""
        return Verdict("rank" if bound else "ok", f"{begin}makes the batches.", advice, share, bound)
    if not bound:
        return Verdict("ok", f"Not data-bound: making batches takes {share:.1%} of the loop's time.", "", share)
    found = retries(f)
    if found is not None:
        cause, text, advice = found
        return Verdict(cause, f"Data-bound: the loop waits {share:.0%} of its time. {text}", advice, share, True)
    text = f"Data-bound: the loop waits {share:.0%} of its time. It makes its batches itself, when it asks for them."
    n = min(f.cpus, max(1, math.ceil(share / max(0.01, 1 - share))))
    advice = f"Use `num_workers={n}`: workers then make batches while the step computes."
    return Verdict("no_workers", text, advice, share, True)


def _of_queue(snapshot):
    lie, held = snapshot.stages["ready"], snapshot.stages["lease"]
    waiting = states(snapshot.slots).count("ready")
    if waiting >= snapshot.segment_info["n_slots"] - 1:
        lies = f" A message lies {seconds(lie.p50_s)} until it is got." if lie.count else " Nobody has got any."
        return Verdict("ok", f"The queue is full: producers wait.{lies}")
    if lie.count < FEW:
        return Verdict("unknown", f"Too early to tell: {lie.count} messages so far.")
    return Verdict(
        "ok",
        f"{waiting} of {snapshot.segment_info['n_slots']} slots hold messages. One lies {seconds(lie.p50_s)} until "
        f"it is got, and is kept for {seconds(held.p50_s)} (medians).",
    )


# ---- workers that hang, do not start, or are stopped


def hung(snapshot, forked=False):
    """Return (text, advice) if a worker has been busy with one thing for far longer than any before; else None.

    `forked`: whether the workers' start method is 'fork'.
    """
    stages = snapshot.stages
    for each in at_work(snapshot):
        usual = stages["fetch"].max_s + (0.0 if each.row is not None else stages["collate"].max_s)
        if each.lasted_s >= max(HANGS, TIMES * usual):
            return (
                sentence_of(each),
                ("" if each.row is None else f"`slipring dump {snapshot.consumer_pid}` names the index; ")
                + f"`py-spy dump --pid {each.pid}` shows where it is"
                + (FORKED if forked else "")
                + ".",
            )
    return None


def starting(snapshot, forked=False):
    """Return (seconds, text, advice) for workers that have not started: they take no tasks yet.

    None if all have started, or if nothing waits for a worker. The seconds are those of the worker that began first.
    """
    if snapshot.segment_info["push"]:
        return None
    shows = f"shows where it is{FORKED if forked else ''}."
    late = [each for each in alive(snapshot) if each.what == "not begun"]
    if late:
        since = max(each.lasted_s for each in late)
        named = [f"{each.name} (pid {each.pid})" for each in late[:NAMED]]
        if len(late) > NAMED:
            named.append(f"{len(late) - NAMED} more")
        text = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
        has, it_is = ("has", "it is") if len(late) == 1 else ("have", "they are")
        text = f"{text[0].upper()}{text[1:]} {has} not started after {seconds(since)}: {it_is} in worker_init_fn, "
        return since, text + "or about to call it.", f"`py-spy dump --pid {late[0].pid}` {shows}"
    tasks = snapshot.slots[snapshot.slots["batch"]["run"] == snapshot.segment_info["run"]]
    tasks = tasks["batch"]["dispatched_at"]
    if snapshot.there.any() or not len(tasks) or not snapshot.segment_info["ready_waiters"]:
        return None
    since = max(0.0, (snapshot.at_ns - int(tasks.min())) / 1e9)
    text = f"No worker has started after {seconds(since)}: worker processes first import modules and unpickle the "
    return since, text + "dataset.", f"`py-spy dump --subprocesses --pid {snapshot.consumer_pid}` {shows}"


def not_starting(snapshot, forked=False):
    """Return (text, advice) if the loop waits, and workers have not started for long; else None."""
    found = starting(snapshot, forked)
    if found is None or found[0] < HANGS or not snapshot.segment_info["ready_waiters"]:
        return None
    # While other workers deliver batches, one that starts slowly delays no batch.
    if snapshot.at_ns - int(snapshot.table["taken_at"].max(initial=0)) < HANGS * 1e9:
        return None
    return found[1:]


def under_way(snapshot):
    """Return sentences about workers that have not started, or that have been busy with one thing for a while."""
    found = starting(snapshot)
    said = [] if found is None or found[0] < NAMED_S else [found[1]]
    return said + [sentence_of(each) for each in at_work(snapshot)[:NAMED] if each.lasted_s >= NAMED_S]


def stopped(snapshot):
    """Return (text, advice) if processes of the job are stopped, by a signal or a debugger; else None."""
    if not len(snapshot.participants) or not is_here(snapshot):
        return None
    still = {}  # pid -> its name; thread workers have the pid of the loop's process
    for each in activities(snapshot):
        if each.state in ("T", "t"):
            still.setdefault(each.pid, "the loop's process" if each.name == "consumer" else each.name)
    if not still:
        return None
    named = ", ".join(f"{who} (pid {pid})" for pid, who in list(still.items())[:4])
    more = f", and {len(still) - 4} more" if len(still) > 4 else ""
    return (
        f"Stopped, by a signal or a debugger: {named}{more}.",
        f"`kill -CONT {' '.join(map(str, still))}` lets them continue.",
    )
