"""The handle on a segment: refusals and their texts, waiting, processes."""

import errno
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from slipring import Queue
from slipring.errors import BatchTooLarge, Closed, CorruptBatch, SegmentFull, SlotLost
from tests.support.inside import Pickled, Ring, _ring, mix
from tests.support.signals import Raised, handling
from tests.support.trip import Trip

LONG_S = 600  # more than the watchdog's limit


def test_a_batch_larger_than_a_slot_names_both_sizes_and_the_remedy():
    trip = Trip(2, capacity=1 << 20)
    with pytest.raises(BatchTooLarge, match="raise slot_bytes to at least") as caught:
        trip(np.zeros(2 << 20, np.uint8))
    assert caught.value.needed == 2 << 20 and caught.value.limit == 1 << 20
    assert "at least 2.1 MB does not fit a slot of 1.0 MB" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_worker_continues_after_a_batch_that_was_too_large():
    trip = Trip(2, capacity=1 << 20)
    fill = trip.claim()
    with fill:
        with pytest.raises(BatchTooLarge):
            trip.encoder.publish(fill, [[np.zeros(1 << 19, np.uint8) for _ in range(3)]])
        fill.rewind()
        trip.encoder.publish(fill, [np.ones(1 << 19, np.uint8)])
    assert trip.take(fill.slot).sum() == 1 << 19


def test_indices_larger_than_the_task_area_say_so():
    trip = Trip(2, capacity=1 << 16)
    with pytest.raises(BatchTooLarge, match=r"indices of a batch take 160,000 bytes|indices of a batch take 0.2 MB"):
        trip.ring.dispatch(0, list(range(20_000)), 0, 0, 0, 0, 0, 0, 0, False)
    with pytest.raises(BatchTooLarge, match="use a smaller batch_size"):
        trip.ring.dispatch(0, Pickled(["x" * 100_000]), 0, 0, 0, 0, 0, 0, 0, False)
    assert trip(5) == 5


def test_the_largest_possible_request_is_refused_in_numbers(trip):
    from tests.support.inside import empty

    fill = trip.claim()
    with fill, pytest.raises(BatchTooLarge) as caught:
        empty((1 << 61,), np.uint8)
    assert caught.value.needed >= 1 << 61
    fill.abort()


