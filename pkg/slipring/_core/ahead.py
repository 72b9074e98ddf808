"""A thread that reads batches from an iterator before the consumer asks for them."""

import collections
import os
import threading

from slipring._core.engine import stop_at_exit
from slipring._core.source import grouped
from slipring.errors import Closed, LoaderTimeout

GRACE_S = 1.0  # at the end, for an iterator that is being asked; what waits for ever is left behind


class Prefetcher:
    """What an iterator gives, up to `most` of which a thread has taken before it is asked for.

    The thread begins when it is first asked, so that whoever forks workers can do so before. An exception
    comes in its turn; the iterator is asked again after that one has been taken.

    Parameters
    ----------
    iterator : iterator
    most : int
    timeout : float
        Seconds to wait at most for the next item; 0 waits for ever.
    interrupt : callable, optional
        Called by `close`: has the iterator, if it waits, give up.
    timed_out : callable, optional
        Returns the exception for who has waited too long.
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

        Raises
        ------
        LoaderTimeout
            There is none in time. Ask again.
        Closed
            `close` was called, or this is a forked child.
        """
        self.begin()
        return self._line.take(self._timeout)

    def would_wait(self):
        """Whether `next` would have to wait."""
        self.begin()
        return self._line.is_empty()

    def begin(self):
        """Have the thread begin before anybody asks."""
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
        """End the thread. Whoever waits gets `Closed`. Safe to call twice."""
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
    """An iterable dataset that this process reads, in a thread: a batch sampler which gives its samples.

    With `slipring._core.fetch.Given` as dataset the workers get them, for their ``collate_fn``.

    Parameters
    ----------
    dataset : iterable
    batch_size : int
    most : int
        Batches that are read before they are asked for.
    timeout : float
        Seconds to wait at most for a batch; 0 waits for ever.
    """

    def __init__(self, dataset, batch_size, most, timeout=0):
        self.dataset, self.batch_size, self.most, self.timeout = dataset, batch_size, most, timeout

    def __iter__(self):
        return Prefetcher(grouped(self.dataset, self.batch_size), self.most, self.timeout)


class Handed:
    """A batch sampler whose batches are handed to it while they are asked for; it has no end."""

    def __init__(self):
        self._batches = collections.deque()

    def hand(self, batch):
        """Add a list of indices, or of what the dataset takes for them."""
        self._batches.append(batch)

    def __iter__(self):
        return self

    def would_wait(self):
        """Whether there is none at present."""
        return not self._batches

    def __next__(self):
        """Return the first; IndexError if there is none, for nobody here can wait for it."""
        return self._batches.popleft()


class _Line:
    """What has been taken and not been asked for, between two threads."""

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
