"""Each system call of an operation fails once: in the consumer, or in a forked worker.

``python -m tests.fault.calls``.

A preloaded library makes the n-th call of one function fail with one errno. For each function, the calls of an
operation are counted; then each of them fails in a process of its own, forked from one in which the operation has
succeeded. The operation either succeeds, or raises an exception that says what happened; after it a new iteration
delivers all batches or raises as clearly; after close() no descriptor, process, thread or mapping is left.
``--stride`` skips calls, from a random one on.
"""

import argparse
import contextlib
import ctypes
import errno
import faulthandler
import functools
import gc
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np

import slipring
from slipring.errors import SlipringError
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.processes import alive

SOURCE = Path(__file__).with_suffix(".c")
WATCHDOG_S = 600
LEAK_GRACE_S = 60.0
SUBREAPER = 36  # prctl

# Function -> the errors that it may fail with.
FAILURES = {
    "open": ("EMFILE", "EACCES"),
    "mmap": ("ENOMEM", "EAGAIN"),
    "mremap": ("ENOMEM",),
    "mprotect": ("ENOMEM",),
    "munlock": ("EPERM",),
    "madvise": ("ENOMEM", "EINVAL"),
    "ftruncate": ("ENOSPC", "EINTR"),
    "fallocate": ("ENOSPC", "EINTR", "ENOMEM"),
    "memfd_create": ("ENOMEM", "EMFILE"),
    "malloc": ("ENOMEM",),
    "fork": ("EAGAIN", "ENOMEM"),
    "pthread_create": ("EAGAIN",),
    **dict.fromkeys(("pipe", "eventfd", "epoll_create1", "dup"), ("EMFILE",)),
    "pidfd_open": ("EMFILE", "EPERM"),
    "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "epoll_wait": ("EINTR",),
    "futex": ("EINTR", "EAGAIN"),
    "poll": ("EINTR", "ENOMEM"),
    "waitpid": ("EINTR",),
    "statfs": ("ENOMEM",),
}


# ---- operations


