"""Put and get over a queue segment. The module `slipring.queue` has the rest of the queue's interface."""

import queue

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t

from slipring._core._codec cimport in_slot, is_fixed, unpack
from slipring._core._ring cimport SR_FOREVER, SR_WHOLE, Fill, Lease, Meter, Segment, clock, forks, make_fill, take

import numpy as np

cimport numpy as cnp

from slipring._core._codec import COPY, Encoder
from slipring.errors import Closed, SegmentFull, ShutDown
from slipring._core.arguments import one_of, real
from slipring._core.text import message_refused

cnp.import_array()

cdef uint64_t LOOK = 100_000_000  # ns: how often a waiting process checks for deaths, and checks its slots again


cdef uint64_t deadline_of(bint block, timeout) except? 1:
    """A time of `clock`; 0: only ask."""
    cdef double seconds
    if not block:
        return 0
    if timeout is None:
        return SR_FOREVER
    seconds = real("timeout", timeout, "a number of seconds or None")
    if seconds != seconds:
        raise ValueError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if seconds >= 1e9:
        return SR_FOREVER
    return clock() + <uint64_t> (seconds * 1e9) if seconds > 0 else 0


def how_to_copy(copy):
    """The codec's number for a `copy` argument."""
    one_of("copy", copy, tuple(COPY))
    return COPY[copy]


