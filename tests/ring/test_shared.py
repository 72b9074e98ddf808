"""Batches that a consumer shares with readers in other processes: one slot, many leases."""

import gc
import hashlib
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

from slipring.errors import Closed
from tests.support.inside import COPY_ALWAYS, COPY_NEVER, Ring, SharedReader, Watch, attached_ring
from tests.support.processes import sleeps_in_futex, until
from tests.support.trip import Trip, address

BATCHES = 40
SLOTS = 4


@pytest.fixture
def share():
    """A segment of four slots whose consumer shares its batches with two readers."""
    share = Share(readers=2)
    yield share
    share.end()


class Share(Trip):
    """The consumer: makes batches, shares them and releases its own lease."""

    def __init__(self, readers, slots=SLOTS):
        super().__init__(slots, readers=readers)

    def __call__(self, value, copy=COPY_NEVER):
        """Make a batch in a free slot and share it; return its value."""
        if self.ring.pick_free() < 0:
            assert self.ring.wait_free(-1) >= 0
        return self.share(value, copy)

    def end_iteration(self, seq=0):
        slot = self.ring.wait_free(-1)
        assert self.ring.share_end(slot, 0, seq)

    def reader_pid(self, number):
        return self.ring.n_participants + number


def value_of(number):
    return {"rows": np.full(1000 + number, number), "name": f"batch {number}"}


def digest_of(value):
    return hashlib.sha256(pickle.dumps((value["rows"].tobytes(), value["name"]))).hexdigest()


def read_all(ring, number, keep=0):
    """Read until the end mark; return the digests in order. Up to `keep` batches are kept."""
    reader, digests, kept = SharedReader(ring, number), [], []
    while True:
        reader.wait(-1)
        batch = reader.take()
        assert batch.number == len(digests)
        if batch.is_end:
            return digests
        value = batch.value(COPY_NEVER)
        digests.append(digest_of(value))
        kept.append((value, digests[-1]))
        while len(kept) > keep:
            old, digest = kept.pop(0)
            assert digest_of(old) == digest


class Child:
    """A forked process that writes the result of `part(ring)` to a pipe."""

    def __init__(self, ring, part, *args):
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                ring.in_child()
                os.write(writer, pickle.dumps(part(ring, *args)))
                code = 0
            finally:
                os._exit(code)
        os.close(writer)

    def result(self):
        with os.fdopen(self.reader, "rb") as pipe:
            data = pipe.read()
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0
        return pickle.loads(data)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.reader)


ATTACHED = """
import pickle, sys
from tests.ring.test_shared import read_all
from tests.support.inside import attached_ring
sys.stdout.buffer.write(pickle.dumps(read_all(attached_ring(int(sys.argv[1])), int(sys.argv[2]))))
"""


def test_forked_and_attached_readers_see_the_same_bytes_in_order(share):
    fd = os.dup(share.ring.fd)
    command = [sys.executable, "-c", ATTACHED, str(fd), "1"]
    attached = subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE)
    os.close(fd)
    forked = Child(share.ring, read_all, 0, 1)
    for number in range(2):
        share.ring.wait_serving(share.reader_pid(number), -1)
    digests = [digest_of(share(value_of(number))) for number in range(BATCHES)]
    share.end_iteration()
    assert forked.result() == digests
    out, _ = attached.communicate()
    assert attached.returncode == 0
    assert pickle.loads(out) == digests
    assert share.free == SLOTS


def test_a_reader_gets_the_slot_itself_and_keeps_it(share):
    readers = [SharedReader(share.ring, number) for number in range(2)]
    mine = share(np.arange(100))
    views = []
    for reader in readers:
        assert reader.wait(0)
        batch = reader.take()
        views.append(batch.value(COPY_NEVER))
        assert batch.indices() == [0]
        assert batch.state() is None
        del batch
        assert reader.take() is None
    assert {address(view) for view in views} == {address(mine)}
    assert share.free == SLOTS - 1
    del mine
    assert share.ring.lent == 1
    view = views.pop()[50:]
    views.clear()
    for number in range(6):  # the second reader leaves the batches where they are
        share(np.full(100, number))
        for reader in readers:
            reader.take().value(COPY_ALWAYS)
    assert share.free == SLOTS - 1
    assert view.tolist() == list(range(50, 100))
    del view
    assert share.free == SLOTS
    assert share.ring.lent == 0


