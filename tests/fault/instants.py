"""A signal before every instruction of Python code in iter(), next() and close().

``python -m tests.fault.instants``.

Python's handlers run between two instructions, so these are all places where a handler's exception can occur.
After it the loader must continue: no batch is lost, repeated or out of order, no slot stays in use, and another
iteration is complete; nothing leaks. Within user code of this process (a sampler, a dataset without workers) the
exception ends the iteration, and a new one continues from its state. Within an object's unpickling it takes the batch's
place. ``--stride`` skips instructions, from a random one on.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

import slipring
from slipring import Memory
from slipring.errors import Closed
from tests.support.leaks import Snapshot, name_semaphores

SOURCE = Path(__file__).with_suffix(".c")
ROWS, SIZE = 24, 4
WHOLE = [list(range(first, first + SIZE)) for first in range(0, ROWS, SIZE)]
FAILURES = slipring.WorkerError, slipring.errors.CorruptBatch, ValueError
BAD = 2  # the batch that an exception replaces in "failing" and "ending"
SAMPLED = ("sampler", "told sampler")  # user code runs while batches of these are dispatched
WATCHDOG_S = 600  # for one instant
LEAK_GRACE_S = 60.0


class Raised(Exception):
    """The exception that the signal handler raises."""


def handler(signum, frame):
    raise Raised


def library(folder):
    """Compile and load the library that sends the signal."""
    made = Path(folder) / "instants.so"
    include = sysconfig.get_path("include")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", f"-I{include}", SOURCE, "-o", made], check=True)
    lib = ctypes.PyDLL(os.fspath(made))
    lib.slipring_arm.argtypes = [ctypes.c_int, ctypes.c_long]
    lib.slipring_disarm.restype = ctypes.c_long
    return lib


class Values:
    """A map dataset; a batch is (values, a dict that is pickled)."""

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return np.int64(i)


class Stream:
    """The same samples as a stream."""

    def __iter__(self):
        return iter([np.int64(i) for i in range(ROWS)])


BLOCKS = [{"x": np.arange(first, first + 2), "text": ["a", "b"]} for first in range(0, ROWS, 2)]


class Told(Values):
    """The same, with a state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Batches:
    """Batches of indices, one at a time, in Python."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        return Batches()

    def __len__(self):
        return len(WHOLE)

    def __next__(self):
        if self.next == len(WHOLE):
            raise StopIteration
        made = WHOLE[self.next]
        self.next += 1
        return made


class EndingBatches:
    """The same, but an exception ends them. The iterator is in C, where no signal comes."""

    def __iter__(self):
        return itertools.chain(WHOLE[:BAD], map(int, ["no number"]))


class ToldBatches(Batches):
    """The same, with a state."""

    def __iter__(self):
        return ToldBatches()

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Pickled:
    """An object that is pickled; Python code unpickles it."""

    def __init__(self, values):
        self.values = values

    def __setstate__(self, state):
        self.values = [int(value) for value in state["values"]]

    def tolist(self):
        return self.values


class Failing(Values):
    """One of its rows raises an exception."""

    def __getitem__(self, i):
        if i == WHOLE[BAD][1]:
            raise ValueError("no such row")
        return super().__getitem__(i)


def expected(name):
    """Return the batches of a loader, and None for an exception."""
    if name == "failing":
        return [*WHOLE[:BAD], None, *WHOLE[BAD + 1 :]]
    return [*WHOLE[:BAD], None] if name == "ending" else WHOLE


def listed(batch):
    return (batch["x"] if isinstance(batch, dict) else batch).tolist()


def delivered(iterator):
    """Return the same of an iterator, up to its end."""
    got = []
    while True:
        try:
            got.append(listed(next(iterator)))
        except StopIteration:
            return got
        except FAILURES:
            got.append(None)


def as_pickle(samples):
    return Pickled([int(s) for s in samples])


def loaders(adapter, workers):
    """Return {name: function that makes a loader}."""
    kind = {"num_workers": workers}
    if adapter == "torch":
        import torch

        from slipring.torch import DataLoader, Device

        class TorchStream(torch.utils.data.IterableDataset):
            """A worker's share of the batches."""

            def __iter__(self):
                info = torch.utils.data.get_worker_info()
                mine = WHOLE if info is None else WHOLE[info.id :: info.num_workers]
                return iter([np.int64(i) for batch in mine for i in batch])

        if workers:
            kind["persistent_workers"] = True
        return {
            "map": lambda: DataLoader(Values(), SIZE, **kind),
            "pickled": lambda: DataLoader(Values(), SIZE, collate_fn=as_pickle, **kind),
            "sampler": lambda: DataLoader(Values(), batch_sampler=Batches(), **kind),
            "stream": lambda: DataLoader(TorchStream(), SIZE, **kind),
            "unordered": lambda: DataLoader(Told(), SIZE, in_order=False, **kind),
            "ahead": lambda: DataLoader(Told(), SIZE, device=Device("cpu", preload=1), **kind),
            "at once": lambda: DataLoader(Values(), SIZE, device=Device("cpu", preload=0), **kind),
            "told sampler": lambda: DataLoader(Values(), batch_sampler=ToldBatches(), **kind),
            "seeded": lambda: DataLoader(Values(), SIZE, rng="batch", **kind),
        }
    from slipring import Loader, stream

    return {
        "map": lambda: Loader(Values(), SIZE, **kind),
        "pickled": lambda: Loader(Values(), SIZE, collate_fn=as_pickle, **kind),
        "sampler": lambda: Loader(Values(), batch_sampler=Batches(), **kind),
        "copied": lambda: Loader(Values(), SIZE, memory=Memory(copy="always"), **kind),
        "failing": lambda: Loader(Failing(), SIZE, **kind),
        "ending": lambda: Loader(Values(), batch_sampler=EndingBatches(), **kind),
        **({} if workers else {"stream": lambda: Loader(Stream(), SIZE), "blocks": lambda: stream(BLOCKS, SIZE)}),
    }


