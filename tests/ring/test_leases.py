"""A slot stays leased as long as its bytes are reachable, and no longer."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from slipring.errors import Closed
from tests.support.inside import COPY_ALWAYS, COPY_AUTO, COPY_NEVER, ERROR, Lease, receive
from tests.support.trip import address

HOLDERS = {
    "the array": lambda a: a,
    "a view of a view": lambda a: a[1:][2:].view(np.int32),
    "a transposed one": lambda a: a.reshape(2, -1).T,
    "a window of a memoryview": lambda a: memoryview(a)[2:4],
    "frombuffer": lambda a: np.frombuffer(a, np.uint8),
    "a flat iterator": lambda a: a.flat,
    "its base": lambda a: a.base,
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_whatever_sees_the_bytes_keeps_the_slot(trip, holder):
    array = trip(np.arange(100))
    kept = holder(array)
    del array
    assert trip.free == 3
    for _ in range(6):
        trip(np.full(100, -1))  # other batches do not touch it
    assert trip.free == 3
    del kept
    gc.collect()
    assert trip.free == 4


def test_each_array_of_a_batch_keeps_the_whole_slot(trip):
    batch = trip({"a": np.arange(3), "b": [np.arange(4), np.arange(5)]})
    last = batch["b"][1]
    del batch
    assert trip.free == 3
    assert type(last.base) is Lease
    del last
    assert trip.free == 4


def test_texts_and_numbers_do_not_keep_the_slot(trip):
    kept = trip({"s": "text", "l": ["a", "b"], "n": 5, "b": b"bytes", "scalar": np.float32(2)})
    assert trip.free == 4
    del kept


def test_a_structured_scalar_keeps_the_slot_as_long_as_it_is_a_view(trip):
    kept = trip([np.array((1, 2.5), [("a", "i4"), ("b", "f8")])[()]])[0]
    for _ in range(6):
        trip(np.full(100, -1))
    assert kept.tolist() == (1, 2.5)


def test_torch_tensors_keep_the_slot(trip):
    torch = pytest.importorskip("torch")
    holders = [
        lambda t: t[1:3],
        lambda t: torch.from_numpy(t.numpy())[2:],
        lambda t: t.untyped_storage(),
        lambda t: (torch.ones(4, requires_grad=True) * t).sum().grad_fn,  # autograd saved it
    ]
    for holder in holders:
        kept = holder(trip(torch.arange(4.0)))
        assert trip.free == 3
        del kept
        gc.collect()
        assert trip.free == 4


def test_an_object_keeps_the_slot_by_its_buffers(trip):
    class_dict = trip({frozenset("k"): np.arange(1000)})  # pickled as a whole, with its array out of band
    kept = class_dict.popitem()[1]
    assert trip.free == 3
    del kept
    assert trip.free == 4


def test_a_lease_may_end_in_another_thread(trip):
    box = [trip(np.arange(10))]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert trip.free == 4


def test_leases_outlive_their_ring(trip):
    array = trip(np.arange(10))
    trip.end()
    gc.collect()
    assert array.sum() == 45


def test_a_forked_child_does_not_release_its_parents_lease(trip):
    array = trip(np.arange(10))
    child = os.fork()
    if child == 0:
        del array
        os._exit(0 if trip.free == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert trip.free == 3
    del array
    assert trip.free == 4


def test_using_the_parents_ring_in_a_forked_child_is_refused(trip):
    slot = trip.put(5)
    child = os.fork()
    if child == 0:
        refused = 0
        uses = [
            lambda: trip.ring.begin_iteration(1),
            lambda: trip.ring.wait_ready(slot, 0),
            lambda: trip.ring.discard(slot),
            lambda: trip.ring.cancel(slot, 1),
            lambda: trip.ring.dispatch(1, [1], 0, 0, 0, 0, 0, 0, 0, False),
            lambda: receive(trip.ring, slot, COPY_AUTO),
        ]
        for use in uses:
            try:
                use()
            except Closed:
                refused += 1
        os._exit(0 if refused == len(uses) and trip.ring.forked else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert trip.take(slot) == 5


# ---- copies


def test_copies_leave_the_slot_free(trip):
    batch = trip({"a": np.arange(10), "o": {frozenset("k"): np.arange(20)}}, COPY_ALWAYS)
    assert trip.free == 4
    assert trip.ring.meter.copied_batches == 1 and trip.ring.meter.copied_bytes > 240
    trip(np.full(100, -1))
    assert batch["a"].tolist() == list(range(10)) and batch["a"].flags.writeable
    assert batch["o"][frozenset("k")].sum() == 190
    assert address(batch["a"]) % 64 == 0


def test_auto_copies_when_fewer_than_two_slots_would_be_left(trip):
    kept = [trip(np.full(10, i), COPY_AUTO) for i in range(20)]
    assert trip.free == 2
    assert trip.ring.meter.copied_batches == 18
    assert [int(a[0]) for a in kept] == list(range(20))
    del kept[0]
    trip(np.arange(3), COPY_AUTO)
    assert trip.ring.meter.copied_batches == 18  # a slot is free again


def test_never_takes_leases_to_the_last_slot(trip):
    kept = [trip(np.full(10, i), COPY_NEVER) for i in range(4)]
    assert trip.free == 0 and trip.ring.pick_free() == -1
    assert trip.ring.meter.copied_batches == 0
    del kept


def test_an_error_record_keeps_no_slot(trip):
    slot = trip.put({"text": "what happened", "bytes": b"pickle"}, kind=ERROR)
    trip.ring.wait_ready(slot, 1)
    kind, value = receive(trip.ring, slot, COPY_AUTO)
    assert kind == ERROR and value["bytes"] == b"pickle" and trip.free == 4
    assert trip.ring.meter.batches == 0


# ---- the debug mode

POISONED = """
import numpy as np
from tests.support.trip import Trip, address
import ctypes
from tests.support.inside import empty
trip = Trip()
array = trip(np.arange(100, dtype=np.uint8))
where = address(array)
assert ctypes.string_at(where, 3) == b"\\0\\1\\2"
del array
assert ctypes.string_at(where, 100) == b"\\xdb" * 100, ctypes.string_at(where, 100)
cache = []
def work():
    cache.append(empty((5,), np.uint8))
    cache[0][:] = 7
    return cache[0]
