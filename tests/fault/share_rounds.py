"""The fault run of shared batches, in its own process: rounds in which readers, or the consumer, are killed.

python -m tests.fault.share_rounds MODE KILLS SECONDS SEED

A process that is to die starts a timer of the kernel, whose signal ends it at any instruction. Each reader checks that
the batches come without a gap, compares every byte, and leaves and comes back now and then. One reader is never killed,
and must get all batches. If the consumer dies, all readers must get the same batches, those that it has shared.
"""

import contextlib
import faulthandler
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter

import numpy as np

from slipring.errors import Closed
from tests.fault.kills import HANG_S, MODES
from tests.fault.rounds import end_of, main
from tests.support.inside import COPY_NEVER, SharedReader
from tests.support.leaks import Snapshot
from tests.support.trip import Trip

SLOTS = 6  # each reader keeps one batch
READERS = 3
KILLS = 100  # of readers, per round
MEANS_S = 0.002, 0.02, 0.05  # of the lives that a timer ends
MOMENT_S = 0.01  # for a slot; then dead readers are recovered
LOST, DOUBLED, CHANGED = 3, 4, 5  # exit codes of a reader
WRONG = {LOST: "lost", DOUBLED: "doubled", CHANGED: "changed"}


def rows_of(number):
    """Return a batch's value: from 0 to some hundred kilobytes."""
    return np.full(number * number % 30_011, number, np.int64)


class Fault(Exception):
    """A reader has seen a fault: the argument is its exit code."""


class Reading:
    """A reader's part, from the batch `first` on; None: from any batch."""

    def __init__(self, ring, number, rng, first, death_fd):
        ring.in_child()
        self.ring, self.number, self.rng, self.expected, self.death_fd = ring, number, rng, first, death_fd
        self.always = first is not None
        self.kept = None

    def run(self):
        """Read until the end mark, or until the consumer has died; return the number of the batch that is due then."""
        reader = SharedReader(self.ring, self.number)
        while True:
            with contextlib.suppress(Closed):
                reader.wait(-1, self.death_fd)
            batch = reader.take()
            if batch is None:
                return self.expected
            self.check(batch)
            if batch.is_end:
                return batch.seq
            if not self.always and self.rng.random() < 0.02:
                reader.leave()
                reader, self.expected = SharedReader(self.ring, self.number), None

    def check(self, batch):
        if self.expected not in (None, batch.number):
            raise Fault(LOST if batch.number > self.expected else DOUBLED)
        self.expected = batch.number + 1
        if batch.is_end:
            if batch.seq != batch.number:
                raise Fault(LOST)
            return
        value = batch.value(COPY_NEVER)
        for which, rows in (batch.number, value), *filter(None, [self.kept]):
            if not np.array_equal(rows, rows_of(which)):
                raise Fault(CHANGED)
        self.kept = batch.number, value


