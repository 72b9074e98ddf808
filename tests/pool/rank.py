"""A rank that shares a pool: ``python -m tests.pool.rank OPTIONS``. It answers each line of JSON with another."""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid

import numpy as np

import slipring
from slipring.errors import SlipringError
from tests.support.inside import engine_of, look, states
from tests.support.leaks import read
from tests.support.processes import ROOT, until


class Rows:
    """Rows of random numbers; a sample waits `slow` seconds if its index is `slow_from` or higher."""

    def __init__(self, n, root="here", slow=0.0, slow_from=0, gate=None, gated=-1, size=16, files=(), cache=None):
        self.n, self.root, self.size, self.files, self.slow_from = n, root, size, files, slow_from
        self.cache = None if cache is None else slipring.Cache(cache)
        self.pauses = [slow]
        self.gates = [gate, gated]

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if self.pauses[0] and index >= self.slow_from:
            time.sleep(self.pauses[0])
        if index == self.gates[1]:
            with open(self.gates[0], "rb") as gate:
                gate.read(1)
        row = slipring.rng().random(self.size)
        row[:3] = index, np.random.random(), os.getpid()
        return row


class Holding(Rows):
    """Rows with an attribute of a given kind."""

    def __init__(self, n, kind, values):
        super().__init__(n)
        if kind == "torch":
            import torch

        self.held = {
            "numpy": lambda: np.array(values),
            "rows": lambda: np.array(values, np.int16).reshape(-1, 2)[::2],
            "scalar": lambda: np.int64(values[0]),
            "torch": lambda: torch.tensor(values),
            "StringList": lambda: slipring.StringList(map(str, values)),
            "text": lambda: " ".join(map(str, values)),
        }[kind]()


class Wrapping(Rows):
    """Rows of a wrapper, with an attribute `dataset` or `datasets`."""

    def __init__(self, n, kind, values, wraps):
        super().__init__(n)
        inner = Holding(n, kind, values)
        setattr(self, wraps, inner if wraps == "dataset" else [Rows(n), inner])


class Photographs(Rows):
    """Rows of a wrapper of images, which keeps something of its own process."""

    def __init__(self, n, folder):
        from slipring.images import Folder

        super().__init__(n)
        self._token = os.urandom(8).hex()
        self.dataset = Folder(folder)

    def __getitem__(self, index):
        row = super().__getitem__(index)
        row[1] = self.dataset[0][0].mean()
        return row


class Itself(Rows):
    """Rows of a wrapper of itself."""

    def __init__(self, n):
        super().__init__(n)
        self.datasets = [self] * 20


class Unready(Rows):
    """Rows of a wrapper of an object that raises when it is asked for its name."""

    class Inner:
        def __getattr__(self, name):
            raise RuntimeError("not open") if name == "__qualname__" else AttributeError(name)

    def __init__(self, n):
        super().__init__(n)
        self.dataset = self.Inner()


class Augmenting(list):
    """A list that gives samples other numbers each time, also to those who only look."""

    def __init__(self, n):
        super().__init__([float(index)] for index in range(n))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return [*super().__getitem__(index), random.random(), 0.0]


def listed(n, kind, values):
    return [[float(value), 0.0, 0.0] for value in values]


class Scale:
    """A function of samples, and an object whose method is one."""

    def __init__(self, factor):
        self.factor = factor

    def by_method(self, samples):
        return scaled(self.factor, samples)


def scaled(factor, samples):
    return np.array(samples) * factor


