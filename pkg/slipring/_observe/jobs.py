"""Slipring's segments on this machine: found by the files that processes have open, and watched from outside.

Nothing is written, and no process is stopped or queried. Therefore a job that hangs can be watched like one that runs.
"""

import os
import pwd
import select
import stat
import struct
from typing import NamedTuple

from slipring._core.ring import process
from slipring._core.ring._watch import InRecordFile, NoSegment, Watch
from slipring._core.ring.text import short
from slipring.errors import SlipringError
from slipring.redaction import program_of

MAGIC = b"SLIPRING"
PROC = "/proc"
PF_EXITING = 4  # of the kernel's flags of a task


# ---- processes in /proc


class Process(NamedTuple):
    """A process as /proc/<pid>/stat describes it: state ('R', 'S', 'D', 'T', 'Z', ...), start and CPU time in ticks.

    A process that is `ending` closes its files, or has done so; on a loaded machine that may take seconds.
    """

    state: str
    parent: int
    started: int
    cpu_ticks: int
    ending: bool


def process_of(pid):
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
    """Return the state of a process that began at tick `started`; "": it has ended, and its pid may be another's."""
    found = process_of(pid) if pid else None
    return found.state if found is not None and started in (0, found.started) else ""


def one_line(text):
    """Return another process's text as one line without control characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def pids():
    """Return the pids of all visible processes."""
    return sorted(int(name) for name in os.listdir(PROC) if name.isdigit())


def command_of(pid, arguments=False):
    """Return a process's command line in one line, without the folder of its program; "" if it is unknown.

    Without `arguments`, which may be secrets, it ends at the name of the script.
    """
    try:
        with open(f"{PROC}/{pid}/cmdline", "rb") as file:
            parts = file.read().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    parts = [one_line(word.decode(errors="replace")) for word in parts]
    return " ".join([os.path.basename(parts[0]), *parts[1:]]).strip() if arguments else program_of(parts)


def environ_of(pid):
    """Return the environment variables with which a process's program was started; empty if they are unknown."""
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            variables = file.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(variable.split("=", 1) for variable in variables if "=" in variable)


def user_of(pid):
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


# ---- segments


class NoJob(SlipringError):
    """The reason, in one line, why there is nothing to watch."""


