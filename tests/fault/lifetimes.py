"""Make and drop loaders, iterators, batches, their slices and copies, states, queues and forked children at random.

``python -m tests.fault.lifetimes --seconds 20 --seeds 1 2 3``.

Every live value is compared with its expected value again and again; at the end nothing is left.
"""

import argparse
import collections
import copy
import faulthandler
import gc
import json
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

ROWS = 60
WATCHDOG_S = 30


def value(i):
    """Return the sample with the number i."""
    return np.arange(1 + 37 * (i % 11), dtype=np.int32) * (i + 1)


ACTIONS = {
    **{"make": 3, "begin": 6, "next": 40, "slice": 10, "cycle": 3, "as_other": 3, "copies": 4, "check": 6},
    **{"through_queue": 3, "state": 3, "resume": 1, "drop_held": 8, "drop_iteration": 3, "drop_loader": 1.5},
    **{"drop_queue": 0.5, "collect": 3, "fork": 1.5},
}


IN_CHILDREN = (
    *("slice", "cycle", "copies", "check", "drop_held", "collect", "drop_loader", "drop_iteration"),
    *("make", "begin", "as_other", "drop_queue", "fork"),
)


class Samples:
    """A map dataset."""

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return {"values": np.full(300, i, np.int32), "own": value(i // 6), "number": i}


class Cycle:
    """A reference cycle, which only the collector frees."""

    def __init__(self, what):
        self.what, self.itself = what, self


class Held:
    """An array and its expected value."""

    def __init__(self, what, right):
        self.what, self.right = what, right

    def check(self):
        what = self.what.what if isinstance(self.what, Cycle) else self.what
        assert np.array_equal(np.asarray(what), self.right), f"{what!r} should be {self.right!r}"


def parts(batch):
    """Return a batch's arrays with their expected values, as `Held`; keep no reference to the batch."""
    numbers = np.asarray(batch["number"]).tolist()
    right = np.stack([Samples()[i]["values"] for i in numbers])
    own = np.stack([Samples()[i]["own"] for i in numbers])
    held = [Held(batch["values"], right), Held(batch["own"], own), Held(batch["number"], np.array(numbers))]
    for one in held:
        one.check()
    return held, numbers


class Iteration:
    """An iterator and the numbers that it must still yield: a set if batches come out of order."""

    def __init__(self, it, left, ordered, loader):
        self.it, self.left, self.ordered, self.loader = it, left, ordered, loader


class Life:
    """One process's objects."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.loaders, self.iterations, self.held, self.states, self.queues = [], [], [], [], []
        self.newest = {}  # loader -> its last iteration
        self.done = collections.Counter()

    # ---- making

    def make(self):
        if len(self.loaders) >= 4:
            return self.drop_loader()
        draw = self.draw
        options = {"num_workers": draw.choice((0, 0, 1, 2)), "batch_size": 6}
        if draw.random() < 0.5 and options["num_workers"]:
            options["persistent_workers"] = True
        if draw.random() < 0.4 and "slipring.torch" in sys.modules:
            kind = sys.modules["slipring.torch"].DataLoader
            if draw.random() < 0.3:
                options |= {"device": "cpu", "preload": draw.choice((0, 1))}
        else:
            kind = slipring.Loader
            options.setdefault("persistent_workers", False)
            options["copy"] = draw.choice(("auto", "auto", "always"))
            options["start_method"] = draw.choice(("fork", "thread")) if options["num_workers"] else None
            options["slots"] = draw.choice((None, 8))
            options["chunk_size"] = draw.choice((None, 3))
        options["in_order"] = draw.random() < 0.8
        self.loaders.append((kind, options, kind(Samples(), **grouped(**options))))

    def begin(self):
        if len(self.iterations) < 6 and self.loaders:
            kind, options, loader = self.draw.choice(self.loaders)
            if kind is not slipring.Loader and options.get("persistent_workers"):  # torch allows one
                self.iterations = [one for one in self.iterations if one.loader is not loader]
            one = Iteration(iter(loader), list(range(ROWS)), options["in_order"], loader)
            self.iterations.append(one)
            self.newest[id(loader)] = id(one.left)

    def next(self):
        if not self.iterations:
            return
        one = self.draw.choice(self.iterations)
        try:
            batch = next(one.it)
        except StopIteration:
            assert not one.left, f"ended with {one.left} to come"
            self.iterations.remove(one)
            return
        except slipring.errors.Closed:
            self.iterations.remove(one)  # its loader was closed, or has a new iteration
            self.done["closed"] += 1
            return
        held, numbers = parts(batch)
        if one.ordered:
            assert numbers == one.left[: len(numbers)], f"got {numbers} of {one.left}"
            del one.left[: len(numbers)]
        else:
            for number in numbers:
                one.left.remove(number)
        self.held += self.draw.sample(held, self.draw.randrange(4))

    # ---- with batches that are held

    def slice(self):
        if self.held:
            one = self.draw.choice(self.held)
            what = one.what.what if isinstance(one.what, Cycle) else one.what
            a = self.draw.randrange(3)
            cut = (slice(a, a + 2), slice(a, None), slice(None, None, 2))[self.draw.randrange(3)]
            self.held.append(Held(what[cut], one.right[cut]))

    def cycle(self):
        if self.held:
            one = self.draw.choice(self.held)
            if not isinstance(one.what, Cycle):
                one.what = Cycle(one.what)

    def as_other(self):
        if self.held:
            one = self.draw.choice(self.held)
            what = one.what.what if isinstance(one.what, Cycle) else one.what
            if isinstance(what, np.ndarray) and what.flags.c_contiguous and what.size:
                seen = np.frombuffer(memoryview(what), what.dtype)
                self.held.append(Held(seen, one.right.ravel()))
                if "torch" in sys.modules and what.flags.writeable:
                    self.held.append(Held(sys.modules["torch"].from_numpy(what), one.right))

    def copies(self):
        if self.held:
            one = self.draw.choice(self.held)
            what = one.what.what if isinstance(one.what, Cycle) else one.what
            way = self.draw.choice((copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))))
            self.held.append(Held(way(what), one.right))

    def check(self):
        for one in self.held:
            one.check()

    def through_queue(self):
        if not self.queues or (len(self.queues) < 2 and self.draw.random() < 0.3):
            self.queues.append(slipring.Queue(4))
        if self.held:
            one, queue = self.draw.choice(self.held), self.draw.choice(self.queues)
            what = one.what.what if isinstance(one.what, Cycle) else one.what
            try:
                queue.put(what, timeout=0)
            except queues.Full:
                return
            self.held.append(Held(queue.get(timeout=20), one.right))

    # ---- states

    def state(self):
        able = [one for one in self.iterations if one.ordered and hasattr(one.loader, "state_dict")]
        if not able:
            return
        one = self.draw.choice(able)
        made = [(kind, options) for kind, options, loader in self.loaders if loader is one.loader]
        if made and self.newest.get(id(one.loader)) == id(one.left):  # the state is that of the newest iteration
            state = pickle.dumps(one.loader.state_dict())
            self.states = [*self.states[-2:], (*made[0], state, list(one.left))]

    def resume(self):
        if self.states:
            kind, options, state, left = self.draw.choice(self.states)
            loader = kind(Samples(), **grouped(**options))
            loader.load_state_dict(pickle.loads(state))
            got = []
            limit = self.draw.choice((1, 3, 99))
            for batch in loader:
                held, numbers = parts(batch)
                got += numbers
                self.held += held[:1]
                if len(got) >= 6 * limit:
                    break
            assert got == left[: len(got)] and (got or not left), f"resumed with {got} of {left}"
            if self.draw.random() < 0.5:
                loader.close()

    # ---- ending objects

    def drop_held(self):
        self.draw.shuffle(self.held)
        del self.held[: self.draw.randrange(1 + len(self.held))]

    def drop_iteration(self):
        if self.iterations:
            self.iterations.pop(self.draw.randrange(len(self.iterations)))

    def drop_loader(self):
        if self.loaders:
            loader = self.loaders.pop(self.draw.randrange(len(self.loaders)))[2]
            if self.draw.random() < 0.4:
                loader.close()
                # Its iterations have ended.
                self.iterations = [one for one in self.iterations if one.loader is not loader]

    def drop_queue(self):
        if self.queues:
            queue = self.queues.pop()
            if self.draw.random() < 0.5:
                queue.close()

    def collect(self):
        self.draw.choice((gc.collect, gc.enable, gc.disable, lambda: gc.collect(0)))()

    def fork(self, steps=12):
        """Fork a child that uses its copies of these objects, and drops them in its own order."""
        seed = self.draw.random()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                signal.alarm(WATCHDOG_S)  # faulthandler's thread exists in the parent only
                self.draw = random.Random(seed)
                self.check()
                for _ in range(steps):
                    name = self.draw.choice(IN_CHILDREN)
                    if name == "fork":
                        if steps > 3:
                            self.fork(3)
                    else:
                        getattr(self, name)()
                self.check()
                again = [i for batch in slipring.Loader(Samples(), 6) for i in parts(batch)[1]]
                assert again == list(range(ROWS)), again
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        self.draw.random()
        if self.draw.random() < 0.5:  # the parent releases objects while the child checks them
            self.drop_held()
            self.next()
        assert os.waitpid(pid, 0)[1] == 0, "a forked child has seen something else"

    def live(self, seconds):
        """Do random actions until the time is over; then release everything in random order."""
        end, names, weights = time.monotonic() + seconds, list(ACTIONS), list(ACTIONS.values())
        while time.monotonic() < end:
            (name,) = self.draw.choices(names, weights)
            if len(self.held) > 80:
                self.drop_held()
            self.done[name] += 1
            getattr(self, name)()
        ends = [self.loaders, self.iterations, self.held, self.queues, self.states]
        self.draw.shuffle(ends)
        for kind in ends:
            self.draw.shuffle(kind)
            self.check()
            kind.clear()
        gc.enable()
        gc.collect()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    if not args.no_torch:
        import torch

        import slipring.torch  # noqa: F401  `Life.make` looks for it

        torch.set_num_threads(1)
    faulthandler.dump_traceback_later(2 + WATCHDOG_S, exit=True)
    warm = Life(0)
    warm.live(2)  # to import modules and open files that stay
    for seed in args.seeds:
        faulthandler.dump_traceback_later(args.seconds + WATCHDOG_S, exit=True)
        before = what_is_held()
        life = Life(seed)
        try:
            life.live(args.seconds)
        except BaseException:
            print(f"seed {seed}, after {sum(life.done.values())} actions {dict(life.done)}", flush=True)
            raise
        left = left_behind(before)
        print(f"seed {seed}: {json.dumps(dict(life.done))}; left: {left}", flush=True)
        if left:
            sys.exit(1)


if __name__ == "__main__":
    main()