def told(loader):
    """Return the number of delivered batches in the loader's state; None if there is no state."""
    if not hasattr(loader, "state_dict"):
        return None
    try:
        state = loader.state_dict()
    except RuntimeError:  # a Stateful object was interrupted in the middle of a batch
        return None
    if state["delivered"] is not None:
        return state["delivered"] + len(state["beyond"])
    return sum(position["batches"] for position in state["workers"])


def unordered(loader):
    """Return whether batches come in the order in which they are ready."""
    return not getattr(loader, "in_order", True)


class Instants:
    """Sends signals at the instants of one loader."""

    def __init__(self, lib, number, kind, name):
        self.lib, self.number, self.kind, self.name, self.expected = lib, number, kind, name, expected(name)

    def interrupted(self, n, what):
        """Call `what` with the signal at its n-th instruction; return (whether it came, whether `what` failed)."""
        failed, left = False, -1
        try:
            self.lib.slipring_arm(self.number, n)
            try:
                what()
            except self.kind:
                raise
            except FAILURES:
                failed = True
            finally:
                left = self.lib.slipring_disarm()
        except self.kind:
            left = -1
        return left < 0, failed

    def next(self, make, n):
        """Send the signal in the third next()."""
        loader = make()
        got, box = [], [None]
        it = iter(loader)

        def one(it=it):
            for box[0] in it:  # no call comes between next() and the store of the batch
                break

        came = None
        while len(got) <= len(WHOLE):
            box[0], before, failed = None, came, False
            if len(got) == BAD and came is None:
                came, failed = self.interrupted(n, one)
                counted = {BAD + (box[0] is not None)}
                if failed:  # an exception that replaces a batch counts, the sampler's does not
                    counted.add(BAD + 1)
                assert told(loader) in {None, *counted}, "the state counts other batches"
            else:
                try:
                    one()
                except FAILURES:
                    failed = True
                except Raised:
                    break
                except Closed:  # the signal came in code of the user's, and ended the iteration
                    if got and got[-1] is None and told(loader) == len(got) - 1:
                        got.pop()  # the exception was not in a batch's place: the batch is still due
                    got += self.resumed(loader, len(got))
                    break
            if box[0] is not None or failed:
                got.append(None if failed else listed(box[0]))
            elif before is came or not came:
                break
        box[0] = None
        right = sorted(got) == WHOLE if unordered(loader) else got == self.expected
        if self.kind is Raised and self.name == "pickled":  # user code runs while these batches are received
            right = right or [*got[:BAD], self.expected[BAD], *got[BAD + 1 :]] == self.expected
        if self.kind is Raised and self.name in SAMPLED:
            right = right or (got == self.expected[: len(got)] and next(it, None) is None)
        assert right, f"delivered {got}"
        del it, one
        self.afterwards(loader)
        return came

    def resumed(self, loader, count):
        """Return the batches after the position of an iteration that has ended after `count` batches."""
        try:
            loader.load_state_dict(loader.state_dict())
        except RuntimeError:  # a Stateful object was interrupted in the middle of a batch
            return self.expected[count:]
        if count == len(self.expected):  # the rest is empty: the next pass is the next epoch, which `afterwards` reads
            return []
        return delivered(iter(loader))

    def iter(self, make, n):
        """Send the signal in iter()."""
        loader, box = make(), []
        came, _ = self.interrupted(n, lambda: box.append(iter(loader)))
        box.clear()
        self.afterwards(loader)
        return came

    def close(self, make, n):
        """Send the signal while an unfinished iteration is closed."""
        loader = make()
        it = iter(loader)
        for _ in it:
            break
        end = it.close if hasattr(it, "close") else None
        if end is None:
            loader.close()
            return False
        came, _ = self.interrupted(n, end)
        del it, end, _
        self.afterwards(loader)
        return came

    def afterwards(self, loader):
        """Check that the loader works as before."""
        again = delivered(iter(loader))
        right = sorted(again) == WHOLE if unordered(loader) else again == self.expected
        assert right, f"the next iteration gave {again}"
        engine = getattr(getattr(loader, "_engines", None), "engine", None)
        if engine is not None:
            assert engine.ring.circulating == engine.ring.n_slots, "slots are held"
        loader.close() if hasattr(loader, "close") else None


