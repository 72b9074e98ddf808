"""Programs that tests run as separate processes, to interrupt, kill or starve them.

    python -m tests.fault.programs NAME ARGUMENT...

Each prints a line of JSON on stdout at each stage.
"""

import contextlib
import ctypes
import errno
import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import warnings
from multiprocessing import forkserver, resource_tracker, util

import numpy as np

import slipring
from slipring import Loader, Workers
from slipring.errors import DescriptorClosed, SlipringError, WorkerDied
from tests.support.inside import engine_of
from tests.support.inside import memory as growth
from tests.support.leaks import name_semaphores
from tests.support.options import grouped
from tests.support.processes import LONG_S, worker_pids
from tests.support.scenes import AtPickling, Closing, Gate, Images, Rows, Sized, Stream, close_and_open


def say(what, **more):
    """Print one line of JSON."""
    print(json.dumps({"at": what, **more}), flush=True)


class Stuck:
    """Stays in native code and keeps the GIL, forever."""

    def __call__(self):
        ctypes.PyDLL(None).pause()


class Both:
    """Calls several actions in order."""

    def __init__(self, *actions):
        self.actions = actions

    def __call__(self):
        for action in self.actions:
            action()


class Slow(Rows):
    """Every sample takes some time, without the GIL."""

    def __getitem__(self, i):
        signal.sigtimedwait([], 0.001)
        return super().__getitem__(i)


class WaitInInit:
    def __init__(self, gate):
        self.gate = gate

    def __call__(self, number):
        self.gate()


class Valued(Rows):
    """Adds a value that must be pickled to each sample."""

    def __init__(self, n, action):
        super().__init__(n)
        self.action = action

    def __getitem__(self, i):
        return super().__getitem__(i)[0], AtPickling(self.action)


def hold(method, stage, path):
    """Bring all workers of a loader to `stage`, and wait to be killed."""
    gate = Gate(path)
    options = {"batch_size": 4, "num_workers": 2, "start_method": method}
    data = Rows(64)
    if stage == "starting":
        options["worker_init_fn"] = WaitInInit(gate)
    elif stage == "fetching":
        data = Rows(64, on=dict.fromkeys(range(64), gate))
    elif stage == "in native code":
        data = Rows(64, on=dict.fromkeys(range(64), Both(gate, Stuck())))
    elif stage == "writing":
        data = Valued(64, gate)
    say("begun")
    loader = Loader(data, **grouped(**options))
    it = iter(loader)
    if stage == "idle":
        kept = [next(it) for _ in range(4)]
        say("workers", pids=list(worker_pids(loader).values()), kept=len(kept))
        signal.pause()
    elif stage != "starting":
        say("workers", pids=list(worker_pids(loader).values()))
    next(it)
    next(it)


def leave(method, how, dataset):
    """End with live objects: an unfinished iteration, batches, a second iterator."""
    data = Stream(1000) if dataset == "stream" else Rows(1000)
    loader = Loader(data, 4, num_workers=2, workers=Workers(start_method=method))
    first, second = iter(loader), iter(loader)
    global kept
    kept = [next(first) for _ in range(5)] + [next(second) for _ in range(5)] + [first, second, loader]
    pids = [p.pid for it in (first, second) for p in engine_of(it).pool.processes.values()]
    say("workers", pids=pids)
    if how == "exception":
        raise LookupError("meant")
    if how == "sys.exit":
        sys.exit(5)
    if how == "os._exit":
        os._exit(6)
    if how == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()


def loop(method, persistent, dataset, death="raise"):
    """Make loaders, iterate, close, until a signal comes."""
    data = Stream(60) if dataset == "stream" else Slow(120)
    say("begun")
    while True:
        loader = Loader(
            data,
            4,
            num_workers=2,
            persistent_workers=persistent == "persistent",
            workers=Workers(start_method=method, on_death=death),
        )
        for _ in range(2):
            for batch in loader:
                del batch
        loader.close()


def resizing(method):
    """Change the number of workers all the time, until a signal comes."""
    with Loader(Slow(1 << 20), 4, num_workers=2, workers=Workers(start_method=method)) as loader:
        say("begun")
        for k, batch in enumerate(loader):
            del batch
            loader.resize(1 + k % 5)


