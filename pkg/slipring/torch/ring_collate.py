"""For a torch DataLoader that must keep its own workers: its batches come through the ring all the same."""

import itertools
import multiprocessing
import os
import queue
import secrets
import sys
import threading
import weakref

import torch

from slipring.queue import Queue

_here = weakref.WeakValueDictionary()  # key -> RingCollate, of this process
PARENT_LOOK_S = 1.0  # how often a worker that waits for a slot looks whether its consumer is there


class RingCollate:
    """A `collate_fn` that sends each batch through shared memory: no pickle, and no file per tensor.

    What goes through torch's own queue in the batch's place is a number; when torch reads it there, the batch
    is taken from its slot. For loaders that cannot be `slipring.torch.DataLoader`, which does more: it
    collates in the slot, needs no pipe at all, and replaces dead workers.

    Parameters
    ----------
    collate_fn : callable, optional
        What makes the batch, in the worker; torch's ``default_collate`` by default.
    slots : int
        Batches that may be under way or kept as views; at least 3. Beyond them a batch is copied out.
    slot_bytes : int, optional
        As `slipring.Queue`.

    Notes
    -----
    One RingCollate serves one loader. Several iterators of it that are alive at once need slots for all that
    they have under way: ``prefetch_factor * num_workers`` each, or one may wait for ever. A batch that
    nobody asks for any more (the loop was left early) is dropped when its worker has ended and another is
    started.

    Examples
    --------
    >>> loader = torch.utils.data.DataLoader(dataset, 256, num_workers=8, collate_fn=RingCollate())
    """

    def __init__(self, collate_fn=None, *, slots=32, slot_bytes=None):
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 3:
            raise ValueError(f"slots must be an int of at least 3, not {slots!r}")
        self.collate_fn = torch.utils.data.default_collate if collate_fn is None else collate_fn
        self._queue = Queue(slots, slot_bytes)
        self._key = secrets.token_bytes(16)
        self._begin()
        self._consumes = True

    def _begin(self):
        self._count = itertools.count()
        self._consumes = False  # until a batch arrives in this process, or it starts workers
        self._lock = threading.Lock()
        self._early = {}  # (worker's pid, number) -> batch: published before the one that was asked for
        _here.setdefault(self._key, self)

    def __getstate__(self):
        self.forget()  # another worker is being started
        self._consumes = True
        return {"collate_fn": self.collate_fn, "_queue": self._queue, "_key": self._key}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._begin()

    def __call__(self, samples):
        """Collate `samples`; in a worker the result is what torch's queue carries in the batch's place."""
        batch = self.collate_fn(samples)
        if torch.utils.data.get_worker_info() is None:
            return batch
        number = os.getpid(), next(self._count)
        while True:
            try:
                self._queue.put((number, batch), timeout=PARENT_LOOK_S)
                return _InSlot(self._key, number)
            except queue.Full:
                parent = multiprocessing.parent_process()
                if parent is not None and not parent.is_alive():
                    sys.exit(1)  # torch's own look comes only between two batches

    def take(self, number):
        """Return the batch of that number, which has been published."""
        with self._lock:
            self._consumes = True
            while number not in self._early:
                self._next()
            return self._early.pop(number)

    def _next(self):
        try:
            number, batch = self._queue.get(block=False)
        except queue.Empty:
            raise RuntimeError("a batch has gone from its slot: two loaders use one RingCollate") from None
        self._early[number] = batch

    def forget(self):
        """Drop what ended workers have published and nobody will ask for.

        A worker of torch's ends when all that it sent has been read, or nobody reads it any more.
        """
        if not self._consumes:
            return
        with self._lock:
            while not self._queue.empty():
                self._next()
            for number in [number for number in self._early if not _runs(number[0])]:
                del self._early[number]


class _InSlot:
    """Stands for a batch in torch's queue; what is unpickled is the batch."""

    def __init__(self, key, number):
        self.key, self.number = key, number

    def __reduce__(self):
        return _receive, (self.key, self.number)


def _receive(key, number):
    collate = _here.get(key)
    if collate is None:
        raise RuntimeError("this batch's RingCollate never came to this process, or has gone")
    return collate.take(number)


def _before_fork():
    for collate in list(_here.values()):
        collate.forget()


def _after_fork():
    """A child may be a consumer of its own, and another thread may have held a lock."""
    for collate in list(_here.values()):
        collate._begin()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