def go_through(lib, adapter, workers, what, name, stride=1, seed=1, kinds=("handler", "ctrl-c")):
    """Return the number of instants; raise an AssertionError that names the instant of an error."""
    make, count = loaders(adapter, workers)[name], 0
    for kind in kinds:
        number, raised = (signal.SIGUSR1, Raised) if kind == "handler" else (signal.SIGINT, KeyboardInterrupt)
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            instants = Instants(lib, number, raised, name)
            n = random.Random(seed).randrange(stride)
            while True:
                faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
                try:
                    came = getattr(instants, what)(make, n)
                except BaseException as error:
                    raise AssertionError(
                        f"{adapter}, {workers} workers, {name}: {kind} at instruction {n} of {what}()"
                    ) from error
                if not came:
                    break
                n, count = n + stride, count + 1
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGUSR1, before)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--adapter", choices=("numpy", "torch"), nargs="*", default=["numpy", "torch"])
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    parser.add_argument("--what", choices=("iter", "next", "close"), nargs="*", default=["next", "close", "iter"])
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    os.environ.setdefault("SLIPRING_TEST_RUN", f"{os.getpid()}-instants")
    name_semaphores()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        lib = library(folder)
        for what, adapter, workers in itertools.product(args.what, args.adapter, args.workers):
            for name in loaders(adapter, workers):
                if args.only and name not in args.only:
                    continue
                loader = loaders(adapter, workers)[name]()
                delivered(iter(loader))  # opens the files that the process then keeps
                loader.close()
                del loader
                gc.collect()
                before = Snapshot.take()
                try:
                    told = f"{go_through(lib, adapter, workers, what, name, args.stride, args.seed)} instants"
                    gc.collect()
                    left = before.leaks(wait_s=LEAK_GRACE_S)
                    with contextlib.suppress(RuntimeError):
                        left.append(f"a generator of a batch: {slipring.rng()}")
                    if left:
                        told, failed = f"left behind: {left}", failed + 1
                except AssertionError as error:
                    told, failed = f"{error}: {error.__cause__!r}", failed + 1
                print(f"{what}() {adapter} {workers} {name}: {told}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
