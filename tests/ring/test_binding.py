"""The handle on a segment: refusals and their texts, interrupted waits."""

import errno
import pathlib
import pickle
import signal
import subprocess
import threading

import numpy as np
import pytest

from slipring import Queue
from slipring.errors import BatchTooLarge, CorruptBatch, SlotLost
from tests.support.inside import Pickled, Ring, empty, mix
from tests.support.signals import Raised, handling
from tests.support.trip import Trip


def test_a_worker_continues_after_a_batch_that_was_too_large():
    trip = Trip(2, capacity=1 << 20)
    writer = trip.claim()
    with writer:
        with pytest.raises(BatchTooLarge):
            trip.encoder.publish(writer, [[np.zeros(1 << 19, np.uint8) for _ in range(3)]])
        writer.rewind()
        trip.encoder.publish(writer, [np.ones(1 << 19, np.uint8)])
    assert trip.take(writer.slot).sum() == 1 << 19


def test_indices_larger_than_the_task_area_say_so():
    trip = Trip(2, capacity=1 << 16)
    with pytest.raises(BatchTooLarge, match=r"indices of a batch take 160,000 bytes|indices of a batch take 0.2 MB"):
        trip.ring.dispatch(0, list(range(20_000)), 0, 0, 0, 0, 0, 0, 0, False)
    with pytest.raises(BatchTooLarge, match="use a smaller batch_size"):
        trip.ring.dispatch(0, Pickled(["x" * 100_000]), 0, 0, 0, 0, 0, 0, 0, False)
    assert trip(5) == 5


def test_the_largest_possible_request_is_refused_in_numbers(trip):
    writer = trip.claim()
    with writer, pytest.raises(BatchTooLarge) as caught:
        empty((1 << 61,), np.uint8)
    assert caught.value.needed >= 1 << 61
    writer.abort()


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(OSError) as caught:
        Ring(slots=0)
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


def test_info_reports_the_chosen_sizes():
    ring = Ring(3, 2, "memfd", 1 << 20)
    info = ring.info
    assert info["backing"] == "memfd"
    assert info["capacity"] == info["wanted"] == 1 << 20 and info["limited_by"] is None
    assert info["reserved"] > 3 << 20 > info["committed"] > 0
    assert info["reason"]
    assert (ring.n_slots, ring.n_participants, ring.circulating) == (3, 2, 3)


def test_mixing_is_the_same_everywhere_and_depends_on_each_word():
    assert mix(1, 2, 3) == mix(1, 2, 3)
    words = [(), (0,), (0, 0), (1,), (2**64 - 1,), (-1, 0), (1, 2), (2, 1)]
    assert len({mix(*w) for w in words}) == len(words)
    assert mix(-1) == mix(2**64 - 1)
    assert all(0 <= mix(i) < 2**64 for i in range(100))


def test_a_wait_without_time_does_not_wait(trip):
    assert trip.ring.wait_ready(-1, 0) == -1
    assert trip.ring.wait_ready(0, 0.001) == -1
    assert trip.ring.claim(1, 0) is None
    assert not trip.ring.wait_serving(1, 0)


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
    writer = trip.claim()
    assert trip.ring.recover(1) == 1
    with writer, pytest.raises(SlotLost, match="taken from a worker thought dead"):
        trip.encoder.publish(writer, [1])
    again = trip.ring.claim(2, 5)
    with again:
        trip.encoder.publish(again, [2])
    assert trip.take(again.slot) == 2


def test_a_handle_travels_only_while_a_process_is_started(trip):
    with pytest.raises(RuntimeError, match="only be shared between processes through inheritance"):
        pickle.dumps(trip.ring)


@pytest.mark.parametrize("make", [lambda path: Ring(1, backing=path), lambda path: Queue(1, backing=path)])
def test_a_directory_on_a_disk_is_refused(make):
    path = str(pathlib.Path(__file__).parent)
    kind = subprocess.check_output(["stat", "-f", "-c", "%T", path], text=True).strip()
    if kind == "tmpfs":
        pytest.skip("the tests lie on a tmpfs here")
    with pytest.raises(ValueError, match=r"not on a tmpfs: .* backing='memfd'") as caught:
        make(path)
    assert repr(path) in str(caught.value)