def test_a_shared_batch_is_not_poisoned_while_others_read_it(monkeypatch):
    monkeypatch.setenv("SLIPRING_DEBUG", "1")
    share = Share(readers=1)
    reader = SharedReader(share.ring, 0)
    share(np.arange(100))
    assert reader.take().value(COPY_NEVER).tolist() == list(range(100))
    reader.leave()
    share.end()


def test_a_lease_outlives_the_readers_part(share):
    reader = SharedReader(share.ring, 0)
    share(np.arange(10))
    share(np.arange(20))
    view = reader.take().value(COPY_NEVER)
    reader.leave()
    reader.leave()
    assert share.free == SLOTS - 1
    again = SharedReader(share.ring, 0)
    share(np.arange(30))
    assert len(again.take().value(COPY_NEVER)) == 30
    assert view.tolist() == list(range(10))
    del view
    assert share.free == SLOTS


def test_a_dropped_reader_takes_no_part(share):
    reader = SharedReader(share.ring, 0)
    share(np.arange(10))
    assert share.free == SLOTS - 1
    del reader
    gc.collect()
    assert share.free == SLOTS


def hold_and_wait(ring, ready):
    reader = SharedReader(ring, 0)
    reader.wait(-1)
    kept = reader.take().value(COPY_NEVER)
    os.write(ready, b"x")
    reader.wait(-1)
    return kept


def test_the_slots_of_a_killed_reader_are_free_again(share):
    ready, writer = os.pipe()
    child = Child(share.ring, hold_and_wait, writer)
    share.ring.wait_serving(share.reader_pid(0), -1)
    share(np.arange(10))
    os.read(ready, 1)
    until(lambda: sleeps_in_futex(child.pid), "the reader waits")
    assert share.free == SLOTS - 1
    child.kill()
    for number in range(SLOTS - 1):
        share(np.full(5, number))
    assert share.free == 0
    assert share.ring.wait_free(0.01) == -1
    assert share.ring.recover(share.reader_pid(0)) == 0
    assert share.free == SLOTS
    reader = SharedReader(share.ring, 0)  # the number is free, too
    share(np.arange(3))
    assert reader.take().value(COPY_NEVER).tolist() == [0, 1, 2]
    os.close(ready)
    os.close(writer)


def test_a_reader_reads_what_is_left_after_the_consumers_death(share):
    reader = SharedReader(share.ring, 0)
    pid = os.fork()
    if pid == 0:
        share.ring.in_child()
        share(np.arange(10))
        share(np.arange(20))
        signal.pause()
    death_fd = os.pidfd_open(pid)
    try:
        assert reader.wait(-1, death_fd)
        first = reader.take().value(COPY_NEVER)
        until(lambda: Watch(share.ring.fd, False).segment_info()["shared"] == 2, "two batches")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert reader.wait(-1, death_fd)
        assert len(reader.take().value(COPY_NEVER)) == 20
        with pytest.raises(Closed, match="has died"):
            reader.wait(-1, death_fd)
        assert first.tolist() == list(range(10))
    finally:
        os.close(death_fd)


def test_an_observer_sees_readers_and_how_far_they_are_behind(share):
    readers = [SharedReader(share.ring, number) for number in range(2)]
    watch = Watch(share.ring.fd)
    kept = share(np.arange(10))
    share(np.arange(10))
    taken = readers[1].take()
    info = watch.segment_info()
    assert (info["n_participants"], info["n_readers"], info["shared"]) == (3, 2, 2)
    assert watch.participants()["pid"].tolist() == [os.getpid(), 0, 0]
    assert watch.readers()["pid"].tolist() == [os.getpid()] * 2
    assert watch.readers()["lag"].tolist() == [2, 1]
    assert sorted(watch.slots()["readers"].tolist()) == [2, 3]
    del kept, taken


def test_a_close_wakes_a_reader(share):
    reader = SharedReader(share.ring, 0)
    share(np.arange(10))
    share.ring.close()
    assert reader.wait(-1)
    reader.take()
    with pytest.raises(Closed):
        reader.wait(-1)


def test_wrong_numbers_and_owners_are_refused(share, monkeypatch):
    with pytest.raises(ValueError, match="made for 2 readers"):
        SharedReader(share.ring, 2)
    reader = SharedReader(share.ring, 1)
    with pytest.raises(ValueError, match="takes part already"):
        SharedReader(share.ring, 1)
    assert not reader.left
    with pytest.raises(ValueError, match="made for 0 readers"):
        SharedReader(Ring(2, 2), 0)
    with pytest.raises(OSError):
        Ring(2, 2, readers=41)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="12345"):
        attached_ring(share.ring.fd)
