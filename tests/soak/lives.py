"""Short-lived loaders: of random kinds, read and ended in random ways, and checked."""

import contextlib
import dataclasses
import gc
import re

import slipring
from tests.fault import rounds
from tests.fault.kills import MODES
from tests.soak import samples
from tests.soak.samples import Map, Sizes, digest, made, numbers, of_streams
from tests.support.options import grouped

# adapter, start method, number of such lives between two shuffles, other fixed settings
CARDS = (
    ("slipring", "fork", 5, {}),
    ("slipring", "thread", 3, {}),
    ("slipring", "forkserver", 1, {}),
    ("slipring", "spawn", 1, {}),
    ("slipring", "none", 1, {}),
    ("torch", "fork", 2, {}),
    ("torch", "fork", 2, {"preload": 2}),
    ("torch", "fork", 3, {"resume": True}),
    ("torch", "forkserver", 1, {}),
    ("torch", "none", 1, {}),
)
SOON = ("fork", "thread", "none")  # start methods that take no time
QUICK = ("map", "chunks", "stream, by state")  # some modes of the fault run


@dataclasses.dataclass
class Life:
    """A loader and the actions on it."""

    adapter: str
    method: str
    kind: str
    stream: bool
    workers: int
    n: int
    size: int
    epochs: int
    bad: tuple
    keep: bool  # keep all batches of an epoch beyond the loader's end
    stop: int  # break off the last epoch after so many batches; 0: never
    closed: bool  # otherwise it is only dropped
    twice: bool  # two iterators at once
    resume: bool
    options: dict

    @classmethod
    def draw(cls, rng, adapter, method, preload=None, resume=False):
        """Return a random life."""
        stream = rng.random() < 0.35
        options = {"in_order": resume or rng.random() < 0.75, "persistent_workers": rng.random() < 0.5}
        options["prefetch_factor"] = rng.choice([1, 2, 4])
        options["copy"] = rng.choice(["auto", "auto", "always"])
        if rng.random() < 0.3 and method != "none":
            options["slots"] = 12
        if not stream and not resume and method != "none" and rng.random() < 0.4:
            options |= {"chunk_size": rng.choice([1, 4, 16]), "rng": "batch"}
        if preload:
            options["preload"] = preload
        n = rng.randrange(100, 400)
        errors = not stream and not resume and not preload and rng.random() < 0.3
        return cls(
            adapter=adapter,
            method=method,
            kind=rng.choice(samples.KINDS),
            stream=stream,
            workers=0 if method == "none" else rng.choice([1, 2, 3]),
            n=n,
            size=rng.randrange(1, 40),
            epochs=rng.choice([1, 1, 2, 3]),
            bad=tuple(rng.sample(range(n), 3)) if errors else (),
            keep=rng.random() < 0.4,
            stop=rng.choice([0, 0, 1, 5]),
            closed=rng.random() < 0.7,
            twice=adapter == "slipring" and rng.random() < 0.15,
            resume=resume,
            options=options,
        )

    def loader(self, lists):
        """Return the loader."""
        options = {"num_workers": self.workers, "collate_fn": samples.collate_of(self.kind), **self.options}
        if self.stream:
            options["batch_size"] = self.size
        else:
            options["batch_sampler"] = lists
        if not self.workers:
            options.pop("persistent_workers"), options.pop("prefetch_factor")
        if self.adapter == "slipring":
            data = samples.Stream(self.kind, self.n) if self.stream else Map(self.kind, self.n, self.bad)
            return slipring.Loader(data, **grouped(start_method=None if not self.workers else self.method, **options))
        from slipring.torch import DataLoader
        from tests.soak import samples_torch

        module = samples_torch if self.stream else samples
        data = module.Stream(self.kind, self.n) if self.stream else Map(self.kind, self.n, self.bad)
        return DataLoader(data, multiprocessing_context=self.method if self.workers else None, **grouped(**options))

    @property
    def in_order(self):
        """bool: for `rounds.compare`."""
        return self.options["in_order"] or not self.workers

    exact = True


def default_collate_of(adapter):
    """Return the collate_fn of an adapter."""
    if adapter == "slipring":
        return slipring.default_collate
    from torch.utils.data import default_collate

    return default_collate


