"""A worker of a stream gets its batches one by one, and skips none unless it replaces a dead worker."""

import pytest

from tests.support.inside import BATCH, COPY_AUTO, ERROR, Job, Options, Worker, receive


class Numbers:
    def __iter__(self):
        return iter(range(100))


def worker_of(trip, mark=None):
    job = Job(Numbers(), True, Options(batch_size=2, num_workers=1), Worker)
    return job.worker(trip.ring, 0, "inline", mark)


def ask(trip, worker, sequence):
    """Let the worker make batch `sequence` of its stream; return (kind, published value)."""
    slot = trip.ring.pick_free()
    trip.ring.dispatch(slot, None, 0, 0, trip.seq, 0, sequence, 2, 0, False)  # addressed to participant 1
    trip.seq += 1
    worker.work(trip.ring.claim(1, 5.0))
    assert trip.ring.wait_ready(slot, 5.0) == slot
    kind, value = receive(trip.ring, slot, COPY_AUTO)
    return kind, value


def test_batches_come_in_turn(trip):
    worker = worker_of(trip)
    for sequence in range(3):
        kind, batch = ask(trip, worker, sequence)
        assert kind == BATCH and batch.tolist() == [2 * sequence, 2 * sequence + 1]


@pytest.mark.parametrize("first", [0, 1])
def test_a_batch_that_would_be_passed_over_is_an_error(trip, first):
    worker = worker_of(trip)
    for sequence in range(first):
        ask(trip, worker, sequence)
    kind, record = ask(trip, worker, first + 1)
    assert kind == ERROR and f"batch {first + 1} of its stream where batch {first} comes next" in str(record)


def test_a_replacement_of_a_dead_worker_begins_where_that_one_ended(trip):
    worker = worker_of(trip, mark=b"")
    assert ask(trip, worker, 3)[1].tolist() == [6, 7]
    kind, _ = ask(trip, worker, 5)
    assert kind == ERROR, "the right to pass over batches is for the first only"


def test_a_new_run_begins_at_its_beginning(trip):
    worker = worker_of(trip)
    ask(trip, worker, 0)
    worker.forget_iteration()
    assert ask(trip, worker, 0)[1].tolist() == [0, 1]
