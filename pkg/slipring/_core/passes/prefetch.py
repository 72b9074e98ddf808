"""Threads that prepare batches before the consumer requests them: read from an iterator, or moved to a device."""

import collections
import contextlib
import logging
import sys
import threading
import traceback

from slipring._core.passes.engine import stay_if_exiting, stop_at_exit
from slipring._core.passes.source import grouped
from slipring._core.ring._segment import now
from slipring._core.ring.process import Owner
from slipring._core.workers.stateful import attempt
from slipring.errors import Closed, LoaderTimeout, ended_meanwhile

log = logging.getLogger("slipring")

GRACE_S = 1.0  # wait at the end for an iterator that is in next(); one that never returns is abandoned
TRANSFORM_S = 5.0  # wait at the end for a device's transform that hangs


class Prefetcher:
    """An iterator that a thread reads in advance, up to `most` items before the consumer takes them.

    The thread starts at the first request, so that workers can be forked before. An exception is raised at the position
    of its item. The thread reads on after the consumer has taken the exception.

    `timeout` is the longest wait for the next item in seconds; 0 waits without a limit. `close` calls `interrupt`,
    which makes a waiting iterator give up. `timed_out` returns the exception for a wait that took too long; by default
    that is a `LoaderTimeout`.
    """

    def __init__(self, iterator, most, timeout=0, interrupt=None, timed_out=None):
        self._queue = _BoundedQueue(iterator, most, timed_out)
        self._timeout = timeout or None
        self._interrupt = interrupt
        self._thread, self._owner = None, Owner()
        self._lock = threading.Lock()  # one thread may request the first item while another closes

    def __iter__(self):
        return self

    def __next__(self):
        """Return the next item.

        If no item comes in time, raise `LoaderTimeout`; the call can be repeated. After `close`, and in a forked child,
        raise `Closed`.
        """
        self.begin()
        return self._queue.take(self._timeout)

    def would_wait(self):
        """Return whether `next` would have to wait."""
        self.begin()
        return self._queue.is_empty()

    def begin(self):
        """Start the thread before the first request."""
        if not self._owner.is_here:
            raise Closed("the thread that reads ahead is the parent's; make a new iterator after fork")
        with self._lock:
            if self._thread is None and not self._queue.stopped:
                # The thread refers only to the queue, so dropping this object ends it.
                thread = threading.Thread(target=_run, args=(self._queue,), name="slipring-prefetch", daemon=True)
                stop_at_exit(self._queue)
                thread.start()
                self._thread = thread

    def close(self):
        """End the thread. A waiting consumer gets `Closed`. Safe to call twice."""
        if not self._owner.is_here:
            return
        self._queue.stop()
        if self._interrupt is not None:
            self._interrupt()
        with self._lock:
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        if self._interrupt is not None or not self._queue.overdue:
            thread.join(GRACE_S)  # otherwise it is in a read that has timed out already

    def __del__(self):
        queue = getattr(self, "_queue", None)
        if queue is not None and self._owner.is_here:
            queue.stop()


class MainProcessReader:
    """A batch sampler that reads an iterable dataset in a thread of this process and yields its samples.

    With an `IdentityDataset`, the workers receive the samples for their ``collate_fn``. `most` is the largest number
    of batches that are read in advance. `timeout` is the longest wait for a batch in seconds; 0 waits without a limit.
    """

    def __init__(self, dataset, batch_size, most, timeout=0):
        self.dataset, self.batch_size, self.most, self.timeout = dataset, batch_size, most, timeout

    def __iter__(self):
        return Prefetcher(grouped(self.dataset, self.batch_size), self.most, self.timeout)


class PushBatchSampler:
    """An endless batch sampler: the caller adds each batch while the loader iterates."""

    def __init__(self):
        self._batches = collections.deque()

    def push(self, batch):
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


class _BoundedQueue:
    """The items that the thread has read and the consumer has not taken yet."""

    def __init__(self, iterator, most, timed_out):
        self.iterator, self.most, self.timed_out = iterator, most, timed_out
        self.items = collections.deque()  # (value, exception or None)
        self.changed = threading.Condition()
        self.stopped = self.over = False
        self.overdue = False  # the last wait has timed out

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
        f"no item came within timeout={seconds} s from the iterator that this process reads ahead; raise timeout, or "
        "find out why it waits"
    )


