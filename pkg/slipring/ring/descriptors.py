"""Descriptors of slipring's: never a standard stream's number, and never somebody else's file.

Where a program was started without a standard stream, the first file that is opened gets its number, and what
C code prints goes there. And code may close descriptors that it did not open (os.closerange): then the next
file that is opened has a number that we remember.
"""

import contextlib
import fcntl
import os

from slipring.ring import _epoll

STANDARD = 3  # numbers below it are the standard streams'


def beyond_standard(fd):
    """Move a new descriptor away from the standard streams' numbers; returns it."""
    if fd >= STANDARD:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, STANDARD)
    finally:
        os.close(fd)


@contextlib.contextmanager
def standard_taken():
    """Keep the standard streams' numbers from what is opened in the block by code that is not ours.

    What is started in it has them too, as streams that lead nowhere.
    """
    taken = []
    try:
        while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < STANDARD:
            os.set_inheritable(fd, True)
            taken.append(fd)
        os.close(fd)
        yield
    finally:
        for fd in taken:
            os.close(fd)


def identity(fd):
    """What tells an open file from every other one; None if the descriptor is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    found = [status.st_dev, status.st_ino]
    # All eventfds, epolls and (before Linux 6.9) pidfds have one inode.
    with contextlib.suppress(OSError):
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
        with open(f"/proc/self/fdinfo/{fd}") as file:
            found += [line for line in file if line.startswith(("eventfd-id:", "Pid:", "clockid:"))]
    return found


class Descriptor:
    """A descriptor that is closed by `close` alone, and only if it still is what it was.

    Parameters
    ----------
    fd : int
        Just opened; it may be moved.
    """

    fd, identity = -1, None

    def __init__(self, fd):
        self.fd = beyond_standard(fd)
        self.identity = identity(self.fd)

    def intact(self):
        """Whether nobody else has closed it."""
        return self.fd >= 0 and _same(identity(self.fd), self.identity)

    def seems_intact(self):
        """The same at the cost of a system call; another of its kind in its place may escape it."""
        try:
            status = os.fstat(self.fd)
        except OSError:
            return False
        return self.identity is None or [status.st_dev, status.st_ino] == self.identity[:2]

    def close(self):
        """Close it; twice is once."""
        if self.intact():
            fd, self.fd = self.fd, -1
            os.close(fd)
        self.fd = -1


def _same(now, then):
    # The pidfd of a process that has been waited for names nobody any more. Where nothing could be asked, trust it.
    if now is None or then is None:
        return now is not None
    return all(a == b or a == "Pid:\t-1\n" for a, b in zip(now, then, strict=False))


class Poll(Descriptor):
    """An epoll of descriptors to be read. (Not `select.epoll`, which closes its number in any case.)"""

    def __init__(self):
        for self.fd in map(_epoll.create, (STANDARD,)):  # no call comes between the descriptor and its place
            break
        self.identity = identity(self.fd)

    def __del__(self, fstat=os.fstat, close=os.close):  # the modules may have gone by then
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                status = fstat(fd)
                # (None: a handler has raised while it was made.)
                if self.identity is None or [status.st_dev, status.st_ino] == self.identity[:2]:
                    close(fd)

    def add(self, fd):
        """Look at a descriptor from now on."""
        _epoll.add(self.fd, fd)

    def remove(self, fd):
        """Look at it no longer."""
        _epoll.remove(self.fd, fd)

    def ready(self, seconds=0):
        """Wait for any of them; return the set of those numbers that are readable."""
        return _epoll.ready(self.fd, seconds)