cdef class QueueCore:
    """One process's end of a queue; threads may share it.

    Attributes
    ----------
    ring : Segment
    """

    cdef readonly Segment ring
    cdef list encoders       # those at rest: an encoder makes one message at a time
    cdef int copy
    cdef readonly object event  # Event of _ring_descriptors.pxi
    cdef int inside          # calls that wait or hold a slot
    cdef readonly bint closed
    cdef uint64_t generation, looked_at  # of forks; when this process has last looked for the dead
    cdef object __weakref__

    def __cinit__(self):
        self.encoders = []
        self.generation = forks()

    def _open(self, Segment ring not None, copy, event):
        self.ring, self.event = ring, event
        self.copy = how_to_copy(copy)

    # ---- the two ends of its life

    cdef int open(self) except -1:
        """This process may use the queue; what its parent had open is its parent's."""
        if self.closed or self.ring is None:  # or it was never made
            raise ValueError(f"{self!r} is closed")
        if self.generation != forks():
            self.generation = forks()
            self.inside = 0
            self.looked_at = 0
            self.event.forget()
            self.ring.meter = Meter()
        return 0

    cdef int enter(self) except -1:
        """A call begins that waits, or holds a slot: until `leave` the number and the descriptors stay."""
        self.open()
        if self.ring.polled():  # the call will need the event, and must not fail after it has put or got
            self.event.number()
        self.inside += 1
        return 0

    cdef void leave(self) noexcept:
        """A call has ended. The last one after `close` has no use for anything any more."""
        if self.inside > 0:  # a child forked during the call, which has used the queue meanwhile, is in none
            self.inside -= 1
        if self.closed and self.inside == 0:
            self.dispose()

    cdef void dispose(self) noexcept:
        self.ring = self.event = None

    def close(self):
        """End this process's use of the queue, in all threads: put and get raise ValueError from now on.

        Nothing is buffered, so nothing has to be waited for. What was got stays valid; other processes go on.
        The memory goes with the last process's last use of the queue, and of what was got.
        """
        self.closed = True
        if self.inside == 0 or self.generation != forks():
            self.dispose()

    def disconnect_client(self):
        """Give this process's place among `max_processes` to others; its next use takes one again."""
        self.open()
        if self.inside == 0:
            self.ring.leave()

    def _ring(self):
        self.open()
        return self.ring

    def _shut_down(self, bint immediate):
        cdef uint32_t participant = 0
        cdef int slot
        self.enter()
        try:
            if immediate:
                participant = self.ring.number()
            self.ring.close()
            if self.ring.polled():
                self.event.signal()  # who polls is to see the end too
            while immediate:
                slot = self.ring.await_ready(-1, 0, -1)
                if slot < 0:
                    break
                take(self.ring, participant, <uint32_t> slot)  # the lease ends at once
        finally:
            self.leave()

    # ---- polling

    def fileno(self):
        """Return a descriptor for select, poll, epoll and asyncio: readable while something may be got.

        What was there may be got by another process first, and twice a second the descriptor becomes readable
        in any case (so that a put is found whose process died before it could signal): use ``get_nowait()``
        and be prepared for `queue.Empty`. The descriptor is this process's, and stays the same until the
        queue is closed. Once somebody has asked for it, each put costs a system call more.
        """
        self.enter()
        try:
            self.ring.number()
            self.ring.polled(True)
            if self.ring.closed or self.ring.await_ready(-1, 0, -1) >= 0:  # before anybody asked [V2]
                self.event.signal()
            return self.event.fileno()
        finally:
            self.leave()

    cdef int calm(self) except -1:
        """Take the event back if there is nothing to be got: that first, then the look: no put is missed."""
        if self.ring.closed or self.ring.await_ready(-1, 0, -1) >= 0:  # the end is there for all to see
            return 0
        if self.event.calm() and (self.ring.closed or self.ring.await_ready(-1, 0, -1) >= 0):
            self.event.signal()
        return 0

    # ---- waiting

    cdef bint time_is_up(self, uint64_t give_up) except -1:
        """Between two waits: look for what the dead held, unless this process just did; True to give up."""
        cdef uint64_t at = clock()
        PyErr_CheckSignals()  # one may have come between two waits
        self.open()  # another thread may have closed it
        if at - self.looked_at >= LOOK:
            self.looked_at = at
            if self.ring.recover_dead() > 0:
                return False
        return at >= give_up

    cdef uint64_t next_look(self, uint64_t give_up) noexcept:
        cdef uint64_t then = clock() + LOOK
        return then if then < give_up else give_up

    # ---- put

    cdef Fill claim(self, bint block, timeout):
        """Wait for a free slot; the caller has entered."""
        cdef uint64_t give_up = deadline_of(block, timeout), gen = 0
        cdef uint32_t participant, slot = 0
        participant = self.ring.number()
        try:
            if self.ring.claim_slot(participant, 0, &slot, &gen):
                return make_fill(self.ring, participant, slot, SR_WHOLE, gen)
            while not self.time_is_up(give_up):
                if self.ring.claim_slot(participant, self.next_look(give_up), &slot, &gen):
                    return make_fill(self.ring, participant, slot, SR_WHOLE, gen)
        except Closed:
            raise ShutDown("the queue has been shut down: nothing can be put any more") from None
        raise queue.Full(self.why_full(block, timeout))

    cdef str why_full(self, bint block, timeout):
        """Where the slots are: messages that nobody gets look like views that somebody keeps."""
        cdef uint32_t ready = 0, free_slots = 0, slots = self.ring.n_slots
        self.ring.count(&ready, &free_slots)
        return (
            f"no slot of {slots} {f'became free within {timeout} s' if block else 'is free'}: {ready} have "
            f"messages that nobody has got, {slots - ready - free_slots} are being filled or kept by views "
            f"of what was got; get messages, drop views or copy them (copy='always'), or raise "
            f"maxsize (now {slots})"
        )

    cdef int send(self, Fill fill, value, bint moved) except -1:
        """Encode and publish; whatever goes wrong gives the slot back."""
        cdef object encoder = self.encoders.pop() if self.encoders else Encoder()
        try:
            with fill:  # a value's own code may ask for room in the slot
                encoder.publish(fill, [value], moved=moved)
        except SegmentFull as error:
            fill.give_back()
            raise message_refused(error, self.ring.n_slots) from None
        except BaseException:
            fill.give_back()
            raise
        self.encoders.append(encoder)
        if self.ring.polled():
            self.event.signal()
        return 0

    def put(self, obj, bint block=True, timeout=None):
        """Put a message, waiting for a free slot if need be.

        Parameters
        ----------
        obj
            Arrays, tensors, numbers, text, and containers of them travel without pickle; anything else is
            pickled. What it holds has been copied when this returns.
        block : bool
        timeout : float or None
            Seconds; None for ever.

        Raises
        ------
        queue.Full
            No slot became free in time.
        ShutDown
            The queue has been shut down.
        ValueError
            This process has closed the queue.
        BatchTooLarge, SegmentFull
            The message is larger than a slot, or there is no memory for it; nothing was put.
        TooManyProcesses
        """
        self.enter()
        try:
            self.send(self.claim(block, timeout), obj, False)
        finally:
            self.leave()

    # ---- get

    cdef int find(self, uint64_t give_up) except -2:
        """The slot of the first message; -1: none came in time."""
        cdef int slot = self.ring.await_ready(-1, 0, -1)
        while slot < 0:
            if self.ring.closed:
                slot = self.ring.await_ready(-1, 0, -1)  # it may have come before the end
                if slot < 0:
                    raise ShutDown("the queue has been shut down, and all that was in it has been got")
                break
            if self.ring.polled():
                self.calm()
            if self.time_is_up(give_up):
                return self.ring.await_ready(-1, 0, -1)
            try:
                slot = self.ring.await_ready(-1, self.next_look(give_up), -1)
            except Closed:
                pass
        return slot

    cdef Lease first(self, uint64_t give_up):
        cdef uint32_t participant
        cdef int slot
        cdef Lease lease
        self.enter()
        try:
            participant = self.ring.number()
            while True:
                slot = self.find(give_up)
                if slot < 0:
                    return None
                lease = take(self.ring, participant, <uint32_t> slot)
                if lease is not None:
                    if self.ring.polled():
                        self.calm()
                    return lease
        finally:
            self.leave()

    def get(self, bint block=True, timeout=None, *, copy=None):
        """Get the first message, waiting for it if need be.

        Parameters
        ----------
        block : bool
        timeout : float or None
            Seconds; None for ever.
        copy : {'auto', 'always', 'never'} or None
            Whether arrays are views on the slot, which is used again when the last of them has gone, or
            copies. 'auto' copies when views would leave fewer than two slots circulating. None: what the
            queue was made with.

        Raises
        ------
        queue.Empty
            No message came in time.
        ShutDown
            The queue has been shut down, and nothing is left in it.
        ValueError
            This process has closed the queue.
        CorruptBatch
            The message cannot be rebuilt here. It is lost.
        """
        cdef int how = self.copy if copy is None else <int> how_to_copy(copy)
        cdef Lease lease = self.first(deadline_of(block, timeout))
        if lease is None:
            raise queue.Empty
        return unpack(lease, how)

    # ---- counts

    def qsize(self):
        """Return the number of messages that can be got; others put and get meanwhile."""
        return self._count()[0]

    def empty(self):
        """Return whether there is nothing to get; others put meanwhile."""
        return self._count()[0] == 0

    def full(self):
        """Return whether no slot is free: each has a message, is being filled, or somebody keeps views."""
        return self._count()[1] == 0

    def _count(self):
        cdef uint32_t ready = 0, free_slots = 0
        self.open()
        self.ring.count(&ready, &free_slots)
        return ready, free_slots


