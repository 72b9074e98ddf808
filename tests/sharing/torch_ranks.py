"""A rank of a job whose ranks share a stream: ``python -m tests.sharing.torch_ranks SCENARIO RANK RANKS FOLDER JSON``.

It writes what it has seen as lines of JSON, and waits for a line of its standard input where a test must do something.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import pickle
import signal
import sys
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data.datapipes.iter import IterableWrapper

import slipring
from slipring import Memory, Workers, tokens
from slipring.errors import Closed, LeadDied
from slipring.torch import DataLoader, Device, context_slice
from tests.support.inside import engine_of, sharing
from tests.support.inside import share as shares
from tests.support.processes import in_child, worker_pids

N = 60


def say(**what):
    """Write a line for the test."""
    print(json.dumps(what), flush=True)


def wait_for_test():
    """Wait until the test says that this rank continues."""
    assert sys.stdin.readline(), "the test has ended"


# ---- loaders


class Rows(torch.utils.data.Dataset):
    """Sample i is its number, random numbers, text, and the process that made it."""

    def __init__(self, n=N, bad=None):
        self.n, self.bad = n, bad

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == self.bad:
            raise ValueError(f"sample {i} is bad")
        x = torch.full((300,), float(i))
        return {"x": x, "i": i, "drawn": torch.rand(()), "text": f"row {i}", "pid": os.getpid()}


class Numbers(torch.utils.data.IterableDataset):
    """Numbers, divided among workers; with `stateful`, each worker can continue where it was."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for i in range(info.id, N + 7, info.num_workers):
            yield {"x": torch.full((300,), float(i)), "i": i, "pid": os.getpid()}


class StatefulNumbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        return Counting()


class Counting:
    def __init__(self):
        self.at = 0

    def __next__(self):
        if self.at >= N // 2:
            raise StopIteration
        self.at += 1
        info = torch.utils.data.get_worker_info()
        return {"i": self.at * 10 + info.id, "pid": os.getpid()}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Remembering(Rows):
    """A map dataset with a state."""

    def __init__(self):
        super().__init__()
        self.read = 0

    def __getitem__(self, i):
        self.read += 1
        return {**super().__getitem__(i), "read": self.read}

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


class Dying(Rows):
    """A dataset whose workers do not survive a sample."""

    def __getitem__(self, i):
        if i == N // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


