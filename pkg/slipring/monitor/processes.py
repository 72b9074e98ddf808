"""What /proc says about processes."""

import os
import pwd
import select
from typing import NamedTuple

from slipring.redaction import program_of

PROC = "/proc"
PF_EXITING = 4  # of the kernel's flags of a task


class Process(NamedTuple):
    """A process as /proc/<pid>/stat describes it: state ('R', 'S', 'D', 'T', 'Z', ...), start and CPU time in ticks.

    A process that is `ending` closes its files, or has done so; on a loaded machine that may take seconds.
    """

    state: str
    parent: int
    started: int
    cpu_ticks: int
    ending: bool


def process(pid):
    """Return the `Process` of that pid; None: there is none, or it is hidden."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            said = file.read()
    except OSError:
        return None
    fields = said[said.rindex(b")") + 2 :].split()
    ending = bool(int(fields[6]) & PF_EXITING)
    return Process(fields[0].decode(), int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12]), ending)


def is_alive(found):
    """Return whether a `Process` or None still runs, or may run again."""
    return found is not None and lives(found.state)


def lives(state):
    """Return whether a process in that state still runs, or may run again."""
    return state not in ("", "Z", "X", "x")


def state_of(pid, started):
    """Return the state of a process that began at tick `started`; "": it has gone, and its pid may be another's."""
    found = process(pid) if pid else None
    return found.state if found is not None and started in (0, found.started) else ""


def one_line(text):
    """Return another process's text as one line that does nothing to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def pids():
    """Return the pids of all visible processes."""
    return sorted(int(name) for name in os.listdir(PROC) if name.isdigit())


def command(pid, arguments=False):
    """Return a process's command line in one line, without the folder of its program; "" if it is unknown.

    Without `arguments`, which may be secrets, it ends at the name of the script.
    """
    try:
        with open(f"{PROC}/{pid}/cmdline", "rb") as file:
            words = file.read().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    words = [one_line(word.decode(errors="replace")) for word in words]
    return " ".join([os.path.basename(words[0]), *words[1:]]).strip() if arguments else program_of(words)


def user(pid):
    """Return (number, name) of a process's user; OSError if there is no such process."""
    uid = os.stat(f"{PROC}/{pid}").st_uid
    try:
        return uid, pwd.getpwuid(uid).pw_name
    except KeyError:
        return uid, f"user {uid}"


def hides_processes():
    """Return whether /proc hides the processes of other users (hidepid)."""
    try:
        with open(f"{PROC}/self/mountinfo") as file:
            lines = [line.split() for line in file]
    except OSError:
        return False
    return any(
        line[4] == PROC and option.partition("=")[0] == "hidepid" and option not in ("hidepid=0", "hidepid=off")
        for line in lines
        for option in line[-1].split(",")
    )


def namespace(pid="self"):
    """Return the inode of a process's PID namespace; 0 if it is unknown."""
    try:
        return os.stat(f"{PROC}/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def numbers_of(wanted):
    """Return {pid there: pid here} of the processes that live in a PID namespace."""
    found = {}
    for pid in pids():
        if namespace(pid) != wanted:
            continue
        try:
            with open(f"{PROC}/{pid}/status") as file:
                inner = [line.split()[-1] for line in file if line.startswith("NSpid:")]
        except OSError:
            continue  # it has ended meanwhile
        if inner:
            found[int(inner[0])] = pid
    return found


class Ending:
    """A context manager that waits for the end of a process.

    If `pid` is 0, or the process has ended before, only time passes.
    """

    def __init__(self, pid):
        self._poll, self._fd = select.poll(), -1
        if pid:
            try:
                self._fd = os.pidfd_open(pid)
            except OSError:
                return  # it has ended
            self._poll.register(self._fd, select.POLLIN)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._fd >= 0:
            os.close(self._fd)

    def wait(self, seconds):
        """Wait `seconds`, or until the process ends; return whether it has ended."""
        return bool(self._poll.poll(max(0.0, seconds) * 1e3))
