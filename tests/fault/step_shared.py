"""Jobs of the run at every step that hit a reader of shared batches, or the consumer that shares them: see step_job.py.

In each round a consumer shares batches with two readers. A reader that dies is recovered and replaced, one that is
stopped continues when the consumer has no slot left. If the consumer dies, its readers take the other shared batches.
"""

import contextlib
import os
import signal
import sys
import time
import traceback

import numpy as np

from tests.fault import points
from tests.fault.step_job import HANG_S, HOWS, POINTS, Job, main
from tests.fault.step_parts import Child, Gate
from tests.support.processes import sleeps_in_futex, until

# isort: split
# At this point step_job has loaded the ring with the points.
from slipring.errors import Closed
from tests.support.inside import COPY_NEVER, SERVING, SharedReader
from tests.support.trip import Trip

SLOTS = 5  # each reader keeps up to two, and not always the same
BATCHES = 12
VICTIM = 3  # the participant that orders name: the first reader of a segment with two workers' numbers
MOMENT_S = 0.01


def rows_of(number):
    return np.full(2_000 + number, number, np.int32)


class Shared(Trip):
    """A consumer that makes batches and shares them."""

    def __init__(self):
        super().__init__(SLOTS, readers=2)

    def put_one(self, number):
        assert np.array_equal(self.share(rows_of(number)), rows_of(number))


def read(ring, number, gate=None, death_fd=-1):
    """Read until the end mark; leave once, while batches are left, and come back.

    Without a gate every batch must arrive.
    """
    ring.in_child()
    reader, expected, kept = SharedReader(ring, number), 0 if gate is None else None, []
    if gate:
        gate.wait()
        time.sleep(MOMENT_S)  # the consumer waits for a slot meanwhile
    while True:
        with contextlib.suppress(Closed):
            reader.wait(-1, death_fd)
        batch = reader.take()
        if batch is None:  # closed, or the consumer has died
            return
        assert expected in (None, batch.number), f"batch {batch.number} in place of {expected}"
        expected = batch.number + 1
        if batch.is_end:
            return
        value = batch.value(COPY_NEVER)
        assert np.array_equal(value, rows_of(batch.number))
        kept[:] = [*kept[-1:], (value, batch.number)]
        for old, which in kept:
            assert np.array_equal(old, rows_of(which))
        if gate:
            reader.leave()
            reader, gate, expected = SharedReader(ring, number), None, None


