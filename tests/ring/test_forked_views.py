"""A forked child sees the batches that it inherits as they were, for as long as it lives."""

import os
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import slipring
from slipring import Loader, Memory, Queue, Workers
from tests.support.datasets import Squares, numbers
from tests.support.inside import count_of, engine_of
from tests.support.kinds import kinds, loading
from tests.support.processes import LONG_S, in_child
from tests.support.trip import address


class Meeting:
    """A child that reads after its parent has continued, and reports the values."""

    def __init__(self, look):
        self.gate, self.opened = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.read(self.gate, 1)
                code = 0 if look() else 2
            finally:
                os._exit(code)

    def ends_well(self):
        os.write(self.opened, b"x")
        os.close(self.gate)
        os.close(self.opened)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0


def private(at):
    """Return whether an array's first byte, or an address, is in anonymous memory."""
    at = at if isinstance(at, int) else address(at)
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, end = (int(number, 16) for number in line.split()[0].split("-"))
            if first <= at < end:
                return line.split()[1].endswith("p") and line.split()[4] == "0"
    raise AssertionError("the array is not mapped")


WORKERS = ["inline", "fork", "thread"]


@kinds(*WORKERS)
def test_a_batch_that_its_parent_drops_stays_unchanged(kind):
    with loading(Squares(400), 4, **kind) as loader:
        iterator = iter(loader)
        children = []
        for k in range(9):
            batch = next(iterator)
            wanted = [i * i for i in range(4 * k, 4 * k + 4)]
            children.append(Meeting(lambda batch=batch, wanted=wanted: batch[0][:, 0].tolist() == wanted))
        del batch
        assert len(numbers(iterator)) == 91
        assert numbers(loader) == [list(range(k, k + 4)) for k in range(0, 400, 4)]  # and no slot is lost
        if kind["num_workers"]:
            assert engine_of(loader).ring.circulating == loader.stats().slots
        assert all([child.ends_well() for child in children])


def test_child_and_parent_do_not_see_each_others_writes():
    with Loader(Squares(100), 4, num_workers=2) as loader:
        rows, which = next(iter(loader))

        def child():
            fine = private(rows) and which.tolist() == [0, 1, 2, 3]
            rows[:] = 55
            return fine

        meeting = Meeting(child)
        which[:] = 77
        assert not private(rows)
        assert meeting.ends_well()
        assert rows[:, 0].tolist() == [0, 1, 4, 9]


def test_a_child_that_ends_at_once_or_is_stopped_delays_no_other():
    with Loader(Squares(100), 4, num_workers=2, memory=Memory(slots=5)) as loader:
        for _ in range(20):
            batch = next(iter(loader))
            stopped = os.fork()
            if stopped == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
                os._exit(0 if batch[1].tolist() == [0, 1, 2, 3] else 1)
            os.waitpid(stopped, os.WUNTRACED)
            gone = os.fork()
            if gone == 0:
                os._exit(0)
            os.waitpid(gone, 0)
            del batch
            assert len(list(loader)) == 25
            os.kill(stopped, signal.SIGCONT)
            assert os.waitstatus_to_exitcode(os.waitpid(stopped, 0)[1]) == 0


class Large(Squares):
    """Samples of 8 MiB."""

    def __getitem__(self, i):
        array = slipring.empty(1 << 20)
        array[:] = i
        if i == self.forks_at:
            self.child = without_address_space(lambda: (array == i).all())
        if i == self.n - 1 and self.child is not None:
            assert self.child.ends_well()
        return array

    forks_at = child = None


def limits_addresses():
    """Return whether a limit on addresses works here: a user-mode emulator ignores it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    some = 1 << 46 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_AS, (some, hard))
    try:
        return resource.getrlimit(resource.RLIMIT_AS)[0] == some
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


needs_limits = pytest.mark.skipif(not limits_addresses(), reason="setrlimit(RLIMIT_AS) has no effect here")


def without_address_space(look):
    """A `Meeting` with a child that is forked without memory for a copy of 8 MiB."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), hard))
    try:
        return Meeting(look)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@needs_limits
@kinds("fork", "thread")
def test_without_memory_for_a_copy_the_slot_stays_as_it_is(kind):
    with loading(Large(20), None, **kind, slots=5) as loader:
        iterator = iter(loader)
        kept = [next(iterator)]
        child = without_address_space(lambda: not private(kept[0]) and (kept[0] == 0).all())
        kept.clear()
        assert [int(batch[0]) for batch in iterator] == list(range(1, 20))
        in_flight = (
            2 if kind.get("start_method") == "thread" else 0
        )  # slots that the threads were writing may stay, too
        assert 4 - in_flight <= engine_of(loader).ring.circulating <= 4
        assert child.ends_well()


