"""The speed of a dataset by number of workers, measured on this machine."""

import dataclasses
import itertools
import os
import pathlib
import tempfile
import threading
import time

import numpy as np

import slipring
from slipring._core.ring import process
from slipring._core.workers.fetch import own_method
from slipring._observe.snapshot import PARTS
from slipring.errors import BatchTooLarge, SegmentFull, WorkerDied, WorkerError

PREFETCH = 2  # batches in flight per worker, as the loaders' default
ENOUGH = 0.9  # share of the best rate: the fewest workers with this rate are enough


@dataclasses.dataclass(frozen=True)
class Case:
    """A case to measure: a number of workers, their start method, and a batch size.

    Without transport, a worker reads the samples, puts the batch together and drops it: the cost of the dataset
    alone.
    """

    workers: int
    start_method: str
    batch_size: int
    transport: bool = True

    def __str__(self):
        how = f" by {self.start_method}" if self.workers else ""
        return f"{self.workers} workers{how}, batches of {self.batch_size}" + (
            "" if self.transport else ", dropped in the worker"
        )


@dataclasses.dataclass
class Row:
    """The measurements of a case, within `seconds`; times are in seconds, those of workers summed."""

    case: Case
    batches: int = 0
    samples_per_s: float = 0.0
    mb_per_s: float = 0.0
    seconds: float = 0.0
    first_batch_s: float = 0.0  # from the beginning to the first batch
    fetch_s: float = 0.0
    collate_s: float = 0.0
    slot_wait_s: float = 0.0
    consumer_wait_s: float = 0.0
    # The workers' time on CPUs, and their time ready to run without one; None: the kernel does not report it.
    cpu_s: float | None = None
    queued_s: float | None = None
    private_bytes: int = 0
    # part of fetching -> its share, with the warm-up, if the dataset reports them
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    error: str | None = None  # why there are no figures

    @property
    def busy_s(self):
        """float: seconds of reading samples and putting them together."""
        return self.fetch_s + self.collate_s

    def dict(self):
        """Return all of it as plain values."""
        fields = dataclasses.asdict(self)
        return {**fields.pop("case"), **fields}


# ---- the parts of a loader


class Endless:
    """The indices of a dataset, again and again: no pass ends while its rate is measured."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return itertools.cycle(range(self.length))


class Dropping:
    """A collate function that makes the batch and returns a tiny one in its place."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, samples):
        self.collate(samples)
        return np.zeros(1, np.uint8)


class DroppingWhole:
    """A dataset that makes whole batches and returns tiny ones in their place."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def fetch_into(self, indices, empty):
        """Make a batch; return a tiny one."""
        self.dataset.fetch_into(indices, empty)
        return np.zeros(1, np.uint8)


class Announce:
    """A `worker_init_fn` that writes the process and thread IDs of its worker to a file in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, worker):
        written = pathlib.Path(self.folder, f".{worker}")
        written.write_text(f"{process.pid()} {threading.get_native_id()}")
        written.rename(written.with_name(str(worker)))


class Maker:
    """A factory of a case's loader; `torch`: `slipring.torch.DataLoader`, with torch's collation."""

    def __init__(self, dataset, collate=None, torch=False):
        self.dataset, self.collate, self.torch = dataset, collate, torch
        self.is_stream = not any(hasattr(dataset, name) for name in ("__getitem__", "__getitems__", "fetch_into"))
        self.whole = own_method(dataset, "fetch_into") is not None and not torch and collate is None
        if torch:
            import torch.utils.data

            self.is_stream = isinstance(dataset, torch.utils.data.IterableDataset)

    def open(self, case, init):
        """Return the loader; `init` is the function that each worker calls as it begins."""
        dataset, collate = self.dataset, self.collate
        if not case.transport and self.whole:
            dataset = DroppingWhole(dataset)
        elif not case.transport:
            collate = Dropping(collate or self._default())
        common = {
            "batch_size": case.batch_size,
            "num_workers": case.workers,
            "collate_fn": collate,
            "sampler": None if self.is_stream else Endless(len(self.dataset)),
            "worker_init_fn": init,
        }
        if not self.torch:
            method = case.start_method if case.workers else None
            return slipring.Loader(
                dataset, workers=slipring.Workers(start_method=method), prefetch_factor=PREFETCH, **common
            )
        from slipring.torch import DataLoader

        if case.workers:
            common.update(multiprocessing_context=case.start_method, prefetch_factor=PREFETCH, persistent_workers=True)
        return DataLoader(dataset, **common)

    def _default(self):
        if (own := own_method(self.dataset, "collate_samples")) is not None:
            return own
        if not self.torch:
            return slipring.default_collate
        from torch.utils.data import default_collate

        return default_collate


# ---- measuring