cdef class Slot:
    """A free slot to build a message in: what `slipring.Queue.slot` returns.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> queue = slipring.Queue(4)
    >>> with queue.slot() as slot:
    ...     image = slot.empty((2, 2), np.uint8)
    ...     image[:] = 7
    ...     slot.put({"image": image}, move=True)
    ...     del image
    >>> queue.get()["image"].tolist()
    [[7, 7], [7, 7]]
    >>> queue.close()
    """

    cdef QueueCore core
    cdef Fill fill
    cdef bint block
    cdef object timeout

    def __init__(self, QueueCore core not None, bint block, timeout):
        self.core, self.block, self.timeout = core, block, timeout

    def __enter__(self):
        if self.fill is not None:
            raise RuntimeError("this slot has been entered already")
        if self.core is None:
            raise RuntimeError("the slot has not been made by a queue")
        self.core.enter()
        try:
            self.fill = self.core.claim(self.block, self.timeout)
        except BaseException:
            self.core.leave()
            raise
        return self

    def __exit__(self, *exc):
        self.give_back()

    def __dealloc__(self):
        if self.fill is not None:  # entered by hand
            self.give_back()

    cdef int give_back(self) except -1:
        """The block has ended: what was not put was never there."""
        cdef Fill fill = self.fill
        self.fill = None
        # After a fork inside the block the slot is the parent's.
        if fill is None or fill.fork_generation != forks():
            return 0
        try:
            fill.give_back()
        finally:
            self.core.leave()
        return 0

    cdef Fill mine(self):
        if self.fill is None or self.fill.fork_generation != forks():
            raise RuntimeError(
                "the slot is not this block's any more: its message has been put, the block has ended, or "
                "the process has forked"
            )
        return self.fill

    def empty(self, shape, dtype=float):
        """Return a new array inside the slot, not initialised: put with ``move=True`` it is not copied.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : dtype
            Any of fixed size.

        Raises
        ------
        SegmentFull, BatchTooLarge
            The slot cannot take it.
        TypeError
            Elements of that dtype do not lie in the array itself.
        """
        cdef Fill fill = self.mine()
        cdef cnp.dtype descr = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
        if descr.subdtype is not None or not is_fixed(descr):
            raise TypeError(f"an array of {descr} cannot lie in a slot: its elements have no fixed size")
        if type(shape) is not tuple:
            shape = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
        try:
            return in_slot(fill, shape, descr)
        except SegmentFull as error:
            raise message_refused(error, self.core.ring.n_slots) from None

    def put(self, obj, *, move=False):
        """Put a message. Once per slot.

        Parameters
        ----------
        obj
        move : bool
            Arrays from `empty` are the consumer's from now on, and nothing is copied: the caller promises
            neither to write to them any more nor to read them, and lets go of them soon. Without it what
            lies in the slot is copied once, since the caller has it still, and the message is the consumer's
            alone.

        Notes
        -----
        Arrays from `empty` that the caller keeps stay good, but their slot does not circulate until they have
        gone: drop them before you claim the next one. Producers that wait for a slot while each keeps one,
        and consumers that keep the others, would wait for ever.
        """
        cdef Fill fill = self.mine()
        self.fill = None
        try:
            self.core.send(fill, obj, move)
        finally:
            self.core.leave()
