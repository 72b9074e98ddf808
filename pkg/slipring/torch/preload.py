"""Preload: a thread copies the next batches to the device before the loop requests them.

As in MegEngine's preload, a thread takes batches from the ring and starts their copies. But `next` never waits for a
later batch than its own, and an exception is raised in place of the batch that failed.
"""

import collections
import contextlib
import itertools
import logging
import os
import sys
import threading
import traceback

from slipring._core._ring import in_a_handler, now
from slipring._core.engine import exiting, stay_if_exiting, stop_at_exit
from slipring.errors import Closed, WorkerDied

log = logging.getLogger("slipring")

FAILED = object()  # in a note, where the worker's states would be
TRANSFORM_S = 5.0  # at the end, for a transform that hangs


class Feed:
    """The batches of a `LoaderIterator`, each with its slot and with the progress record of its delivery.

    A call returns the same batch until the caller sets `held` to None: a signal handler may raise after the call.
    """

    def __init__(self, core, tracked):
        # tracked: the position of each worker counts
        self.core, self.tracked = core, tracked
        self.stopped = False
        self.held = None  # what has come, in a list

    def __call__(self):
        """Return (batch, slot, (sequence number, worker, states)) of the next batch."""
        if self.stopped:
            raise _closed()
        while self.held is None:
            for batch in self.core:  # no call comes between the batch and its place
                self.held = [batch]
                break
            else:
                raise StopIteration
        last = self.core.last
        note = (last.seq, last.worker, self.core.last_state) if self.tracked else (last.seq, None, None)
        return self.held[0], last.slot, note

    def notes_of(self, error):
        """Return the progress records for a call that raised `error`, which may be a batch's own exception."""
        if isinstance(error, (StopIteration, WorkerDied, Closed)):
            return []
        last = self.core.last
        return [(self.core.last_seq, None if last is None else last.worker, FAILED)]

    @property
    def over(self):
        """bool: whether the iteration has ended, so that no batch will come."""
        return self.core._engine is None

    def interrupt(self):
        """Make a waiting call, and every later one, raise `Closed`."""
        self.stopped = True
        self.core.interrupt()

    def timed_out(self):
        """Return the exception for a caller that has waited too long."""
        return self.core.timed_out()


class Arrival:
    """The result of one step: one batch per device, or the exception that is raised instead."""

    __slots__ = ("error", "last", "notes", "parts")

    def __init__(self, parts=(), notes=(), error=None, last=False):
        self.parts, self.notes, self.error, self.last = parts, notes, error, last


class Steps:
    """The steps that `make` assembles from a `Feed` and a `Mover`, in whichever thread calls it."""

    def __init__(self, feed, mover):
        self.feed, self.mover = feed, mover
        self.parts, self.notes = [], []  # of a step that is not complete

    def make(self):
        """Return the next Arrival.

        If the iteration ends within a step, the step's batches are dropped. If a batch raises an exception, the
        step's earlier batches wait for the next call.
        """
        while len(self.parts) < len(self.mover.places):
            notes = None
            try:
                begun = now()
                self.mover.make_room()
                there = now()
                batch, slot, note = self.feed()
                notes = [note]
                took = now()
                part = self.mover.copy_to_device(len(self.parts), batch, slot)
                if slot >= 0:
                    # What is copied from is waited for before the next batch is asked for: that counts as well.
                    self.feed.core.ring.note_copy(slot, (there - begun + now() - took) / 1e9)
            except Exception as error:
                if in_a_handler(error):
                    raise  # the same batch is copied again
                batch = self.feed.held = None
                _forget_batches(error)
                # In no variable of this frame, which the error's traceback refers to.
                return Arrival(notes=self._notes_of(error, notes), error=error, last=self.feed.over)
            # No call from here on: all of it has happened, or nothing.
            self.parts += (part,)
            self.notes += notes
            batch = part = self.feed.held = None  # a lease, if it is on no device
        arrival = Arrival(self.parts, self.notes)
        self.parts, self.notes = [], []
        return arrival

    def _notes_of(self, error, notes):
        notes = self.feed.notes_of(error) if notes is None else notes
        if not self.notes:
            return notes
        # The batches before it wait for the step to be complete: nothing behind them counts before they do.
        self.notes += notes
        return []


