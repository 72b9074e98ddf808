"""Put and get over a queue segment. The module `slipring.queue` has the rest of the queue's interface."""

import queue

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t

from slipring._core.codec._codec cimport in_slot, is_fixed, unpack
from slipring._core.ring._segment cimport FREE_THREADED, SR_FOREVER, SR_WHOLE, Meter, Segment, clock, forks
from slipring._core.ring._slot cimport SlotWriter, Lease, make_writer, take

import numpy as np

cimport numpy as cnp

from slipring._core.codec._codec import COPY
from slipring._core.codec._encode import Encoder
from slipring.errors import Closed, SegmentFull, ShutDown
from slipring._core.options.checks import one_of, real
from slipring._core.ring.signals import settle
from slipring._core.ring.text import message_refused

cnp.import_array()

cdef uint64_t LOOK = 100_000_000  # ns: how often a waiting process checks for deaths, and checks its slots again


cdef uint64_t deadline_of(bint block, timeout) except? 1:
    """Return the deadline, a time of `clock`; 0: do not wait."""
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
    """Return the codec's number for a `copy` argument."""
    one_of("copy", copy, tuple(COPY))
    return COPY[copy]


cdef class QueueCore:
    """One process's end of a queue; threads may share it.

    Attributes
    ----------
    ring : Segment
    """

    cdef readonly Segment ring
    cdef list encoders       # idle ones: an encoder makes one message at a time
    cdef int copy
    cdef readonly object event  # a `slipring._core.ring._fd.Event`
    cdef int inside          # calls that wait or have claimed a slot
    cdef readonly bint closed
    cdef uint64_t generation, looked_at  # of forks; when this process last checked for dead processes
    cdef object __weakref__

    def __cinit__(self):
        self.encoders = []
        self.generation = forks()

    def _open(self, Segment ring not None, copy, event):
        self.ring, self.event = ring, event
        self.copy = how_to_copy(copy)

    # ---- opening and closing

    cdef int open(self) except -1:
        """Check that this process may use the queue; after a fork, drop the parent's handles."""
        if self.closed or self.ring is None:  # or its constructor has not run
            raise ValueError(f"{self!r} is closed")
        if self.generation != forks():
            self.generation = forks()
            self.inside = 0
            self.looked_at = 0
            self.event.forget()
            self.ring.meter = Meter()
        return 0

    cdef int enter(self) except -1:
        """Begin a call that waits or claims a slot: until `leave`, the number and the descriptors stay."""
        with cython.critical_section(self):
            self.open()
            if self.ring.polled():  # the call will need the event, and must not fail after its put or get
                self.event.number()
            self.inside += 1
        return 0

    cdef void leave(self) noexcept:
        """End a call; after `close`, the last call releases the segment."""
        with cython.critical_section(self):
            if self.inside > 0:  # 0 in a child that was forked during the call and has used the queue since
                self.inside -= 1
            if self.closed and self.inside == 0:
                self.dispose()

    cdef void dispose(self) noexcept:
        self.ring = self.event = None

    @cython.critical_section
    def close(self):
        """End this process's use of the queue, in all threads: put and get raise ValueError from now on.

        Nothing is buffered, so there is nothing to wait for. Received messages stay valid, and other processes
        continue. The memory is freed when the last process stops using the queue and its messages.
        """
        self.closed = True
        if self.inside == 0 or self.generation != forks():
            self.dispose()

    @cython.critical_section
    def disconnect_client(self):
        """Leave the `max_processes` processes of the queue; the next use of the queue joins them again."""
        self.open()
        if self.inside == 0:
            self.ring.leave()

    @cython.critical_section
    def _ring(self):
        self.open()
        return self.ring

    @cython.critical_section
    def _ring_if_open(self):
        """Return the segment; None if the queue is closed."""
        return None if self.closed else self.ring

    def _shut_down(self, bint immediate):
        cdef uint32_t participant = 0
        cdef int slot
        self.enter()
        try:
            if immediate:
                participant = self.ring.number()
            self.ring.close()
            if self.ring.polled():
                self.event.signal()  # pollers must see the end, too
            while immediate:
                slot = self.ring.await_ready(-1, 0, -1)
                if slot < 0:
                    break
                take(self.ring, participant, <uint32_t> slot)  # the lease ends at once
        finally:
            self.leave()

    # ---- polling

    def fileno(self):
        """Return a descriptor for select, poll, epoll and asyncio, readable while there may be a message.

        Another process may get the message first. The descriptor also becomes readable twice a second, so that a put is
        found whose process died before it could signal. Therefore call ``get_nowait()``, and expect `queue.Empty`. The
        descriptor belongs to this process, and stays the same until the queue is closed. After the first call of this
        method, each put costs one more system call.
        """
        self.enter()
        try:
            self.ring.number()
            self.ring.polled(True)
            if self.ring.closed or self.ring.await_ready(-1, 0, -1) >= 0:  # put before polling began [V2]
                self.event.signal()
            return self.event.fileno()
        finally:
            self.leave()

    cdef int calm(self) except -1:
        """Take the signal back if there is no message, and then check once more, so that no put is missed."""
        if self.ring.closed or self.ring.await_ready(-1, 0, -1) >= 0:  # after a shutdown, the event stays readable
            return 0
        if self.event.calm() and (self.ring.closed or self.ring.await_ready(-1, 0, -1) >= 0):
            self.event.signal()
        return 0

    # ---- waiting

    cdef bint time_is_up(self, uint64_t give_up) except -1:
        """Between two waits: recover slots of dead processes, unless this process just did; return True to give up."""
        cdef uint64_t at = clock()
        PyErr_CheckSignals()  # one may have arrived between two waits
        if FREE_THREADED:
            settle()
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

    cdef SlotWriter claim(self, bint block, timeout):
        """Wait for a free slot; the caller has entered."""
        cdef uint64_t give_up = deadline_of(block, timeout), gen = 0
        cdef uint32_t participant, slot = 0
        participant = self.ring.number()
        try:
            if self.ring.claim_slot(participant, 0, &slot, &gen):
                return make_writer(self.ring, participant, slot, SR_WHOLE, gen)
            while not self.time_is_up(give_up):
                if self.ring.claim_slot(participant, self.next_look(give_up), &slot, &gen):
                    return make_writer(self.ring, participant, slot, SR_WHOLE, gen)
        except Closed:
            raise ShutDown("the queue has been shut down: nothing can be put any more") from None
        raise queue.Full(self.why_full(block, timeout))

    cdef str why_full(self, bint block, timeout):
        """Return the message for a full queue: how many slots have messages, and how many are filled or kept."""
        cdef uint32_t ready = 0, free_slots = 0, slots = self.ring.n_slots
        self.ring.count(&ready, &free_slots)
        return (
            f"no slot of {slots} {f'became free within {timeout} s' if block else 'is free'}: {ready} have "
            f"messages that were not received, {slots - ready - free_slots} are being filled or kept by views "
            f"of received messages; get messages, drop views or copy them (copy='always'), or raise "
            f"maxsize (now {slots})"
        )

    cdef int send(self, SlotWriter writer, value, bint moved) except -1:
        """Encode and publish; release the slot if that fails."""
        cdef object encoder
        try:
            encoder = self.encoders.pop()
        except IndexError:
            encoder = Encoder()
        try:
            with writer:  # the value's own code may allocate in the slot
                encoder.publish(writer, [value], moved=moved)
        except SegmentFull as error:
            writer.release()
            raise message_refused(error, self.ring.n_slots) from None
        except BaseException:
            writer.release()
            raise
        self.encoders.append(encoder)
        if self.ring.polled():
            self.event.signal()
        return 0

    def put(self, obj, bint block=True, timeout=None):
        """Put a message; wait for a free slot if necessary.

        Parameters
        ----------
        obj
            Arrays, tensors, numbers, text, and containers of them are sent without pickle; other objects are pickled.
            The message has been copied when this method returns.
        block : bool
        timeout : float or None
            Seconds; None: without a limit.

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
        """Wait for the first message; return its slot, or -1 if none came in time."""
        cdef int slot = self.ring.await_ready(-1, 0, -1)
        while slot < 0:
            if self.ring.closed:
                slot = self.ring.await_ready(-1, 0, -1)  # a message may have come before the shutdown
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
        """Get the first message; wait for it if necessary.

        Parameters
        ----------
        block : bool
        timeout : float or None
            Seconds; None: without a limit.
        copy : {'auto', 'always', 'never'} or None
            Whether arrays are views of the slot, or copies. The slot is reused after its last view is deleted. 'auto'
            copies if views would leave fewer than two slots circulating. None: as set for the queue.

        Raises
        ------
        queue.Empty
            No message came in time.
        ShutDown
            The queue has been shut down, and it is empty.
        ValueError
            This process has closed the queue.
        CorruptBatch
            The message cannot be decoded here. It is lost.
        """
        cdef int how = self.copy if copy is None else <int> how_to_copy(copy)
        cdef Lease lease = self.first(deadline_of(block, timeout))
        if lease is None:
            raise queue.Empty
        return unpack(lease, how)

    # ---- counts

    def qsize(self):
        """Return the number of messages in the queue; others may put and get meanwhile."""
        return self._count()[0]

    def empty(self):
        """Return whether the queue is empty; others may put meanwhile."""
        return self._count()[0] == 0

    def full(self):
        """Return whether no slot is free: each has a message, is being filled, or has views."""
        return self._count()[1] == 0

    def _count(self):
        cdef uint32_t ready = 0, free_slots = 0
        cdef Segment ring = self._ring()
        ring.count(&ready, &free_slots)
        return ready, free_slots


cdef class Slot:
    """A free slot in which a message is built; `slipring.Queue.slot` returns it.

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
    cdef SlotWriter writer
    cdef bint block
    cdef object timeout

    def __init__(self, QueueCore core not None, bint block, timeout):
        self.core, self.block, self.timeout = core, block, timeout

    def __enter__(self):
        if self.writer is not None:
            raise RuntimeError("this slot has been entered already")
        if self.core is None:
            raise RuntimeError("the slot has not been made by a queue")
        self.core.enter()
        try:
            self.writer = self.core.claim(self.block, self.timeout)
        except BaseException:
            self.core.leave()
            raise
        return self

    def __exit__(self, *exc):
        self.release()

    def __dealloc__(self):
        if self.writer is not None:  # __enter__ was called by hand
            self.release()

    cdef int release(self) except -1:
        """End the block: release the slot if nothing was put."""
        cdef SlotWriter writer = self.writer
        self.writer = None
        # In a child that was forked inside the block, the slot is the parent's.
        if writer is None or writer.fork_generation != forks():
            return 0
        try:
            writer.release()
        finally:
            self.core.leave()
        return 0

    cdef SlotWriter mine(self):
        if self.writer is None or self.writer.fork_generation != forks():
            raise RuntimeError(
                "the slot is not this block's any more: its message has been put, the block has ended, or "
                "the process has forked"
            )
        return self.writer

    def empty(self, shape, dtype=float):
        """Return a new array inside the slot, not initialised: put with ``move=True`` it is not copied.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : dtype
            Any dtype of fixed size.

        Raises
        ------
        SegmentFull, BatchTooLarge
            The array does not fit in the slot.
        TypeError
            Elements of that dtype are not stored in the array itself.
        """
        cdef SlotWriter writer = self.mine()
        cdef cnp.dtype descr = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
        if descr.subdtype is not None or not is_fixed(descr):
            raise TypeError(f"an array of {descr} cannot lie in a slot: its elements have no fixed size")
        if type(shape) is not tuple:
            shape = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
        try:
            return in_slot(writer, shape, descr)
        except SegmentFull as error:
            raise message_refused(error, self.core.ring.n_slots) from None

    def put(self, obj, *, move=False):
        """Put a message. You can do this once per slot.

        Parameters
        ----------
        obj
        move : bool
            Copy nothing: arrays from `empty` belong to the consumer from now on. The caller promises neither to write
            to them nor to read them, and deletes them soon. Without `move`, the arrays in the slot are copied once,
            because the caller still has them.

        Notes
        -----
        Arrays from `empty` that the caller keeps stay valid, but their slot does not circulate until they are deleted.
        Delete them before you claim the next slot. If each producer keeps a slot while it waits for another one, and
        consumers keep the other slots, all of them wait forever.
        """
        cdef SlotWriter writer = self.mine()
        self.writer = None
        try:
            self.core.send(writer, obj, move)
        finally:
            self.core.leave()
