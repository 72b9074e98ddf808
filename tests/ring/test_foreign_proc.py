"""A container with its own PID namespace but the machine's /proc: its PIDs belong to other processes there."""

import ctypes
import errno
import os
import struct
import traceback

import pytest

from tests.support.inside import memory as growth

CLONE_NEWPID, SYS_CLONE3, SIGCHLD = 0x20000000, 435, 17
SKIPPED = 77
OUTSIDE = os.getpid()
libc = ctypes.PyDLL(None, use_errno=True)  # clone() must not release the GIL


def ended(function):
    """Call `function` in a forked process; return the exit code."""
    pid = os.fork()
    if pid == 0:
        run(function)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(function):
    code = 1
    try:
        code = function() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def in_a_pid_namespace(function):
    """Call `function` in the first process of a PID namespace, which keeps the machine's /proc."""

    def unshared():
        return SKIPPED if libc.unshare(CLONE_NEWPID) != 0 else ended(function)

    code = ended(unshared)
    if code == SKIPPED:
        pytest.skip("a PID namespace cannot be made here")
    assert code == 0


def of_one_number(function):
    """Call `function` in a nested namespace, in a process whose number also exists outside."""
    for number in range(30_000, 20_000, -1):
        numbers = struct.pack("ii", number, number)
        pids = ctypes.create_string_buffer(numbers)
        how = struct.pack("10Q", 0, 0, 0, 0, SIGCHLD, 0, 0, 0, ctypes.addressof(pids), 2)
        pid = libc.syscall(SYS_CLONE3, how, len(how))
        if pid == 0:
            run(function)
        if pid > 0:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if ctypes.get_errno() != errno.EEXIST:
            return SKIPPED  # the kernel is too old, or does not allow it
    raise AssertionError("all numbers are taken")


def nothing_is_told():
    assert os.path.exists(f"/proc/{OUTSIDE}/pagemap")  # although this namespace has no such process
    assert growth.private_bytes(OUTSIDE) is None


def test_memory_of_other_processes_is_not_taken_for_a_workers():
    assert growth.private_bytes(OUTSIDE) > 0
    in_a_pid_namespace(nothing_is_told)


def test_nor_by_a_process_that_has_the_same_number_in_both_namespaces():
    def same():
        assert os.readlink("/proc/self") == str(os.getpid())
        nothing_is_told()

    in_a_pid_namespace(lambda: of_one_number(same))
