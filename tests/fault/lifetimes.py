"""Make and drop loaders, iterators, batches, views on them, queues and forked children in random order.

``python -m tests.fault.lifetimes --seconds 20 --seeds 1 2 3``.

Every live array is compared with its expected values again and again; at the end nothing is left.
"""

import argparse
import collections
import copy
import faulthandler
import gc
import os
import pickle
import queue as queues
import random
import signal
import sys
import time
import traceback

import numpy as np

import slipring
from tests.fault.calls import held as what_is_held
from tests.fault.calls import left_behind
from tests.support.options import grouped

ROWS, SIZE = 60, 6
WATCHDOG_S = 600
WEIGHTS = {"make": 3, "begin": 6, "take": 40, "view": 15, "cycle": 3, "check": 6, "through_queue": 3, "drop_held": 8}
WEIGHTS |= {"drop_iteration": 3, "drop_loader": 1.5, "drop_queue": 0.5, "collect": 3, "fork": 1.5}
IN_CHILDREN = [name for name in WEIGHTS if name not in ("take", "through_queue")]


class Samples:
    """A map dataset; each batch has another shape."""

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        own = np.arange(1 + 37 * (i // SIZE), dtype=np.int32) * (i // SIZE)
        return {"values": np.full(300, i, np.int32), "own": own, "number": i}


class Cycle:
    """A reference cycle, which only the collector frees."""

    def __init__(self, what):
        self.what, self.itself = what, self


class Held:
    """An array, which may be in a cycle, and its expected value."""

    def __init__(self, what, right):
        self.what, self.right = what, right

    def array(self):
        return self.what.what if isinstance(self.what, Cycle) else self.what

    def check(self):
        assert np.array_equal(np.asarray(self.array()), self.right), f"{self.array()!r} should be {self.right!r}"


Iteration = collections.namedtuple("Iteration", "it left ordered loader")
VIEWS = [
    lambda array: array[1:3],
    lambda array: array[::2],
    lambda array: np.asarray(array)[1:],
    lambda array: np.frombuffer(memoryview(np.ascontiguousarray(array)), np.uint8) if array.size else array,
    copy.deepcopy,
    lambda array: pickle.loads(pickle.dumps(array)),
]


class Life:
    """One process's objects; `kinds` are the classes of its loaders."""

    def __init__(self, seed, kinds):
        self.rng, self.kinds = random.Random(seed), kinds
        self.loaders, self.iterations, self.held, self.queues = [], [], [], []
        self.done, self.pid = collections.Counter(), os.getpid()

    def make(self):
        if len(self.loaders) < 4:
            pick, kind = self.rng.choice, self.rng.choice(self.kinds)
            options = {"num_workers": pick((0, 0, 1, 2)), "in_order": pick((True, True, True, False))}
            if kind is not slipring.Loader:
                options |= pick(({}, {"device": "cpu", "preload": 0}, {"device": "cpu", "preload": 1}))
            else:
                options |= {"copy": pick(("auto", "auto", "always")), "slots": pick((None, 8))}
                options |= {"chunk_size": pick((None, 3)), "persistent_workers": pick((True, False))}
                options["start_method"] = pick(("fork", "thread"))
            self.loaders.append((kind(Samples(), SIZE, **grouped(**options)), options["in_order"]))

    def begin(self):
        if self.loaders and len(self.iterations) < 6:
            loader, ordered = self.rng.choice(self.loaders)
            self.iterations.append(Iteration(iter(loader), list(range(ROWS)), ordered, loader))

    def take(self):
        if not self.iterations:
            return
        at = self.rng.randrange(len(self.iterations))
        one = self.iterations[at]
        try:
            batch = next(one.it)
        except StopIteration:
            assert not one.left, f"ended with {one.left} to come"
            del self.iterations[at]
            return
        except slipring.errors.Closed:
            assert os.getpid() != self.pid, "an iteration was closed"  # a forked child may not use its parent's
            return
        numbers = np.asarray(batch["number"]).tolist()
        assert not one.ordered or numbers == one.left[:SIZE], f"got {numbers} of {one.left}"
        for number in numbers:
            one.left.remove(number)
        samples = [Samples()[i] for i in numbers]
        parts = [Held(batch[key], np.stack([sample[key] for sample in samples])) for key in batch]
        for part in parts:
            part.check()
        self.held += self.rng.sample(parts, self.rng.randrange(4))

    def view(self):
        if self.held:
            one, way = self.rng.choice(self.held), self.rng.choice(VIEWS)
            array = one.array()
            if way in VIEWS[2:4] and not isinstance(array, np.ndarray):
                array = array.numpy()
            self.held.append(Held(way(array), way(one.right)))

    def cycle(self):
        if self.held:
            one = self.rng.choice(self.held)
            one.what = Cycle(one.array())

    def check(self):
        for one in self.held:
            one.check()

    def through_queue(self):
        if len(self.queues) < 2:
            self.queues.append(slipring.Queue(4))
        if self.held:
            one, queue = self.rng.choice(self.held), self.rng.choice(self.queues)
            try:
                queue.put(one.array(), timeout=0)
            except queues.Full:
                return
            self.held.append(Held(queue.get(timeout=WATCHDOG_S), one.right))

    def drop_held(self):
        self.rng.shuffle(self.held)
        del self.held[: self.rng.randrange(1 + len(self.held))]

    def drop_iteration(self):
        if self.iterations:
            del self.iterations[self.rng.randrange(len(self.iterations))]

    def drop_loader(self):
        if self.loaders:
            loader, _ = self.loaders.pop(self.rng.randrange(len(self.loaders)))
            if self.rng.random() < 0.4:
                loader.close()
                self.iterations = [one for one in self.iterations if one.loader is not loader]

    def drop_queue(self):
        if self.queues:
            queue = self.queues.pop()
            if self.rng.random() < 0.5:
                queue.close()

    def collect(self):
        self.rng.choice((gc.collect, gc.enable, gc.disable))()

    def fork(self, steps=12):
        """Fork a child that uses its copies of these objects, and drops them in its own order."""
        seed = self.rng.random()
        if steps <= 1:
            return
        pid = os.fork()
        if not pid:
            code = 1
            try:
                signal.alarm(WATCHDOG_S)  # faulthandler's thread exists in the parent only
                self.rng = random.Random(seed)
                self.check()
                for _ in range(steps):
                    name = self.rng.choice(IN_CHILDREN)
                    self.fork(steps // 4) if name == "fork" else getattr(self, name)()
                self.check()
                again = [i for batch in slipring.Loader(Samples(), SIZE) for i in batch["number"].tolist()]
                assert again == list(range(ROWS)), again
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        if self.rng.random() < 0.5:  # the parent releases objects while the child checks them
            self.drop_held()
            self.take()
        assert os.waitpid(pid, 0)[1] == 0, "a forked child has seen something else"

    def live(self, seconds):
        """Do random actions until the time is over; then release everything in random order."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (name,) = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
            if len(self.held) > 80:
                self.drop_held()
            self.done[name] += 1
            getattr(self, name)()
        kinds = [self.loaders, self.iterations, self.held, self.queues]
        self.rng.shuffle(kinds)
        for kind in kinds:
            self.rng.shuffle(kind)
            self.check()
            kind.clear()
        gc.enable()
        gc.collect()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seeds", nargs="*", default=["1"])
    parser.add_argument("--torch", action="store_true", help="also torch's adapter")
    args = parser.parse_args()
    kinds = [slipring.Loader]
    if args.torch:
        import torch

        from slipring.torch import DataLoader

        torch.set_num_threads(1)
        kinds.append(DataLoader)
    faulthandler.dump_traceback_later(2 + WATCHDOG_S, exit=True)
    Life(0, kinds).live(2)  # to import modules and open files that stay
    for seed in args.seeds:
        faulthandler.dump_traceback_later(args.seconds + WATCHDOG_S, exit=True)
        before, life = what_is_held(), Life(seed, kinds)
        try:
            life.live(args.seconds)
        except BaseException:
            print(f"seed {seed}, after {dict(life.done)}", flush=True)
            raise
        left = left_behind(before)
        print(f"seed {seed}: {dict(life.done)}; left: {left}", flush=True)
        if left:
            sys.exit(1)


if __name__ == "__main__":
    main()
