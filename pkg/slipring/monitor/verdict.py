"""One sentence: whether the loop waits for data, why, and what would help.

The rules look at the batches that the flight recorder remembers, at what the workers do now, and at what the loader
knows of its memory and its cache. The verdict names the first cause that explains the waiting.
"""

from __future__ import annotations

import dataclasses
import math

from slipring._core.process import cpus
from slipring.monitor import records
from slipring.monitor.causes import BOUND, IF_BOUND, IF_NOT
from slipring.monitor.pace import Figures
from slipring.monitor.retries import retries
from slipring.monitor.stuck import NAMED_S, hung, not_starting, stopped, under_way
from slipring.monitor.words import seconds

FEW = 8  # batches, of which nothing is concluded


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a loader's figures say.

    Attributes
    ----------
    cause : str
        "ok", "unknown", "consumer", "decode", "storage", "worker", "sample", "sampler", "collate", "pickled",
        "epoch_start", "slots", "kept", "gil", "tiny", "memory", "page_faults", "cache", "copy", "ray", "retries",
        "rank", "hung", "starting", "stopped" or "no_workers".
    sentence : str
        The whole of it, for people.
    advice : str
        What would help; empty where nothing needs help.
    wait_share : float
        How much of its time the loop has waited for batches, from 0 to 1.
    data_bound : bool
        Whether that is a tenth or more.

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


@dataclasses.dataclass(frozen=True)
class Known:
    """What only the loader's own process knows; None: that is not known."""

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
    cache_bytes: int | None = None  # what all samples would take in the cache
    forked: bool = False  # whether workers began with their parent's memory
    faults: float | None = None  # page faults per batch, in its worker
    own_collate: bool | None = None  # whether a `collate_fn` was given
    persistent: bool | None = None  # the loader's `persistent_workers`
    in_order: bool | None = None
    # Of `slipring.ray.Loader`, summed over its workers: the ns spent waiting for Ray's blocks, and on all of fetching.
    block_wait_ns: float = 0.0
    block_ns: float = 0.0


def verdict(sight, known=None):
    """Return the `Verdict` on what a snapshot shows of a loader."""
    if sight.segment_info["push"]:
        return _of_queue(sight)
    known = known or Known()
    f = Figures(sight)
    still = stopped(sight)
    if still is not None:
        return Verdict("stopped", *still)
    stuck = hung(sight, known.forked)
    if stuck is not None:
        return Verdict("hung", *stuck, 1.0, True)
    late = not_starting(sight, known.forked)
    if late is not None:
        return Verdict("starting", *late, 1.0, True)
    if not len(sight.participants) and sight.segment_info["loop_steps"] >= FEW:
        return _without_segment(f)
    if len(f.table) < FEW:
        # A hang in these batches leaves this verdict for good: it has to name who is busy, and with what.
        told = [f"Too early to tell: {len(f.table)} batches so far.", *under_way(sight)]
        if f.step_now >= NAMED_S * 1e9:
            told.append(f"The loop has been in its step for {seconds(f.step_now / 1e9)}.")
        return Verdict("unknown", " ".join(told), wait_share=f.wait_share)
    share = float(f.wait_share)
    bound = share >= BOUND
    rules = IF_BOUND if bound else IF_NOT
    for rule in rules:
        found = rule(f, known)
        if found is not None:
            cause, text, advice = found
            begin = f"Data-bound: the loop waits {share:.0%} of its time. " if bound else ""
            return Verdict(cause, begin + text, advice, share, bound)
    raise AssertionError("the last rule always answers")


def _without_segment(f):
    """Return the verdict on batches that were made in the loop, without a slot."""
    share = float(f.loop_share)
    bound = share >= BOUND
    if not bound:
        return Verdict("ok", f"Nothing is wrong: making batches takes {share:.1%} of the loop's time.", "", share)
    found = retries(f)
    if found is not None:
        cause, text, advice = found
        return Verdict(cause, f"Data-bound: the loop waits {share:.0%} of its time. {text}", advice, share, True)
    text = f"Data-bound: the loop waits {share:.0%} of its time. It makes its batches itself, when it asks for them."
    n = min(cpus(), max(1, math.ceil(share / max(0.01, 1 - share))))
    return Verdict("no_workers", text, f"Use num_workers={n}: they are made while the step computes.", share, True)


def _of_queue(sight):
    lie, held = sight.stages["ready"], sight.stages["lease"]
    waiting = records.states(sight.slots).count("ready")
    if waiting >= sight.segment_info["n_slots"] - 1:
        lies = f" A message lies {seconds(lie.p50_s)} until it is got." if lie.count else " Nobody has got any."
        return Verdict("consumer", f"The queue is full: who puts waits.{lies}")
    if lie.count < FEW:
        return Verdict("unknown", f"Too early to tell: {lie.count} messages so far.")
    return Verdict(
        "ok",
        f"{waiting} of {sight.segment_info['n_slots']} slots hold messages. One lies {seconds(lie.p50_s)} until "
        f"it is got, and is kept for {seconds(held.p50_s)} (medians).",
    )