class ShareJob(Job):
    """A consumer and two readers."""

    def __init__(self, kind, mode, quick, rng):
        super().__init__(kind, mode, quick, rng)
        who, what = mode.split()
        self.of_consumer = who == "publisher"
        self.participant = points.CONSUMER if self.of_consumer else VICTIM
        self.hows = (signal.SIGSTOP,) if what == "stops" else (signal.SIGKILL,) if self.of_consumer else HOWS

    def fault_free(self):
        self.round()
        self.round()

    def one(self, orders):
        self.orders = orders
        (self.consumer if self.of_consumer else self.reader)()

    # ---- a reader is hit

    def reader(self):
        share, gate = Shared(), Gate()
        self.victim = Child(VICTIM, read, share.ring, 0, gate)
        other = Child(0, read, share.ring, 1)
        self.replacement = None
        until(lambda: self.has_begun(share, 1) or other.ended(), "the other reader begins", HANG_S)
        until(lambda: self.has_begun(share, 0) or self.victim.waits(), "the victim begins", HANG_S)
        for number in range(BATCHES):
            if number == SLOTS:
                gate.open(2)
            self.free_slot(share)
            share.put_one(number)
            if number == SLOTS + 1:
                until(lambda: other.ended() or sleeps_in_futex(other.pid), "the other reader sleeps", HANG_S)
        slot = self.free_slot(share)
        while not share.ring.share_end(slot, 0, BATCHES):
            slot = self.free_slot(share)
        for child in filter(None, (other, self.replacement)):
            until(lambda child=child: self.tend(share) or child.ended(), "a reader's end", HANG_S)
            if child.code != 0:
                self.wrong(f"after {self.orders} a reader ended with {child.code}")
        share.ring.close()  # a victim that was stopped before it began never meets the end mark
        until(lambda: self.tend(share) or self.victim.ended(), "the victim's end", HANG_S)
        self.tend(share)
        if self.victim.code not in (0, *(-strike.how or 3 for strike in POINTS.strikes() if strike.done)):
            self.wrong(f"after {self.orders} the victim ended with {self.victim.code}")
        self.expect_free(share)
        gate.close()
        self.counts["batches"] += BATCHES

    def has_begun(self, share, number):
        return share.ring.participant(share.ring.n_participants + number)[1] == SERVING

    def free_slot(self, share):
        """Return a free slot; attend to the victim until there is one."""
        while (slot := share.ring.wait_free(MOMENT_S)) < 0:
            self.tend(share)
        return slot

    def tend(self, share):
        """Let a stopped victim continue; recover a dead one and start another process in its place."""
        if self.victim.stands_still():
            os.kill(self.victim.pid, signal.SIGCONT)
        if self.victim.ended() and self.victim.code != 0 and self.replacement is None:
            share.ring.recover(share.ring.n_participants)
            self.replacement = Child(0, come_and_go, share.ring, 0)
            if self.replacement.wait() != 0:
                self.wrong(f"after {self.orders} the number cannot be used again")

    def expect_free(self, share):
        if share.ring.circulating != SLOTS or share.ring.lent:
            self.wrong(f"after {self.orders} {share.ring.circulating} slots circulate, {share.ring.lent} are lent")
        share.end()

    # ---- the consumer is hit

    def consumer(self):
        pid = os.fork()
        if pid == 0:
            end_with(be_consumer)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        died = any(strike.done for strike in POINTS.strikes())
        if code != (-signal.SIGKILL if died else 0):
            self.wrong(f"after {self.orders} the consumer ended with {code}")
        with contextlib.suppress(ChildProcessError):
            while True:  # this process has adopted its readers
                code = os.waitstatus_to_exitcode(os.wait()[1])
                if code != 0:
                    self.wrong(f"after {self.orders} a reader ended with {code}")
        self.counts["batches"] += BATCHES


def come_and_go(ring, number):
    ring.in_child()
    SharedReader(ring, number).leave()


def end_with(function, *args):
    """Call a function and end this process: with 0, or with 1 after an exception."""
    try:
        function(*args)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def read_until_death(ring, number, gate, death_fd):
    POINTS.become(VICTIM)
    if number == 0:
        # If the consumer has died, no process opens the gate: its end is closed.
        os.close(gate.writer)
    read(ring, number, gate if number == 0 else None, death_fd)


def be_consumer():
    """Share with two readers; one of them waits at a gate until no slot is free."""
    POINTS.become(points.CONSUMER)
    share, gate, death_fd = Shared(), Gate(), os.pidfd_open(os.getpid())
    readers = [os.fork(), None]
    if readers[0] == 0:
        end_with(read_until_death, share.ring, 0, gate, death_fd)
    readers[1] = os.fork()
    if readers[1] == 0:
        os.close(gate.writer)
        end_with(read_until_death, share.ring, 1, None, death_fd)
    for number in range(2):
        share.ring.wait_serving(share.ring.n_participants + number, HANG_S)
    until(lambda: sleeps_in_futex(readers[1]), "the other reader sleeps", HANG_S)
    for number in range(BATCHES):
        if number == SLOTS:
            gate.open()
        share.ring.wait_free(HANG_S)
        share.put_one(number)
    while not share.ring.share_end(share.ring.wait_free(HANG_S), 0, BATCHES):
        pass
    share.ring.close()  # a reader that came back after the end mark does not meet it
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in readers]
    until(lambda: share.ring.circulating == SLOTS, "all slots are free", HANG_S)
    assert codes == [0, 0], codes


if __name__ == "__main__":
    main(ShareJob)
