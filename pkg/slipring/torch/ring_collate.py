"""Batches through the ring for a torch DataLoader that must keep its own workers."""

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

from slipring._core.options.checks import function, integer
from slipring._core.ring import process
from slipring._core.ring._ring import MAX_SLOTS
from slipring.errors import SlipringError
from slipring.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("slipring")
_here = weakref.WeakValueDictionary()  # key -> RingCollate of this process
PATIENCE_S, SHORT_S = 1.0, 0.05  # limits of a worker's wait for a slot: at first, and after a wait that failed


class RingCollate:
    """A `collate_fn` that sends each batch through shared memory, without a pickle or a file per tensor.

    A number goes through torch's own queue in place of the batch. When torch reads the number, the batch is taken from
    its slot. This is for loaders that cannot be `slipring.torch.DataLoader`, which does more: it collates in the slot,
    needs no pipe, and replaces dead workers.

    Parameters
    ----------
    collate_fn : callable, optional
        Makes the batch, in the worker; default: torch's ``default_collate``.
    slots : int
        Batches that can be in flight or kept as views; at least 3. When few are left, batches are copied out. Each
        process that starts workers has this many.
    slot_bytes : int, optional
        As in `slipring.Queue`.

    Notes
    -----
    Iterators that are alive at once share the slots. Each has ``prefetch_factor * num_workers`` batches in flight, so
    that an idle iterator could keep all slots from the others. Therefore a batch that finds no slot for a second (and
    later, in that worker, for 50 ms) goes through torch's queue. The logger "slipring" reports it once per worker.

    If a loop is left early, its remaining batches are dropped when their worker has ended and another is started.

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
        self, collate_fn: Callable[[list[Any]], Any] | None = None, *, slots: int = 32, slot_bytes: int | None = None
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
        self._mine = False  # the parent made the queue, and a worker puts batches into it
        self._count = itertools.count()
        self._patience = PATIENCE_S
        self._lock = threading.Lock()
        self._early = {}  # (worker's pid, number) -> batch that was read before its turn
        _here.setdefault(self._key, self)

    def _own(self):
        """Make this process's own queue, for the workers that it starts."""
        self._queue, self._mine = None, True
        try:
            self._queue = Queue(*self._size)
        except (SlipringError, OSError) as error:  # the start of the worker must not fail
            log.warning(f"RingCollate has no slots in process {process.pid()}, whose batches go torch's way: {error}")

    def prepare(self) -> None:
        """Before this process may start a worker, make a queue of its own and drop abandoned batches."""
        if torch.utils.data.get_worker_info() is not None:
            return  # a worker's children put and take no batches
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
        """Collate `samples`; a worker returns a substitute for the batch, to send through torch's queue."""
        batch = self.collate_fn(samples)
        if torch.utils.data.get_worker_info() is None or self._queue is None:
            return batch
        number = process.pid(), next(self._count)
        try:
            self._queue.put((number, batch), timeout=self._patience)
        except queue.Full:
            self._tell_of_few_slots()
            return batch  # waiting longer could be forever: torch may be waiting for another iterator's worker
        return _InSlot(self._key, number)

    def _tell_of_few_slots(self):
        if self._patience == SHORT_S:
            return
        self._patience = SHORT_S
        log.warning(
            f"none of RingCollate's {self._size[0]} slots became free within {PATIENCE_S:g} s: this worker's "
            "batches go through torch's own queue if there is none. Raise slots= to prefetch_factor * "
            "num_workers for each iterator that is alive at once, and the batches that are kept; a loop that "
            "is slower than its workers loses nothing by it"
        )

    def take(self, number: tuple[int, int]) -> Any:
        """Return the batch of that number, which must have been published."""
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
        """Drop batches of ended workers, which no iterator will take.

        A torch worker ends when all its batches have been read, or when its iterator is gone.
        """
        if not self._mine or self._queue is None:
            return
        with self._lock:
            while not self._queue.empty():
                self._next()
            for number in [number for number in self._early if not _runs(number[0])]:
                del self._early[number]


class _InSlot:
    """A substitute for a batch in torch's queue; unpickling it gives the batch."""

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
    """Make new locks in the child, because another thread of the parent may have held one."""
    for collate in list(_here.values()):
        collate._begin()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