class WatchedJob:
    """A segment, and the processes that have it open."""

    def __init__(self, watch, key, path):
        # key: (device, inode) of the segment's file, or of its record file; path: the file as /proc names it
        self.watch, self.key, self.path = watch, key, path
        self.holders = {}  # pid -> the process's descriptor of the file
        self._there = None  # number in the job's PID namespace -> number here

    @property
    def push(self):
        """bool: whether it is a queue's segment, in which no participant is the consumer."""
        return self.watch.segment_info()["push"]

    @property
    def kind(self):
        """str: "queue" or "loader"."""
        return "queue" if self.push else "loader"

    def number(self, pid):
        """Return the pid of a participant in this PID namespace; 0: it has none here, or it has ended."""
        its = self.watch.segment_info()["pid_namespace"]
        if not pid or its in (0, namespace()):
            return int(pid)
        if self._there is None or pid not in self._there:
            self._there = numbers_of(its)
        return self._there.get(int(pid), 0)

    def participant_pids(self):
        """Return the pids of all participants, in the job's PID namespace."""
        found = (self.watch.participants(), self.watch.readers())
        return sorted({int(pid) for some in found for pid in some["pid"]} - {0})

    @property
    def elsewhere(self):
        """bool: whether its processes are in another PID namespace than this one."""
        return self.watch.segment_info()["pid_namespace"] not in (0, namespace())

    @property
    def pid(self):
        """int: pid of the consumer's process, or of a queue's first participant; 0: it has no pid in this namespace."""
        participants = self.watch.participants()
        owners = participants["pid"][:1] if not self.push else participants["pid"][participants["pid"] > 0]
        numbers = [self.number(int(pid)) for pid in owners]
        alive = [pid for pid in numbers if pid and is_alive(process_of(pid))]
        return next(iter(alive + [pid for pid in numbers if pid]), 0)

    def named(self, arguments=False):
        """Return the segment's label and its process's script, with `arguments` if requested; else the file."""
        label = one_line(self.watch.segment_info()["label"])
        said = filter(None, (label, command_of(self.pid, arguments)))
        return " · ".join(said) or self.path

    def is_there(self):
        """Return whether a process still has the segment: the job's own, or any process of a queue."""
        own = self.pid
        held = list(self.holders.items()) if self.push or own not in self.holders else [(own, self.holders[own])]
        return any(self._is_held(pid, descriptor) for pid, descriptor in held)

    def _is_held(self, pid, descriptor):
        try:
            found = os.stat(f"{PROC}/{pid}/fd/{descriptor}")
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.key

    def index_at(self, slot, row):
        """Return the index in a slot's task area for a row; None if it cannot be read.

        It is of the slot's task only if the slot's owner reports the same task before and after: the caller must
        check that.
        """
        segment_info = self.watch.segment_info()
        offset = segment_info["data_off"] + slot * segment_info["stride"] + 8 * row
        for pid, descriptor in self.holders.items():
            try:
                held = self._memory(pid, descriptor, segment_info["data_off"])
                if held is None:
                    continue
                file = os.open(held, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    found = os.pread(file, 8, offset)
                finally:
                    os.close(file)
            except OSError:
                continue  # this process has just ended: another one may have the segment as well
            if len(found) == 8:
                return struct.unpack("<q", found)[0]
        return None

    def _memory(self, pid, descriptor, data_off):
        """Return the path in /proc of a process's slots: the segment's file, or the one mapped after the record."""
        if not self._is_held(pid, descriptor):
            return None
        slots = self._mapped_after(pid, data_off)
        if slots is None:
            return f"{PROC}/{pid}/fd/{descriptor}"
        return next((path for path, key, _ in open_files(pid) if key[1] == slots), None)

    def _mapped_after(self, pid, data_off):
        """Return the inode of the file that a process maps directly after the controls; None if it is the same file."""
        end = None
        with open(f"{PROC}/{pid}/maps") as file:
            for line in file:
                span, _, offset, _, inode, *_ = line.split()
                begins, ends = (int(address, 16) for address in span.split("-"))
                if begins == end and int(inode) != self.key[1]:
                    return int(inode)
                whole = int(inode) == self.key[1] and int(offset, 16) == 0 and ends - begins == data_off
                end = ends if whole else None
        return None


def open_files(pid):
    """Yield (path in /proc, (device, inode), name) of the files that a process can read and write.

    Raise PermissionError if its descriptors are not visible.
    """
    with os.scandir(f"{PROC}/{pid}/fd") as entries:
        for entry in entries:
            try:
                # The descriptor's mode; the file itself is not touched.
                if entry.stat(follow_symlinks=False).st_mode & 0o600 != 0o600:
                    continue
                found = os.stat(entry.path)
                if stat.S_ISREG(found.st_mode):
                    yield entry.path, (found.st_dev, found.st_ino), os.readlink(entry.path)
            except OSError:
                continue  # it has been closed meanwhile, or it is on a file system that is gone


class Search:
    """A search for segments in processes, one after another; each file is opened once."""

    def __init__(self):
        # jobs: (device, inode) -> `WatchedJob`; refused: (device, inode) -> (pid, why that segment cannot be watched)
        self.jobs, self.refused, self._other = {}, {}, set()

    def look(self, pid):
        """Return the segments that a process has open, each as a `WatchedJob` or as (pid, why it cannot be watched).

        Raise PermissionError if the process may not be inspected.
        """
        found = {}
        for path, key, name in open_files(pid):
            if key not in self.jobs and key not in self.refused and key not in self._other:
                self._open(pid, path, key, name)
            if key in self.jobs:
                self.jobs[key].holders.setdefault(pid, int(os.path.basename(path)))
                found[key] = self.jobs[key]
            elif key in self.refused:
                found[key] = self.refused[key]
        return list(found.values())

    def look_again(self, pid):
        """Add a process to the holders of those jobs that it has open."""
        try:
            for path, key, _ in open_files(pid):
                if key in self.jobs:
                    self.jobs[key].holders.setdefault(pid, int(os.path.basename(path)))
        except OSError:
            return  # it has ended, or belongs to another user

    def _open(self, pid, path, key, name):
        try:
            # The flags: do not wait for a writer if it is a FIFO by now, and do not get a controlling terminal.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return  # not for this user, or closed
        try:
            self._other.add(key)
            if os.pread(fd, len(MAGIC), 0) == MAGIC:
                self.jobs[key] = WatchedJob(Watch(fd), key, name.removesuffix(" (deleted)"))
        except InRecordFile:
            return  # the process has the record file open as well
        except (NoSegment, OSError) as error:
            self.refused[key] = pid, f"the segment of process {pid} cannot be watched: {error}"
        finally:
            os.close(fd)


def check_proc():
    """Raise `NoJob` if /proc is missing, or is not of this process's PID namespace."""
    try:
        own = int(os.readlink(f"{PROC}/self"))
    except (OSError, ValueError):
        raise NoJob("there is no /proc here, by which jobs are found") from None
    if own != process.pid():
        raise NoJob("/proc is of another PID namespace than this process: look from there, or mount it here")


def jobs():
    """Return (jobs, refused) for the segments of this user's processes; for root, of all users' processes.

    `jobs` is a list of `WatchedJob`, `refused` a list of (pid, reason) for segments that cannot be watched.
    """
    check_proc()
    search = Search()
    own = os.geteuid()
    for pid in pids():
        try:
            if own == 0 or os.stat(f"{PROC}/{pid}").st_uid == own:
                search.look(pid)
        except OSError:
            continue  # it has ended meanwhile, or has other rights than this process
    return list(search.jobs.values()), list(search.refused.values())


def attach(pid):
    """Return the jobs of a process: of a consumer, a worker, or a participant of a queue.

    There is at least one; the one that was busy last comes first. Raise NoJob, with the reason in one line.
    """
    check_proc()
    try:
        owner, name = user_of(pid)
        found = process_of(pid)
        if found is not None and not is_alive(found):
            raise NoJob(f"process {pid} has ended (its parent has not yet asked how)")
        search = Search()
        seen = search.look(pid)
    except PermissionError:
        own = owner == os.geteuid()
        whose = "has other rights than this command" if own else f"belongs to {name}"
        raise NoJob(f"process {pid} {whose}: ask as that user, or as root") from None
    except OSError:
        raise NoJob(_why_unseen(pid)) from None
    if search.jobs:
        others = {job.number(participant) for job in search.jobs.values() for participant in job.participant_pids()}
        for other in others - {0, pid}:
            search.look_again(other)
        return sorted(search.jobs.values(), key=last_busy, reverse=True)
    if seen:
        raise NoJob(seen[0][1])
    said = command_of(pid)
    what = f" ({short(said, 60)})" if said else ""
    raise NoJob(
        f"process {pid}{what} has no segment of slipring's open: it is no job, has no loader just now, or "
        "one that needs none (slipring.torch with num_workers=0)"
    )


def _why_unseen(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return f"there is no process {pid}: it has ended"
    except OverflowError:
        return f"there is no process {pid}: the number is too large"
    except PermissionError:
        pass  # another user's
    if hides_processes():
        return f"/proc hides process {pid} (hidepid): ask as its user, or as root"
    return f"there is no process {pid} in /proc"


def last_busy(job):
    """Return when a job dispatched its newest task, in ns: the order of a process's segments, the newest first."""
    slots, kept = job.watch.slots()["batch"], job.watch.records()
    return max(int(each["dispatched_at"].max(initial=0)) for each in (slots, kept[-1:]))