def due(life, lists):
    """Return the expected batches of an epoch: (numbers, digest), or (("error", number), 0)."""
    collate = default_collate_of(life.adapter)
    for one in lists:
        bad = [i for i in one if i in life.bad]
        yield (("error", bad[0]), 0) if bad else (tuple(one), digest(made(life.kind, one, collate)))


def came(life, iterator, kept, most):
    """Return an iterator's batches, up to `most` (0: all), in the form of `due`."""
    got = []
    while not most or len(got) < most:
        try:
            batch = next(iterator)
        except StopIteration:
            break
        except ValueError as error:
            got.append((("error", int(re.findall(r"no sample (\d+)", str(error))[-1])), 0))
            continue
        got.append((numbers(life.kind, batch), digest(batch)))
        if life.keep:
            kept.append((batch, got[-1][1]))
        del batch
    return got


def check(life, got, want, broken, counts):
    """Count the wrong deliveries of an epoch."""
    if broken and life.in_order:
        want = want[: len(got)]
    elif broken:
        these = {ids for ids, _ in got}
        want = [one for one in want if one[0] in these]
    rounds.compare(got, want, life, counts)
    counts["batches"] += len(got)


def lists_of(life, rng):
    """Return the numbers of each batch; at most one raises per batch, because the error names a random one."""
    if life.stream:
        return of_streams(max(1, life.workers), life.n, life.size)
    sizes, lists = Sizes(rng, life.n), None
    while lists is None or any(sum(i in life.bad for i in one) > 1 for one in lists):
        lists = list(sizes)
    return lists


def live(life, rng, counts):
    """Read the loader as the life says, and compare."""
    lists = lists_of(life, rng)
    want, kept = list(due(life, lists)), []
    loader = life.loader(lists)
    with contextlib.ExitStack() as stack:
        if life.closed:
            stack.callback(loader.close)
        for epoch in range(life.epochs):
            last = epoch == life.epochs - 1
            iterator = iter(loader)
            if life.twice:
                other = iter(loader)
                check(life, came(life, other, kept, 3), want, True, counts)
                del other
            stop = life.stop if last or life.resume else 0
            got = came(life, iterator, kept, stop)
            broken = bool(stop) and len(got) == stop
            if life.resume:
                # Another loader loads the state and reads the rest.
                state = loader.state_dict()
                del iterator
                with life.loader(lists) as second:
                    second.load_state_dict(state)
                    if not stop:
                        got = []  # the epoch had ended: the state starts the next one
                    got += came(life, iter(second), kept, 0)
                broken = False
            check(life, got, want, broken, counts)
            iterator = None
            if len(kept) > 200:
                kept.clear()
    del loader
    gc.collect()  # ends a loader that was only dropped
    counts["changed"] += sum(digest(batch) != was for batch, was in kept)


class Lives:
    """A deck of lives, shuffled again after each pass, so that each kind occurs in each part of a run.

    Parameters
    ----------
    rng : random.Random
    torch, quick : bool
        Include torch's adapter; use only start methods that take no time.
    killer : tests.fault.rounds.Killer
    """

    def __init__(self, rng, torch, quick, killer):
        self.rng, self.killer, self.left = rng, killer, []
        self.pack = [
            (adapter, method, more)
            for adapter, method, times, more in CARDS
            if (torch or adapter != "torch") and (not quick or method in SOON)
            for _ in range(times)
        ]
        self.pack += [
            ("killed", name, {})
            for name, (_, described) in MODES.items()
            if (torch or described.get("adapter") != "torch")
            and described.get("start_method", "fork") in SOON  # other methods take seconds per death
            and (not quick or name in QUICK)
        ]

    def next(self):
        """Return the next life: (its description, a function of the counts that runs it)."""
        if not self.left:
            self.left = self.rng.sample(self.pack, len(self.pack))
        adapter, name, more = self.left.pop()
        if adapter != "killed":
            life = Life.draw(self.rng, adapter, name, **more)
            return life, lambda counts: live(life, self.rng, counts)
        return f"killed: {name}", lambda counts: self._killed(rounds.Mode.of(MODES[name][1]), counts)

    def _killed(self, mode, counts):
        details = []
        rounds.one_round(mode, rounds.peaceful(mode), self.killer, counts, [], details)
        self.killer.noticed_ms.clear()
        gc.collect()
