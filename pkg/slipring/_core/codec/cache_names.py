"""Find a cache by its name, among the processes of the same user.

A cache's memory has no name in the file system: it is a memfd, and /proc shows the label of each open memfd. A process
that looks for a cache therefore reads /proc. This also finds caches of stopped processes, and needs no server. When the
last process that uses a cache ends, nothing of the cache is left. Two processes that look at the same time would both
find nothing and both make a cache. So they take turns: each binds an abstract socket, which the kernel closes when the
process ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
import time
from typing import TYPE_CHECKING

from slipring.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PATIENCE = 60.0  # seconds: making a cache takes milliseconds, unless the process has been stopped


def label_of(name: str) -> str:
    """Return the text that /proc shows for the memory of a named cache."""
    if not isinstance(name, str) or not _NAMES.fullmatch(name):
        raise ValueError(
            f"name must be 1 to 100 letters, digits, '.', '_' or '-', and begin with a letter or a digit, not "
            f"{shown(name)}"
        )
    return f"slipring-cache:{name}"


def open_named(name: str, attach: Callable[[int], None], create: Callable[[], None]) -> bool:
    """Attach the cache that some process has under `name`, or else create it; return whether it existed.

    `attach` takes a descriptor, which is closed afterwards. `create` makes a memfd with the label of `name` and keeps
    its descriptor. If a process of another user holds the name's socket, PermissionError is raised. If another process
    of this user holds it for a minute, TimeoutError is raised.
    """
    with _turn(name):
        found = find(label_of(name))
        if found is None:
            create()
            return False
        try:
            attach(found)
        finally:
            os.close(found)
        return True


def find(label: str) -> int | None:
    """Return a new descriptor of the memory with that label, or None if no process of this user has it."""
    wanted = f"/memfd:{label} (deleted)"
    for pid in _own_processes():
        folder = f"/proc/{pid}/fd"
        with contextlib.suppress(OSError):  # the process has ended, or denies access
            for number in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(f"{folder}/{number}") == wanted:
                        return os.open(f"{folder}/{number}", os.O_RDWR | os.O_CLOEXEC)
    return None


def _own_processes() -> Iterator[str]:
    me = os.geteuid()
    try:
        entries = list(os.scandir("/proc"))
    except OSError as error:
        raise OSError(error.errno, "a cache with a name needs /proc, to find the processes that have it") from error
    for entry in entries:
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == me:
                    yield entry.name


_turns: set[socket.socket] = set()  # of this process's threads


def _leave_turns() -> None:
    """Close the parent's sockets in a forked child: otherwise the parent's turn would last until the child ends."""
    while _turns:
        _turns.pop().close()


os.register_at_fork(after_in_child=_leave_turns)


@contextlib.contextmanager
def _turn(name: str) -> Iterator[None]:
    """Keep other processes of this user waiting until the block ends. The turn ends with the process in any case."""
    address = f"\0slipring-cache:{os.geteuid()}:{name}"
    deadline = time.monotonic() + _PATIENCE
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
            try:
                mine.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                mine.listen(128)
                _turns.add(mine)
                try:
                    yield
                finally:
                    _turns.discard(mine)
                return
        _wait_for(address, name, deadline)


def _wait_for(address: str, name: str, deadline: float) -> None:
    """Wait until the process that has its turn closes its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as theirs:
        theirs.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            theirs.connect(address)
            pid, uid, _ = struct.unpack("3i", theirs.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.geteuid():
                raise PermissionError(
                    f"process {pid} of another user (uid {uid}) holds the address where caches named {name!r} of uid "
                    f"{os.geteuid()} are looked for; choose another name"
                )
            theirs.recv(1)  # returns when the other process closes its socket
        except (ConnectionError, BlockingIOError):
            time.sleep(0.001)  # bound and not listening yet, or just closed: there is no event to wait for
        except TimeoutError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"another process has been opening the cache {name!r} for {_PATIENCE:.0f} s; is it stopped? "
                f"`ss -xlp` shows it"
            )