trip(work)
assert cache[0].tolist() == [7] * 5, cache
print("fine")
"""


# The last batch of an epoch: its slot is not written again. A stale view is made from a bare pointer.
STALE = """
import ctypes, sys
import numpy as np
from slipring import Loader, Memory, Workers
from tests.support.datasets import Squares, numbers
workers, memory = Workers(start_method=sys.argv[1]), Memory(copy=sys.argv[2])
with Loader(Squares(8), 2, num_workers=2, workers=workers, memory=memory) as loader:
    for epoch in range(3):
        for rows, which in loader:
            assert numbers([(rows, which)])[0] == which.tolist()
            where, nbytes = rows.__array_interface__["data"][0], rows.nbytes
        kept = rows[1:]  # a view keeps the lease
        del rows, which
        stale = np.frombuffer((ctypes.c_ubyte * nbytes).from_address(where), np.uint8)
        assert kept.tolist() == [[49.0] * 4], kept
        assert (stale == 0xDB).sum() == 0, stale
        del kept
        if sys.argv[2] != "always":  # otherwise the address was a copy's
            assert (stale == 0xDB).all(), stale
print("fine")
"""


@pytest.mark.parametrize(("method", "copy"), [("fork", "auto"), ("thread", "always")])
def test_in_the_debug_mode_a_stale_view_of_a_loaders_batch_shows_poison(method, copy):
    debugged(STALE, method, copy)


def test_the_debug_mode_poisons_released_slots_but_not_arrays_that_worker_code_keeps():
    debugged(POISONED)


def debugged(program, *arguments):
    """Run a program in the debug mode; it must print "fine"."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "SLIPRING_DEBUG": "1"},
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "fine", done.stderr
