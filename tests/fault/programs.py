"""Programs that tests run as processes of their own, to be interrupted, killed, or starved.

    python -m tests.fault.programs NAME ARGUMENT...

Each says on stdout, line by line, what it has come to.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import resource_tracker, util

from slipring import Loader
from tests.fault.procs import worker_pids
from tests.fault.scenes import AtPickling, Gate, Rows, Stream


def say(what, **more):
    """One line of JSON on stdout."""
    print(json.dumps({"at": what, **more}), flush=True)


class Stuck:
    """Sits in native code and keeps the GIL, for ever."""

    def __call__(self):
        ctypes.PyDLL(None).pause()


class Both:
    """One action after the other."""

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
    """A value that only pickle knows comes behind each sample."""

    def __init__(self, n, action):
        super().__init__(n)
        self.action = action

    def __getitem__(self, i):
        return super().__getitem__(i)[0], AtPickling(self.action)


def hold(method, stage, path):
    """A loader whose workers are all at `stage`; the program waits to be killed."""
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
    loader = Loader(data, **options)
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
    """End with everything alive: an iteration in the middle, batches held, a second iterator."""
    data = Stream(1000) if dataset == "stream" else Rows(1000)
    loader = Loader(data, 4, num_workers=2, start_method=method)
    first, second = iter(loader), iter(loader)
    global kept
    kept = [next(first) for _ in range(5)] + [next(second) for _ in range(5)] + [first, second, loader]
    pids = [p.pid for it in (first, second) for p in it._engine.pool.processes.values()]
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


def loop(method, persistent, dataset):
    """Make loaders, iterate, close, until a signal comes."""
    data = Stream(60) if dataset == "stream" else Slow(120)
    say("begun")
    while True:
        loader = Loader(
            data, 4, num_workers=2, start_method=method, persistent_workers=persistent == "persistent"
        )
        for _ in range(2):
            for batch in loader:
                del batch
        loader.close()


def interrupted_by_a_thread():
    """SIGINT while a worker is started, taken by a thread that does not block it."""
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
    loader = Loader(Rows(8), num_workers=2, start_method="spawn")
    try:
        iter(loader)
    finally:
        say("interrupted", left=len(multiprocessing.active_children()))


def main():
    globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