@needs_limits
@kinds("one fork")
def test_a_slot_that_a_worker_fills_stays_as_it_is_without_memory_for_a_copy(kind):
    dataset = Large(12)
    dataset.forks_at = 3
    with loading(dataset, None, **kind, memory=Memory(slots=5)) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(12))
        assert engine_of(loader).ring.circulating == 4


# ---- no cost without need


def test_nothing_is_copied_if_no_batch_is_kept():
    with Loader(Squares(100), 4, num_workers=2) as loader:
        batch = next(iter(loader))
        where = address(batch[0])
        del batch

        assert in_child(lambda: private(where)) is False


def test_our_own_workers_have_no_copies(tmp_path):
    with Loader(Squares(100), 4, num_workers=2) as loader:
        held = next(iter(loader))

        class Looks(Squares):
            def __getitem__(self, i):
                assert not private(held[0])
                return i

        with Loader(Looks(8), 4, num_workers=2, workers=Workers(start_method="fork")) as other:
            assert [batch.tolist() for batch in other] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("options", [{}, {"preexec_fn": os.getpid}], ids=["vfork", "fork"])
def test_a_process_that_executes_another_program_continues_as_usual(options):
    with Loader(Squares(100), 4, num_workers=2) as loader:
        batch = next(iter(loader))
        program = [sys.executable, "-c", "print(5)"]
        assert subprocess.run(program, capture_output=True, text=True, **options).stdout == "5\n"
        assert batch[1].tolist() == [0, 1, 2, 3]


# ---- other arrays in a slot


def test_messages_of_a_queue_too_and_the_child_can_use_the_queue():
    q = Queue(3)
    q.put(np.full(5000, 7))
    kept = [q.get()]

    def child():
        got = kept[0]
        assert private(got)
        first = q.get()
        assert (first == 8).all() and not private(first)
        q.put(np.full(5000, 9))
        del first
        for i in range(6):  # every slot, including the one that the child has copied
            q.put(np.full(5000, i))
            assert (q.get(timeout=LONG_S)[[0, -1]] == (9 if i == 0 else i - 1)).all()
        return (got == 7).all()

    child_in = Meeting(child)
    kept.clear()
    for i in range(6):
        q.put(i)
        assert q.get() == i
    q.put(np.full(5000, 8))
    assert child_in.ends_well()
    assert (q.get() == 5).all()
    assert count_of(q)() == (0, 3)


class Forks(Squares):
    """Sample 1 forks a child, which reports its view of its parent's array when the last sample is made."""

    def __init__(self, fds):
        super().__init__(40)
        self.fds = fds

    def __getitem__(self, i):
        array = slipring.empty(5000)
        array[:] = i
        if i == 1:
            gate, self.opened = os.pipe()
            if os.fork() == 0:
                os.close(self.opened)
                os.read(gate, 1)
                os.write(self.fds[1], b"fine" if private(array) and (array == 1).all() else b"spoiled")
                os._exit(0)
            os.close(gate)
        if i == 39:
            os.close(self.opened)
        return array


@kinds("inline", "one fork", "one thread")
def test_a_batch_that_a_worker_is_making_too(kind):
    fds = os.pipe()
    with loading(Forks(fds), None, **kind, memory=Memory(slots=4)) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(40))
    os.close(fds[1])
    with os.fdopen(fds[0], "rb") as said:
        assert said.read() == b"fine"
    if kind.get("start_method") != "fork":
        os.wait()


def test_forks_while_another_thread_iterates():
    """The forking thread holds any batches, and another thread drops some at that moment."""
    with Loader(Squares(4000), 4, num_workers=2, memory=Memory(slots=6)) as loader:
        kept = [next(iter(loader))]
        stop = threading.Event()

        def iterate():
            while not stop.is_set():
                for batch in loader:
                    if stop.is_set():
                        break
                    del batch

        thread = threading.Thread(target=iterate)
        thread.start()
        try:
            children = [Meeting(lambda: kept[0][1].tolist() == [0, 1, 2, 3]) for _ in range(20)]
            kept.clear()
        finally:
            stop.set()
            thread.join()
        assert all([child.ends_well() for child in children])
        assert len(list(loader)) == 1000
