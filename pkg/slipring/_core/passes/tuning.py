"""Find the best number of workers while the loader runs (`num_workers="auto"`).

The consumer checks from time to time, between two batches. It measures windows: some batches with a fixed number of
workers. A window has the rate of batches, the share of the time that the consumer waited, how long workers were busy
with each batch, and how much of that was processor time. These give the number of workers with which the consumer need
not wait. New workers are started if processors, memory and the upper bound allow it. They are kept if the next window
shows that they made the loader faster. If they brought little, the workers that bring nothing are retired.
"""

import dataclasses
import logging
import math
import weakref

from slipring._core.passes.tuning_window import (
    SPARE,
    WAITS,
    WORTH,
    TuningWindow,
    best,
    is_doubtful,
    is_slower,
    saturation,
    with_fewer,
)
from slipring._core.ring import process
from slipring._core.ring._segment import memory_available, now
from slipring._core.ring.text import digits, megabytes
from slipring._core.workers.memory import ROOT, private_bytes

log = logging.getLogger("slipring")

# A search takes at most so many batches, or so many for each worker of the upper bound. Batches that come while workers
# start do not count.
BATCHES, BATCHES_EACH = 200, 25
SKIP = 8  # batches that are made before a measurement, at least
WINDOW, LONG_WINDOW = 16, 48  # batches of a window; of one that takes less than:
WINDOW_NS = 100_000_000
MOSTLY_WAITING = 0.3  # share of a worker's busy time on a processor, below which it waits for something else
MEMORY_SHARE = 0.8  # of the available memory may go to new workers
AGAIN_NS = 5_000_000_000  # how often a settled number is checked
LOOK_NS = 50_000_000  # how often to check whether an iteration is longer than the last one
NEVER = (1 << 63) - 1
# Sums: ns, batches, ns of waiting, of working and on processors, iterations measured from their beginning.
NOTHING = (0, 0, 0, 0, 0, 0)
CHANGED = 2.0  # start again if the workers' time per second of the consumer, or per batch, changes by this factor
MOSTLY = 0.5  # of its time: if a consumer waits longer, its own time is too short to tell anything


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The result of ``num_workers="auto"``, and how it was found.

    Attributes
    ----------
    workers : int
        The current number.
    history : tuple of (int, float, float)
        The measurements: workers, batches per second, share of the time that the consumer waited.
    settled : bool
        No other number is tried, unless the work changes.
    reason : str
        Why it stopped there, or what it waits for, in a sentence.

    Examples
    --------
    >>> import slipring
    >>> with slipring.Loader(range(100), batch_size=10, num_workers=(1, 1)) as loader:
    ...     batches = list(loader)
    ...     loader.tuning.workers
    1
    """

    workers: int
    history: tuple[tuple[int, float, float], ...] = ()
    settled: bool = False
    reason: str = "too few batches have come, since its workers began, to say anything"


class Tuner:
    """The search for one loader's number of workers, from `workers` on, between `least` and `most`.

    If an epoch has enough batches, its windows lie between its first batches and its tail, in which not all workers
    have something to do. Shorter epochs are measured from end to end, as many as make a window, without the time
    between them. The wait for the first batch of each does not count, because no number of workers avoids it.
    """

    def __init__(self, workers, least, most):
        self.least, self.most = least, most
        self.budget = max(BATCHES, BATCHES_EACH * most)
        self._workers, self._given = workers, None
        self.look_next = 0  # ns of the ring's clock
        self.history = []
        self.cpus = process.cpus()
        self.meter = self._pool = None
        self.prefetch, self.slots, self.served = 1, None, most
        self.begun_at = None  # the number of batches before this iteration; None: there is none
        self.new_workers = False  # workers start again with each iteration
        self.whole = False  # iterations are measured from end to end
        self.last = 0  # batches of the last iteration
        self.stretched = False  # a part of this iteration has been measured
        self.counted = None  # the number of batches that `spent` includes; None: batches do not count now
        self._found, self._reason = False, Tuning.reason
        self._restart()

    def _restart(self):
        self._found = False
        self.spent = 0  # batches so far
        self.begun_with = len(self.history)
        self.before = self.doubt = None  # the window before the last change; a window that is not clear enough
        self.windows = {}  # number of workers -> its window
        self.more = None  # while fewer workers are tried: the window of more workers, which brought little or nothing
        self.stale = 0  # batches that may be in flight, made by the previous workers
        self.found = None  # the window of the number that was settled on
        self._warm_up()

    @property
    def workers(self):
        """int: the number of workers to use."""
        return self._workers if self._given is None else self._given[0]

    @property
    def settled(self):
        """bool: whether the search is over."""
        return self._found or self._given is not None

    @property
    def tuning(self):
        """Tuning: the result so far."""
        given = self._given
        if given is not None:
            return Tuning(given[0], tuple(self.history), True, _text(*given))
        return Tuning(self._workers, tuple(self.history), self._found, self._reason)

    @property
    def saturated(self):
        """tuple or None: the `saturation` that the newest search has found, once it is over."""
        measured = [(workers, rate) for workers, rate, _ in self.history[self.begun_with :]]
        return saturation(self.workers, measured) if self.settled else None

    def stop(self, workers, reason):
        """Fix the number that a caller has set. A concurrent look then changes nothing."""
        self._given = workers, reason
        log.info("num_workers='auto' ends at %s", _text(workers, reason))

    def begin_with(self, workers, reason):
        """Continue the search from a number that the caller needs. If the number was set by hand, only replace it."""
        if self._given is not None:
            self.stop(workers, reason)
        elif workers != self._workers:
            self._workers, self._reason = workers, Tuning.reason
            self._restart()

    # ---- iterations

    @property
    def pool(self):
        """WorkerPool or None: the workers of the newest iteration. A closed loader's are freed with their segment."""
        return None if self._pool is None else self._pool()

    def begin(self, engine):
        """Begin an iteration."""
        options = engine.options
        self.new_workers = not options.persistent_workers
        goes_on = self.new_workers or (engine.pool is self.pool and engine.pool.at_target)
        self.meter, self.prefetch = engine.ring.meter, options.prefetch_factor
        self._pool = weakref.ref(engine.pool)
        # Each worker has one slot, and so has the consumer: more workers would wait for slots.
        self.slots = engine.ring.n_slots
        self.served = max(self.least, self.slots - 1 - options.preload_depth)
        if not goes_on:
            self._drop()
        self.since = self.skip_to = self.counted = None
        self.begun_at, self.stretched, self.stale = self.meter.batches, False, 0
        if self.whole and goes_on and self._has_them:
            self.counted = self.begun_at
            self._open()
        self.look_next = 0

    def end(self, at):
        """End the iteration, and at time `at` the step of its last batch. A second call does nothing."""
        begun_at, self.begun_at = self.begun_at, None
        if begun_at is None or self._given is not None:
            return
        self.last = self.meter.batches - begun_at
        if self.last:
            self._close(at)
        if self.sums[1] and self._has_them and (window := self._window()) is not None:
            self._judge(window)
        self._count()
        whole = self.last < self._shortest or (self.new_workers and (self.whole or not self.stretched))
        if whole != self.whole:
            self.whole = whole
            self._drop()

    @property
    def _has_them(self):
        return self.pool.target == self.workers

    @property
    def _prefetched(self):
        return self.prefetch * self.workers

    @property
    def _skipped(self):
        """int: batches that are not measured, because the previous workers made them."""
        return max(SKIP, self._prefetched, self.stale) if self.spent else SKIP

    @property
    def _shortest(self):
        """int: batches of the shortest iteration that has batches between its first ones and its tail."""
        return max(SKIP, self._prefetched) + self._prefetched + WINDOW

    # ---- windows

    def _warm_up(self):
        """Measure again after as many workers as wanted have taken tasks for a while."""
        self._drop()
        self.counted = None
        self.look_next = 0

    def _drop(self):
        self.sums, self.since, self.skip_to = NOTHING, None, None

    def _counts(self, at=None):
        m = self.meter
        cpu = 0 if self._found else self.pool.cpu_ns()  # a file is read for each worker
        return now() if at is None else at, m.batches, m.wait_ns, m.fetch_ns + m.collate_ns, cpu

    def _open(self):
        self.since, self.stretched = self._counts(), True

    def _measured(self, at=None):
        """Return the sums, including those since `_open`."""
        if self.since is None:
            return self.sums
        counts = self._counts(at)
        new = (*(b - a for a, b in zip(self.since, counts, strict=True)), int(self.whole))
        return tuple(a + b for a, b in zip(self.sums, new, strict=True))

    def _close(self, at=None):
        self.sums, self.since, self.skip_to = self._measured(at), None, None

    def _count(self):
        if self.counted is not None:
            self.spent += self.meter.batches - self.counted
            self.counted = self.meter.batches

    def look(self, engine, options, exhausted):
        """Judge the current window; called between two batches.

        Return the Options with the number of workers to continue with, or None if the number stays.
        """
        before = self._workers
        self._look(exhausted)
        changed = None
        if self._workers != before:
            changed = dataclasses.replace(options, num_workers=self._workers)
        return changed if self._given is None else None  # no call below, so no handler can change it

    def _look(self, exhausted):
        if self._given is not None or exhausted or not self._has_them:
            # The tail of an iteration tells nothing. A number that this iteration cannot have begins with the next one.
            if not self.whole:
                self._close()
            self.look_next = NEVER
            return
        if self.whole:
            if self.meter.batches - self.begun_at < self._shortest:
                return self._again_in(LOOK_NS)
            self.whole = False  # it is longer than the last one
            self._drop()
        done = self.meter.batches
        if self.since is None:
            if not self.pool.at_target:
                return self._again_in(5_000_000)
            if self.counted is None:
                self.counted = done
            if self.skip_to is None:
                self.skip_to = done + self._skipped
            if done < self.skip_to:
                return self._again_in(0)
            self.stale = 0
            self._open()
            return self._again_in(1_000_000)
        window = self._window()
        if window is not None:
            self._judge(window)

    def _again_in(self, ns):
        self.look_next = now() + ns

    def _window(self):
        """Return the window if it has enough batches; otherwise schedule the next look and return None."""
        took, batches, waited, busy, cpu, starts = self._measured()
        least_ns = AGAIN_NS if self._found else WINDOW_NS
        full = max(WINDOW if took >= WINDOW_NS and not self._found else LONG_WINDOW, 3 * self.workers)
        if batches < full or (self._found and took < least_ns):
            each = min(took, busy / self.workers) / max(1, batches)  # during a burst, `took` is too short
            missing = min(max(1, full - batches) * each, max(least_ns - took, each))
            self._again_in(int(missing * 0.8))
            return None
        if batches % self.workers and not self.whole:
            # Workers that begin together, or take turns, end together: the window ends where it began in such a burst.
            return self._again_in(0)
        scale = 1e-9 / batches
        first = min(waited, starts * busy / batches)
        return TuningWindow(
            self.workers, batches, *(ns * scale for ns in (max(1, took), waited, busy, max(0, cpu), first))
        )

    def _judge(self, window):
        self._drop()
        if self._found:
            return self._watch(window)
        self._count()
        self.history.append((window.workers, window.rate, window.wait_share))
        self._go_on(window)

    # ---- the rule

    def _go_on(self, window):
        """Decide what the window means."""
        before = self.before
        if self.doubt is not None:
            window, self.doubt = self.doubt.with_(window), None
        elif before is not None and is_doubtful(before, window) and self._affords(self.workers):
            self.doubt = window
            self._reason = f"{self.workers} workers are measured once more"
            return self._again_in(0)
        self.before, self.windows[window.workers] = None, window
        if before is not None and window.workers > before.workers and window.rate < before.rate * WORTH:
            return self._undo(before, window)
        if before is not None and window.workers < before.workers:
            if self.more is before:
                found = best(self.windows.values())
            else:
                found = before if is_slower(before, window) else window
            if found is not window:
                why = f"with {window.workers} workers the consumer waited more"
                if self.more not in (None, found):
                    why = self._no_faster(found, self.more)
                return self._settle_on(found, why)
            if self.more is not None:
                return self._undo(window, self.more)
        target, why = self._target(window)
        if target == self.workers:
            if window.wait_share >= WAITS and min(self.windows) < window.workers:
                return self._undo(window, window, why)
            return self._settle_on(window, why)
        if not self._affords(target):
            return self._settle_on(window, f"{self.spent} batches have been measured")
        self.before = window
        self._change(target)

    def _undo(self, window, more, why=None):
        """Try fewer workers than the window has, as the window of `more` workers shows little or no gain."""
        fewer = max(self.least, with_fewer(window, self.windows.values()))
        if fewer >= window.workers or not self._affords(fewer):
            return self._settle_on(window, why or self._no_faster(window, more))
        self.before, self.more = window, more
        self._change(fewer)

    def _no_faster(self, window, more):
        """Return the reason why the number of a window is enough, although its consumer waits."""
        return (
            f"{more.workers} workers were {'no' if more.rate < window.rate * WORTH else 'hardly'} faster than "
            f"{window.workers} "
            f"({digits(more.rate)} against {digits(window.rate)} batches/s): {self._limit(window)}"
        )

    def _affords(self, workers):
        window = max(WINDOW, 3 * workers, self.last if self.whole else 0)
        in_flight = self.prefetch * max(workers, self.workers)
        return self.spent + (0 if self.whole else max(SKIP, in_flight)) + window <= self.budget

    def _target(self, window):
        """Return (number of workers that the window calls for, the reason if that is the present number)."""
        n, enough = self.workers, math.ceil(window.needed * SPARE)
        given = (
            (self.most, f"its upper bound of {self.most} allows no more"),
            (self.served, f"its {self.slots} slots serve no more"),
        )
        for limit, why in given:
            if n > limit:
                return limit, why
        by_cpu = max(self.least, math.ceil(self.cpus / max(window.on_cpu, 0.01) - 0.1))
        if window.wait_share < WAITS:
            fewer = max(self.least, min(enough, n))
            waits = f"the consumer waits for {window.wait_share:.0%} of its time"
            return fewer, waits + (", and fewer workers would hardly be enough" if n > 1 else "")
        if n > by_cpu and window.on_cpu >= MOSTLY_WAITING:
            return by_cpu, self._limit(window)
        # All that are missing, if workers wait for something else most of the time; otherwise at most twice as many.
        more = max(enough, n + max(1, n // 4))
        if window.on_cpu >= MOSTLY_WAITING:
            more = min(more, 2 * n)
        for limit, why in (*given, (by_cpu, self._limit(window))):
            if limit <= n:
                return n, f"the consumer waits for {window.wait_share:.0%} of its time, but {why}"
            more = min(more, limit)
        fits, why = self._fits(more - n)
        if fits == 0:
            return n, f"the consumer waits for {window.wait_share:.0%} of its time, but {why}"
        return n + fits, ""

    def _limit(self, window):
        if window.on_cpu < MOSTLY_WAITING:
            return "what the workers wait for gives no more"
        return (
            f"each keeps {window.on_cpu:.0%} of a processor busy, and {self.cpus} "
            f"{'is' if self.cpus == 1 else 'are'} there for this process"
        )

    def _fits(self, more):
        """Return (how many of `more` new workers the memory has room for, the reason if that is 0)."""
        room = memory_available(ROOT)
        if room is None:
            return more, ""
        free, _, limit, file = room
        sizes = [private_bytes(pid) or 0 for _, pid, _ in self.pool.pids()]
        ring = self.pool.ring
        slots = ring.info["committed"] / ring.n_slots  # at least: slots that were never used take nothing
        each = max(sizes, default=0) + 2 * slots
        left = MEMORY_SHARE * free / process.ranks()
        fits = more if each <= 0 else min(more, int(left // each))
        return fits, (
            f"another one would take about {megabytes(int(each))}, and {megabytes(int(left))} may be taken from the "
            f"rest of {limit} ({file})"
        )

    # ---- results

    def _change(self, workers):
        log.debug("num_workers='auto': %d workers in place of %d", workers, self._workers)
        self._reason = f"{workers} are tried in place of {self._workers}"
        self.stale = self._prefetched
        self._workers = workers
        self._warm_up()

    def _settle_on(self, window, reason):
        if window.workers != self._workers:
            self._change(window.workers)
        self._found, self.found, self.more = True, window, None
        self._reason = _text(self._workers, reason)
        log.info("num_workers='auto' settles at %s", self._reason)
        self.look_next = now() + AGAIN_NS

    def _watch(self, window):
        """Check, seldom, whether the work has changed, so that another number may be best."""
        self._again_in(AGAIN_NS)
        if self._has_changed(window):
            log.info("num_workers='auto': the work has changed, and is measured again")
            self._reason = "the work has changed, and is measured again"
            self._restart()

    def _has_changed(self, window):
        found = self.found
        if min(found.wait_share, window.wait_share) > MOSTLY:
            return not 1 / CHANGED <= window.busy / max(found.busy, 1e-9) <= CHANGED
        waits_more = window.wait_share > found.wait_share + 2 * WAITS
        factor = window.needed / max(found.needed, 1e-9)
        return (factor > CHANGED and waits_more) or (factor < 1 / CHANGED and self._workers > self.least)


def _text(workers, reason):
    return f"{workers} worker{'s' if workers > 1 else ''}: {reason}"
