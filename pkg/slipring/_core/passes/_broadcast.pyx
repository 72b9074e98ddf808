"""Both ends of a broadcast: a writer that shares messages, and a reader. `slipring.broadcast` has the public classes.

The writer is the consumer of a loader segment, and makes the batches itself: it dispatches a task, claims it, publishes
the message, takes it and shares it.
"""

import fcntl
import os
import threading

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from slipring._core.codec._codec cimport unpack_shared
from slipring._core.passes._queue cimport deadline_of
from slipring._core.ring._ring cimport Ring
from slipring._core.ring._segment cimport (
    FREE_THREADED, SR_CONSUMER, SR_END, SR_FOREVER, SR_TASK_NEXT, SR_WHOLE, clock, forks, sr_reader_info, sr_shared,
    sr_task,
)
from slipring._core.ring._slot cimport SlotWriter, Lease, make_writer, share, take, take_shared

from slipring._core.codec._encode import Encoder
from slipring._core.codec._shared import attached_ring
from slipring._core.passes._queue import how_to_copy
from slipring._core.ring import process
from slipring._core.ring._fd import Descriptor, Poll
from slipring._core.ring.signals import settle
from slipring._core.ring.text import (
    all_readers_joined,
    message_refused,
    no_message_within,
    no_slot_within,
    not_a_reader,
    not_joined_within,
    reader_is_taken,
    readers_died,
    writer_died,
)
from slipring.errors import Closed, SegmentFull, ShutDown

cdef enum:
    ITERATION = 1  # a broadcast has only one
cdef uint64_t LOOK = 50_000_000  # ns: how often a writer checks for deaths, at least
cdef uint64_t LOOK_CLOSELY = 1_000_000_000  # ns: how often a waiting process checks whether another has run exec


cdef class End:
    """What both ends have in common: they are closed once, and do not survive a fork."""

    cdef readonly Ring ring
    cdef readonly bint closed
    cdef int inside            # calls that use the segment
    cdef uint64_t generation   # of forks
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self.generation = forks()

    @cython.critical_section
    cdef int enter(self) except -1:
        """Begin a call: until `leave`, the segment stays."""
        self.check()
        self.inside += 1
        return 0

    cdef int check(self) except -1:
        if self.closed or self.ring is None:
            raise Closed(f"{self!r} is closed")
        if self.generation != forks():
            raise Closed(f"{self!r} belongs to the parent process: in a child, open a reader from the handle")
        return 0

    @cython.critical_section
    cdef int leave(self) except -1:
        self.inside -= 1
        if self.closed and self.inside == 0:
            self.dispose()
        return 0

    cdef int dispose(self) except -1:
        self.ring = None
        return 0

    @cython.critical_section
    def _ring(self):
        self.check()
        return self.ring

    @cython.critical_section
    def _ring_if_open(self):
        """Return the segment; None if this end is closed."""
        return None if self.closed else self.ring

    cdef uint64_t next_look(self, uint64_t give_up, uint64_t interval) noexcept:
        cdef uint64_t then = clock() + interval
        return then if then < give_up else give_up


