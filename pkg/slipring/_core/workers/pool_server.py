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
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from functools import partial
from multiprocessing import spawn

from slipring._core.ring import process as this_process
from slipring._core.ring._ring import MAX_WORKERS, SERVING
from slipring._core.ring.signals import no_collection
from slipring._core.workers import pool_client
from slipring._core.workers.channel import Channel, Duplicate, Gone
from slipring._core.workers.deaths import manner
from slipring._core.workers.pool_budget import Budget, BudgetPart
from slipring._core.workers.pool_members import Member, PooledWorker, Source
from slipring._core.workers.pool_worker import pool_worker_main
from slipring._core.workers.worker_main import one_thread

LINE = 64  # bytes of a worker's wake word in the wake file: sr_wake_line
STARTER_S = 60.0  # for the process that starts the pool to connect
DIVIDE_S = 0.05  # how often segments are checked that must give memory to others
REVIEW_S = 1.0  # how often the budget is divided again, because the size of batches has changed
PATIENCE_S = 20.0  # for them to do so: their loops may wait for one that has none
MOST_FILES = 1 << 16  # open ones at once: enough for 20000 loaders
GRACE_S = 5.0  # for the workers to end when the last loader has gone
RESTART_S = 0.5  # between two starts of a worker: a sample that kills its workers must not keep the machine busy
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class PoolServer:
    """The pool. Everything happens in one thread, in the order in which messages and deaths arrive.

    No socket blocks: a stopped process, or one that is slow to read, must not stop the pool.
    """

    def __init__(self, listener):
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.members, self.sources, self.workers = {}, {}, {}  # by key, by the loaders' number, by number
        self.restarts = {}  # number of a worker that died soon after its start -> when to start the next one
        self.keys, self.serials = itertools.count(), itertools.count()
        self.prepared = False
        self.budget, self.divided = None, True  # divided: each loader has its part
        self.wake_fd = os.memfd_create("slipring-wake")
        os.ftruncate(self.wake_fd, (MAX_WORKERS + 1) * LINE)

    def run(self):
        """Serve until the last loader has gone."""
        timeout = STARTER_S
        while self.members or timeout is not None:
            waits = [] if timeout is None else [timeout]
            waits += [max(0.0, at - time.monotonic()) for at in self.restarts.values()]
            events = self.selector.select(min(waits, default=None))
            self._restart()
            if not (events and self.divided):
                self._divide()
            if not events and not self.members:
                break  # the process that started the pool has died before it connected
            for key, _ in events:
                if key.fd in self.selector.get_map():  # an earlier event may have ended it
                    key.data()
            if self.members:
                timeout = DIVIDE_S if not self.divided else None if self.budget is None else REVIEW_S
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
            with contextlib.suppress(Gone):
                channel.send("refused", f"process {pid} cannot be watched (0: of another PID namespace): {error}")
            channel.close()
            return
        self.members[member.key] = member
        self.selector.register(channel, selectors.EVENT_READ, partial(self._hear, member))
        self.selector.register(member.pidfd, selectors.EVENT_READ, partial(self._lose, member))

    def _hear(self, member):
        try:
            message = self._next_message(member.channel)
        except Gone:
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
        """Send the rest of earlier messages to a process; return its next message, or None if none is complete."""
        channel.flush()
        self._await_socket(channel)
        return channel.receive()

    def _await_socket(self, channel):
        """Let the selector report when the socket takes bytes again, if there are unsent ones."""
        if channel in self.selector.get_map():
            key = self.selector.get_key(channel)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
            if events != key.events:
                self.selector.modify(channel, events, key.data)

    def _send(self, receiver, *message):
        """Send a message to a loader or a worker."""
        with contextlib.suppress(Gone):  # its process has ended: an event of its own follows
            receiver.channel.send(*message)
            self._await_socket(receiver.channel)

    def _refuse(self, member, error):
        self._send(member, "refused", "".join(traceback.format_exception(error)))
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
            self._forget_member(member)

    def _forget_member(self, member):
        del self.members[member.key]
        self._divide()

    def _leave_source(self, member):
        source = member.source
        source.members.discard(member)
        if not source.members:
            self.sources = {number: one for number, one in self.sources.items() if one is not source}
        elif source.bringer is member and source.parts is None:
            self._ask(source)

    # ---- what loaders say

    def _hello(self, member, number, description, cpus, expected):
        member.cpus, member.expected = cpus, expected
        memory = description["memory"]
        others = [each for each in self.members.values() if each.source is not None and not each.gone]
        if others and others[0].source.description["memory"] != memory:
            differs = {**description, "memory": others[0].source.description["memory"]}
            self._send(member, "differs", others[0].pid, differs)
            return
        if not others:  # those that came earlier, if any, are leaving
            self.budget = None if memory is None else Budget(memory)
        source = self.sources.get(number)
        if source is None:
            source = self.sources[number] = Source(next(self.serials), description)
        elif source.description != description:
            other = next(iter(source.members))
            self._send(member, "differs", other.pid, source.description)
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
        self._send(source.bringer, "bring", this_process.pid())

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
        self._send(member, "welcome", this_process.pid(), Duplicate(self.wake_fd))

    def _serve(self, member, ring, rest, base_seed):
        """Let workers serve a loader's segment."""
        ring.use_wake_file(self.wake_fd)
        member.ring, member.rest, member.base_seed, member.stopping = ring, rest, base_seed, False
        if self.budget is not None:
            member.part = BudgetPart(ring)
            self._divide()
        for number in range(member.num_workers):
            if number in self.workers:
                self._attach(self.workers[number], member)
            elif number not in self.restarts:
                self._start(number)
        self._widen()

    def _stop(self, member):
        """Let the workers leave a loader's segment."""
        # When a loader goes, busy workers may not have read yet what they were told when it stopped.
        if not member.stopping:
            member.stopping = True
            for number in list(member.asks):
                self._refuse_memory(member, number)
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
            self._forget_member(member)
        else:
            self._send(member, "stopped")

    # ---- memory

    def _divide(self):
        """Divide the budget among the loaders, and answer the workers that wait for memory."""
        if self.budget is None:
            return
        sources = set(self.sources.values())
        self.budget.count_caches(source.parts[0] for source in sources if source.parts is not None)
        parts = self._parts_of_budget()
        expected = sum(max(len(each.members), *(member.expected for member in each.members)) for each in sources)
        self.divided = self.budget.divide(parts, max(0, expected - len(parts)) + 1)
        for member in list(self.members.values()):
            for number, (needed, give_up) in list(member.asks.items()):
                waits = member.part.limit < member.part.target and time.monotonic() < give_up
                if member.part.left < needed and not waits and needed <= self.budget.free(parts):
                    member.part.allow(member.part.taken + needed)
                if member.part.left >= needed:
                    self._answer(member, number, None)
                elif not waits:
                    self._refuse_memory(member, number)

    def _parts_of_budget(self):
        return [member.part for member in self.members.values() if member.part is not None]

    def _short(self, worker, key, slot_bytes, needed):
        """Give a segment more memory, for a batch that lacks `needed` bytes; its slot then has `slot_bytes`."""
        member = self.members[key]
        before, member.part.slot_bytes = member.part.slot_bytes, max(member.part.slot_bytes, slot_bytes)
        if member.stopping or self.budget.least(self._parts_of_budget()) > self.budget.nbytes:
            self._refuse_memory(member, worker.number)
            member.part.slot_bytes = before
            member.part.measure()
        else:
            member.asks[worker.number] = needed, time.monotonic() + PATIENCE_S
            self._divide()

    def _refuse_memory(self, member, number):
        parts, budget = self._parts_of_budget(), self.budget or Budget(0)  # none: loaders that had one are leaving
        refused = member.part.limit, budget.nbytes, budget.cached, len(parts), budget.least(parts)
        self._answer(member, number, refused)

    def _answer(self, member, number, refused):
        member.asks.pop(number, None)
        self._send(self.workers[number], "memory", refused)

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
        self._send(worker, *message)
        self._wake(worker)

    def _wake(self, worker):
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
            was_full = bool(worker.channel.unsent)
            message = self._next_message(worker.channel)
            if was_full:
                self._wake(worker)  # it may have read all earlier messages and sleep
        except Gone:
            self.selector.unregister(worker.channel)  # its pidfd tells the rest
            return
        if message is None:
            return
        what, *said = message
        getattr(self, f"_{what}")(worker, *said)

    def _detached(self, worker, key):
        """A worker has left a segment."""
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
        self.restarts[number] = 0.0 if worker.leaves else worker.began + RESTART_S
        self._restart()

    def _restart(self):
        """Start the workers whose time has come, if they are still needed."""
        for number in [number for number, at in self.restarts.items() if time.monotonic() >= at]:
            del self.restarts[number]
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
        member.asks.pop(worker.number, None)
        if not (worker.leaves or member.stopping):
            self._send(
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
    # This process has three descriptors or more for each loader, and each worker has one.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MOST_FILES)), hard))
    for number in IGNORED:  # the loaders' processes handle them; the pool ends when these have gone
        signal.signal(number, lambda signum, frame: None)
    one_thread()
    pool_client.serves = True
    sys.argv[:] = ["slipring-pool"]
    PoolServer(listener).run()
