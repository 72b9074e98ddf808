"""The process of a pool: it holds the datasets, forks the workers, and tells them which loaders to serve.

It belongs to no rank: the first loader that finds none starts it, and it ends when the last loader has gone. If it
dies, the kernel ends its workers, and the loaders find its connection closed.
"""

import contextlib
import errno
import gc
import itertools
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import traceback
from functools import partial
from multiprocessing import spawn

from slipring._core.ring import process as this_process
from slipring._core.ring._ring import MAX_WORKERS, SERVING
from slipring._core.ring.signals import no_collection
from slipring._core.workers import pool_client
from slipring._core.workers.channel import Channel, Duplicate
from slipring._core.workers.deaths import manner
from slipring._core.workers.pool_worker import pool_worker_main
from slipring._core.workers.worker_main import one_thread

LINE = 64  # bytes of a worker's wake word in the wake file: sr_wake_line
STARTER_S = 60.0  # for the process that starts the pool to connect
GRACE_S = 5.0  # for the workers to end when the last loader has gone
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Source:
    """What loaders of several processes share: a dataset with its functions, loaded once.

    Attributes
    ----------
    serial : int
        No other source of this pool had it.
    description : dict
        Of the loader that came first; see `pool_client.described`.
    parts : tuple or None
        See `worker_main.parts_of`; None: not here yet.
    bringer : Member or None
        The loader that was asked for the parts.
    members : set of Member
    """

    def __init__(self, serial, description):
        self.serial, self.description = serial, description
        self.parts = self.bringer = None
        self.members = set()


class Member:
    """A loader's connection.

    Attributes
    ----------
    ring, rest, base_seed
        Of the current workers; `ring` is None before the first and after a loader has stopped them.
    attached : set of int
        The numbers of the workers that serve the segment, or will as soon as they read their messages.
    stopping : bool
        The workers have been told to leave the segment.
    gone : bool
        The loader's process has ended, or the loader.
    """

    def __init__(self, key, channel, pid):
        self.key, self.channel, self.pid = key, channel, pid
        self.pidfd = os.pidfd_open(pid)
        self.source = self.ring = self.rest = None
        self.base_seed, self.cpus = 0, set()
        self.attached = set()
        self.stopping = self.gone = False

    @property
    def num_workers(self):
        return self.source.description["num_workers"]


class PooledWorker:
    """A worker process. `sources`: the serial numbers of those that it has; `leaves`: it was told to end."""

    def __init__(self, number, process, channel, sources):
        self.number, self.process, self.channel, self.sources = number, process, channel, sources
        self.pidfd = os.pidfd_open(process.pid)
        self.leaves = False


