"""The next batches are on the device before they are asked for.

In the manner of MegEngine's preload: a thread takes them from the ring and has them copied. But `next` never
waits for the batch after, and an exception comes in its batch's turn.
"""

import contextlib
import os
import queue
import threading
import weakref

from slipring.engine import before_exit, stay_if_exiting
from slipring.errors import Closed, WorkerDied

GRACE_S = 5.0  # at the end, for a transform_device that hangs
_live = weakref.WeakSet()


class Feed:
    """Batches of a `LoaderIterator`, each with where it lies and what is to be noted when it is handed out.

    Parameters
    ----------
    core : LoaderIterator
    tracked : bool
        Workers send their number and their dataset's state along (`slipring.torch.state.Tracked`).
    """

    def __init__(self, core, tracked):
        self.core, self.tracked = core, tracked
        self.stopped = False

    def __call__(self):
        """Return (batch, slot, (ticket, worker, states)) of the next batch."""
        if self.stopped:
            raise _closed()
        batch, worker, states = next(self.core), None, None
        if self.tracked:
            worker, batch, states = batch
        return batch, self.core.last_slot, (self.core.last_ticket, worker, states)

    def notes_of(self, error):
        """Return what is to be noted when a call's exception is raised: it may be what a ticket brought."""
        if isinstance(error, (StopIteration, WorkerDied, Closed)):
            return []
        return [(self.core.last_ticket, None, None)]

    @property
    def over(self):
        """bool: whether nothing will come any more."""
        return self.core._engine is None

    def interrupt(self):
        """Have a call that waits, and every later one, raise `Closed`."""
        self.stopped = True
        self.core.interrupt()

    def timed_out(self):
        """Return the exception for who has waited too long."""
        return self.core.timed_out()


class Arrival:
    """What one step gets: a batch per device, or the exception in their place."""

    __slots__ = ("error", "last", "notes", "parts")

    def __init__(self, parts=(), notes=(), error=None, last=False):
        self.parts, self.notes, self.error, self.last = parts, notes, error, last


class Steps:
    """Makes one Arrival after the other, for whichever thread asks.

    Parameters
    ----------
    feed : Feed
    mover : Mover
    """

    def __init__(self, feed, mover):
        self.feed, self.mover = feed, mover
        self.parts, self.notes = [], []  # of a step that is not complete

    def make(self):
        """Return the next Arrival. Too few batches at the end are dropped; those before an error are not."""
        while len(self.parts) < len(self.mover.places):
            notes = None
            try:
                self.mover.make_room()
                batch, slot, note = self.feed()
                notes = [note]
                self.parts.append(self.mover.bring(len(self.parts), batch, slot))
            except Exception as error:
                # In no variable of this frame, which the error's traceback refers to.
                notes = self.feed.notes_of(error) if notes is None else notes
                return Arrival(notes=notes, error=error, last=self.feed.over)
            self.notes.append(note)
            del batch  # a lease, if it is on no device
        arrival = Arrival(self.parts, self.notes)
        self.parts, self.notes = [], []
        return arrival


class Preload:
    """Steps, `ahead` of which a thread has made before they are asked for.

    Parameters
    ----------
    steps : Steps
    ahead : int
        0: no thread; a step is made when it is asked for.
    timeout : float or None
        Seconds that `next` waits at most.
    """

    def __init__(self, steps, ahead, timeout=None):
        self.steps, self.timeout = steps, timeout
        self.owner, self.thread = os.getpid(), None
        self.over = not ahead  # nothing comes from the thread any more: the feed itself says why
        self.ready, self.room = queue.SimpleQueue(), queue.SimpleQueue()
        if ahead:
            for _ in range(ahead):
                self.room.put(True)
            # Nothing of the iterator's, which is to end the thread when nobody refers to it any more.
            self.thread = threading.Thread(
                target=_run, args=(steps, self.ready, self.room), name="slipring-preload", daemon=True
            )
            _live.add(self)
            self.thread.start()

    def next(self, account):
        """Return a list of batches, one per device, in order for the caller's current stream.

        Parameters
        ----------
        account : callable
            Called with what there is to note of each batch, also if an exception is all it brought.

        Raises
        ------
        Exception
            What was raised in this step's place.
        LoaderTimeout
            It has not come in time. Ask again.
        """
        arrival = self._arrival()
        for note in arrival.notes:
            account(note)
        if arrival.error is not None:
            if self.steps.feed.stopped:
                stay_if_exiting()
            try:
                raise arrival.error
            finally:
                del arrival  # its error's traceback refers to this frame
        return [self.steps.mover.hand_over(moved) for moved in arrival.parts]

    def _arrival(self):
        if self.owner != os.getpid():
            raise Closed("this iterator belongs to the parent process; make a new one after fork")
        if self.over:
            return self.steps.make()
        try:
            arrival = self.ready.get(timeout=self.timeout)
        except queue.Empty:
            raise self.steps.feed.timed_out() from None
        self.room.put(True)
        if arrival.last:
            self.over = True
            self._join()  # it waits for the last copies: then all slots are given back
        return arrival

    def stop(self):
        """End the thread, and let go of what it has made. Safe to call twice."""
        self.over = True
        if self.owner != os.getpid() or self.thread is None:
            return
        self.steps.feed.interrupt()
        self.room.put(False)
        self._join()
        with contextlib.suppress(queue.Empty):
            while True:
                self.ready.get_nowait()
        self.ready.put(Arrival(error=_closed(), last=True))  # for a thread that waits in next()
        self.steps.parts = []

    def _join(self):
        thread, self.thread = self.thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(GRACE_S)

    def __del__(self):
        self.stop()


def _run(steps, ready, room):
    feed, mover = steps.feed, steps.mover
    try:
        with contextlib.ExitStack() as stack:
            for place in mover.places:
                stack.enter_context(place.thread())
            while room.get() and not feed.stopped:
                arrival = steps.make()
                last = arrival.last
                ready.put(arrival)
                del arrival  # or this thread keeps a batch while it waits
                if last:
                    break
            mover.finish()
    except BaseException as error:  # whoever waits must not wait for ever
        ready.put(Arrival(error=error, last=True))


def _closed():
    return Closed("the loader was closed while a batch was waited for")


@before_exit
def _stop_all():
    for preload in list(_live):
        preload.stop()