def _run(queue):
    while True:
        with queue.changed:
            queue.changed.wait_for(lambda: queue.stopped or queue.has_room())
            if queue.stopped:
                break
        value = error = None
        try:
            value = next(queue.iterator)
        except StopIteration:
            break
        except BaseException as raised:  # the waiting thread must not wait forever
            error = raised
        with queue.changed:
            queue.items.append((value, error))
            queue.changed.notify_all()
    with queue.changed:
        queue.over, queue.iterator = True, None
        queue.changed.notify_all()


# ---- batches on devices


class Step:
    """A step's batches on their devices, or the exception in their place.

    `last_task` is the last task that counts as delivered when the step is handed out; None: none does.
    """

    __slots__ = ("error", "is_end", "is_noted", "is_ready", "last_task", "parts", "value")

    def __init__(self, parts=(), last_task=None, error=None, is_end=False):
        self.parts, self.last_task, self.error, self.is_end = parts, last_task, error, is_end
        self.value, self.is_ready = None, error is not None or is_end
        self.is_noted = False  # the wait for it has been recorded


class Preloader:
    """Steps of an iteration whose batches are on their devices before they are requested.

    As in MegEngine's preload, a thread takes batches and starts their copies. But `first` never waits for a later step
    than its own, and an exception is raised in place of the batch that failed. The thread refers to this object:
    `stop` ends it.

    `core` is an `Iteration`, or another object that `DeviceIteration` takes. The `Mover` copies its batches to devices.
    The thread makes `depth` steps before they are requested; with 0 there is no thread, and `first` makes each step.
    `first` waits at most `timeout` seconds. `whole`: a step is a list of batches, one for each device.
    """

    def __init__(self, core, mover, depth, timeout=None, whole=False):
        self.core, self.mover, self.depth, self.whole = core, mover, depth, whole
        self.timeout = None if timeout is None else min(timeout, 1e9)
        self.owner, self.patience = Owner(), TRANSFORM_S
        self.parts, self.last_task = [], None  # of the step that is being made
        # Only `ready` holds the state. The locks are semaphores that wake a thread to check it. If Ctrl-C swallows a
        # wake-up, no batch is lost and no thread blocks.
        self.ready = collections.deque()
        self.filled, self.room = _semaphore(), _semaphore()
        self.awaited = False  # `first` waits for a step
        self.failed = False  # the last step was an exception: the next is made when it is requested
        self.over = self.stopped = False  # no step comes from the thread any more; `stop` has been called
        self.asked_at = 0  # when the last step was returned
        self.thread = None
        if depth:
            self.thread = threading.Thread(target=self._run, name="slipring-preload", daemon=True)
            stop_at_exit(self)
            self.thread.start()

    # ---- the consumer

    def check_owner(self):
        """Raise `Closed` in a forked child, which has neither the thread nor the workers."""
        if not self.owner.is_here and (self.depth or self.core.inherited):
            raise Closed("this iterator belongs to the parent process; make a new one after fork")

    def first(self):
        """Return the next step, ordered for the caller's current stream, without removing it; None after the last.

        The call can be repeated. Raise `LoaderTimeout` if the step has not come in time.
        """
        if self.stopped:
            stay_if_exiting()
            raise ended_meanwhile()
        begun = now()
        if not self.ready:
            if self.thread is not None and not self.over:
                self._wait()
            elif self.core.is_live:
                while not self.ready:
                    self._make()
            else:
                return None
        step = self.ready[0]
        if self.thread is not None and not step.is_noted:
            there, before, self.asked_at = now(), self.asked_at, now()
            self.core.record_loop(begun, there, before)
            step.is_noted = True
        if not step.is_ready:
            batches = [self.mover.hand_over(part) for part in step.parts]
            step.value = batches if self.whole else batches[0]
            step.is_ready = True
        if step.is_end or not (step.error is None or self.core.is_live):
            self._join()  # it waits for the last copies: then all slots are free
            self.mover.finish()
        if self.stopped:
            stay_if_exiting()
        return step

    def _wait(self):
        while not self.ready:
            self.awaited = True
            _set(self.room)
            if not self.filled.acquire(timeout=-1 if self.timeout is None else self.timeout) and not self.ready:
                raise self.core.timed_out()

    def stop(self):
        """End the thread, and release the batches that it has made. Safe to call twice."""
        if not self.owner.is_here:
            return
        if self.thread is not None:
            self.stopped = True
            self.core.interrupt()
            _set(self.room)
            self._join()
            self._put(Step(error=ended_meanwhile()))  # for a thread that waits in `first`
            while len(self.ready) > 1:  # never empty: a thread may look at the first
                self.ready.popleft()
        else:
            self.ready.clear()
            with contextlib.suppress(RuntimeError):  # next() has already raised the error of a failed device
                self.mover.finish()
        self.parts = []

    def _join(self):
        thread = self.thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(self.patience)
        if not thread.is_alive():
            self.thread = None
        elif self.patience:
            seconds, self.patience = self.patience, 0.0  # once: close() and the exit would each wait as long
            log.warning(
                "the preload thread has not ended in %g s and is left behind: it is at %s. "
                "If the device's transform does not return, give it a limit of its own",
                *(seconds, _line_of(thread)),
            )

    # ---- the thread, if there is one

    def _run(self):
        try:
            with contextlib.ExitStack() as stack:
                for device in self.mover.devices:
                    stack.enter_context(device.thread())
                while not self.stopped:
                    if not self._has_room():
                        self.room.acquire()
                    elif not self._make():
                        break
                self.mover.finish()
        except BaseException as error:  # a thread that waits must not wait forever
            self.over = True
            self._put(Step(error=error))

    def _has_room(self):
        if self.failed:
            return self.awaited and not self.ready
        return len(self.ready) < self.depth

    def _put(self, step):
        self.ready.append(step)
        self._wake(step)

    def _wake(self, step):
        self.failed, self.awaited = step.error is not None, False
        _set(self.filled)

    def _make(self):
        """Put the next step into `ready`; return whether others can follow.

        If the iteration ends within a step, the step's batches are dropped. If a batch raises an exception, the step's
        earlier batches wait for the next call, and nothing after them counts as delivered before they do.
        """
        core, mover, parts = self.core, self.mover, self.parts
        while len(parts) < len(mover.devices):
            begun = now()
            try:
                mover.make_room()
                there = now()
                got = core.take()
            except Exception as error:
                if self.depth == 0:
                    raise
                got = None
                _forget_batches(error)
                self.over = not core.is_live
                self._put(Step(error=error))
                return not self.over
            if got is None:
                step = Step(last_task=True, is_end=True)
                # No call below, so a signal handler cannot interrupt these steps.
                self.ready += (step,)
                self.parts, self.over = [], True
                self._wake(step)
                return False
            (task, value, slot, is_error), got = got, None
            took = now()
            if not is_error:
                if self.depth == 0 and slot < 0:  # the caller's stream may have made it
                    mover.follow_caller()
                part, error = attempt(mover.copy_to_device, len(parts), value, slot)
                if error is not None:
                    _forget_batches(error)
                    value, is_error, error = error, True, None
            if is_error:
                step, value = Step(last_task=None if parts else task, error=value), None
                core.defer_commit(self.ready, step)
                self._wake(step)
                del step  # otherwise the error's traceback would refer to it
                return True
            if slot >= 0:
                # The time includes the wait for earlier copies in make_room().
                core.record_copy(slot, (there - begun + now() - took) / 1e9)
            self.last_task = task
            core.defer_commit(parts, part)
            value = part = None  # a lease, unless it was copied to a device
        step = Step(parts, self.last_task)
        # No call below, as above.
        self.ready += (step,)
        self.parts = []
        self._wake(step)
        return True


def _semaphore():
    lock = threading.Lock()
    lock.acquire()
    return lock


def _set(lock):
    with contextlib.suppress(RuntimeError):  # it is set already
        lock.release()


def _line_of(thread):
    """Return the file and line at which a thread is, as text."""
    frame = sys._current_frames().get(thread.ident)
    return "its end" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _forget_batches(error):
    """Clear the batch from slipring's frames in the traceback: a user who keeps the exception must not keep a slot."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") in ("slipring._core.workers.stateful", "slipring.torch.device.mover"):
            with contextlib.suppress(RuntimeError):  # the frame is running
                frame.clear()