class PoolServer:
    """The pool. Everything happens in one thread, in the order in which messages and deaths arrive.

    No socket blocks: a stopped process, or one that is slow to read, must not stop the pool.
    """

    def __init__(self, listener):
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.members, self.sources, self.workers = {}, {}, {}  # by key, by the loaders' number, by number
        self.keys, self.serials = itertools.count(), itertools.count()
        self.prepared = False
        self.wake_fd = os.memfd_create("slipring-wake")
        os.ftruncate(self.wake_fd, (MAX_WORKERS + 1) * LINE)

    def run(self):
        """Serve until the last loader has gone."""
        timeout = STARTER_S
        while self.members or timeout is not None:
            events = self.selector.select(timeout)
            if not events and not self.members:
                break  # the process that started the pool has died before it connected
            for key, _ in events:
                if key.fd in self.selector.get_map():  # an earlier event may have ended it
                    key.data()
            if self.members:
                timeout = None
        self._end_workers()

    # ---- loaders come and go

    def _accept(self):
        sock, _ = self.listener.accept()
        channel = Channel(sock)
        pid, user, _ = channel.peer()
        if user != os.geteuid():
            channel.close()
            return
        sock.setblocking(False)
        try:
            member = Member(next(self.keys), channel, pid)
        except OSError as error:  # it has died already, or is of another PID namespace
            with contextlib.suppress(EOFError, OSError):
                channel.send("refused", f"process {pid} cannot be watched (0: of another PID namespace): {error}")
            channel.close()
            return
        self.members[member.key] = member
        self.selector.register(channel, selectors.EVENT_READ, partial(self._hear, member))
        self.selector.register(member.pidfd, selectors.EVENT_READ, partial(self._lose, member))

    def _hear(self, member):
        try:
            message = self._next_message(member.channel)
        except (EOFError, OSError):
            self._lose(member)
        except Exception as error:  # users' classes run when they are unpickled
            self._refuse(member, error)
        else:
            if message is not None:
                try:
                    getattr(self, f"_{message[0]}")(member, *message[1:])
                except Exception as error:
                    self._refuse(member, error)

    def _next_message(self, channel):
        """Send what is left for a process, and return its next message; None: none has arrived completely."""
        channel.flush()
        self._await_socket(channel)
        return channel.receive()

    def _await_socket(self, channel):
        """Wait until a socket takes bytes again, if some are left for it."""
        if channel in self.selector.get_map():
            key = self.selector.get_key(channel)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
            if events != key.events:
                self.selector.modify(channel, events, key.data)

    def _tell(self, receiver, *message):
        """Send a message to a loader or a worker."""
        with contextlib.suppress(EOFError, OSError):  # its process has ended: an event of its own follows
            receiver.channel.send(*message)
            self._await_socket(receiver.channel)

    def _refuse(self, member, error):
        self._tell(member, "refused", "".join(traceback.format_exception(error)))
        self._lose(member)

    def _lose(self, member):
        """A loader or its process has gone: its workers leave the segment."""
        if member.gone:
            return
        member.gone = True
        for fd in (member.channel, member.pidfd):
            self.selector.unregister(fd)
        member.channel.close()
        os.close(member.pidfd)
        if member.source is not None:
            self._leave_source(member)
        if member.ring is not None:
            member.ring.close()  # no wait of a worker in this segment may go on
            self._stop(member)
        else:
            del self.members[member.key]

    def _leave_source(self, member):
        source = member.source
        source.members.discard(member)
        if not source.members:
            self.sources = {number: one for number, one in self.sources.items() if one is not source}
        elif source.bringer is member and source.parts is None:
            self._ask(source)

    # ---- what loaders say

    def _hello(self, member, number, description, cpus):
        member.cpus = cpus
        source = self.sources.get(number)
        if source is None:
            source = self.sources[number] = Source(next(self.serials), description)
        elif source.description != description:
            other = next(iter(source.members))
            self._tell(member, "differs", other.pid, source.description)
            return
        member.source = source
        source.members.add(member)
        if source.parts is not None:
            self._welcome(member)
        elif source.bringer is None:
            self._ask(source)

    def _ask(self, source):
        """Ask a loader for the dataset."""
        source.bringer = min(source.members, key=lambda member: member.key)
        self._tell(source.bringer, "bring")

    def _prepare(self, member, data):
        """Make this process import what the loader's process could: its paths, folder and main module."""
        if not self.prepared:
            spawn.prepare(data)
            self.prepared = True

    def _parts(self, member, parts):
        """Take the dataset, which was unpickled when the message was read."""
        source = member.source
        source.parts = parts
        for each in list(source.members):
            self._welcome(each)

    def _welcome(self, member):
        self._tell(member, "welcome", this_process.pid(), Duplicate(self.wake_fd))

    def _serve(self, member, ring, rest, base_seed):
        """Let workers serve a loader's segment."""
        ring.use_wake_file(self.wake_fd)
        member.ring, member.rest, member.base_seed, member.stopping = ring, rest, base_seed, False
        for number in range(member.num_workers):
            if number in self.workers:
                self._attach(self.workers[number], member)
            else:
                self._start(number)
        self._widen()

    def _stop(self, member):
        """Let the workers leave a loader's segment."""
        # When a loader goes, busy workers may not have read yet what they were told when it stopped.
        if not member.stopping:
            member.stopping = True
            for number in member.attached:
                self._order(self.workers[number], "detach", member.key)
        self._settle(member)

    def _settle(self, member):
        """Answer a loader that has stopped, or forget one that has gone, when no worker serves it any more."""
        if member.attached or not member.stopping:
            return
        member.ring = member.rest = None
        member.stopping = False
        if member.gone:
            del self.members[member.key]
        else:
            self._tell(member, "stopped")

    # ---- workers

    def _start(self, number):
        """Fork a worker, which has all datasets that are here, and let it serve all loaders."""
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        ready = {source.serial: source.parts for source in self.sources.values() if source.parts is not None}
        forget = partial(self._forget, mine)
        with no_collection():
            gc.freeze()  # the workers share the pages of these objects; no collection writes to them
            process = multiprocessing.get_context("fork").Process(
                target=pool_worker_main,
                args=(this_process.pid(), number, Channel(theirs), ready, self.wake_fd, forget),
                name=f"slipring-worker-{number}",
                daemon=True,
            )
            process.start()
        theirs.close()
        worker = self.workers[number] = PooledWorker(number, process, Channel(mine), set(ready))
        self.selector.register(worker.channel, selectors.EVENT_READ, partial(self._listen, worker))
        self.selector.register(worker.pidfd, selectors.EVENT_READ, partial(self._reap, worker))
        self._widen()
        for member in self.members.values():
            if member.ring is not None and not member.stopping and number < member.num_workers:
                self._attach(worker, member)

    def _forget(self, mine):
        """Close, in a forked worker, the descriptors and segments of this process."""
        mine.close()
        self.listener.close()
        self.selector.close()
        for member in self.members.values():
            member.channel.close()
            if not member.gone:
                os.close(member.pidfd)
        for worker in self.workers.values():
            worker.channel.close()
            os.close(worker.pidfd)
        for name in ("members", "workers", "sources"):
            setattr(self, name, {})

    def _attach(self, worker, member):
        if worker.leaves:
            return  # its successor serves the loader
        if member.source.serial not in worker.sources:
            worker.leaves = True  # its successor is forked with the dataset
            self._order(worker, "leave")
            return
        member.attached.add(worker.number)
        serial = member.source.serial
        self._order(worker, "attach", member.key, member.ring, member.rest, serial, member.base_seed)

    def _order(self, worker, *message):
        """Send a message to a worker and, if it waits for a task, make it read its messages."""
        self._tell(worker, *message)
        for member in self.members.values():
            if member.ring is not None and worker.number + 1 < member.ring.n_participants:
                member.ring.wake_worker(worker.number + 1)  # all segments have the same wake word
                return

    def _widen(self):
        """Let the workers run where any of the loaders' processes may run."""
        cpus = set().union(*(member.cpus for member in self.members.values()))
        for worker in self.workers.values():
            with contextlib.suppress(ProcessLookupError, OSError):  # it has just died; or a cgroup has changed
                os.sched_setaffinity(worker.process.pid, cpus)

    def _listen(self, worker):
        try:
            message = self._next_message(worker.channel)
        except (EOFError, OSError):
            self.selector.unregister(worker.channel)  # its pidfd tells the rest
            return
        if message is None:
            return
        _, key = message
        member = self.members[key]
        member.attached.discard(worker.number)
        member.ring.recover(worker.number + 1, thread=True)  # its process lives, and so may arrays in the slots
        self._settle(member)

    def _reap(self, worker):
        """A worker has died, or has left: release what it had in each segment, and start another."""
        number, process = worker.number, worker.process
        process.join()
        for member in list(self.members.values()):
            if number in member.attached:
                self._release(worker, member, process.exitcode)
        for fd in (worker.channel, worker.pidfd):
            with contextlib.suppress(KeyError):
                self.selector.unregister(fd)
        worker.channel.close()
        os.close(worker.pidfd)
        process.close()
        del self.workers[number]
        if any(
            member.ring is not None and not member.stopping and number < member.num_workers
            for member in self.members.values()
        ):
            self._start(number)

    def _release(self, worker, member, exitcode):
        participant = worker.number + 1
        serving = member.ring.participant(participant)[1] == SERVING
        in_flight = member.ring.in_flight(participant)
        member.ring.recover(participant)
        member.attached.discard(worker.number)
        if not (worker.leaves or member.stopping):
            self._tell(
                member, "died", worker.number, worker.process.pid, exitcode, manner(exitcode), in_flight, serving
            )
        self._settle(member)

    def _end_workers(self):
        self.listener.close()  # a loader that comes from now on starts another pool
        for worker in self.workers.values():
            worker.leaves = True
            self._order(worker, "leave")
        for worker in self.workers.values():
            worker.process.join(GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def start(address):
    """Listen at the address, and leave a process that runs the pool; the calling process then ends.

    It is forked, so that it is no child of the process that started this one. If another process listens already, there
    is nothing to do.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return
    listener.listen(socket.SOMAXCONN)
    if os.fork():
        return
    for number in IGNORED:  # the loaders' processes handle them; the pool ends when these have gone
        signal.signal(number, lambda signum, frame: None)
    one_thread()
    pool_client.serves = True
    sys.argv[:] = ["slipring-pool"]
    PoolServer(listener).run()
