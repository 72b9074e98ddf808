"""A thread that reads batches from an iterator before the consumer asks for them."""

import collections
import os
import threading

from slipring._core.engine import stop_at_exit
from slipring._core.source import grouped
from slipring.errors import Closed, LoaderTimeout

GRACE_S = 1.0  # at the end, for an iterator that is being asked; what waits for ever is left behind


class Prefetcher:
    """An iterator that a thread reads in advance, up to `most` items before the consumer takes them.

    The thread starts at the first request, so that workers can be forked before. An exception is raised at the position
    of its item. The thread reads on after the consumer has taken the exception.

    `timeout` is the longest wait for the next item in seconds; 0 waits without a limit. `close` calls `interrupt`,
    which makes a waiting iterator give up. `timed_out` returns the exception for a wait that took too long; by default
    that is a `LoaderTimeout`.
    """

    def __init__(self, iterator, most, timeout=0, interrupt=None, timed_out=None):
        self._line = _Line(iterator, most, timed_out)
        self._timeout = timeout or None
        self._interrupt = interrupt
        self._thread, self._pid = None, os.getpid()
        self._lock = threading.Lock()  # one asks for the first item while another closes

    def __iter__(self):
        return self

    def __next__(self):
        """Return the next item.

        If no item comes in time, raise `LoaderTimeout`; the caller may ask again. After `close`, and in a forked child,
        raise `Closed`.
        """
        self.begin()
        return self._line.take(self._timeout)

    def would_wait(self):
        """Return whether `next` would have to wait."""
        self.begin()
        return self._line.is_empty()

    def begin(self):
        """Start the thread before the first request."""
        if self._pid != os.getpid():
            raise Closed("the thread that reads ahead is the parent's; make a new iterator after fork")
        with self._lock:
            if self._thread is None and not self._line.stopped:
                # It refers to the line alone: who drops this object ends it.
                thread = threading.Thread(
                    target=_run, args=(self._line,), name="slipring-prefetch", daemon=True
                )
                stop_at_exit(self._line)
                thread.start()
                self._thread = thread

    def close(self):
        """End the thread. A waiting consumer gets `Closed`. Safe to call twice."""
        if self._pid != os.getpid():
            return
        self._line.stop()
        if self._interrupt is not None:
            self._interrupt()
        with self._lock:
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        if self._interrupt is not None or not self._line.overdue:
            thread.join(GRACE_S)  # else it is at what has been waited for in vain

    def __del__(self):
        line = getattr(self, "_line", None)
        if line is not None and self._pid == os.getpid():
            line.stop()


class ReadHere:
    """A batch sampler that reads an iterable dataset in a thread of this process and yields its samples.

    With `slipring._core.fetch.Given` as the dataset, the workers receive the samples for their ``collate_fn``. `most`
    is the largest number of batches that are read in advance. `timeout` is the longest wait for a batch in seconds; 0
    waits without a limit.
    """

    def __init__(self, dataset, batch_size, most, timeout=0):
        self.dataset, self.batch_size, self.most, self.timeout = dataset, batch_size, most, timeout

    def __iter__(self):
        return Prefetcher(grouped(self.dataset, self.batch_size), self.most, self.timeout)


class Handed:
    """An endless batch sampler: the caller adds each batch while the loader iterates."""

    def __init__(self):
        self._batches = collections.deque()

    def hand(self, batch):
        """Add a list of indices, or of other keys that the dataset takes."""
        self._batches.append(batch)

    def __iter__(self):
        return self

    def would_wait(self):
        """Return whether no batch is available now."""
        return not self._batches

    def __next__(self):
        """Return the oldest batch. If there is none, raise IndexError: this thread cannot wait for one."""
        return self._batches.popleft()


class _Line:
    """The items that the thread has read and the consumer has not taken yet."""

    def __init__(self, iterator, most, timed_out):
        self.iterator, self.most, self.timed_out = iterator, most, timed_out
        self.items = collections.deque()  # (value, exception or None)
        self.changed = threading.Condition()
        self.stopped = self.over = False
        self.overdue = False  # who asked last has waited in vain

    def is_empty(self):
        return not (self.items or self.over or self.stopped)

    def take(self, timeout):
        with self.changed:
            there = self.changed.wait_for(lambda: self.items or self.stopped or self.over, timeout)
            self.overdue = not there
            if self.items:
                value, error = self.items.popleft()
                self.changed.notify_all()
            elif self.stopped:
                raise Closed("closed while something was waited for")
            elif not there:
                raise self.timed_out() if self.timed_out is not None else _timed_out(timeout)
            else:
                raise StopIteration
        if error is not None:
            raise error
        return value

    def has_room(self):
        return not self.items or (len(self.items) < self.most and self.items[-1][1] is None)

    def stop(self):
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


def _timed_out(seconds):
    return LoaderTimeout(
        f"nothing came within timeout={seconds} s from what is read ahead in this process; raise timeout, or "
        "look at what it waits for"
    )


def _run(line):
    while True:
        with line.changed:
            line.changed.wait_for(lambda: line.stopped or line.has_room())
            if line.stopped:
                break
        value = error = None
        try:
            value = next(line.iterator)
        except StopIteration:
            break
        except BaseException as raised:  # whoever waits must not wait for ever
            error = raised
        with line.changed:
            line.items.append((value, error))
            line.changed.notify_all()
    with line.changed:
        line.over, line.iterator = True, None
        line.changed.notify_all()
