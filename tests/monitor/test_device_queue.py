"""Computations that a device has not finished keep their batches, although the loop's variables do not."""

import queue
import threading
import time

import numpy as np
import pytest

import slipring
from slipring.errors import SlotsHeld


class Rows:
    def __len__(self):
        return 240

    def __getitem__(self, i):
        time.sleep(0.001)
        return np.full(100, i)


class Device:
    """Queued computations; a thread runs them when the test lets the device run."""

    def __init__(self):
        self.results = []
        self._queue, self._runs = queue.SimpleQueue(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._queue.put(None)
        self._runs.set()
        self._thread.join()

    def start(self, batch):
        """Queue a computation, and return at once."""
        self._queue.put(batch)

    def block_until_ready(self):
        """Wait for all computations that were started."""
        done = threading.Event()
        self._runs.set()
        self._queue.put(done)
        done.wait()
        self._runs.clear()

    def _run(self):
        while self._runs.wait() and (batch := self._queue.get()) is not None:
            if isinstance(batch, threading.Event):
                batch.set()
            else:
                self.results.append(int(batch[0, 0]))
            batch = None


def test_after_the_computations_have_ended_an_iteration_without_slots_continues():
    memory = slipring.Memory(copy="never", slots=8)
    with Device() as device, slipring.Loader(Rows(), 4, num_workers=2, memory=memory) as loader:
        batches, full = iter(loader), 0
        while True:
            try:
                device.start(next(batches))
            except SlotsHeld as error:
                assert error.slots == 8 and "running on a device" in str(error)
                device.block_until_ready()
                full += 1
            except StopIteration:
                break
        device.block_until_ready()
    assert device.results == list(range(0, 240, 4)) and full > 0


def test_the_report_names_computations_that_keep_batches():
    memory = slipring.Memory(copy="auto", slots=8)
    with Device() as device, slipring.Loader(Rows(), 4, num_workers=2, memory=memory) as loader:
        for batch in loader:
            device.start(batch)
        found = loader.report().verdict
    assert (found.cause, found.data_bound) == ("kept", True)
    assert "a computation on a device" in found.sentence and "block_until_ready" in found.advice


@pytest.mark.parametrize("copy", ["auto", "always"])
def test_a_loop_that_copies_needs_no_device_to_end(copy):
    memory = slipring.Memory(copy=copy, slots=8)
    with Device() as device, slipring.Loader(Rows(), 4, num_workers=2, memory=memory) as loader:
        for batch in loader:
            device.start(batch)
        device.block_until_ready()
    assert device.results == list(range(0, 240, 4))
