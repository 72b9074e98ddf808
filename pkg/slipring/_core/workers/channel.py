"""Messages between the processes of a pool: pickles, with the descriptors that they need."""

import collections
import contextlib
import errno
import io
import itertools
import os
import pickle
import select
import socket
import struct
import threading
from multiprocessing import context
from multiprocessing.reduction import DupFd, ForkingPickler

HEADER = struct.Struct("<QI")  # bytes of the pickle, number of descriptors
AT_ONCE = 200  # descriptors; the kernel sends at most 253 in one call

_arriving = threading.local()  # .fds: the descriptors of the message that this thread is reading


def peer_of(sock):
    """Return (pid, user id, group id) of the process that connected to a Unix socket, or began to listen."""
    return struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))


class Gone(EOFError):
    """The other process has gone, or has closed its end: no error of the classes in a message."""


class Channel:
    """One end of a Unix stream socket. One thread uses it.

    If the socket does not block, no call waits for the other process: `send` keeps the bytes that the socket does not
    take, for `flush`, and `receive` returns None until a whole message has arrived.

    The other end belongs to the same user: check `peer` before the first message is read, which runs its pickle.
    """

    def __init__(self, sock):
        self.sock = sock
        self.unsent = collections.deque()  # of [bytes, descriptors that go with them]
        self._expect_message()

    def fileno(self):
        """Return the descriptor of the socket; -1 after `close`."""
        return self.sock.fileno()

    def peer(self):
        """See `peer_of`."""
        return peer_of(self.sock)

    def send(self, *message):
        """Send a message: objects that could be sent to a process that is being started."""
        outgoing, stream = _Outgoing(), io.BytesIO()
        try:
            with outgoing.sending():
                ForkingPickler(stream, pickle.HIGHEST_PROTOCOL).dump(message)
        except BaseException:
            _close_all(outgoing.fds)
            raise
        data, fds = stream.getbuffer(), outgoing.fds
        self.unsent.append([HEADER.pack(len(data), len(fds)), []])
        self.unsent.extend([b"f", fds[first : first + AT_ONCE]] for first in range(0, len(fds), AT_ONCE))
        self.unsent.append([data, []])
        self.flush()

    def flush(self):
        """Send as much of the earlier messages as the socket takes; Gone: the other process has gone."""
        try:
            while self.unsent:
                data, fds = self.unsent[0]
                sent = socket.send_fds(self.sock, [data], fds) if fds else self.sock.send(data)
                _close_all(fds)
                if sent == len(data):
                    self.unsent.popleft()
                else:
                    self.unsent[0] = [data[sent:], []]
        except BlockingIOError:
            pass
        except OSError as error:
            raise Gone("the other process has gone") from error

    def receive(self):
        """Wait for a message and return it as a tuple; Gone: the other process has gone, or closed its end."""
        try:
            self._fill()
            if self._body is None:
                length, n = HEADER.unpack(self._head)
                while len(self._fds) < n:
                    _, more, flags, _ = socket.recv_fds(self.sock, 1, AT_ONCE, socket.MSG_CMSG_CLOEXEC)
                    self._fds += more
                    if flags & socket.MSG_CTRUNC:  # the kernel has dropped those for which this process has no number
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                    if not more:
                        raise Gone("the other process has gone")
                self._body = bytearray(length)
                self._missing = memoryview(self._body)
                self._fill()
        except BlockingIOError:
            return None
        except ConnectionError as error:
            raise Gone("the other process has gone") from error
        data, _arriving.fds = self._body, self._fds
        self._expect_message()
        try:
            return pickle.loads(data)
        finally:
            _close_all(fd for fd in _arriving.fds if fd >= 0)
            _arriving.fds = None

    def _expect_message(self):
        self._head, self._fds, self._body = bytearray(HEADER.size), [], None
        self._missing = memoryview(self._head)  # of the head or the body

    def _fill(self):
        while self._missing:
            got = self.sock.recv_into(self._missing)
            if not got:
                raise Gone("the other process has gone")
            self._missing = self._missing[got:]

    def has_message(self, seconds=0.0):
        """Return whether a message, or the end, arrives within that time; None: wait without a limit."""
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        return bool(waiting.poll(None if seconds is None else int(1000 * seconds)))

    def close(self):
        """Close this end. A second call does nothing."""
        self.sock.close()
        _close_all(itertools.chain(self._fds, *(fds for _, fds in self.unsent)))
        self._fds, self.unsent = [], collections.deque()


def _close_all(fds):
    for fd in fds:
        os.close(fd)


class _Outgoing:
    """A stand-in for a process that is being started: multiprocessing's picklers give it their descriptors.

    The message gets duplicates, because it may be sent after its sender has closed the descriptors.
    """

    def __init__(self):
        self.fds = []

    def duplicate_for_child(self, fd):
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    DupFd = staticmethod(lambda index: Arrived(index))

    @contextlib.contextmanager
    def sending(self):
        before = context.get_spawning_popen()
        context.set_spawning_popen(self)
        try:
            yield
        finally:
            context.set_spawning_popen(before)


class Arrived:
    """A descriptor of a message, for the code that unpickles it."""

    def __init__(self, index):
        self.index = index

    def detach(self):
        """Return the descriptor, which the caller then owns."""
        fd, _arriving.fds[self.index] = _arriving.fds[self.index], -1
        return fd


class Duplicate:
    """A descriptor in a message; it arrives as the number of a duplicate, which the receiver owns."""

    def __init__(self, fd):
        self.fd = fd

    def __reduce__(self):
        return Arrived.detach, (DupFd(self.fd),)
