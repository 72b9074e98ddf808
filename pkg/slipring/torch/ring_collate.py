"""For a torch DataLoader that must keep its own workers: its batches come through the ring all the same."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import secrets
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from slipring._core import process
from slipring._core._ring import MAX_SLOTS
from slipring._core.arguments import function, integer
from slipring.errors import SlipringError
from slipring.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("slipring")
_here = weakref.WeakValueDictionary()  # key -> RingCollate, of this process
PATIENCE_S, SHORT_S = 1.0, 0.05  # how long a worker waits for a slot: until it has waited in vain, and then


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
        Batches that may be in flight or kept as views; at least 3. When few are left, a batch is copied out.
        Each process that starts workers has so many.
    slot_bytes : int, optional
        As `slipring.Queue`.

    Notes
    -----
    Iterators that are alive at once share the slots, and each has ``prefetch_factor * num_workers`` batches
    in flight. Those of one that nobody asks for at the moment would keep all slots from the others. So a
    batch that finds no slot for a second (and then, in that worker, for 50 ms) goes torch's own way, and the
    logger "slipring" says so once per worker.

    A batch that nobody asks for any more (the loop was left early) is dropped when its worker has ended and
    another is started.

    Examples
    --------
    >>> import torch
    >>> from slipring.torch import RingCollate
    >>> loader = torch.utils.data.DataLoader(range(10), 5, num_workers=1, collate_fn=RingCollate())
    >>> [batch.tolist() for batch in loader]
    [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    """

    collate_fn: Callable[[list[Any]], Any]

    def __init__(
        self,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        slots: int = 32,
        slot_bytes: int | None = None,
    ) -> None:
        slots = integer("slots", slots, 3, MAX_SLOTS)
        function("collate_fn", collate_fn)
        self.collate_fn = torch.utils.data.default_collate if collate_fn is None else collate_fn
        self._size = slots, slot_bytes
        self._queue = Queue(slots, slot_bytes)
        self._key = secrets.token_bytes(16)
        self._begin()
        self._mine = True

    def _begin(self):
        self._mine = False  # the queue: it is the parent's, into which this process puts if it is a worker
        self._count = itertools.count()
        self._patience = PATIENCE_S
        self._lock = threading.Lock()
        self._early = {}  # (worker's pid, number) -> batch: published before the one that was asked for
        _here.setdefault(self._key, self)

    def _own(self):
        """Have a queue of this process's own, into which the workers put that it starts."""
        self._queue, self._mine = None, True
        try:
            self._queue = Queue(*self._size)
        except (SlipringError, OSError) as error:  # what is being started must not fail by it
            log.warning(f"RingCollate has no slots in process {process.pid()}, whose batches go torch's way: {error}")

    def prepare(self) -> None:
        """Before this process may start a worker: see that what it finds in the slots can be dropped."""
        if torch.utils.data.get_worker_info() is not None:
            return  # of a worker's children none puts or takes anything
        if not self._mine:
            self._own()
        self.forget()

    def __getstate__(self) -> Any:
        self.prepare()
        names = "collate_fn", "_size", "_queue", "_key"
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self._begin()

    def __call__(self, samples: list[Any]) -> Any:
        """Collate `samples`; in a worker the result is what torch's queue carries in the batch's place."""
        batch = self.collate_fn(samples)
        if torch.utils.data.get_worker_info() is None or self._queue is None:
            return batch
        number = process.pid(), next(self._count)
        try:
            self._queue.put((number, batch), timeout=self._patience)
        except queue.Full:
            self._tell_of_few_slots()
            return batch  # whom torch waits for may be another iterator's worker: nobody would empty a slot
        return _InSlot(self._key, number)

    def _tell_of_few_slots(self):
        if self._patience == SHORT_S:
            return
        self._patience = SHORT_S
        log.warning(
            f"none of RingCollate's {self._size[0]} slots became free within {PATIENCE_S:g} s: this worker's "
            "batches go through torch's own queue where there is none. Raise slots= to prefetch_factor * "
            "num_workers for each iterator that is alive at once, and the batches that are kept; a loop that "
            "is slower than its workers loses nothing by it"
        )

    def take(self, number: tuple[int, int]) -> Any:
        """Return the batch of that number, which has been published."""
        with self._lock:
            while number not in self._early:
                self._next()
            return self._early.pop(number)

    def _next(self):
        try:
            number, batch = self._queue.get(block=False)
        except queue.Empty:
            raise RuntimeError(
                "a batch has gone from its slot: another process has taken it. Iterate in the process that "
                "made the iterator"
            ) from None
        self._early[number] = batch

    def forget(self) -> None:
        """Drop what ended workers have published and nobody will ask for.

        A worker of torch's ends when all that it sent has been read, or nobody reads it any more.
        """
        if not self._mine or self._queue is None:
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
        collate.prepare()


def _after_fork():
    """In the child: another thread may have held a lock."""
    for collate in list(_here.values()):
        collate._begin()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