class Round:
    """A consumer and its readers, until enough of them have died."""

    def __init__(self, rng, counts, details):
        self.rng, self.counts, self.details = rng, counts, details
        self.share = Trip(SLOTS, readers=READERS)
        self.pids = {}
        self.due = np.frombuffer(mmap.mmap(-1, 8 * (READERS + 1)), np.int64)  # by readers; last: by the consumer

    def fork(self, part, *args, dies):
        """Run `part` in a process, which a timer ends if it `dies`; return its pid."""
        life = self.life()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            if dies:
                signal.setitimer(signal.ITIMER_REAL, life)
            part(*args)
            code = 0
        except Fault as fault:
            code = fault.args[0]
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def life(self):
        """Return the seconds until a timer ends a process."""
        return max(1e-6, self.rng.expovariate(1 / self.rng.choice(MEANS_S)))

    def start(self, number, *, dies, first=None, death_fd=-1):
        seed = self.rng.getrandbits(32)
        self.pids[number] = self.fork(self.read, number, random.Random(seed), first, death_fd, dies=dies)

    def read(self, number, rng, first, death_fd):
        self.due[number] = Reading(self.share.ring, number, rng, first, death_fd).run()

    def wrong(self, counted, what):
        self.counts[counted] += 1
        self.details.append(what)

    def serving(self, number):
        self.share.ring.wait_serving(self.share.ring.n_participants + number, -1)

    def ended(self, number, options=0):
        """Wait for a reader's end, count its fault and return whether it was killed; None: it still runs."""
        found = end_of(self.pids[number], options)
        if found is None:
            return None
        del self.pids[number]
        killed, code = found
        if code:
            self.wrong(WRONG.get(code, "lost"), f"reader {number} ended with {code}")
        return killed

    # ---- readers die

    def readers(self, kills):
        """Share batches until so many readers have died; return how many died."""
        self.start(0, dies=False, first=0)
        self.serving(0)
        for number in range(1, READERS):
            self.start(number, dies=True)
        killed = shared = 0
        while killed < kills:
            if self.share.ring.wait_free(MOMENT_S) >= 0:
                self.share.share(rows_of(shared))
                shared += 1
            for number in range(1, READERS):
                if self.bury(number, os.WNOHANG):
                    killed += 1
                    self.counts["respawns"] += 1
                    self.start(number, dies=True)
            if 0 not in self.pids or self.ended(0, os.WNOHANG) is not None:
                break  # the reader that nobody kills has seen a fault
        while not self.share.ring.share_end(self.free_slot(), 0, shared):
            pass
        for number in list(self.pids):
            killed += bool(self.bury(number))
        self.counts["batches"] += shared
        circulating, lent = self.share.ring.circulating, self.share.ring.lent
        if circulating != SLOTS or lent:
            self.wrong("leaks", f"in the end {circulating} of {SLOTS} slots circulate, and {lent} are lent")
        return killed

    def bury(self, number, options=0):
        """Recover a reader if it has died; return as `ended`."""
        killed = self.ended(number, options) if number in self.pids else None
        if killed:
            self.share.ring.recover(self.share.ring.n_participants + number)
        return killed

    def free_slot(self):
        while (slot := self.share.ring.wait_free(MOMENT_S)) < 0:
            for number in list(self.pids):
                self.bury(number, os.WNOHANG)
        return slot

    # ---- the consumer dies

    def consumer(self, kills):
        """Let the consumer die while it shares batches; return 1."""
        begin, go = os.pipe()
        pid = self.fork(self.share_forever, begin, dies=False)
        death_fd = os.pidfd_open(pid)
        for number in range(READERS):
            self.start(number, dies=False, first=0, death_fd=death_fd)
            self.serving(number)
        os.write(go, b"x")
        status = os.waitpid(pid, 0)[1]
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGALRM:
            self.wrong("lost", f"the consumer ended with {os.waitstatus_to_exitcode(status)}")
        for number in range(READERS):
            self.ended(number)
        for fd in (begin, go, death_fd):
            os.close(fd)
        due, least = self.due[:READERS].tolist(), int(self.due[READERS])
        # It may have died after it shared a batch and before it counted that.
        if len(set(due)) > 1 or not least <= due[0] <= least + 1:
            self.wrong("lost", f"the consumer shared {least} batches, or one more; the readers got {due}")
        self.counts["batches"] += least
        return 1

    def share_forever(self, begin):
        self.share.ring.in_child()
        os.read(begin, 1)
        signal.setitimer(signal.ITIMER_REAL, self.life())
        while True:
            self.share.ring.wait_free(-1)
            self.share.share(rows_of(int(self.due[READERS])))
            self.due[READERS] += 1


def run(name, kills, seconds, seed):
    """Run rounds until there were so many kills, or the time is over; return the counts."""
    who, counts, rng = MODES[name][1]["share"], Counter(), random.Random(f"{seed} {name}")
    details = []
    getattr(Round(rng, counts, details), who)(1)  # the first round imports modules and opens files that stay
    before, deadline = Snapshot.take(), time.monotonic() + seconds if seconds else None
    while counts["kills"] < kills and (deadline is None or time.monotonic() < deadline):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        counts["kills"] += getattr(Round(rng, counts, details), who)(min(KILLS, kills - counts["kills"]))
    faulthandler.cancel_dump_traceback_later()
    if left := before.leaks(10):
        details, counts["leaks"] = [*details, *left], counts["leaks"] + len(left)
    return {**counts, "details": details[:20]}


if __name__ == "__main__":
    main(run)
