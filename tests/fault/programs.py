"""Programs that tests run as separate processes, to interrupt, kill or starve them.

    python -m tests.fault.programs NAME ARGUMENT...

Each prints a line of JSON on stdout at each stage.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import sys

from slipring import Loader, Workers
from slipring.errors import DescriptorClosed, SlipringError
from tests.fault.mortal import Init
from tests.support.inside import engine_of
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
        options["worker_init_fn"] = Init(gate)
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


def leave(how):
    """End with live objects: two unfinished iterations, and batches."""
    loader = Loader(Rows(1000), 4, num_workers=2, workers=Workers(start_method="fork"))
    first, second = iter(loader), iter(loader)
    global kept
    kept = [*(next(it) for it in (first, second) * 5), first, second, loader]
    say("workers", pids=[p.pid for it in (first, second) for p in engine_of(it).pool.processes.values()])
    if how == "exception":
        raise LookupError("meant")
    if how == "os._exit":
        os._exit(6)
    if how == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()


def resizing(method):
    """Change the number of workers all the time, until a signal comes."""
    with Loader(Slow(1 << 20), 4, num_workers=2, workers=Workers(start_method=method)) as loader:
        say("begun")
        for k, batch in enumerate(loader):
            del batch
            loader.resize(1 + k % 5)
            if k % 7 == 0 and method == "fork":
                say("workers", pids=list(worker_pids(loader).values()))


def fill_up(options):
    """Keep batches until memory runs out, then release them and continue; report the batches."""
    options = json.loads(options)
    size = options.pop("size")
    for name, (soft, hard) in options.pop("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
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
        say("end", came=came, stats=stats.__dict__, respawns=loader.stats().respawns)
    except (SlipringError, OSError, MemoryError) as error:
        say("refused", type=type(error).__name__, text=str(error), **numbers(error))


def numbers(error):
    """Return the attributes of an error."""
    return {k: v for k, v in vars(error).items() if k in ("needed", "free", "limit")}


def unseen(method):
    """End the program with dead workers whose deaths it has not noticed."""
    loader = Loader(Rows(1000), 4, num_workers=2, workers=Workers(start_method=method, on_death="respawn"))
    it = iter(loader)
    global kept
    kept = [loader, it, next(it), next(it)]
    for pid in worker_pids(loader).values():
        os.kill(pid, signal.SIGKILL)
    say("ends")


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


def closing(directory):
    """A worker closes all its open descriptors; each line names the process that makes the batches."""
    with Loader(Closing(directory, 1 << 30, 1 << 30), 1, num_workers=1, workers=Workers(start_method="fork")) as loader:
        for batch in loader:
            say("batch", pid=int(batch[0, 0]))


def becomes(method):
    """Exec another program while batches are in flight."""
    it = iter(Loader(Rows(1 << 20), 4, num_workers=2, workers=Workers(start_method=method)))
    next(it)
    say("begun", pids=sorted(p.pid for p in multiprocessing.active_children()))
    os.execvp("sleep", ["sleep", "1000"])


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
