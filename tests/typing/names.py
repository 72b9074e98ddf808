"""Other public names, for type checkers. (This code never runs.)"""

import queue
from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import slipring
import slipring.monitor
from slipring import errors
from slipring.broadcast import BroadcastHandle, BroadcastReader

# ---- arrays in the slot, and batches of them

assert_type(slipring.empty(3), NDArray[np.float64])
assert_type(slipring.empty((2, 3), np.uint8), NDArray[np.uint8])
assert_type(slipring.empty((2, 3), np.dtype(np.int32)), NDArray[np.int32])
assert_type(slipring.empty((2, 3), "f4"), NDArray[Any])
slipring.empty("3")  # type: ignore[arg-type]
assert_type(slipring.default_collate([np.zeros(3, np.float32)]), NDArray[np.float32])
assert_type(slipring.default_collate(["a", "b"]), list[str])
assert_type(slipring.default_collate([None]), None)
assert_type(slipring.default_collate([{"x": 1}]), Any)
slipring.default_collate(3)  # type: ignore[call-overload]

# ---- a queue

q = slipring.Queue(8, copy="never")
q.put({"x": np.zeros(3)}, timeout=1.5)
q.put_nowait(3)
assert_type(q.get(timeout=None), Any)
assert_type(q.qsize(), int)
assert_type(q.fileno(), int)
assert_type(q.maxsize, int)
assert_type(q.stats(), slipring.QueueStats)
assert_type(q.stats().got_bytes, int)
with q.slot() as s:
    array = s.empty((3, 4), np.uint8)
    assert_type(array, NDArray[np.uint8])
    s.put(array, move=True)
slipring.Queue()  # type: ignore[call-arg]
slipring.Queue(8, copy="seldom")  # type: ignore[arg-type]
q.put()  # type: ignore[call-arg]
q.maxsize = 3  # type: ignore[misc]

# ---- a broadcast

broadcast = slipring.Broadcast(2, maxsize=4)
assert_type(broadcast.put({"a": 1}, timeout=1), int)
assert_type(broadcast.handle, BroadcastHandle)
with broadcast.handle.open(copy="always", spin=50) as reader:
    assert_type(reader, BroadcastReader)
    reader.get(timeout=1.5, copy="never")
    for message in reader:
        break
slipring.Broadcast()  # type: ignore[call-arg]
slipring.Broadcast(2).handle.open(copy="seldom")  # type: ignore[arg-type]

# ---- samplers, strings, workers

sampler = slipring.BatchSampler(100, 8, shuffle=True, weights=None, rank=0, world_size=2)
assert_type(iter(sampler), Iterator[list[Any]])
assert_type(len(sampler), int)
sampler.set_epoch(3)
slipring.BatchSampler(np.arange(8), 8, weights=np.ones(8))
slipring.BatchSampler(["a", "b"], seed=1)
slipring.BatchSampler(100, 8, True)  # type: ignore[call-arg]

names = slipring.StringList(["a", "b"])
assert_type(names[0], str)
assert_type(names[1:], slipring.StringList)
assert_type(list(names), list[str])
names[0] = "c"  # type: ignore[index]

info = slipring.get_worker_info()
assert_type(info, slipring.WorkerInfo | None)
info.id  # type: ignore[union-attr]
assert_type(slipring.rng(), np.random.Generator)
assert_type(slipring.__version__, str)
slipring.Lodaer  # type: ignore[attr-defined]


# ---- errors

try:
    q.get_nowait()
except errors.ShutDown:
    pass
except queue.Empty:
    pass
except errors.WorkerError as error:
    assert_type(error.worker, int)
    assert_type(error.row, int | None)
    assert_type(error.indices, list[Any] | None)
    error.pid  # type: ignore[attr-defined]
except errors.WorkerDied as died:
    assert_type(died.exitcode, int | None)
except errors.SegmentFull as full:
    assert_type(full.limit, str)
except errors.SlotsHeld as held:
    assert_type(held.slots, int)
except errors.BatchTooLarge as large:
    assert_type(large.limit, int)
except (errors.LoaderTimeout, TimeoutError):
    pass
runtime: type[RuntimeError] = errors.SlotsExhausted
values: type[ValueError] = errors.SegmentFull  # type: ignore[assignment]

# ---- where time goes

with slipring.Loader[int]([1, 2], batch_size=None) as numbers:
    replayed = slipring.replay(numbers, n=3)
    assert_type(replayed, slipring.monitor.Replay[int])
    assert_type(replayed.step_s, float)
    assert_type(next(replayed), int)
    assert_type(next(iter(slipring.progress(numbers, description="train"))), int)
    assert_type(slipring.monitor.scalars(numbers.stats(), None, 1.0), dict[str, float])
    with slipring.monitor.prometheus(0, loaders=[numbers]) as metrics:
        assert_type(metrics.port, int | None)
slipring.progress(3)  # type: ignore[arg-type]
