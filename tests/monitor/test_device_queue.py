"""Computations that a device has not finished keep their batches, although the loop's variables do not."""

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
    """Queued computations, which run when the loop waits for them."""

    def __init__(self):
        self.queued, self.results = [], []

    def start(self, batch):
        self.queued.append(batch)

    def block_until_ready(self):
        self.results += [int(batch[0, 0]) for batch in self.queued]
        self.queued.clear()


def test_after_the_computations_have_ended_an_iteration_without_slots_continues():
    memory = slipring.Memory(copy="never", slots=8)
    device = Device()
    with slipring.Loader(Rows(), 4, num_workers=2, memory=memory) as loader:
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


@pytest.mark.parametrize("copy", ["auto", "always"])
def test_a_loop_that_copies_needs_no_device_to_end_and_the_report_names_what_keeps_batches(copy):
    memory = slipring.Memory(copy=copy, slots=8)
    device = Device()
    with slipring.Loader(Rows(), 4, num_workers=2, memory=memory) as loader:
        for batch in loader:
            device.start(batch)
        found = loader.report().verdict
        device.block_until_ready()
    assert device.results == list(range(0, 240, 4))
    if copy == "auto":
        assert (found.cause, found.data_bound) == ("slots", True)
        assert "a computation on a device" in found.sentence and "block_until_ready" in found.advice