def resized(method, workers):
    """Report the workers once their number is as given, and wait."""
    with Loader(Slow(1 << 20), 4, num_workers=1, workers=Workers(start_method=method)) as loader:
        batches = iter(loader)
        next(batches)
        loader.resize(int(workers))
        while not engine_of(loader).pool.at_target:
            next(batches)
        print(*worker_pids(loader).values(), flush=True)
        threading.Event().wait()


def interrupted_by_a_thread():
    """Get SIGINT during the start of a worker, in a thread that does not block it."""
    go, done = threading.Event(), threading.Event()

    def raise_it():
        go.wait()
        signal.raise_signal(signal.SIGINT)
        done.set()

    threading.Thread(target=raise_it, daemon=True).start()

    def during_start(*args):
        pid = spawnv_passfds(*args)
        go.set()
        done.wait()
        return pid

    resource_tracker.ensure_running()
    spawnv_passfds, util.spawnv_passfds = util.spawnv_passfds, during_start
    loader = Loader(Rows(8), num_workers=2, workers=Workers(start_method="spawn"))
    try:
        iter(loader)
    finally:
        say("interrupted", left=len(multiprocessing.active_children()))


def fill_up(options):
    """Keep batches until memory runs out, then release them and continue; report the batches."""
    options = json.loads(options)
    size = options.pop("size")
    for name, (soft, hard) in options.pop("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
    cached = read_often(*options.pop("read_often", ["", 0]))
    came, kept = [], []
    try:
        loader = Loader(Sized([size] * 60 * options.get("batch_size", 1)), **grouped(copy="never", **options))
        it = iter(loader)
        stats = loader.stats()
        for _ in range(60):
            try:
                kept.append(batch := next(it))
                assert (batch[0][:, -1] == batch[1] % 251).all()
                came.append("batch")
            except (SlipringError, OSError, MemoryError) as error:
                came.append({"type": type(error).__name__, "text": str(error), **numbers(error)})
                if len(kept) > 2:
                    kept.clear()
        loader.close()
        say("end", came=came, cached=cached, stats=stats.__dict__, respawns=loader.stats().respawns)
    except (SlipringError, OSError, MemoryError) as error:
        say("refused", type=type(error).__name__, text=str(error), **numbers(error))


def read_often(path, nbytes):
    """Write a file of so many bytes and read it until its pages count as active; return how many do."""
    if not nbytes:
        return 0
    before = active_file_bytes()
    with open(path, "w+b", buffering=0) as file:
        for _ in range(nbytes >> 20):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
        for _ in range(4):
            file.seek(0)
            while file.read(1 << 20):
                pass
    return active_file_bytes() - before


def active_file_bytes():
    """Return the active file pages of this process's memory cgroup; 0 if the cgroup is not found."""
    with open("/proc/self/cgroup") as file:
        groups = file.readlines()
    for line in groups:
        _, controllers, group = line.rstrip().split(":", 2)
        if controllers in ("", "memory"):
            for top in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
                with contextlib.suppress(OSError), open(f"{top}{group}/memory.stat") as file:
                    stat = dict(line.split() for line in file)
                    return int(stat.get("total_active_file", stat["active_file"]))
    return 0


def read_names(kind, text):
    """Read two million strings of a list or a StringList in workers; report warnings about memory."""
    growth.LOOK_S = 0.0  # check at every batch
    warnings.showwarning = lambda message, category, *where: say("warned", text=str(message), type=category.__name__)
    names = [f"{text}{i:09d}" for i in range(2_000_000)]
    data = Reads(names if kind == "list" else slipring.StringList(names), 200)
    with Loader(data, 1, num_workers=2, workers=Workers(start_method="fork")) as loader:
        try:
            batches = sum(1 for _ in loader)
        except WorkerDied as error:
            say("died", exitcode=error.exitcode)
        else:
            say("end", batches=batches, own=loader.stats().worker_private_bytes)


class Reads:
    """Each sample reads one of `n` shares of all strings."""

    def __init__(self, names, n):
        self.names, self.n = names, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return sum(len(self.names[k]) for k in range(i, len(self.names), self.n))


def numbers(error):
    """Return the attributes of an error."""
    return {k: v for k, v in vars(error).items() if k in ("needed", "free", "limit")}


def few_descriptors(method):
    """Call iter() with 0, 1, 2, ... free descriptors until it succeeds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if method != "fork":
        resource_tracker.ensure_running()
    np.random.random()  # the import of numpy.random opens files
    loader = Loader(Rows(16), 4, num_workers=2, workers=Workers(start_method=method))
    refused = []
    for spare in range(60):
        if method == "forkserver":
            forkserver.ensure_running()  # a client that can send it no descriptors kills it
        limit_descriptors(len(os.listdir("/proc/self/fd")) - 1 + spare, hard)
        try:
            rows = [b[1].tolist() for b in loader]
        except (OSError, EOFError, WorkerDied) as error:
            refused.append(type(error).__name__)
            if method == "forkserver" and isinstance(error, (EOFError, ConnectionError)):
                # It is dying; ensure_running() starts another one only after its death.
                server = forkserver._forkserver._forkserver_pid
                os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
            continue
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            # If only the descriptors for the pidfds are missing, no worker may be left.
            engine = engine_of(loader)
            known = engine.pool.processes.values() if engine else ()
            assert {p.pid for p in multiprocessing.active_children()} <= {p.pid for p in known}
        say("works", spare=spare, refused=refused, rows=rows)
        break
    loader.close()
    say("closed", processes=len(multiprocessing.active_children()))


def limit_descriptors(n, hard):
    """Limit the descriptors to the first `n` free numbers."""
    used = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
    free = iter(i for i in range(4096) if i not in used)
    for _ in range(max(0, n - len(used) + 1)):
        last = next(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last if n >= len(used) else 3, hard))


def no_forks(method, after):
    """Let fork or clone fail for every worker after the first `after`."""
    left = int(after)
    fork = os.fork if method == "fork" else util.spawnv_passfds

    def refuse(*args):
        nonlocal left
        left -= 1
        if left < 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork(*args)

    loader = Loader(Rows(16), 4, num_workers=2, workers=Workers(start_method=method))
    resource_tracker.ensure_running()
    place, name = (os, "fork") if method == "fork" else (util, "spawnv_passfds")
    setattr(place, name, refuse)
    for _ in range(2):
        try:
            iter(loader)
        except OSError as error:
            say("refused", errno=error.errno, processes=len(multiprocessing.active_children()))
    setattr(place, name, fork)
    say("works", rows=[b[1].tolist() for b in loader])
    loader.close()


def few_processes(uid):
    """Call iter() with 0, 1, 2, ... spare processes and threads until it succeeds. (Root has no limit.)"""
    loader = Loader(Rows(16), 4, num_workers=2, persistent_workers=False, workers=Workers(start_method="fork"))
    list(loader)  # import modules while files can still be read
    os.setresuid(int(uid), int(uid), int(uid))
    refused = []
    for spare in range(12):
        resource.setrlimit(resource.RLIMIT_NPROC, (1 + spare, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
        try:
            rows = [b[1].tolist() for b in loader]
        except (OSError, WorkerDied) as error:
            refused.append(type(error).__name__)
            multiprocessing.active_children()
            continue
        say("works", spare=spare, refused=refused, rows=rows)
        break
    loader.close()
    say("closed", processes=len(multiprocessing.active_children()))


def unseen(method):
    """End the program with dead workers whose deaths it has not noticed."""
    loader = Loader(Rows(1000), 4, num_workers=2, workers=Workers(start_method=method, on_death="respawn"))
    it = iter(loader)
    global kept
    kept = [loader, it, next(it), next(it)]
    for pid in worker_pids(loader).values():
        os.kill(pid, signal.SIGKILL)
    say("ends")


def no_threads():
    """Use thread workers that cannot be started."""
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "slipring-worker-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    loader = Loader(Rows(16), 4, num_workers=2, workers=Workers(start_method="thread"))
    threading.Thread.start = refuse
    try:
        iter(loader)
    except RuntimeError as error:
        say("refused", text=str(error), threads=threading.active_count())
    threading.Thread.start = start
    say("works", rows=[b[1].tolist() for b in loader])
    loader.close()


def sigchld_ignored():
    """Lose the exit codes of children."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    loader = Loader(Rows(16), 4, num_workers=2, workers=Workers(start_method="fork"))
    rows = [b[1].tolist() for b in loader]
    os.kill(next(iter(worker_pids(loader).values())), signal.SIGKILL)
    try:
        while True:
            list(loader)
    except WorkerDied as error:
        say("died", text=str(error), exitcode=error.exitcode)
    assert [b[1].tolist() for b in loader] == rows
    loader.close()
    say("closed", rows=rows)


def backing():
    """Report the segment's backing, and use it."""
    with Loader(Rows(16), 4, num_workers=2, workers=Workers(start_method="fork")) as loader:
        rows = [b[1].tolist() for b in loader]
        say("end", rows=rows, backing=loader.stats().backing, reason=loader.stats().backing_reason)


def steady(what, method, batches, path):
    """Warm up; wait at the gate before and after `batches` more batches."""
    gate = Gate(path)
    batches = int(batches)
    shape, dtype, size = {"small": ((32,), "f4", 64), "large": ((3, 224, 224), "u1", 256)}[what]
    warm = max(batches, 60)
    data = Images((warm + batches) * size, shape, dtype)
    with Loader(data, size, num_workers=2, workers=Workers(start_method=method)) as loader:
        it = iter(loader)
        for number in range(2):  # otherwise one worker might make all batches while the other one still imports
            assert engine_of(loader).ring.wait_serving(number + 1, LONG_S)
        for _ in range(warm):
            batch = next(it)
        pids = {"consumer": os.getpid()}
        pids.update((f"worker {n}", pid) for n, pid in worker_pids(loader).items())
        say("warm", pids=pids)
        gate()
        for _ in range(batches):
            batch = next(it)
        gate()
        say("end", copied=loader.stats().copied_batches, label=int(batch[1][-1]))


def closing(method, directory):
    """A worker closes all its open descriptors; each line names the process that makes the batches."""
    with Loader(Closing(directory, 1 << 30, 1 << 30), 1, num_workers=1, workers=Workers(start_method=method)) as loader:
        for batch in loader:
            say("batch", pid=int(batch[0, 0]))


def becomes(method, what):
    """Exec another program while batches are in flight: `sleep`, or this program again."""
    if os.environ.get("BECAME"):
        say("became")
        signal.pause()
    it = iter(Loader(Rows(1 << 20), 4, num_workers=2, workers=Workers(start_method=method)))
    next(it)
    say("begun", pids=sorted(p.pid for p in multiprocessing.active_children()))
    os.environ["BECAME"] = "1"
    sys.stdout.flush()
    if what == "sleep":
        os.execvp("sleep", ["sleep", "1000"])
    os.execv(sys.executable, [sys.executable, "-m", "tests.fault.programs", *sys.argv[1:]])


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def daemon(method, directory):
    """Close all descriptors of this process, and open files instead; then a worker dies."""
    options = {"num_workers": 2, "rng": "worker", "start_method": method, "on_death": "respawn"}
    told = None
    with Loader(Rows(64), 4, **grouped(**options)) as loader:
        it = iter(loader)
        next(it)
        workers = worker_pids(loader)
        pipes = {fd for each in engine_of(loader).pool.processes.values() for fd in each._popen.finalizer._args}
        files = close_and_open(directory)
        os.kill(workers[1], signal.SIGKILL)
        try:
            list(it)
        except DescriptorClosed as error:
            told = str(error)
    # multiprocessing closes its pipes to the workers by their numbers.
    gone = {file.fileno() for file in files if not is_open(file.fileno())}
    assert gone <= pipes, (gone, pipes)
    for file in files:
        with contextlib.suppress(OSError):
            file.close()
    say("end", error=told, workers=list(workers.values()))


def daemonised(method, streams):
    """Fork a child during an epoch; it closes all descriptors and makes its own loader."""
    with Loader(Rows(64), 4, **grouped(num_workers=2, start_method="fork")) as loader:
        it = iter(loader)
        rows = len(next(it)[1])
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.closerange(0 if streams == "closed" else 3, 256)
                with Loader(Rows(32), 4, **grouped(num_workers=2, start_method=method)) as own:
                    code = int([b[1].tolist() for b in own] != [list(range(k, k + 4)) for k in range(0, 32, 4)])
            finally:
                os._exit(code)
        child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        rows += sum(len(b[1]) for b in it)
    say("end", child=child, rows=rows)


def main():
    name_semaphores()
    globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
