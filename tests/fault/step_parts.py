"""The actions of processes that share a Queue in the run at every step: see step_queue.py."""

import ctypes
import mmap
import os
import queue
import select
import signal
import sys
import traceback

import numpy as np

from tests.fault.step_job import HANG_S, POINTS
from tests.support.processes import sleeps_in_futex, state, until

# isort: split
# At this point step_job has loaded the ring with the points.
from slipring import Queue

EACH = 6  # messages per producer
ROWS = (10, 3_000, 30_000)  # int32 values of a message: the last two need memory that the slots have not yet
CONSUMERS = 4  # including replacements
END = "the end"
PR_SET_PDEATHSIG = 1


def shared(*shape, dtype=np.int32):
    size = int(np.prod(shape))
    return np.frombuffer(mmap.mmap(-1, size * np.dtype(dtype).itemsize), dtype).reshape(shape)


class Account:
    """Shared counts of a round's processes.

    Attributes
    ----------
    begun, put : (2,) int32 arrays
        For each producer: how many calls of put() it has begun, and how many have returned.
    getting : (CONSUMERS,) int32 array
        1: inside get().
    got : (CONSUMERS, 2, EACH) int32 array
        How often each consumer got each message of each producer.
    reordered, changed : (CONSUMERS,) int32 arrays
    """

    def __init__(self):
        self.begun, self.put = shared(2), shared(2)
        self.getting, self.reordered, self.changed = (shared(CONSUMERS) for _ in range(3))
        self.got = shared(CONSUMERS, 2, EACH)


class Child:
    """A forked process: its exit code is 0 after its part, 1 after an exception."""

    def __init__(self, role, part, *args):
        self.code = None
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if role:
                    POINTS.become(role)
                part(*args)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)

    def ended(self):
        """Return whether the process has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def stands_still(self):
        """Return whether a hit has stopped it."""
        return any(s.done and s.pid == self.pid for s in POINTS.strikes()) and state(self.pid) == "T"

    def waits(self):
        """Return whether it has ended, is stopped, or waits."""
        return self.ended() or self.stands_still() or sleeps_in_futex(self.pid)

    def wait(self):
        """Wait for its end; return its exit code."""
        until(self.ended, "a process ends", HANG_S)
        return self.code


class Gate:
    """A gate where processes wait until another one opens it."""

    def __init__(self):
        self.reader, self.writer = os.pipe()

    def wait(self):
        os.read(self.reader, 1)

    def open(self, times=1):
        os.write(self.writer, bytes(times))

    def close(self):
        os.close(self.reader)
        os.close(self.writer)


def rows_of(producer, number):
    return np.full(ROWS[number % len(ROWS)], 100 * producer + number, np.int32)


def make_one_and_produce(q, me, account):
    """Make a queue: a process can die there, too."""
    Queue(1, max_processes=2).close()
    produce(q, me, account)


def produce(q, me, account, first=0, end=EACH):
    """Put messages in all possible ways."""
    for number in range(first, end):
        account.begun[me] = number + 1
        rows = rows_of(me, number)
        if number % 3 == 1:
            with q.slot() as s:
                inside = s.empty(len(rows), np.int32)
                inside[:] = rows
                s.put({"producer": me, "number": number, "rows": inside})
                account.put[me] = number + 1
                del inside  # the pin ends
        else:
            if number % 3 == 2:
                with q.slot() as s:
                    inside = s.empty(5)
                del inside  # abandoned, and kept a moment longer
            q.put({"producer": me, "number": number, "rows": rows})
            account.put[me] = number + 1
        if number == 2:
            q.disconnect_client()


def note(got, me, account, last):
    """Record a message."""
    producer, number = got["producer"], got["number"]
    account.got[me, producer, number] += 1
    account.getting[me] = 0
    account.reordered[me] += number <= last.get(producer, -1)
    account.changed[me] += not np.array_equal(got["rows"], rows_of(producer, number))
    last[producer] = number


def consume(q, me, account, gate=None, share=0):
    """Get messages until the end; wait at the gate after `share` of them."""
    last, kept, n = {}, [], 0
    while True:
        if gate and n == share:
            gate.wait()
            gate = None
        account.getting[me] = 1
        if n % 3 == 1:
            select.select([q], [], [])
            try:
                got = q.get_nowait(copy="always")
            except queue.Empty:
                continue
        else:
            got = q.get(copy="never")
        if isinstance(got, dict):
            note(got, me, account, last)
        account.getting[me] = 0
        if got == END:
            return
        kept[:] = [got]
        n += 1
        if n == 3:
            del got
            kept.clear()
            q.disconnect_client()
