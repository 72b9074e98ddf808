"""Messages between the processes that share a stream, over Unix sockets, and how these processes connect."""

import collections
import contextlib
import itertools
import operator
import os
import pickle
import secrets
import select
import socket
import struct
import sys
from functools import partial

from slipring._core.ring.process import Owner
from slipring._core.workers.channel import peer_of
from slipring._core.workers.stateful import attempt
from slipring.errors import Closed, LeadDied

MAX_READERS = 40  # of a segment, as SR_MAX_READERS
CONNECT_S = 60.0  # far longer than a living process needs to connect to another one
MESSAGE = 1 << 17  # bytes of the longest message
LARGEST_ERROR = 1 << 15  # bytes of an exception in a message; of a larger one only the text is sent


# ---- messages


def packed_error(error):
    """Return an exception as (text, pickle) for a message; the pickle is None if it is large or impossible."""
    if error is None:
        return None, None
    data, failed = attempt(pickle.dumps, error)
    return f"{type(error).__name__}: {error}"[:LARGEST_ERROR], None if failed or len(data) > LARGEST_ERROR else data


def unpacked_error(text, data, where):
    """Return the exception of a message: the original one, or `Closed` with its text."""
    error = None if data is None else attempt(pickle.loads, data)[0]
    return error if isinstance(error, Exception) else Closed(f"{where}: {text}")


class Connection:
    """One end of the connection of a reader and its lead. `rank` and `pid` are those of the process at the other end.

    `is_over`: the other end is closed, because that process has dropped its loader, or has died.
    """

    def __init__(self, connection, rank, pid):
        self.pidfd, self.owner = -1, Owner()
        self.rank, self.pid, self.socket = rank, pid, connection
        self.socket.setblocking(False)
        self.inbox, self.is_over = collections.deque(), False
        room = socket.CMSG_SPACE(2 * struct.calcsize("i"))
        self._receive = partial(self.socket.recvmsg, MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
        self.pidfd = os.pidfd_open(pid)

    @property
    def name(self):
        """str: the process at the other end, for messages."""
        return f"rank {self.rank} (pid {self.pid})"

    def is_dead(self):
        """Return whether the process at the other end has died."""
        return bool(polled([self.pidfd], 0))

    def send(self, *message, fds=()):
        """Send a message; return whether the other process can still receive it."""
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        try:
            self.socket.sendmsg([pickle.dumps(message)], sent)
        except (BrokenPipeError, ConnectionResetError):
            self.is_over = True
        return not self.is_over

    def collect(self):
        """Move the messages that have arrived to `inbox`; no signal handler can run between the two."""
        arrived = itertools.takewhile(operator.itemgetter(0), iter(self._receive, None))
        try:
            self.inbox.extend(arrived)
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        self.is_over = True

    def messages(self):
        """Yield (message, descriptors) of those that have arrived; each is removed when the next one is requested."""
        self.collect()
        while self.inbox:
            data, more, _, _ = self.inbox[0]
            numbers = [struct.unpack(f"{len(raw) // struct.calcsize('i')}i", raw) for _, _, raw in more]
            yield pickle.loads(data), [*itertools.chain(*numbers)]
            self.inbox.popleft()

    def receive(self):
        """Wait for a message without descriptors, and return it; raise `LeadDied` if none will come."""
        while not (arrived := [message for message, _ in self.messages()]):
            if self.is_over or self.is_dead():
                raise LeadDied(f"{self.name} has died before it had made its loader", rank=self.rank, pid=self.pid)
            polled([self.socket.fileno(), self.pidfd], -1)
        return arrived[0]

    def close(self):
        """Close the connection."""
        if self.owner.is_here and self.pidfd >= 0:
            with contextlib.suppress(OSError):  # the other end is closed already
                self.socket.shutdown(socket.SHUT_RDWR)  # forked processes have the socket, too
            self.socket.close()
            os.close(self.pidfd)
            self.pidfd = -1

    def __del__(self, is_finalizing=sys.is_finalizing):
        if not is_finalizing():  # the kernel closes it then, and the modules have lost their names
            self.close()


def polled(fds, timeout_s):
    """Return those descriptors that are readable, or whose other end is closed, after at most so many seconds."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_s * 1e3)]


# ---- the connection


def listening():
    """Return (a socket that waits for connections, its address)."""
    listener, address = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), f"\0slipring-{secrets.token_hex(16)}"
    listener.bind(address)
    listener.listen(MAX_READERS)
    return listener, address


def connected(address, rank, pid):
    """Return the `Connection` to a process that listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
    except ConnectionRefusedError:
        raise LeadDied(f"rank {rank} (pid {pid}) has died before it had made its loader", rank=rank, pid=pid) from None
    found, uid, _ = peer_of(connection)
    if (found, uid) != (pid, os.geteuid()):
        raise PermissionError(f"share=: process {found} of user {uid} answers in the place of rank {rank} (pid {pid})")
    return Connection(connection, rank, pid)


def _pidfd(rank, pid):
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise RuntimeError(f"share=: rank {rank} (pid {pid}) has died before it had made its loader") from None


def accepted(listener, expected):
    """Return the `Connection`s to the processes in `expected`, {pid: rank}, in that order; they connect now."""
    connections, deaths = {}, {}
    try:
        for pid, rank in expected.items():
            deaths[pid] = _pidfd(rank, pid)
        while missing := [pid for pid in expected if pid not in connections]:
            if listener.fileno() not in polled([listener.fileno(), *(deaths[pid] for pid in missing)], CONNECT_S):
                names = ", ".join(f"{expected[pid]} (pid {pid})" for pid in missing)
                raise RuntimeError(f"share=: no connection from rank {names}, which must make its loader, too")
            connection, _ = listener.accept()
            pid, uid, _ = peer_of(connection)
            if uid == os.geteuid() and pid in expected:
                connections[pid] = Connection(connection, expected[pid], pid)
    finally:
        for fd in deaths.values():
            os.close(fd)
        listener.close()
    return [connections[pid] for pid in expected]
