"""The soak's loaders: short-lived ones of random kinds, and residents, in which small leaks of each epoch add up."""

import contextlib
import dataclasses
import gc
import random
import re
import time

import slipring
from tests.fault import rounds
from tests.fault.kills import MODES
from tests.soak import samples
from tests.soak.samples import Map, Sizes, digest, made, numbers, of_streams
from tests.support.options import grouped
from tests.support.processes import in_child

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
BACK_S = 0.2  # until the slots of an abandoned epoch are free again


@dataclasses.dataclass
class Subject:
    """A kind of loader, and the batches that are due.

    Attributes
    ----------
    kind : str
        The kind of samples.
    method : str
        The start method; "none": without workers.
    n : int
        Samples in an epoch of a map dataset, or of each worker of a stream.
    size : int
        Samples in a batch of a stream; a map dataset has batches of all sizes.
    bad : tuple of int
        The samples that raise.
    """

    kind: str
    adapter: str = "slipring"
    method: str = "fork"
    stream: bool = False
    workers: int = 2
    n: int = 500
    size: int = 10
    bad: tuple = ()
    options: dict = dataclasses.field(default_factory=dict)

    exact = True  # for `rounds.compare`

    @property
    def in_order(self):
        """bool: for `rounds.compare`."""
        return self.options.get("in_order", True) or not self.workers

    def loader(self, sampler):
        """Return a loader; `sampler` has the batches of a map dataset."""
        options = {"num_workers": self.workers, "collate_fn": samples.collate_of(self.kind), **self.options}
        options |= {"batch_size": self.size} if self.stream else {"batch_sampler": sampler}
        if not self.workers:
            options.pop("persistent_workers"), options.pop("prefetch_factor")
        method = self.method if self.workers else None
        if self.adapter == "slipring":
            data = samples.Stream(self.kind, self.n) if self.stream else Map(self.kind, self.n, self.bad)
            return slipring.Loader(data, **grouped(start_method=method, **options))
        from slipring.torch import DataLoader
        from tests.soak import samples_torch

        data = samples_torch.Stream(self.kind, self.n) if self.stream else Map(self.kind, self.n, self.bad)
        return DataLoader(data, multiprocessing_context=method, **grouped(**options))

    def due(self, lists):
        """Return the expected batches of an epoch: (numbers, digest), or (("error", number), 0)."""
        collate = slipring.default_collate
        if self.adapter == "torch":
            from torch.utils.data import default_collate as collate
        found = []
        for one in lists:
            bad = [i for i in one if i in self.bad]
            found.append((("error", bad[0]), 0) if bad else (tuple(one), digest(made(self.kind, one, collate))))
        return found

    def came(self, iterator, most=None, kept=None, after=lambda got: None):
        """Return an iterator's batches, at most `most`, in the form of `due`; `after` is called after each."""
        got = []
        while most is None or len(got) < most:
            try:
                batch = next(iterator)
            except StopIteration:
                break
            except ValueError as error:
                got.append((("error", int(re.findall(r"no sample (\d+)", str(error))[-1])), 0))
                continue
            got.append((numbers(self.kind, batch), digest(batch)))
            if kept is not None:
                kept.append((batch, got[-1][1]))
            del batch
            after(got)
        return got

    def check(self, got, lists, broken, counts):
        """Count the wrong deliveries of an epoch, of which only a part was read if `broken`."""
        want = self.due(lists)
        if broken:
            these = {ids for ids, _ in got}
            want = want[: len(got)] if self.in_order else [one for one in want if one[0] in these]
        rounds.compare(got, want, self, counts)
        counts["batches"] += len(got)


class Resident:
    """A loader that lives as long as the soak; if it is `mortal`, a worker is killed in each epoch."""

    def __init__(self, seed, subject, mortal=False):
        self.subject, self.mortal, self.rng = subject, mortal, random.Random(seed)
        self.watched = not mortal and subject.method != "thread"
        self.sizes = Sizes(self.rng, subject.n)
        self.epochs = 0
        subject.options.setdefault("persistent_workers", True)
        if mortal:
            subject.options |= {"on_death": "respawn", "max_restarts": 1_000_000}
        self.loader = subject.loader(self.sizes)

    def epoch(self, counts):
        """Read an epoch; every fourth time after an abandoned one, whose slots become free in the next."""
        self.epochs += 1
        if self.epochs % 4 == 0:
            self._read(counts, 5)
        self._read(counts, None)

    def _read(self, counts, most):
        subject, iterator = self.subject, iter(self.loader)
        got = subject.came(iterator, most, after=self._kill)
        del iterator
        # The sampler of a map dataset is read ahead: it has yielded the whole epoch, or enough of it.
        lists = of_streams(subject.workers, subject.n, subject.size) if subject.stream else self.sizes.lists
        subject.check(got, lists, most is not None, counts)

    def _kill(self, got):
        if self.mortal and len(got) == 3:
            rounds.send(self.rng.choice([p.pid for p in rounds.pool_of(self.loader).processes.values()]), "SIGKILL")

    def slots_out(self):
        """Return the number of slots in use although no epoch is running."""
        engine = rounds.kept_engine(self.loader)
        if engine is None:
            return 0
        end = time.monotonic() + BACK_S
        while (out := engine.ring.n_slots - engine.ring.circulating) and time.monotonic() < end:
            time.sleep(0.005)  # a worker still makes an abandoned batch
        return out

    def pids(self):
        """Return the pids of the long-lived workers."""
        pool = rounds.pool_of(self.loader) if self.watched else None
        return [] if pool is None else [process.pid for process in pool.processes.values()]