@pytest.fixture
def small_tmpfs(tmp_path):
    """A tmpfs of two megabytes."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    place = str(tmp_path).encode()
    if libc.mount(b"tmpfs", place, b"tmpfs", 0, b"size=2m") != 0:
        pytest.skip(f"cannot mount a tmpfs here: {os.strerror(ctypes.get_errno())}")
    yield str(tmp_path)
    libc.umount2(place, 2)


def test_a_full_file_system_says_what_is_needed_what_is_free_and_what_helps(small_tmpfs):
    trip = Trip(2, backing=small_tmpfs)
    assert trip.ring.info["backing"] == "dir"
    with pytest.raises(SegmentFull, match="use fewer slots") as caught:
        trip(np.zeros(3_000_000, np.uint8))
    assert caught.value.needed >= 3_000_000 - 8192
    assert caught.value.free < 2 << 20
    assert caught.value.limit == "the file system that holds the segment"
    assert str(caught.value.needed) in str(caught.value) and "slots=2 now" in str(caught.value)
    fill = trip.ring.claim(1, 0)
    assert fill is None
    assert trip(5) == 5


def test_a_file_system_without_room_for_the_controls_says_so(small_tmpfs):
    with pytest.raises(SegmentFull, match="are free within the file system") as caught:
        Ring(200, 3, backing=small_tmpfs)
    assert caught.value.needed > 2 << 20 >= caught.value.free


def test_bad_arguments_are_refused(tmp_path):
    for arguments in (
        {"slots": 0},
        {"slots": 1 << 20},
        {"slots": 1, "participants": 1},
        {"slots": 1, "participants": 5000},
    ):
        with pytest.raises(OSError) as caught:
            Ring(**arguments)
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError):
        Ring(1, backing=str(tmp_path / "nowhere"))
    with pytest.raises(OverflowError):
        Ring(-1)


def test_a_file_that_is_no_segment_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    with open(path, "rb+") as file, pytest.raises(CorruptBatch, match="not a slipring segment"):
        Ring(fd=file.fileno())


def test_a_handle_is_made_once(trip):
    with pytest.raises(RuntimeError, match="made once"):
        trip.ring.__init__(2)


def test_a_handle_that_was_never_made_is_refused():
    with pytest.raises(RuntimeError, match="has not been made"):
        Ring.__new__(Ring).begin_iteration(1)


# ---- the handle's information


@pytest.mark.parametrize("backing", ["shm", "memfd", "auto"])
def test_info_reports_the_chosen_sizes(backing):
    ring = Ring(3, 2, backing, 1 << 20)
    info = ring.info
    assert info["backing"] == backing or backing == "auto"
    assert info["capacity"] == info["wanted"] == 1 << 20 and info["limited_by"] is None
    assert info["reserved"] > 3 << 20 > info["committed"] > 0
    assert info["reason"]
    assert (ring.n_slots, ring.n_participants, ring.circulating) == (3, 2, 3)


def test_memory_is_committed_only_as_it_is_needed(trip):
    before = trip.ring.info["committed"]
    trip(np.zeros(10_000_000, np.uint8))
    after = trip.ring.info["committed"]
    assert 10_000_000 - 8192 <= after - before < 12_000_000
    for _ in range(5):
        trip(np.zeros(10_000_000, np.uint8))
    assert trip.ring.info["committed"] == after  # the same slot, the same memory


def test_mixing_is_the_same_everywhere_and_depends_on_each_word():
    assert mix(1, 2, 3) == mix(1, 2, 3)
    words = [(), (0,), (0, 0), (1,), (2**64 - 1,), (-1, 0), (1, 2), (2, 1)]
    assert len({mix(*w) for w in words}) == len(words)
    assert mix(-1) == mix(2**64 - 1)
    assert all(0 <= mix(i) < 2**64 for i in range(100))


# ---- waiting


def test_a_wait_without_time_does_not_wait(trip):
    assert trip.ring.wait_ready(-1, 0) == -1
    assert trip.ring.wait_ready(0, 0.001) == -1
    assert trip.ring.claim(1, 0) is None
    assert not trip.ring.wait_serving(1, 0)


def test_a_wait_is_woken_by_its_event(trip):
    claimed = []
    thread = threading.Thread(target=lambda: claimed.append(trip.ring.claim(1, 60)))
    thread.start()
    trip.ring.dispatch(trip.ring.pick_free(), [4], 0, 0, 0, 0, 0, 0, 0, False)
    thread.join()
    assert claimed[0].indices() == [4]
    found = []
    thread = threading.Thread(target=lambda: found.append(trip.ring.wait_ready(-1, 60)))
    thread.start()
    trip.encoder.publish(claimed[0], [1])
    thread.join()
    assert found == [claimed[0].slot]


@pytest.mark.parametrize("wait", ["claim", "wait_ready"])
def test_closing_ends_all_waiting(trip, wait):
    ended = []

    def work():
        try:
            ended.append(trip.ring.claim(1, -1) if wait == "claim" else trip.ring.wait_ready(-1, 60))
        except Closed:
            ended.append("closed")

    thread = threading.Thread(target=work)
    thread.start()
    trip.ring.close()
    thread.join()
    assert ended == [None if wait == "claim" else "closed"] and trip.ring.closed
    trip.ring.reopen()
    assert not trip.ring.closed and trip(5) == 5


def test_a_signal_ends_a_wait_with_its_handlers_exception(trip):
    def handler(signum, frame):
        raise Raised

    with handling(handler):
        for wait in (lambda: trip.ring.claim(1, -1), lambda: trip.ring.wait_ready(-1, 60)):
            main, done = threading.get_ident(), threading.Event()
            waiting = threading.Thread(target=kill_until, args=(main, done))
            with pytest.raises(Raised):
                waiting.start()
                wait()
            done.set()
            waiting.join()


def kill_until(thread, done):
    """Interrupt a thread; do it again if the signal came before the thread began to wait."""
    while not done.wait(0.05):
        signal.pthread_kill(thread, signal.SIGUSR1)
        if done.wait(1):
            return


def test_a_slot_that_was_taken_away_says_so(trip):
    fill = trip.claim()
    assert trip.ring.recover(1) == 1
    with fill, pytest.raises(SlotLost, match="taken from a worker thought dead"):
        trip.encoder.publish(fill, [1])
    again = trip.ring.claim(2, 5)
    with again:
        trip.encoder.publish(again, [2])
    assert trip.take(again.slot) == 2


# ---- processes


def child_answers(ring):
    from tests.support.inside import Encoder

    ring.in_child()
    ring.join(1)
    ring.serve(1)
    encoder = Encoder()
    fill = ring.claim(1, 60)
    with fill:
        encoder.publish(fill, [{"pid": os.getpid(), "rows": fill.indices(), "array": np.arange(1000)}])
    ring.claim(1, 60)  # until the segment is closed


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_worker_process_answers_whichever_way_it_was_started(trip, method):
    process = multiprocessing.get_context(method).Process(target=child_answers, args=(trip.ring,))
    process.start()
    assert trip.ring.wait_serving(1, LONG_S)
    assert trip.ring.participant(1) == (process.pid, _ring.SERVING)
    slot = trip.ring.pick_free()
    trip.ring.dispatch(slot, [3, 4], 0, 0, 0, 0, 0, 0, 0, False)
    assert trip.ring.wait_ready(slot, LONG_S) == slot
    got = trip.take(slot)
    assert got["pid"] == process.pid and got["rows"] == [3, 4] and got["array"].sum() == 499_500
    trip.ring.close()
    process.join()
    assert process.exitcode == 0


def test_a_handle_travels_only_while_a_process_is_started(trip):
    with pytest.raises(RuntimeError, match="only be shared between processes through inheritance"):
        pickle.dumps(trip.ring)


def test_clocks_are_the_systems(trip):
    before = time.monotonic_ns()
    assert before <= _ring.now() <= time.monotonic_ns()


@pytest.mark.parametrize("make", [lambda path: Ring(1, backing=path), lambda path: Queue(1, backing=path)])
def test_a_directory_on_a_disk_is_refused(make):
    path = str(pathlib.Path(__file__).parent)
    kind = subprocess.check_output(["stat", "-f", "-c", "%T", path], text=True).strip()
    if kind == "tmpfs":
        pytest.skip("the tests lie on a tmpfs here")
    with pytest.raises(ValueError, match=r"not on a tmpfs: .* backing='memfd'") as caught:
        make(path)
    assert repr(path) in str(caught.value)
