"""A worker process of a pool: it serves the segments of several loaders, of one process or of several."""

import collections
import ctypes
import gc
import os
import signal
from functools import partial

from slipring._core.codec._encode import Encoder
from slipring._core.ring._ring import ServedRings
from slipring._core.ring.sample_marks import count_process_in
from slipring._core.ring.text import budget_refused
from slipring._core.ring.worker_info import set_worker_info
from slipring._core.workers.concurrency import Concurrency
from slipring._core.workers.heap import Heap
from slipring._core.workers.worker_main import answer_with_failure, job_of, one_thread

PR_SET_PDEATHSIG = 1  # of sys/prctl.h


def die_with(parent):
    """Let the kernel kill this process when its parent ends, at whatever moment that is."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def pool_worker_main(parent, number, channel, sources, wake_fd, forget):
    """Run in the worker's process: the target of `multiprocessing.Process`.

    The `channel` leads to the pool's process, whose pid is `parent`. `sources` are the parts of jobs that loaders share
    (`worker_main.PARTS`), by serial number. They were in memory before the fork, so that all workers share their pages.
    `forget` closes the inherited descriptors that this process does not need.
    """
    gc.freeze()
    gc.enable()
    die_with(parent)
    forget()
    one_thread()
    os.environ["WORKER"] = str(number)
    PoolWorker(number, channel, dict(sources), wake_fd).run()


class GiveWay(BaseException):
    """A batch that waits for memory is not made now, because another loader needs the worker."""


class PoolWorker:
    """The loop of a pool's worker. It takes the task of the loader that would run dry first."""

    def __init__(self, number, channel, sources, wake_fd):
        self.number, self.channel, self.sources, self.wake_fd = number, channel, sources, wake_fd
        self.served = ServedRings(number + 1)
        self.rings = {}  # the pool's key of a loader -> its segment
        self.tasks = {}  # segment -> (its worker, the function that does a claimed task)
        self.concurrency = {}  # fetch_threads -> the threads that all loaders share
        self.heap = Heap()
        self.backlog = collections.deque()  # messages that came before an answer

    def run(self):
        """Work until the pool's process says that this worker must leave."""
        while True:
            # Read before the messages, so that a message sent after they are read ends the wait.
            seen = self.served.wake_count() if self.rings else None
            if not self._obey(seen is None):
                return
            if seen is None or not self.rings:
                continue
            found = self.served.claim(seen)
            if found is not None:
                self._work(*found)

    def _work(self, ring, writer):
        worker, work = self.tasks[ring]
        set_worker_info(worker.info, whole_process=True)
        count_process_in(ring)
        # A range's memory could not be used again, because other workers may have allocated more of the slot.
        ring.before_wait = partial(self._give_way, ring) if writer.range is None else None
        try:
            work(writer)
        except GiveWay:
            pass  # its traceback refers to the batch, so first leave this block
        else:
            self.heap.record_batch(writer.used)
            return
        worker.encoder = Encoder()
        if writer.is_pinned:  # the worker's own code keeps an array in the slot, which no other batch may get
            writer.rewind()
            ring.before_wait = None
            work(writer)
            return
        # As after a death, the task is open again. This worker takes it back when no other loader needs it.
        ring.recover(worker.participant, thread=True)
        ring.serve(worker.participant)

    def _give_way(self, ring):
        """Raise `GiveWay` if a loader would wait for this worker while it waits for the memory of another one."""
        others = (each for each in self.rings.values() if each is not ring)
        if self.backlog or self.channel.has_message() or any(each.is_starving for each in others):
            raise GiveWay

    def _obey(self, waits):
        """Handle the messages of the pool's process; return whether to go on. `waits`: wait for the first one."""
        while waits or self.backlog or self.channel.has_message():
            waits = False
            try:
                what, *arguments = self.backlog.popleft() if self.backlog else self.channel.receive()
            except EOFError:  # the pool's process has died, and the kernel has not yet ended this one
                return False
            if what == "leave":
                return False
            getattr(self, f"_{what}")(*arguments)
        return True

    def _attach(self, key, ring, rest, serial, base_seed):
        """Serve a loader's segment from now on."""
        ring.use_wake_file(self.wake_fd)
        ring.ask_for_memory = partial(self._ask, key)
        ring.join(self.number + 1)
        count_process_in(ring)
        job = job_of(rest, self.sources[serial])
        os.environ["NUM_WORKERS"] = str(job.num_workers)
        threads = job.options.workers.fetch_threads
        shared = self.concurrency.setdefault(threads, Concurrency(threads))
        worker = job.worker_class(ring, self.number, job, True, concurrency=shared)
        work = worker.work
        try:
            worker.begin(base_seed)
        except Exception as error:
            ring.serve(self.number + 1)
            work = partial(answer_with_failure, worker, error)
        self.rings[key], self.tasks[ring] = ring, (worker, work)
        self.served.add(ring)

    def _ask(self, key, slot_bytes, needed, free):
        """Wait until a loader's segment may take more memory, or raise SegmentFull; see `Segment.ask_for_memory`."""
        self.channel.send("short", key, slot_bytes, needed)
        while (message := self.channel.receive())[0] != "memory":
            self.backlog.append(message)
        if message[1] is not None:
            raise budget_refused(needed, free, *message[1])

    def _detach(self, key):
        """Serve a loader's segment no longer, and say so."""
        ring = self.rings.pop(key)
        self.served.remove(ring)
        del self.tasks[ring]
        count_process_in(None)
        self.channel.send("detached", key)