class Walk(torch.utils.data.Sampler):
    """A Stateful sampler."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < N:
            self.at += 1
            yield (self.at * 7) % N
        self.at = 0

    def __len__(self):
        return N

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Corpus(torch.utils.data.Dataset):
    def __init__(self):
        self.numbers = np.arange(4000, dtype=np.int64)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, chunk):
        return self.numbers[chunk.start : chunk.stop]


DATASETS = {
    **{"rows": Rows, "remembering": Remembering, "dying": Dying, "numbers": Numbers, "counting": StatefulNumbers},
    **{"walk": Rows, "batches": Rows, "chunks": Corpus},
}
SAMPLERS = {
    "walk": ("sampler", lambda data: Walk()),
    "batches": ("batch_sampler", lambda data: slipring.BatchSampler(len(data), 4, seed=5, rank=0, world_size=1)),
    "chunks": ("batch_sampler", lambda data: tokens.ChunkSampler(len(data), 40, 4, seed=3, rank=0, world_size=1)),
}
MADE = []  # the datasets of this process


def of_kind(kind, once=False, **options):
    """Return a loader of a kind of dataset; `once`: the loader gets functions that make dataset and sampler."""

    def make():
        MADE.append(DATASETS[kind]())
        return MADE[-1]

    dataset = make if once else make()
    options = {"num_workers": 2, "multiprocessing_context": "fork"} | options
    name, sampler = SAMPLERS.get(kind, (None, None))
    if name is not None:
        options[name] = sampler if once else sampler(dataset)
    if kind == "chunks":
        options["collate_fn"] = tokens.Chunks(40)
    if name != "batch_sampler":
        options["batch_size"] = 4
    if kind in ("rows", "remembering", "dying"):
        options["shuffle"] = True
    return DataLoader(dataset, **options)


def read_options(given):
    """Return options of a loader from their JSON."""
    options = dict(given)
    if "device" in options:
        options["device"] = Device("cpu", **options["device"])
    if "memory" in options:
        options["memory"] = Memory(**options["memory"])
    if "workers" in options:
        options["workers"] = Workers(**options["workers"])
    if "seed" in options:
        options["generator"] = torch.Generator().manual_seed(options.pop("seed"))
    return options


def digest(batch):
    """Return a text of all values of a batch but the numbers of processes."""
    named = batch if isinstance(batch, dict) else {"batch": batch}
    parts = [named[name].tolist() if torch.is_tensor(named[name]) else named[name] for name in named if name != "pid"]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def state_digest(loader):
    return hashlib.sha256(repr(loader.state_dict()).encode()).hexdigest()[:12]


def makers(batch):
    return set(batch["pid"].tolist()) if isinstance(batch, dict) and "pid" in batch else set()


# ---- scenarios


def passes(rank, share, kind="rows", epochs=2, stop=None, plain=False, **options):
    """Read epochs, of which the first ends early if `stop` is given; then, with `plain`, without sharing."""
    torch.manual_seed(rank)
    pids = set()
    with of_kind(kind, share=share, **read_options(options)) as loader:
        seen, states = [], [state_digest(loader)]
        for epoch in range(epochs):
            for batch in itertools.islice(loader, stop if epoch == 0 else None):
                seen.append(digest(batch))
                states.append(state_digest(loader))
                pids |= makers(batch)
                del batch
            seen.append("end")
        say(seen=seen, states=states, pids=sorted(pids), workers=sorted(worker_pids_of(loader)))
        report = loader.report()
        say(report=str(report), batches=loader.stats().batches, made=len(MADE), name=type(loader.dataset).__name__)
        say(lengths=lengths_of(loader))
    if plain:
        with of_kind(kind, **read_options(options)) as loader:
            say(plain=[text for _ in range(epochs) for text in [*map(digest, loader), "end"]])


def lengths_of(loader):
    """Return the lengths of a loader and its dataset; the text of the error if they have none."""
    try:
        return [len(loader), len(loader.dataset)]
    except TypeError as error:
        return str(error)


def worker_pids_of(loader):
    return worker_pids(loader).values() if engine_of(loader) is not None else ()


def resumed(rank, share, kind="rows", at=5, **options):
    """Take a state within an epoch, and continue from it in another loader, and in the same."""
    with of_kind(kind, share=share, **read_options(options)) as loader:
        batches = iter(loader)
        for _ in range(at):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [digest(batch) for batch in batches]
        loader.load_state_dict(state)
        again = [digest(batch) for batch in loader]
    with of_kind(kind, share=share, **read_options(options)) as loader:
        loader.load_state_dict(state)
        other = [digest(batch) for batch in loader]
        following = [digest(batch) for batch in loader]
    say(rest=rest, again=again, other=other, following=following)


class Sayer(logging.Handler):
    """Says what slipring logs."""

    def emit(self, record):
        say(warning=record.getMessage())


def warn_now():
    """Let the ranks warn at once in place of after ten seconds, and say what they log."""
    sharing.WARN_AFTER = 0
    logging.getLogger("slipring").addHandler(Sayer())


def stepwise(rank, share, kind="rows", warn_soon=False, **options):
    """Read a batch for each line from the test; print the batch or the exception."""
    if warn_soon:
        warn_now()
    with of_kind(kind, share=share, **read_options(options)) as loader:
        say(pid=os.getpid())
        batches, kept = None, []
        while command := sys.stdin.readline().strip():
            try:
                if command == "iter":
                    batches = iter(loader)
                    say(begun=True)
                elif command == "next":
                    batch = next(batches)
                    say(batch=digest(batch))
                    del batch
                elif command == "keep":
                    kept.append(next(batches))
                    say(batch=digest(kept[-1]))
                elif command == "drop":
                    kept.clear()
                    say(dropped=True)
                elif command == "rest":
                    say(rest=[digest(batch) for batch in batches])
                elif command == "close":
                    batches.close()
                    say(closed=True)
                elif command == "report":
                    say(report=json.loads(loader.report().json()))
                elif command == "warn":
                    warn_now()
                    say(warns=True)
                elif command == "state":
                    say(state=state_digest(loader))
            except StopIteration:
                say(end=True)
            except Exception as error:
                say(error=type(error).__name__, text=str(error))


def doomed(rank, share, deaths, epochs=3, **options):
    """Read epochs; the ranks in `deaths` die after so many seconds, wherever they are then."""
    with of_kind("rows", share=share, **read_options(options)) as loader:
        dist.barrier()
        if (delay := deaths.get(str(rank))) is not None:
            signal.setitimer(signal.ITIMER_REAL, delay)  # SIGALRM kills a process that does not handle it
        seen = []
        try:
            for _ in range(epochs):
                for batch in loader:
                    seen.append(digest(batch))
                    del batch
                seen.append("end")
            say(seen=seen, error=None)
        except LeadDied as error:
            say(seen=seen, error=str(error))


def forked(rank, share):
    """Iterate the loader in a forked child, then in the rank itself."""
    with of_kind("rows", share=share, num_workers=1) as loader:
        say(text=in_child(lambda: text_of_iter(loader)))
        say(batches=sum(1 for _ in loader))


def text_of_iter(loader):
    try:
        return f"{next(iter(loader))}"
    except Closed as error:
        return str(error)


def refused(rank, share, options):
    """Make a loader with options that each rank has its own of, and read it; say with which error."""
    try:
        with made_with(share, **options[rank]) as loader:
            state = loader.state_dict()
            say(batches=sum(1 for _ in loader))
            loader.load_state_dict(state if rank else {**state, "seed": 5, "finished": False, "delivered": 1})
            next(iter(loader))
    except Exception as error:
        say(error=type(error).__name__, text=str(error))


def listed(rank, share, **options):
    """Load the states of several ranks of a stream."""
    with of_kind("numbers", share=share, **options) as loader:
        try:
            loader.load_state_dict([loader.state_dict()] * 2)
        except ValueError as error:
            say(text=str(error))


class Broken(Rows):
    def __init__(self, n, text="no such folder"):
        raise OSError(text)


class Divided(Numbers):
    """A stream that gives a rank its part."""

    def __init__(self, rank):
        self.rank, self.world_size = rank, 2


FACTORIES = {
    "rows": Rows,
    "broken": partial(Broken, N),
    "broken at length": partial(Broken, N, "x" * 1_000_000),
    "weighted": Rows,
    "pipe": lambda: IterableWrapper(range(N)),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "several arguments": Divided,
}


def made_with(
    share, length=N, parts=None, nested=None, divided=None, order=None, pipe=False, factory=None, user=None,
    version=None, most=None, **options,
):  # fmt: skip
    """Return a loader of rows, or as the arguments say.

    `parts`, `nested`, `divided`: which part of the samples this rank has, by a DistributedSampler, by one in a batch
    sampler, or by the dataset. `factory`: the name of a function that makes the dataset.
    """
    if user is not None:
        os.geteuid = lambda: user
    if version is not None:
        shares.__version__ = version
    if most is not None:
        shares.MAX_READERS = most
    dataset = IterableWrapper(range(length)) if pipe else Rows(length)
    if divided is not None:
        dataset = Divided(divided)
    options = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "fork"} | options
    if not options["num_workers"]:
        del options["multiprocessing_context"]
    if parts is not None:
        options["sampler"] = torch.utils.data.DistributedSampler(dataset, *parts)
    if nested is not None:
        sampler = torch.utils.data.DistributedSampler(dataset, *nested)
        options["batch_sampler"] = torch.utils.data.BatchSampler(sampler, options.pop("batch_size"), False)
    if order is not None:
        options["sampler"] = order
    if factory == "weighted":
        options["sampler"] = lambda data: torch.utils.data.WeightedRandomSampler([data[0]["i"] + 1.0] * len(data), N)
    if factory is not None:
        dataset = FACTORIES[factory]
    return DataLoader(dataset, share=share, **read_options(options))


def errors(rank, share, **options):
    """Read an epoch with a bad sample; print the batch or the exception of each step."""
    options = {"num_workers": 2, "multiprocessing_context": "fork"} | read_options(options)
    seen = []
    with DataLoader(Rows(bad=17), 4, share=share, **options) as loader:
        batches = iter(loader)
        while True:
            try:
                seen.append(digest(next(batches)))
            except StopIteration:
                break
            except ValueError as error:
                seen.append(f"{type(error).__name__}: {str(error).splitlines()[-1]}")
        say(seen=seen, state=state_digest(loader))


def interleaved(rank, share, **options):
    """Read two loaders alternately, of which the second is read twice."""
    options = read_options(options)
    with of_kind("rows", share=share, **options) as train, of_kind("numbers", share=share, **options) as evaluation:
        seen = []
        for at, batch in enumerate(train):
            seen.append(digest(batch))
            if at in (3, 9):
                seen += [digest(batch) for batch in evaluation]
        say(seen=seen)


def iterators(rank, share, **options):
    """Read with two iterators of one loader at a time."""
    with of_kind("rows", share=share, **read_options(options)) as loader:
        first, second = iter(loader), iter(loader)
        seen = [[digest(next(each)) for each in (first, second, second)] for _ in range(4)]
        say(seen=seen, rest=[[digest(batch) for batch in each] for each in (second, first)])


def meshes(rank, share, shape=(2, 2), names=("dp", "tp"), part=("tp",), **options):
    """Share along a part of a mesh."""
    mesh = dist.init_device_mesh("cpu", tuple(shape), mesh_dim_names=tuple(names))
    share = mesh[tuple(part) if len(part) > 1 else part[0]]
    others = [name for name in names if name not in part]
    number = mesh.get_local_rank(others[0]) if others else 0
    sampler = torch.utils.data.DistributedSampler(range(N), mesh[others[0]].size() if others else 1, number, seed=4)
    options = {"num_workers": 2, "multiprocessing_context": "fork"} | read_options(options)
    seen, workers = [], 0
    with DataLoader(Rows(), 4, sampler=sampler, share=share, **options) as loader:
        for batch in loader:
            seen.append((digest(batch), sorted(batch["i"].tolist())))
            workers = len(worker_pids_of(loader))
        say(number=number, seen=seen, workers=workers)


def pooled(rank, share, pool):
    """Share a stream whose batches a pool makes; then each rank reads with a loader of its own in the pool."""
    options = {"num_workers": 2, "workers": Workers(pool=pool)}
    with of_kind("rows", share=share, multiprocessing_context=None, **options) as loader:
        say(shared=[digest(batch) for batch in loader])
        dist.barrier()  # the pool has the lead's loader until all have begun the next one
        with DataLoader(Rows(20), 4, **options) as own:
            say(own=[batch["i"].tolist() for batch in own])
            dist.barrier()


def machines(rank, share, **options):
    """Share in a group of ranks of which each two are on a machine."""
    shares.machine = lambda: f"machine {rank // 2}"
    passes(rank, share, **options)


def budgeted(rank, share, **workers):
    """Read an epoch that a pool's workers make; say which memory the pool allows the lead's segment."""
    data = torch.utils.data.TensorDataset(torch.arange(N))
    with DataLoader(data, 4, num_workers=1, share=share, workers=Workers(**workers)) as loader:
        batches = iter(loader)
        seen = [next(batches)[0].tolist()]
        budget = None if rank else engine_of(loader).ring.budget
        say(budget=budget, seen=[*seen, *(batch.tolist() for (batch,) in batches)])


def strangers(rank, share):
    """Give `share=` what is none of it."""
    group = dist.new_group([0])
    for wrong in (group if rank else "tp", 3):
        with contextlib.suppress(TypeError, ValueError):
            DataLoader(Rows(), 4, num_workers=1, share=wrong)
            say(made=True)
    try:
        with DataLoader(Rows(), 4, num_workers=1, share=group, multiprocessing_context="fork") as loader:
            say(batches=sum(1 for _ in loader))
    except ValueError as error:
        say(text=str(error))


def sliced(rank, share, cases):
    """Divide batches among context-parallel ranks."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    found = []
    for number, (batch, options) in enumerate(cases):
        batch = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in batch.items()}
        try:
            part = context_slice(batch, share if number % 2 else mesh["cp"], **options)
        except ValueError as error:
            found.append(str(error))
            continue
        views = {
            name: value.untyped_storage().data_ptr() == batch[name].untyped_storage().data_ptr()
            for name, value in part.items()
            if torch.is_tensor(value)
        }
        found.append([{name: value.tolist() for name, value in part.items() if name in views}, views])
    say(found=found)