def measure(maker, case, seconds, batches=None):
    """Return the `Row` of a case, measured after the warm-up for `seconds`, or for `batches` if these come first.

    An exception of the dataset is raised, with a `WorkerError` as its cause if a worker has raised it. Raise
    ValueError if the dataset gives no batch.
    """
    row = Row(case)
    try:
        with tempfile.TemporaryDirectory() as folder, maker.open(case, Announce(folder)) as loader:
            _measure(row, loader, folder, seconds, batches)
    except (SegmentFull, BatchTooLarge, WorkerDied, MemoryError) as error:
        row.error = f"{type(error).__name__}: {error}"
    except Exception as error:
        ours = isinstance(error, WorkerError) or isinstance(error.__cause__, WorkerError)
        if ours or not case.workers or case.start_method in ("fork", "thread"):
            raise
        row.error = f"{type(error).__name__}: {error}"  # most likely the dataset cannot be pickled
    return row


def _measure(row, loader, folder, seconds, batches):
    case, begun = row.case, time.perf_counter()
    stream = _forever(loader)
    next(stream)
    row.first_batch_s = time.perf_counter() - begun
    for _ in range(case.workers * PREFETCH):  # made during the wait for the first one
        next(stream)
    while case.workers and not all(os.path.exists(f"{folder}/{worker}") for worker in range(case.workers)):
        next(stream)  # wait for workers that start late
    before, used = loader.stats(), _cpu_time(folder, case)
    begun = now = time.perf_counter()
    count = 0
    while now < begun + seconds and (batches is None or count < batches):
        next(stream)
        count, now = count + 1, time.perf_counter()
    after, used_now = loader.stats(), _cpu_time(folder, case)
    stream.close()
    row.batches, row.seconds = count, now - begun
    row.samples_per_s = count * case.batch_size / row.seconds
    row.mb_per_s = (after.bytes - before.bytes) / 1e6 / row.seconds
    for name in ("fetch_s", "collate_s", "slot_wait_s", "consumer_wait_s"):
        setattr(row, name, getattr(after, name) - getattr(before, name))
    if used is not None and used_now is not None:
        row.cpu_s, row.queued_s = (now - then for now, then in zip(used_now, used))
    row.parts = {name: share for name, share in loader.report().shares.items() if name in PARTS}
    row.private_bytes = sum(size or 0 for size in after.worker_private_bytes)


def _forever(loader):
    """Yield once for each batch, without end; a stream begins again."""
    while True:
        some = False
        for _batch in loader:
            some = True
            del _batch
            yield
        if not some:
            raise ValueError("the dataset gives no batch: it is empty")


def _announced(folder, case):
    """Return [(pid, native thread ID)] of the workers, as strings; see `Announce`."""
    return [pathlib.Path(folder, str(worker)).read_text().split() for worker in range(case.workers)]


def _cpu_time(folder, case):
    """Return the workers' seconds (on CPUs, waiting for one) so far; None if the kernel does not report them."""
    if not case.workers:
        tasks = [f"/proc/self/task/{threading.get_native_id()}"]
    else:
        tasks = []
        for pid, thread in _announced(folder, case):
            if int(pid) == process.pid():
                tasks.append(f"/proc/self/task/{thread}")
            else:
                tasks += [f"/proc/{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")]
    ran = queued = 0
    for task in tasks:
        try:
            with open(f"{task}/schedstat") as file:
                on, off, _ = file.read().split()
        except FileNotFoundError:
            if not os.path.exists("/proc/self/schedstat"):
                return None
            continue  # a thread that has ended
        ran, queued = ran + int(on), queued + int(off)
    return ran / 1e9, queued / 1e9


def sweep(maker, workers, methods, sizes, seconds, batches=None, full=False, announce=lambda case: None):
    """Measure a dataset; return the rows. `announce` is called with each `Case` before it is measured.

    The number of workers is swept with the first start method and batch size, with and without transport. The other
    methods, and then sizes, are measured at the number that was best. With `full`, each is measured with each.
    """
    rows = []

    def one(*what):
        case = Case(*what)
        announce(case)
        rows.append(measure(maker, case, seconds, batches))

    if full:
        for size, method, number in itertools.product(sizes, methods, workers):
            if number or method == methods[0]:
                one(number, method, size)
                one(number, method, size, False)
        return rows
    for number in workers:
        one(number, methods[0], sizes[0])
        one(number, methods[0], sizes[0], False)
    good = [row for row in rows if row.case.transport and not row.error and row.case.workers]
    if good:
        at = max(good, key=lambda row: row.samples_per_s).case.workers
        for method in methods[1:]:
            one(at, method, sizes[0])
    good = [row for row in rows if row.case.transport and not row.error]
    if good:
        best = max(good, key=lambda row: row.samples_per_s).case
        for size in sizes[1:]:
            one(best.workers, best.start_method, size)
    return rows
