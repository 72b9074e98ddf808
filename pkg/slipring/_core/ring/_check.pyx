"""Return codes of the C ring as exceptions, and which exceptions come from signal handlers."""

import _signal
import os
import signal
import sys
from functools import partial
from types import FunctionType, MethodType

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EBADF, EFBIG, EINTR, ENOMEM, ENOSPC, ESHUTDOWN, ESTALE, EXDEV
from libc.stdint cimport uint64_t

from posix cimport signal as c_signal

from slipring._core.ring cimport _cring as c
from slipring.errors import Closed, SlotLost
from slipring._core.ring.text import FILE_SIZE, descriptor_closed, segment_full, segment_refused

BACKINGS = {"auto": c.SR_BACKING_AUTO, "shm": c.SR_BACKING_SHM, "memfd": c.SR_BACKING_MEMFD}
COPY_WAYS = (None, "memcpy", "stores of 16 bytes", "stores of 64 bytes")  # enum sr_copy
BACKING_NAMES = {
    c.SR_BACKING_AUTO: "attached",
    c.SR_BACKING_SHM: "shm",
    c.SR_BACKING_MEMFD: "memfd",
    c.SR_BACKING_DIR: "dir",
}
LIMITS = {
    c.SR_LIMIT_FILESYSTEM: "the file system that holds the segment",
    c.SR_LIMIT_CGROUP: "the memory cgroup (the container's limit)",
    c.SR_LIMIT_MEMORY: "the machine's available memory",
    c.SR_LIMIT_ADDRESS: "the limit on address space (RLIMIT_AS, ulimit -v)",
    c.SR_LIMIT_FILESIZE: FILE_SIZE,
    c.SR_LIMIT_MAPPED: "the address space that the process has left",
    c.SR_LIMIT_MAPPINGS: "the number of mappings (vm.max_map_count)",
    c.SR_LIMIT_LOCKED: "the limit on locked memory (RLIMIT_MEMLOCK, ulimit -l)",
    c.SR_LIMIT_BUDGET: "this loader's part of the memory= of its pool",
}
# Limits that apply when a segment is made; the others apply when a batch needs memory.
RESERVED = (c.SR_LIMIT_ADDRESS, c.SR_LIMIT_MAPPED, c.SR_LIMIT_MAPPINGS, c.SR_LIMIT_LOCKED)


cdef int refused(int rc) except -1:
    """Raise the exception for a negative code."""
    if rc == -EINTR:
        PyErr_CheckSignals()
        return 0
    if rc == -ESHUTDOWN:
        raise Closed("the segment has been closed; make a new loader, or a new iterator of it")
    if rc == -ESTALE:
        raise SlotLost("the slot has another batch now: it was taken from a worker thought dead")
    if rc == -EXDEV:
        raise OSError(EXDEV, "made in another PID namespace, whose processes this one cannot watch: run "
                      "all its processes in one container")
    raise OSError(-rc, os.strerror(-rc))


cdef int refuse(int rc, c.sr_alloc_error *why, uint64_t slots) except -1:
    """Turn a refusal of memory into SegmentFull, with the numbers and the remedy."""
    if why.limit in RESERVED:
        raise segment_refused(why.needed, why.free, LIMITS[why.limit], slots)
    if rc == -ENOSPC or rc == -EFBIG or rc == -ENOMEM:
        raise segment_full(why.needed, why.free, LIMITS.get(why.limit, "the system"), slots)
    if rc == -EBADF:
        raise descriptor_closed("a segment")
    return check(rc)


def from_handler(error):
    """Return whether a signal handler of this program raised an exception, or an exception in its context.

    Code that catches exceptions in order to skip, retry or substitute calls this function, and raises the handler's
    exception. An exception that a caller is handling at this moment does not count. The function runs no Python code,
    not even that of the module signal: another handler could raise in it.
    """
    codes, seen, running = set(), set(), None
    for number in _signal.valid_signals():
        handler = _signal.getsignal(number)
        if callable(handler):
            codes.add(code_of(handler))
    while codes and error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code in codes:
                return True
            traceback = traceback.tb_next
        error = error.__context__
        if error is not None and error.__traceback__ is not None:
            if running is None:
                running, frame = set(), sys._getframe()
                while frame is not None:
                    running.add(frame)
                    frame = frame.f_back
            if error.__traceback__.tb_frame in running:
                break
    return False


cdef object code_of(called):
    """Return the code that runs first when something is called; None if it is not Python code."""
    while type(called) is not FunctionType:
        if isinstance(called, partial):
            called = called.func
        elif type(called) is MethodType:
            called = called.__func__
        else:
            called = type(called).__call__
            if type(called) is not FunctionType:
                return None
    return called.__code__


def put_handlers(dict handlers):
    """Install all signal handlers, even if one of them raises meanwhile; its exception is raised at the end.

    It is compiled, because no handler runs here except in `signal.signal` itself, before it has done anything.
    """
    raised = None
    for number, handler in handlers.items():
        restarts = _restarts_calls(number)
        for _ in range(100):  # again while a handler raises
            error = first_raised(None, signal.signal, (number, handler))
            if error is None:
                break
            raised = error if raised is None else raised
        if restarts:
            signal.siginterrupt(number, False)  # signal.signal has undone it
    if raised is not None:
        raise raised


def hand_back(dict handlers, mask, list came):
    """Restore handlers and a signal mask, and call the handlers of the signals that came meanwhile.

    All of this happens even if they raise; the first exception is raised at the end.
    """
    raised = first_raised(None, put_handlers, (handlers,))
    raised = first_raised(raised, signal.pthread_sigmask, (signal.SIG_SETMASK, mask))  # runs pending handlers
    for what in came:
        raised = first_raised(raised, handlers[what[0]], tuple(what))
    if raised is not None:
        raise raised


cdef object first_raised(raised, function, tuple arguments):
    """Call a function; return `raised`, or if that is None the exception that the function raises, or None."""
    try:
        function(*arguments)
    except BaseException as error:
        return error if raised is None else raised
    return raised


cdef bint _restarts_calls(int number) except -1:
    """Return whether system calls continue after a signal (`signal.siginterrupt`)."""
    cdef c_signal.sigaction_t now
    return c_signal.sigaction(number, NULL, &now) == 0 and (now.sa_flags & c_signal.SA_RESTART) != 0
