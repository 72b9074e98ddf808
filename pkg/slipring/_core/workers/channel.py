"""Messages between the processes of a pool: pickles, with the descriptors that they need."""

import contextlib
import io
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


class Channel:
    """One end of a Unix stream socket. One thread uses it.

    The other end belongs to the same user: check `peer` before the first message is read, which runs its pickle.
    """

    def __init__(self, sock):
        self.sock = sock

    def fileno(self):
        """Return the descriptor of the socket; -1 after `close`."""
        return self.sock.fileno()

    def peer(self):
        """See `peer_of`."""
        return peer_of(self.sock)

    def send(self, *message):
        """Send a message: objects that could be sent to a process that is being started."""
        outgoing = _Outgoing()
        with outgoing.sending():
            stream = io.BytesIO()
            ForkingPickler(stream, pickle.HIGHEST_PROTOCOL).dump(message)
        data, fds = stream.getbuffer(), outgoing.fds
        try:
            self.sock.sendall(HEADER.pack(len(data), len(fds)))
            for first in range(0, len(fds), AT_ONCE):
                socket.send_fds(self.sock, [b"f"], fds[first : first + AT_ONCE])
            self.sock.sendall(data)
        except ConnectionError as error:
            raise EOFError("the other process has gone") from error

    def receive(self):
        """Wait for a message and return it as a tuple; EOFError: the other process has gone, or closed its end."""
        length, n = HEADER.unpack(self._exactly(HEADER.size))
        fds = []
        try:
            while len(fds) < n:
                _, more, _, _ = socket.recv_fds(self.sock, 1, AT_ONCE, socket.MSG_CMSG_CLOEXEC)
                if not more:
                    raise EOFError("the other process has gone")
                fds += more
            data = self._exactly(length)
            _arriving.fds = fds
            return pickle.loads(data)
        except ConnectionError as error:
            raise EOFError("the other process has gone") from error
        finally:
            _arriving.fds = None
            for fd in fds:
                if fd >= 0:
                    os.close(fd)

    def _exactly(self, n):
        data = bytearray(n)
        view = memoryview(data)
        while view:
            try:
                got = self.sock.recv_into(view)
            except ConnectionError as error:
                raise EOFError("the other process has gone") from error
            if not got:
                raise EOFError("the other process has gone")
            view = view[got:]
        return data

    def has_message(self, seconds=0.0):
        """Return whether a message, or the end, arrives within that time; None: wait without a limit."""
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        return bool(waiting.poll(None if seconds is None else int(1000 * seconds)))

    def close(self):
        """Close this end. A second call does nothing."""
        self.sock.close()


class _Outgoing:
    """A stand-in for a process that is being started: multiprocessing's picklers give it their descriptors."""

    def __init__(self):
        self.fds = []

    def duplicate_for_child(self, fd):
        self.fds.append(fd)
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