def context_streams(rank, share, **options):
    """Share a stream among context-parallel ranks, and divide its batches."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    with of_kind("chunks", share=mesh["cp"], **options) as loader:
        seen = []
        for batch in loader:
            part = context_slice(batch, mesh["cp"])["input_ids"]
            assert part.untyped_storage().data_ptr() == batch["input_ids"].untyped_storage().data_ptr()
            seen.append(part.flatten(1, 2).tolist())
        say(seen=seen)


def pickled(rank, share):
    """Pickle a loader that shares."""
    with of_kind("rows", share=share) as loader:
        try:
            pickle.dumps(loader)
        except TypeError as error:
            say(text=str(error))


SCENARIOS = {
    each.__name__: each
    for each in (
        *(passes, resumed, stepwise, refused, errors, interleaved, iterators, meshes, machines, strangers, pickled),
        *(sliced, context_streams, doomed, forked, listed, pooled, budgeted),
    )
}


def main(scenario, rank, ranks, folder, given):
    torch.set_num_threads(1)
    rank, ranks = int(rank), int(ranks)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    SCENARIOS[scenario](rank, dist.group.WORLD, **json.loads(given))
    say(done=True)
    sys.stdin.readline()  # the end of its input: no rank leaves before all are done
    os._exit(0)  # the interpreter's own end was seen to abort in gloo's threads, when all loaders had been closed


if __name__ == "__main__":
    main(*sys.argv[1:])