cdef class WriterCore(End):
    """The writer of a broadcast; threads may share it."""

    cdef object poll            # of the readers' pidfds
    cdef dict pidfds            # reader -> pidfd of the process that joined
    cdef dict watched           # reader -> that process's incarnation, also after its death
    cdef object encoder, put_lock
    cdef unsigned long holder   # the thread whose turn it is
    cdef uint64_t looked_at, looked_closely_at, seq
    cdef bint ready

    def _open(self, Ring ring not None):
        self.poll, self.pidfds, self.watched = Poll("a broadcast's epoll"), {}, {}
        self.encoder, self.put_lock = Encoder(), threading.Lock()
        ring.join(SR_CONSUMER)
        ring.begin_iteration(ITERATION)
        self.ring = ring

    # ---- turns

    cdef int begin(self, uint64_t give_up, timeout) except -1:
        """Enter, and wait for this thread's turn."""
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef uint64_t at
        self.enter()
        try:
            if self.holder == me:
                raise RuntimeError(
                    "put() is not reentrant: a signal handler, or the pickling of a message, has called it inside put()"
                )
            if not self.put_lock.acquire(False):
                at = clock()
                seconds = -1 if give_up == SR_FOREVER else (give_up - at) * 1e-9 if at < give_up else 0
                if not self.put_lock.acquire(timeout=seconds):
                    raise TimeoutError(f"another thread has been putting a message for timeout={timeout} s")
        except BaseException:
            self.leave()
            raise
        self.holder = me
        try:
            self.check()
        except Closed:
            self.end()
            raise
        return 0

    cdef int end(self) except -1:
        self.holder = 0
        self.put_lock.release()
        self.leave()
        return 0

    # ---- readers

    cdef uint32_t participant(self, uint32_t reader) noexcept:
        return self.ring.n_participants + reader

    cdef sr_reader_info info(self, uint32_t reader) except *:
        cdef sr_reader_info info
        self.ring.reader_info(self.participant(reader), &info)
        return info

    @cython.critical_section
    def _joined(self):
        """Return how many readers take part now."""
        cdef uint32_t reader
        cdef sr_reader_info info
        self.check()
        joined = 0
        for reader in range(self.ring.n_readers):
            info = self.info(reader)
            joined += info.takes_part and info.serving
        return joined

    cdef int look(self) except -1:
        """Watch the readers that have joined; recover those that have died, and raise ReaderDied."""
        cdef uint32_t reader
        cdef sr_reader_info info
        cdef list died = []
        self.looked_at = clock()
        closely = self.looked_at - self.looked_closely_at >= LOOK_CLOSELY
        if closely:
            self.looked_closely_at = self.looked_at
        for reader in range(self.ring.n_readers):
            info = self.info(reader)
            if info.serving and self.watched.get(reader) != info.incarnation:
                self.watch(reader, info.incarnation)
        ended = self.poll.ready()  # only now: a new pidfd may have the number of one that was closed
        for reader in range(self.ring.n_readers):
            info = self.info(reader)
            fd = self.pidfds.get(reader)
            if fd is None:
                gone = info.takes_part  # it died while it joined, or was found dead; or it has joined just now
            else:
                gone = fd.fd in ended or (closely and self.ring.has_ended(self.participant(reader)))
            if gone and self.recover(reader):
                died.append((reader, <uint32_t> info.incarnation if info.serving else 0))
        if died:
            raise readers_died(died)
        return 0

    cdef int watch(self, uint32_t reader, uint64_t incarnation) except -1:
        """Watch the process that has joined as a reader, in place of an earlier one."""
        self.forget(reader)
        fd = None
        try:
            fd = Descriptor(os.pidfd_open(<uint32_t> incarnation), f"the pidfd of reader {reader}")
            self.poll.add(fd.fd)
        except ProcessLookupError:
            pass
        self.watched[reader] = incarnation
        # Another process may have its pid by now.
        if fd is not None and not self.ring.has_ended(self.participant(reader)):
            self.pidfds[reader] = fd
        return 0

    cdef int forget(self, uint32_t reader) except -1:
        fd = self.pidfds.pop(reader, None)
        if fd is not None:
            self.poll.remove(fd.fd)
            fd.close()
        return 0

    cdef bint recover(self, uint32_t reader) except -1:
        """Release what a dead reader had; return whether it took part.

        A process that joins or leaves has the lock meanwhile. If it is not free, the next look does it.
        """
        cdef sr_reader_info info
        try:
            fcntl.flock(self.ring.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            info = self.info(reader)
            joining = info.takes_part and not info.serving  # it cannot be alive, because the lock is free
            if not joining and self.watched.get(reader) != info.incarnation:
                return False  # another process has joined since
            self.ring.recover(self.participant(reader))
            self.forget(reader)
        finally:
            fcntl.flock(self.ring.fd, fcntl.LOCK_UN)
        return info.takes_part

    cdef bint time_is_up(self, uint64_t give_up) except -1:
        """Between two waits: handle signals, check for a close and for deaths; return True to give up."""
        PyErr_CheckSignals()
        self.check()
        self.look()
        return clock() >= give_up

    cdef int await_readers(self, uint64_t give_up, timeout) except -1:
        """Wait until all readers take part."""
        cdef uint32_t reader
        cdef sr_reader_info info
        cdef uint64_t until, at
        for reader in range(self.ring.n_readers):
            while True:
                info = self.info(reader)
                if info.takes_part and info.serving:
                    break
                until, at = self.next_look(give_up, LOOK), clock()
                self.ring.wait_serving(self.participant(reader), (until - at) * 1e-9 if at < until else 0)
                info = self.info(reader)
                if info.takes_part and info.serving:
                    break
                if self.time_is_up(give_up):
                    raise not_joined_within(timeout, self._joined(), self.ring.n_readers)
        self.look()
        self.ready = True
        return 0

    def wait_until_ready(self, timeout=None):
        """Wait until all readers have joined, and tell them: their own `wait_until_ready` returns.

        The first `put` waits for the readers, too. This call needs a free slot until each reader has seen the mark.

        Parameters
        ----------
        timeout : float or None
            Seconds; None: without a limit.

        Raises
        ------
        TimeoutError
        ReaderDied
            A reader that had joined has died; wait again for its successor.
        Closed
        """
        cdef uint64_t give_up = deadline_of(True, timeout)
        self.begin(give_up, timeout)
        try:
            self.await_readers(give_up, timeout)
            # False: a participant that needs memory has just taken the slot.
            while not self.ring.share_end(self.await_slot(give_up, timeout), ITERATION, self.seq):
                pass
        except Closed:
            self.check()  # after a close(), its error names the broadcast
            raise
        finally:
            self.end()

    # ---- messages

    cdef int await_slot(self, uint64_t give_up, timeout) except -1:
        """Wait for a free slot; return its number."""
        cdef int slot = self.ring.pick_free()
        while slot < 0:
            if give_up != 0:
                slot = self.ring.await_free(self.next_look(give_up, LOOK), self.poll.number())
            if slot < 0 and self.time_is_up(give_up):
                slot = self.ring.pick_free()
                if slot < 0:
                    raise no_slot_within(timeout, self.ring.n_slots, self._late_readers())
        return slot

    cdef list _late_readers(self):
        """Return [(reader, pid, messages that it has yet to get, messages that it keeps)] of those that have any."""
        cdef uint32_t reader
        cdef sr_reader_info info
        found = []
        for reader in range(self.ring.n_readers):
            info = self.info(reader)
            if info.leases or (info.takes_part and info.lag):
                found.append((reader, <uint32_t> info.incarnation, info.lag, info.leases))
        return found

    cdef SlotWriter claim(self, uint64_t give_up, timeout):
        """Claim a free slot, as the worker for a task of this process."""
        cdef sr_task task
        cdef uint32_t slot = 0, which = SR_WHOLE
        cdef uint64_t gen = 0
        memset(&task, 0, sizeof(task))
        task.iteration, task.seq, task.kind = ITERATION, self.seq, SR_TASK_NEXT
        # A participant that needs memory may release that of the slot meanwhile.
        while self.ring.put_task(<uint32_t> self.await_slot(give_up, timeout), &task) == <uint64_t> -1:
            pass
        if not self.ring.claim_task(SR_CONSUMER, -1, &slot, &which, &gen):
            raise Closed(f"{self!r} was closed during put()")
        self.seq += 1
        return make_writer(self.ring, SR_CONSUMER, slot, SR_WHOLE, gen)

    cdef int send(self, SlotWriter slot_writer, value) except -1:
        """Encode a message and share it; release the slot if that fails. Return the number of its readers."""
        cdef Lease lease
        try:
            with slot_writer:  # the value's own code may allocate in the slot
                self.encoder.publish(slot_writer, [value])
        except SegmentFull as error:
            slot_writer.release()
            raise message_refused(error, self.ring.n_slots) from None
        except BaseException:
            self.encoder = Encoder()
            slot_writer.release()
            raise
        lease = take(self.ring, SR_CONSUMER, slot_writer.slot)
        return share(lease)

    def put(self, obj, timeout=None):
        """Put a message for all readers; wait for a free slot if necessary.

        The first call waits until all readers have joined.

        Parameters
        ----------
        obj
            Arrays, tensors, numbers, text, and containers of them are sent without pickle; other objects are pickled,
            with their buffers out of band. The message has been copied when this method returns.
        timeout : float or None
            Seconds; 0: do not wait; None: without a limit.

        Returns
        -------
        int
            The number of readers that will get the message: without those that have closed or died.

        Raises
        ------
        TimeoutError
            No slot became free in time, or not all readers joined. The error names the readers that are behind.
        ReaderDied
            A reader has died since the last call. Nothing was put; call again to continue with the others.
        BatchTooLarge, SegmentFull
            The message is larger than a slot, or there is no memory for it; nothing was put.
        Closed
        """
        cdef uint64_t give_up = deadline_of(True, timeout)
        self.begin(give_up, timeout)
        try:
            if not self.ready:
                self.await_readers(give_up, timeout)
            elif clock() - self.looked_at >= LOOK:
                self.look()
            return self.send(self.claim(give_up, timeout), obj)
        except Closed:
            self.check()  # after a close(), its error names the broadcast
            raise
        finally:
            self.end()

    # ---- the end

    @cython.critical_section
    def close(self):
        """End the broadcast: readers get the messages that were put, and then `~slipring.errors.ShutDown`.

        Waiting calls of other threads end with `~slipring.errors.Closed`. Nothing is buffered, so there is nothing to
        wait for. The memory is freed when the last reader has closed and dropped its messages.
        """
        if self.closed or self.ring is None:
            return
        self.closed = True
        if self.generation == forks():
            self.ring.close()
        if self.inside == 0 or self.generation != forks():
            self.dispose()

    cdef int dispose(self) except -1:
        self.ring = self.poll = None
        self.pidfds = {}
        return 0

    def __del__(self):
        self.close()


cdef class ReaderCore(End):
    """One reader of a broadcast; threads may share it, and each message goes to one of them."""

    cdef readonly uint32_t number
    cdef uint32_t participant
    cdef object writer          # pidfd of its process
    cdef int copy
    cdef uint64_t spin          # ns
    cdef list pending           # the leases of messages that `wait_until_ready` has taken, in each thread at most one
    cdef bint ready             # the writer has seen all readers: a message or a mark has come

    def _open(self, int fd, int record, writer, number, int copy, uint64_t spin):
        """Join, from descriptors of the segment, which are duplicated, and the pidfd of the writer."""
        cdef Ring ring = attached_ring(fd, record)
        self.writer, self.copy, self.spin, self.pending = writer, copy, spin, []
        fcntl.flock(ring.fd, fcntl.LOCK_EX)  # against other processes that join, and recovery
        try:
            self.number = self.join(ring, number)
        finally:
            fcntl.flock(ring.fd, fcntl.LOCK_UN)
        self.participant, self.ring = ring.n_participants + self.number, ring

    cdef uint32_t join(self, Ring ring, number) except? 99:
        cdef uint32_t reader
        if number is not None and not 0 <= number < ring.n_readers:
            raise not_a_reader(number, ring.n_readers)
        pids = []
        for reader in range(ring.n_readers) if number is None else (number,):
            pid = self.taken_by(ring, ring.n_participants + reader)
            if pid is None:
                ring.begin_reading(ring.n_participants + reader)
                return reader
            pids.append(pid)
        raise all_readers_joined(pids) if number is None else reader_is_taken(number)

    cdef object taken_by(self, Ring ring, uint32_t participant):
        """Return the pid of the process that reads with a number, or keeps messages; None if it is free."""
        cdef sr_reader_info info
        ring.reader_info(participant, &info)
        pid = <uint32_t> info.incarnation
        return pid if info.takes_part or (info.leases and pid != process.pid()) else None

    # ---- messages

    @cython.critical_section
    cdef Lease following(self, uint64_t give_up, bint marks):
        """Wait for the next message and take it; with `marks` also a mark. Return None when the time is up."""
        cdef sr_shared batch
        cdef Lease lease
        self.enter()
        try:
            while True:
                if self.pending:
                    return self.pending[0] if marks else self.pending.pop(0)
                if not self.is_there(give_up):
                    return None
                memset(&batch, 0, sizeof(batch))
                lease = take_shared(self.ring, self.participant, &batch)  # None: another thread was faster
                self.ready = self.ready or lease is not None
                if lease is not None and (marks or not batch.is_end):
                    return lease
        finally:
            self.leave()

    cdef bint is_there(self, uint64_t give_up) except -1:
        """Wait until a message is there; return whether it is."""
        # Without a GIL, messages that other threads have dropped here are freed when this thread settles.
        cdef uint64_t until, interval = LOOK if FREE_THREADED else LOOK_CLOSELY
        cdef Ring ring = self.ring
        try:
            if ring.await_shared(self.participant, 0, -1):
                return True
            if not give_up:
                # With a deadline in the past, the call does not wait, but checks whether the writer has died.
                return ring.await_shared(self.participant, 1, self.writer.fd)
            if self.spin:
                until = self.next_look(give_up, self.spin)
                if ring.spin_shared(self.participant, until):
                    return True
            while True:
                if ring.await_shared(self.participant, self.next_look(give_up, interval), self.writer.fd):
                    return True
                PyErr_CheckSignals()
                if FREE_THREADED:
                    settle()
                self.check()
                if clock() >= give_up:
                    break
                if ring.has_ended(SR_CONSUMER):  # exec does not make a pidfd readable
                    raise writer_died(ring.participant(0)[0])
        except Closed:
            self.check()
            if ring.closed:
                raise ShutDown("the writer has closed the broadcast, and no message of it is left") from None
            raise writer_died(ring.participant(0)[0]) from None
        return False

    def get(self, timeout=None, *, copy=None):
        """Get the next message; wait for it if necessary.

        Parameters
        ----------
        timeout : float or None
            Seconds; 0: do not wait; None: without a limit.
        copy : {'auto', 'always', 'never'} or None
            Whether arrays are views of the slot, or copies. The writer can use the slot again after all readers have
            deleted their views. Views are read-only, because other processes have the same bytes; torch has no
            read-only tensors, so do not write to them. 'auto' copies if views would leave fewer than two slots that no
            reader keeps. None: as set for the reader.

        Raises
        ------
        TimeoutError
            No message came in time.
        ShutDown
            The writer has closed the broadcast, and no message of it is left.
        WriterDied
            The writer has died, and no message of it is left.
        Closed
            This reader has been closed, perhaps by another thread during the call.
        CorruptBatch
            The message cannot be decoded here. It is lost.
        """
        cdef int how = self.copy if copy is None else <int> how_to_copy(copy)
        cdef Lease lease = self.following(deadline_of(True, timeout), False)
        if lease is None:
            raise no_message_within(timeout)
        return unpack_shared(lease, how)

    @cython.critical_section
    def wait_until_ready(self, timeout=None):
        """Wait until the writer has seen all readers: it has called `wait_until_ready`, or put a message.

        Parameters
        ----------
        timeout : float or None
            Seconds; None: without a limit.

        Raises
        ------
        TimeoutError, ShutDown, WriterDied, Closed
            As `get`.
        """
        cdef Lease lease
        cdef uint64_t give_up = deadline_of(True, timeout)
        self.check()
        if not self.ready:
            lease = self.following(give_up, True)
            if lease is None:
                raise no_message_within(timeout)
            if lease.result.kind != SR_END and lease not in self.pending:
                self.pending.append(lease)

    # ---- the end

    @cython.critical_section
    def close(self):
        """Take part no longer: drop all messages that were not got. Waiting calls of other threads end with Closed.

        Messages that were got stay valid. Another process may join in place of this reader.
        """
        if self.closed or self.ring is None:
            return
        self.closed = True
        if self.generation != forks():
            self.ring = None
        elif self.inside:
            self.ring.interrupt(True)
        else:
            self.dispose()

    cdef int dispose(self) except -1:
        cdef Ring ring = self.ring
        self.ring = self.writer = None
        self.pending = []
        if ring is not None:
            fcntl.flock(ring.fd, fcntl.LOCK_EX)  # as in `_open`
            try:
                ring.end_reading(self.participant)
            finally:
                fcntl.flock(ring.fd, fcntl.LOCK_UN)
        return 0

    def __del__(self):
        self.close()
