"""The example `message_queue.py`, called in the order in which an inference engine calls its own queue."""

import importlib.util
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from slipring.errors import WriterDied
from tests.support.broadcasts import Child
from tests.support.processes import ROOT, sleeps_in_futex, until

SPEC = importlib.util.spec_from_file_location("message_queue", ROOT / "examples" / "message_queue.py")
message_queue = sys.modules["message_queue"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(message_queue)
MessageQueue = message_queue.MessageQueue

WORLD = 3


def work(tell, handle, rank):
    """As the engine's worker: join the executor's queue, make one for answers, and send its handle when ready."""
    requests = MessageQueue.create_from_handle(handle, rank)
    answers = MessageQueue(1, 1)
    tell(answers.export_handle())
    requests.wait_until_ready()
    answers.wait_until_ready()
    while (request := requests.dequeue(indefinite=True)) is not None:
        method, args, only = request
        if only in (None, rank):
            answers.enqueue(("SUCCESS", method(*args)))
    answers.shutdown()


def test_an_executor_calls_its_workers_and_shuts_down():
    requests = MessageQueue(WORLD, WORLD, max_chunk_bytes=1 << 20)
    workers = [Child(work, requests.export_handle(), rank) for rank in range(WORLD)]
    answers = [MessageQueue.create_from_handle(worker.told(), 0) for worker in workers]
    requests.wait_until_ready()
    for queue in answers:
        queue.wait_until_ready()
    for step in range(100):
        requests.enqueue((sum, ([step, 1],), None), timeout=60)
        assert [queue.dequeue(timeout=60) for queue in answers] == [("SUCCESS", step + 1)] * WORLD
    requests.enqueue((np.sum, (np.ones(1 << 20),), 1))  # larger than a chunk, and only for one rank
    assert answers[1].dequeue(timeout=60) == ("SUCCESS", 1 << 20)
    with pytest.raises(TimeoutError):
        answers[0].dequeue(timeout=0.001)
    requests.shutdown()
    assert [worker.end() for worker in workers] == [0] * WORLD
    for queue in answers:
        queue.shutdown()


def arrays(seed):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 100, size) for size in rng.integers(1, 10_000, 200)]


def follow(tell, handle, rank, seed):
    queue = MessageQueue.create_from_handle(handle, rank)
    queue.wait_until_ready()
    for expected in arrays(seed):
        assert np.array_equal(queue.broadcast_object(None), expected)
    tell(rank)


def test_ranks_of_a_group_get_the_objects_of_the_writers_rank():
    writer_rank, seed = 2, 17
    ranks = [rank for rank in range(4) if rank != writer_rank]
    queue = MessageQueue(3, 3, local_reader_ranks=ranks, max_chunk_bytes=40 << 10, max_chunks=2)
    others = [Child(follow, queue.export_handle(), rank, seed) for rank in ranks]
    queue.wait_until_ready()
    for array in arrays(seed):
        assert queue.broadcast_object(array) is array
    assert [other.told() for other in others] == ranks
    assert [other.end() for other in others] == [0, 0, 0]
    queue.shutdown()


def test_a_shutdown_in_another_thread_ends_a_dequeue():
    queue = MessageQueue(1, 1)
    reader = MessageQueue.create_from_handle(queue.export_handle(), 0)
    queue.wait_until_ready()
    reader.wait_until_ready()
    with pytest.raises(TimeoutError):
        reader.dequeue(timeout=0.001)
    got = []
    thread = threading.Thread(target=lambda: got.append(reader.dequeue(indefinite=True)))
    thread.start()
    time.sleep(0.05)  # it probably waits by now; in any case it must end
    reader.shutdown()
    thread.join()
    assert got == [None] and reader.shutting_down and reader.dequeue(timeout=1) is None
    queue.shutdown()


def test_the_death_of_the_executor_is_an_error_in_its_workers():
    executor = Child(lambda tell: (queue := MessageQueue(1, 1), tell(queue.export_handle()), signal.pause()))
    reader = MessageQueue.create_from_handle(executor.told(), 0)
    thread = threading.Timer(
        0, lambda: (until(lambda: sleeps_in_futex(os.getpid()), "it waits"), executor.end(kill=True))
    )
    thread.start()
    with pytest.raises(WriterDied):
        reader.dequeue(indefinite=True)
    thread.join()
    reader.shutdown()


def test_readers_on_other_machines_are_refused():
    with pytest.raises(ValueError, match="1 of 3 readers are remote"):
        MessageQueue(3, 2)
    with pytest.raises(ValueError, match="names 1 readers, not n_local_reader=2"):
        MessageQueue(2, 2, local_reader_ranks=[1])
    queue = MessageQueue(1, 1, local_reader_ranks=[5])
    with pytest.raises(ValueError, match=r"rank 0 is not one of the readers on this machine, \[5\]"):
        MessageQueue.create_from_handle(queue.export_handle(), 0)
    queue.shutdown()