def residents(seed, torch, quick):
    """Return all residents; a few if `quick`."""
    subjects = [
        Subject("rows"),
        Subject("dicts", options={"in_order": False, "chunk_size": 4}),
        Subject("ragged", method="thread"),
        Subject("pickled"),
    ]
    if not quick:
        subjects.append(Subject("texts", method="forkserver", stream=True, n=100))
        subjects.append(Subject("keys", method="spawn", options={"rng": "worker"}))
    if torch:
        subjects.append(Subject("dicts", adapter="torch", options={"preload": 2}))
        subjects.append(Subject("texts", adapter="torch", options={"in_order": False}))
    return [Resident(f"{seed} {i}", one, mortal=one.kind == "pickled") for i, one in enumerate(subjects)]


def live(rng, adapter, method, counts, preload=None, resume=False):
    """Read a loader of a random kind in a random way, and compare."""
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
    n, workers = rng.randrange(100, 400), 0 if method == "none" else rng.choice([1, 2, 3])
    errors = not stream and not resume and not preload and rng.random() < 0.3
    bad = tuple(rng.sample(range(n), 3)) if errors else ()
    kind, size = rng.choice(samples.KINDS), rng.randrange(1, 40)
    subject = Subject(kind, adapter, method, stream, workers, n, size, bad, options)
    lists = of_streams(max(1, workers), n, size) if stream else list(Sizes(rng, n))
    while any(sum(i in bad for i in one) > 1 for one in lists):  # the error of such a batch would name a random one
        lists = list(Sizes(rng, n))
    kept = [] if rng.random() < 0.4 else None  # batches that are kept beyond the loader's end
    loader, epochs = subject.loader(lists), rng.choice([1, 1, 2, 3])
    with contextlib.ExitStack() as stack:
        if rng.random() < 0.7:  # otherwise it is only dropped
            stack.callback(loader.close)
        for epoch in range(epochs):
            last = epoch == epochs - 1
            iterator = iter(loader)
            if adapter == "slipring" and rng.random() < 0.15:  # two iterators at once
                subject.check(subject.came(iter(loader), 3, kept), lists, True, counts)
            most = rng.choice([None, None, 1, 5]) if last or resume else None
            got = subject.came(iterator, most, kept)
            broken = len(got) == most
            if resume:  # another loader loads the state and reads the rest
                state = loader.state_dict()
                del iterator
                with subject.loader(lists) as second:
                    second.load_state_dict(state)
                    if most is None:
                        got = []  # the epoch had ended: the state starts the next one
                    got += subject.came(iter(second), None, kept)
                broken = False
            subject.check(got, lists, broken, counts)
            iterator = None
            if kept and rng.random() < 0.3:
                counts["changed"] += in_child(lambda: wrong(kept))
            if kept is not None and len(kept) > 200:
                kept.clear()
    del loader
    gc.collect()  # ends a loader that was only dropped
    counts["changed"] += wrong(kept or ())


def wrong(kept):
    """Return the number of batches that have changed."""
    return sum(digest(batch) != was for batch, was in kept)


class Lives:
    """A deck of lives, shuffled again after each pass, so that each kind occurs in each part of a run.

    `torch`: include its adapter; `quick`: use only start methods that take no time.
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
            and "cache" not in described
            and described.get("start_method", "fork") in SOON  # other methods take seconds per death
            and (not quick or name in QUICK)
        ]

    def next(self):
        """Return the next life: (its description, a function of the counts that runs it)."""
        if not self.left:
            self.left = self.rng.sample(self.pack, len(self.pack))
        adapter, name, more = card = self.left.pop()
        if adapter != "killed":
            return card, lambda counts: live(self.rng, adapter, name, counts, **more)
        return card, lambda counts: self._killed(rounds.Mode.of(MODES[name][1]), counts)

    def _killed(self, mode, counts):
        details = []
        rounds.one_round(mode, rounds.peaceful(mode), self.killer, counts, [], details)
        gc.collect()