class Signal:
    """A binary semaphore: it wakes one waiting thread, or lets the next wait pass."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()

    def set(self):
        with contextlib.suppress(RuntimeError):  # it is set
            self.lock.release()

    def wait(self, seconds=None):
        """Return whether the signal was set in time."""
        return self.lock.acquire(timeout=-1 if seconds is None else seconds)


class Line:
    """The bounded queue of Arrivals from the thread that makes them to the thread that takes them.

    Only `ready` holds the queue's state. A signal merely tells a thread to look at `ready`, so a signal that is lost
    to Ctrl-C loses no batch and blocks no thread.
    """

    def __init__(self, ahead):
        self.ahead = ahead
        self.ready = collections.deque()
        self.filled, self.room = Signal(), Signal()
        self.asking = False  # somebody waits for an arrival
        self.failed = False  # the last one was an exception: the next is made when it is asked for

    def has_room(self):
        if self.failed:
            return self.asking and not self.ready
        return len(self.ready) < self.ahead

    def put(self, arrival):
        self.failed = arrival.error is not None
        self.ready.append(arrival)
        self.filled.set()

    def first(self, seconds):
        """Return the first Arrival without removing it; None if none comes within `seconds`."""
        while not self.ready:
            self.asking = True
            self.room.set()
            if not self.filled.wait(seconds) and not self.ready:
                return None
        return self.ready[0]

    def end(self, arrival):
        """Keep only this Arrival. The queue is never empty meanwhile: a thread may be between `first` and `popped`."""
        self.put(arrival)
        while len(self.ready) > 1:
            self.ready.popleft()

    def popped(self):
        """Record that the caller has removed the first Arrival."""
        self.asking = False
        self.room.set()


class Preload:
    """The steps of an iteration; a thread makes up to `ahead` of them before they are requested.

    With ``ahead=0`` there is no thread, and `next` makes each step itself.
    """

    def __init__(self, steps, ahead, timeout=None):
        self.steps = steps
        # How long `next` waits at most, in seconds; None: no limit.
        self.timeout = None if timeout is None else min(timeout, 1e9)
        self.owner, self.thread, self.patience = os.getpid(), None, TRANSFORM_S
        self.lock = threading.RLock()  # of threads that ask
        self.line = Line(ahead)
        self.held = None  # what has been made without a thread, and not handed out
        self.there = 0  # when the last arrival was
        self.begin_ns = 0  # for how long the iteration's begin has waited for its workers
        self.over = not ahead  # nothing comes from a thread (any more): the feed itself says what there is
        if ahead:
            # Nothing of the iterator's, which is to end the thread when nobody refers to it any more.
            self.thread = threading.Thread(
                target=_run, args=(steps, self.line), name="slipring-preload", daemon=True
            )
            stop_at_exit(self)
            self.thread.start()

    def next(self, to, whole=True):
        """Hand out a list of batches, one per device, ordered for the caller's current stream.

        `to._ready` becomes a list with that list as its item; with ``whole=False`` its item is the first batch. The
        progress record of each batch is appended to `to._made`, also if the step gives only an exception. Raise the
        step's exception, or LoaderTimeout if the step has not come in time; after a timeout the caller may call
        again.
        """
        if self.owner != os.getpid():
            raise Closed("this iterator belongs to the parent process; make a new one after fork")
        with self.lock:  # not before: a fork copies it as another thread holds it
            if to._ready is not None:
                return  # what another thread has asked for
            if self.steps.feed.stopped:
                stay_if_exiting()
                raise _closed()
            if self.over:
                while self.held is None:
                    for made in itertools.starmap(self.steps.make, ((),)):
                        self.held = made  # no call comes between: a handler cannot raise
                        break
                self._hand_over(self.held, to, whole)
                return
            begun = now()
            arrival = self.line.first(self.timeout)
            if arrival is None:
                raise self.steps.feed.timed_out()
            self._note_step(begun, now())
            self._hand_over(arrival, to, whole)

    def _note_step(self, begun, there):
        """Record that the loop waited from `begun` to `there` (ns); its step before ended at `begun`."""
        before, self.there = self.there, there
        core = self.steps.feed.core
        engine = core._engine
        if before:
            core.ring.note_loop((there - begun) / 1e9, (there - before) / 1e9)
        elif engine is not None and engine.running > 1:  # the very first wait is no part of the loader's pace
            waited = there - begun + self.begin_ns
            core.ring.note_loop(waited / 1e9, waited / 1e9)

    def _hand_over(self, arrival, to, whole):
        mover = self.steps.mover
        try:
            batches = [mover.hand_over(moved) for moved in arrival.parts]
        except Exception as error:
            if in_a_handler(error):
                raise
            arrival.error = error
        # No call from here on: it has been handed out, or is where it was.
        if arrival.error is None:
            to._ready = [batches if whole else batches[0]]
        to._made += arrival.notes
        if self.over:
            self.held = None
        else:
            del self.line.ready[0]
        if arrival.last:
            self.over = True
        self.line.popped()
        if arrival.last:
            self._join()  # it waits for the last copies: then all slots are given back
            mover.finish()
        # Its traceback will refer to the frames that know the arrival.
        error, arrival.error = arrival.error, None
        if error is not None:
            if self.steps.feed.stopped:
                stay_if_exiting()
            try:
                raise error
            finally:
                del error

    def stop(self):
        """End the thread, and release the batches it has made. Safe to call twice."""
        if self.owner != os.getpid():
            return
        if self.thread is not None:
            self.steps.feed.interrupt()
            self.line.room.set()
            self._join()
            self.line.end(Arrival(error=_closed(), last=True))  # for a thread that waits in next()
        self.over = True
        self.steps.parts, self.steps.feed.held, self.held = [], None, None
        if self.thread is None:
            with contextlib.suppress(RuntimeError):  # a device that has failed: it was raised in its turn
                self.steps.mover.finish()

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
                *(seconds, _place(thread)),
            )

    def __del__(self, exiting=exiting):
        if getattr(self, "steps", None) is not None and not exiting():
            self.stop()


def _run(steps, line):
    feed, mover = steps.feed, steps.mover
    try:
        with contextlib.ExitStack() as stack:
            for place in mover.places:
                stack.enter_context(place.thread())
            while not feed.stopped:
                if not line.has_room():
                    line.room.wait()
                    continue
                arrival = steps.make()
                last = arrival.last
                line.put(arrival)
                del arrival  # or this thread keeps a batch while it waits
                if last:
                    break
            mover.finish()
    except BaseException as error:  # whoever waits must not wait for ever
        line.put(Arrival(error=error, last=True))


def _place(thread):
    """Return the file and line at which a thread is, as text."""
    frame = sys._current_frames().get(thread.ident)
    return "its end" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _forget_batches(error):
    """Clear the batch from our own frames in the traceback: a user who keeps the exception must not keep a slot."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "slipring.torch.device.mover":
            with contextlib.suppress(RuntimeError):  # it is running
                frame.clear()


def _closed():
    return Closed("the loader was closed while a batch was waited for")