class Values:
    """Batches of 4 rows, in the n-th of which a sample has 4 ** n bytes (and its index)."""

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return np.full(4 ** (i // 4), i, np.uint8), i


WHOLE = [list(range(first, first + 4)) for first in range(0, 32, 4)]


def indices(batch):
    """Return the batch's indices, after a check of all its bytes."""
    images, own = batch
    assert (images == own[:, None]).all(), "a batch has other bytes"
    return own.tolist()


class OfLoader:
    """The operations on a loader. Each is a function of the armed part's context."""

    def __init__(self, workers=2, of="numpy", **options):
        self.options = {"num_workers": workers, **options}
        self.of = of
        self.loader = None
        self.held = []
        self.forked = False

    def make(self):
        kind = slipring.Loader
        if self.of == "torch":
            from slipring.torch import DataLoader as kind

            if self.options["num_workers"]:
                self.options.setdefault("persistent_workers", True)
                self.options["multiprocessing_context"] = "fork"
        else:
            self.options.setdefault("start_method", "fork")
        self.loader = kind(Values(), 4, **grouped(**self.options))

    def iter(self, armed):
        with armed:
            it = iter(self.loader)
        assert list(map(indices, it)) == WHOLE

    def next(self, armed):
        it = iter(self.loader)
        got, error = [indices(next(it)) for _ in range(2)], None
        try:
            with armed:
                batch = next(it)
            got.append(indices(batch))
            del batch
        except StopIteration:
            raise AssertionError("the iteration ended") from None
        except Exception as raised:
            error = raised
        try:
            got += map(indices, it)
        except Exception as raised:
            error = error or raised
        if error is not None:  # a batch may be missing, but none comes twice or out of order
            left = iter(WHOLE)
            assert all(batch in left for batch in got), got
            raise error
        assert got == WHOLE, got

    def whole(self, armed):
        with armed:
            assert list(map(indices, self.loader)) == WHOLE

    def close(self, armed):
        it = iter(self.loader)
        next(it)
        with armed:
            self.loader.close()
        self.make()

    def drop(self, armed):
        it = iter(self.loader)
        next(it)
        with armed:
            self.loader = None
            del it
            gc.collect()
        self.make()

    def respawn(self, armed):
        it = iter(self.loader)
        got = [indices(next(it))]
        engine = engine_of(self.loader)
        number, process = next(iter(engine.pool.processes.items()))
        signal.pidfd_send_signal(engine.pool.pidfds[number].fd, signal.SIGKILL)
        while alive(process.pid):
            time.sleep(0.001)
        with armed:
            engine.pool.check()
        got += map(indices, it)
        assert got == WHOLE, got

    def fork(self, armed):
        it, self.forked = iter(self.loader), True
        self.held = [next(it) for _ in range(3)]
        try:
            with armed:
                pid = os.fork()
                if not pid:
                    with contextlib.suppress(BaseException):
                        os._exit(0 if [indices(batch) for batch in self.held] == WHOLE[:3] else 3)
                    os._exit(4)
                status = os.waitpid(pid, 0)[1]
            assert os.WIFEXITED(status), f"the child's status is {status}"
            assert os.WEXITSTATUS(status) in (0, 1), "the child saw other values"  # 1: it has printed the reason
            assert [indices(batch) for batch in self.held] == WHOLE[:3]
        finally:
            self.held = []

    def afterwards(self):
        again = list(map(indices, self.loader))
        assert again == WHOLE, f"the next iteration gave {again}"
        engines = getattr(self.loader, "_engines", None)
        ring = getattr(getattr(engines, "engine", None), "ring", None)
        if ring is not None and not self.forked:  # a batch that could not be copied for a child stays in its slot
            assert ring.circulating == ring.n_slots, "slots are held"

    def end(self):
        self.loader.close()
        self.loader = None


class OfQueue:
    """The operations on a queue."""

    queue = None

    def make(self):
        pass

    def _open(self):
        self.queue = slipring.Queue(4)

    def _through(self, n=3):
        for i in range(n):
            self.queue.put(np.full(10 ** (2 * i), i))
        for i in range(n):
            assert (self.queue.get(timeout=WATCHDOG_S) == i).all()

    def use(self, armed):
        with armed, selectors.DefaultSelector() as selector:
            self._open()
            self._through(4)
            selector.register(self.queue, selectors.EVENT_READ)
            self.queue.put(7)
            assert selector.select(WATCHDOG_S)
            self.queue.close()

    def afterwards(self):
        if self.queue is None or self.queue.closed:
            self._open()
        while not self.queue.empty():  # messages from before the failed put
            self.queue.get()
        self._through()

    def end(self):
        self.queue.close()
        self.queue = None


LOADERS = {
    "fork": {},
    "short-lived": {"persistent_workers": False},
    "respawn": {"on_death": "respawn"},
    "chunks": {"chunk_size": 2},
    "thread": {"start_method": "thread"},
    "inline": {"workers": 0},
    "torch": {"of": "torch"},
    "ahead": {"of": "torch", "device": "cpu", "preload": 1},
}
SUBJECTS = {"queue": OfQueue, **{of: functools.partial(OfLoader, **options) for of, options in LOADERS.items()}}
# Operation -> (its subject, method, the process that fails)
OPERATIONS = {
    **{f"iter {of}": (of, "iter", False) for of in LOADERS},
    **{f"next {of}": (of, "next", False) for of in LOADERS},
    **{f"close {of}": (of, "close", False) for of in LOADERS},
    **{f"drop {of}": (of, "drop", False) for of in ("fork", "short-lived", "inline", "torch", "ahead")},
    **{f"whole {of}": (of, "whole", False) for of in ("short-lived", "inline", "thread")},
    **{f"workers {of}": (of, "whole", True) for of in ("fork", "respawn", "chunks", "torch")},
    "replace": ("respawn", "respawn", False),
    "replaced worker": ("respawn", "respawn", True),
    "fork with batches": ("fork", "fork", False),
    "fork's child with batches": ("fork", "fork", True),
    "queue use": ("queue", "use", False),
}


# ---- one case, in a process of its own


class Armed:
    """The part of an operation in which calls are counted and one fails."""

    def __init__(self, lib, function, n, error, in_children):
        self.lib = lib
        self.plan = function.encode(), n, error, in_children
        self.calls, self.failed = 0, False

    def __enter__(self):
        assert self.lib.calls_arm(*self.plan) == 0

    def __exit__(self, *exc):
        self.calls = self.lib.calls_disarm()
        self.failed = bool(self.lib.calls_failed())


def held():
    """Return this process's descriptors, threads, child processes and mappings of segments."""
    gc.collect()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # this process adopts orphans
            pass
    found = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found["descriptor " + os.readlink(f"/proc/self/fd/{fd}").split(":[")[0]] += 1
    for task in os.listdir("/proc/self/task"):
        found["thread"] += 1
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            found["process"] += len(file.read().split())
    with open("/proc/self/maps") as file:
        lines = [line.split(None, 5) for line in file]
    named = [parts[5] for parts in lines if len(parts) == 6 and "(deleted)" in parts[5]]
    found["mapping"] = sum("/dev/shm/" in name or "memfd:slipring" in name for name in named)
    return found


def left_behind(before):
    """Return what exists beyond `before`, as lines; processes and threads that are ending get time to end."""
    end_at = time.monotonic() + LEAK_GRACE_S
    while left := held() - before:
        if time.monotonic() > end_at:
            return [f"{n} {what}" for what, n in left.items()]
        time.sleep(0.01)
    return []


def clean(error):
    """Return whether an exception says what happened."""
    kinds = (OSError, MemoryError, SlipringError)
    started = type(error) is RuntimeError and "start new thread" in str(error)  # Python's own message
    return (isinstance(error, kinds) or started) and (bool(str(error)) or isinstance(error, MemoryError))


def one(lib, operation, function, n, name):
    """Return the outcome as a dict; raise exceptions that must not come."""
    of, method, in_children = OPERATIONS[operation]
    before = held()
    case, armed = SUBJECTS[of](), Armed(lib, function, n, getattr(errno, name), in_children)
    case.make()
    said = {"outcome": "ok", "after": "ok"}
    wrong = []
    try:
        getattr(case, method)(armed)
    except Exception as error:
        said["outcome"] = f"{type(error).__name__}: {error}"
        if not clean(error):
            wrong.append("".join(traceback.format_exception(error)))
        error.__traceback__ = None
    said["calls"], said["failed"] = armed.calls, armed.failed
    try:
        case.afterwards()
    except Exception as error:
        said["after"] = f"{type(error).__name__}: {error}"
        if not clean(error):
            wrong.append("afterwards: " + "".join(traceback.format_exception(error)))
        error.__traceback__ = None
    try:
        case.end()
    except Exception as error:
        wrong.append("close: " + "".join(traceback.format_exception(error)))
        error.__traceback__ = None
    del case
    if function in ("fork", "pipe") and armed.failed:
        before["descriptor pipe"] += 4  # multiprocessing's Popen does not close them if one of these calls raises
    wrong += [f"left behind: {what}" for what in left_behind(before)]
    return {**said, "wrong": wrong}


def in_child(what):
    """Call `what` in a forked process; return its value, or {"wrong": [...]}."""
    with tempfile.TemporaryFile("w+") as stderr, tempfile.TemporaryFile("w+") as answer:
        pid = os.fork()
        if not pid:
            try:
                os.setsid()
                os.dup2(stderr.fileno(), 2)
                ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
                faulthandler.enable()
                faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
                said = what()
                answer.write(json.dumps(said))
                answer.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        stderr.seek(0)
        answer.seek(0)
        printed, text = stderr.read(), answer.read()
        if status or not text:
            return {"wrong": [f"ended with status {status}: {printed[-6000:]}"]}
        said = json.loads(text)
        if any(text in printed for text in ("SystemError", "Fatal Python", "has not ended")):
            said["wrong"].append(f"printed: {printed[-3000:]}")
        return said


def short(outcome):
    """Return an outcome without numbers, so that equal ones can be counted."""
    return "".join("#" if c.isdigit() else c for c in outcome.split("\n")[0])[:110]


def go_through(lib, operation, function, name, stride, draw):
    """Return (calls, cases in which one failed, Counter of outcomes, [errors])."""
    counted = in_child(lambda: one(lib, operation, function, -1, name))
    wrong = [f"counting: {text}" for text in counted["wrong"]]
    outcomes, failed = Counter(), 0
    calls = counted.get("calls", 0)
    for n in range(draw.randrange(stride) if calls >= stride else 0, calls, stride):
        said = in_child(lambda n=n: one(lib, operation, function, n, name))
        wrong += [f"{name} in call {n}: {text}" for text in said["wrong"]]
        failed += said.get("failed", True)
        if said.get("failed"):
            after = said["after"]
            outcomes[short(said["outcome"]) + ("" if after == "ok" else f" | then {short(after)}")] += 1
    return calls, failed, outcomes, wrong


def program(args):
    lib = ctypes.CDLL(None)
    lib.calls_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    lib.calls_disarm.restype = ctypes.c_long
    operations = [o for o in OPERATIONS if not args.operation or o in args.operation]
    if any(LOADERS.get(OPERATIONS[operation][0], {}).get("of") for operation in operations):
        import torch

        torch.set_num_threads(1)  # a forked process cannot use OpenMP's threads
    for of in dict.fromkeys(OPERATIONS[operation][0] for operation in operations):
        case = SUBJECTS[of]()  # to import modules and open files that stay
        case.make()
        case.afterwards()
        case.end()
    gc.collect()
    bad, total, draw = 0, 0, random.Random(args.seed)
    for operation in operations:
        for function in args.function or FAILURES:
            for name in FAILURES[function][: args.errors]:
                calls, failed, outcomes, wrong = go_through(lib, operation, function, name, args.stride, draw)
                total += failed
                if not calls and not wrong:
                    continue
                told = "; ".join(f"{n} x {what}" for what, n in outcomes.most_common())
                print(f"{operation:26} {function:14} {name:7} {calls:5} {failed:5}  {told}", flush=True)
                for text in dict.fromkeys(wrong):
                    bad += 1
                    print(f"WRONG {operation}, {function}: {text}", flush=True)
    print(f"{total} calls failed, {bad} findings", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operation", nargs="*", choices=list(OPERATIONS))
    parser.add_argument("--function", nargs="*", choices=list(FAILURES))
    parser.add_argument("--errors", type=int, default=9, help="at most so many kinds for each function")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if "SLIPRING_CALLS" in os.environ:
        sys.exit(program(args) > 0)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "calls.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", SOURCE, "-o", made, "-ldl"], check=True)
        environment = {**os.environ, "LD_PRELOAD": str(made), "SLIPRING_CALLS": "1"}
        command = [sys.executable, "-m", "tests.fault.calls", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment).returncode)


if __name__ == "__main__":
    main()