class Growing(Rows):
    """Rows of which the later ones are longer, up to twice as long; a batch's rows are equally long."""

    def __getitem__(self, index):
        row = super().__getitem__(index)
        return np.concatenate([row, row[: len(row) * (index // 4) * 4 // self.n]])


class Poisoned(Rows):
    """Rows of which one kills the worker that reads it, and writes the time to a file."""

    def __getitem__(self, index):
        if index == 8:
            with open(self.root, "a") as deaths:
                deaths.write(f"{time.monotonic()}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Late(Rows):
    """Rows of which the first four are short, and the others wait while the test has a lock on the file `lock`."""

    def __init__(self, n, lock, **options):
        super().__init__(n, **options)
        self.lock = lock

    def __getitem__(self, index):
        row = super().__getitem__(index)
        if index < 4:
            return row[:1000]
        with open(self.lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        return row


class Loaded:
    """A dataset of Python objects that it makes where it is unpickled: in the pool, and not in the ranks."""

    def __init__(self, n):
        self.n = n

    def __setstate__(self, state):
        self.n = state["n"]
        self.samples = [(float(index), f"{index} " * 8) for index in range(self.n)]

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        number, text = self.samples[index]
        return np.array([number, len(text), os.getpid()])


class Refused(Rows):
    def __setstate__(self, state):
        errors = {"no file": FileNotFoundError, "no more": EOFError}
        raise errors.get(state["root"], LookupError)("this dataset cannot be loaded")


class Deadly(Rows):
    def __setstate__(self, state):
        with open(state["root"], "a") as attempts:
            attempts.write(".")
        os._exit(1)


def init_badly(number):
    raise LookupError(f"worker {number} cannot begin")


def loader_of(
    dataset="Rows", batch_size=4, pool=None, on_death=None, worker_init_fn=None, data=None, torch=False, memory=None,
    copy="auto", scale=None, **options,
):  # fmt: skip
    workers = slipring.Workers(pool=pool, on_death=on_death, memory=memory)
    options["memory"] = slipring.Memory(copy=copy)
    data = globals()[dataset](**(data or {"n": 64}))
    if worker_init_fn:
        options["worker_init_fn"] = globals()[worker_init_fn]
    if scale is not None:
        kind, factor = scale
        options["collate_fn"] = functools.partial(scaled, factor) if kind == "partial" else Scale(factor).by_method
    if torch:
        import torch as library

        from slipring.torch import DataLoader as kind

        seed = options.pop("seed", 0)
        library.manual_seed(seed)
        options["rng"] = "batch"
    else:
        kind = slipring.Loader
    return kind(data, batch_size=batch_size, workers=workers, **options)


class Answers:
    """What a rank can be asked."""

    def __init__(self):
        self.loaders, self.iterators, self.concurrent = {}, {}, []

    def make(self, name="train", **options):
        self.loaders[name] = loader_of(**options)

    def batch(self, name="train"):
        if name not in self.iterators:
            self.iterators[name] = iter(self.loaders[name])
        batch = next(self.iterators[name], None)
        if batch is None:
            del self.iterators[name]
            return None
        return np.asarray(batch)[:, :3].tolist()

    def keep(self, n, name="train"):
        """Keep `n` batches of a new iteration; return the indices of their rows."""
        iterator = iter(self.loaders[name])
        self.kept = [next(iterator) for _ in range(n)]
        return [int(row[0]) for batch in self.kept for row in batch]

    def usage(self, name="train"):
        """Return what the loader's segment takes, what it may take, and how many batches are not made yet.

        "short": how many workers wait for memory.
        """
        ring = engine_of(self.loaders[name]).ring
        short = sum(ring.is_short(participant) for participant in range(1, ring.n_participants))
        return {**ring.usage, "budget": ring.budget, "unfinished": unfinished(look(ring)), "short": short}

    def report(self, name="train"):
        return self.loaders[name].report(ranks=True).dict()

    def iterate(self, n, name="train"):
        """Begin `n` iterations of a loader concurrently; return the pids that made the first batch of each."""
        self.concurrent = [iter(self.loaders[name]) for _ in range(n)]
        return sorted({int(np.asarray(next(each))[0][2]) for each in self.concurrent})

    def begin_others(self, n, name="train"):
        """Begin `n` more iterations of a loader; read nothing."""
        self.concurrent = [iter(self.loaders[name]) for _ in range(n)]

    def newest(self):
        """Return the first batch of the newest of these iterations."""
        return np.asarray(next(self.concurrent[-1]))[:, :3].tolist()

    def finish(self):
        """Read the iterations of `iterate` to their ends; return the number of their other batches."""
        return sum(len(list(each)) for each in self.concurrent)

    def epoch(self, name="train"):
        """Read an epoch; return a digest of its bytes (the workers' pids left out), and the state after it."""
        digest, pids = hashlib.sha256(), set()
        for batch in self.loaders[name]:
            batch = np.array(batch)
            pids.update(batch[:, 2].tolist())
            batch[:, 2] = 0
            digest.update(batch.tobytes())
        state = self.loaders[name].state_dict()
        return {"digest": digest.hexdigest(), "pids": sorted(map(int, pids)), "state": json.dumps(state, default=str)}

    def close(self, name="train"):
        self.iterators.pop(name, None)
        self.loaders.pop(name).close()

    def private(self, pid):
        """Return this process's proportional memory, in bytes."""
        return pss(pid or os.getpid())


def unfinished(snapshot):
    """Return how many batches of a segment are requested and not made yet."""
    return sum(state in ("task", "claimed", "shared") for state in states(snapshot.slots))


def pss(pid):
    """Return the proportional set size of a process in bytes."""
    lines = read(f"/proc/{pid}/smaps_rollup").decode().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main():
    answers = Answers()
    print(json.dumps("begun"), flush=True)
    for line in sys.stdin:
        what, options = json.loads(line)
        try:
            answer = getattr(answers, what)(**options)
        except (SlipringError, ValueError, LookupError) as error:
            answer = {"error": type(error).__name__, "text": str(error), "fields": getattr(error, "__dict__", {})}
        print(json.dumps(answer), flush=True)


# ---- for the tests


class Rank:
    """A rank, as a test sees it. Calls of unknown methods are questions."""

    def __init__(self, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.pool.rank"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.pid = self.process.pid

    def __enter__(self):
        assert self.answer() == "begun"
        return self

    def __exit__(self, *exc):
        self.process.kill()
        with self.process:
            pass

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the rank has ended"
        return json.loads(line)

    def begin(self, what, **options):
        """Ask without waiting for the answer."""
        self.process.stdin.write(json.dumps([what, options]) + "\n")
        self.process.stdin.flush()

    def ask(self, what, **options):
        self.begin(what, **options)
        return self.answer()

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def ranks(n, **options):
    """Start `n` ranks with equal loaders that share a pool of a name of its own."""
    name = f"test-{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(Rank()) for _ in range(n)]
        for number, rank in enumerate(started):
            made = {"pool": name, "num_workers": 2, "shuffle": True, "seed": number, **options}
            rank.name = name
            assert rank.ask("make", **made) is None
        yield started


def parent_of(pid):
    """Return the pid of a process's parent: of a worker, the pool's process."""
    stat = read(f"/proc/{pid}/stat").decode(errors="replace")
    return int(stat.rpartition(")")[2].split()[1]) if stat else None


def wait_gone(*pids):
    """Wait until processes have ended."""
    for pid in pids:
        until(lambda pid=pid: read(f"/proc/{pid}/stat") == b"", f"process {pid} ends")


if __name__ == "__main__":
    from tests.pool import rank  # so that the pool finds the classes by their importable names

    rank.main()
