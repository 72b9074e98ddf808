"""The speed of a dataset by number of workers, measured on this machine."""

import dataclasses
import itertools
import time

import slipring
from slipring._observe.activity import SERVING
from slipring._observe.causes import OF_WORKERS, first_of
from slipring._observe.rates import Figures
from slipring._observe.snapshot import PARTS
from slipring.errors import BatchTooLarge, SegmentFull, WorkerDied, WorkerError

PREFETCH = 2  # batches in flight per worker, as the loaders' default
ENOUGH = 0.9  # share of the best rate: the fewest workers with this rate are enough


@dataclasses.dataclass(frozen=True)
class Case:
    """A case to measure: a number of workers, their start method, and a batch size."""

    workers: int
    start_method: str
    batch_size: int

    def __str__(self):
        how = f" by {self.start_method}" if self.workers else ""
        return f"{self.workers} workers{how}, batches of {self.batch_size}"


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
    on_cpu: float | None = None  # share of the workers' busy time in which they have a processor
    private_bytes: int = 0
    # part of fetching -> its share, with the warm-up, if the dataset reports them
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    cause: str = ""  # what limits the workers, as a verdict calls it; "" without workers
    text: str = ""  # the same as a sentence
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


class Maker:
    """A factory of a case's loader; `torch`: `slipring.torch.DataLoader`, with torch's collation."""

    def __init__(self, dataset, collate=None, torch=False):
        self.dataset, self.collate, self.torch = dataset, collate, torch
        self.is_stream = not any(hasattr(dataset, name) for name in ("__getitem__", "__getitems__", "fetch_into"))
        if torch:
            import torch.utils.data

            self.is_stream = isinstance(dataset, torch.utils.data.IterableDataset)

    def open(self, case):
        """Return the loader."""
        common = {
            "batch_size": case.batch_size,
            "num_workers": case.workers,
            "collate_fn": self.collate,
            "sampler": None if self.is_stream else Endless(len(self.dataset)),
        }
        if not self.torch:
            method = case.start_method if case.workers else None
            return slipring.Loader(
                self.dataset, workers=slipring.Workers(start_method=method), prefetch_factor=PREFETCH, **common
            )
        from slipring.torch import DataLoader

        if case.workers:
            common.update(multiprocessing_context=case.start_method, prefetch_factor=PREFETCH, persistent_workers=True)
        return DataLoader(self.dataset, **common)


# ---- measuring


def measure(maker, case, seconds, batches=None):
    """Return the `Row` of a case, measured after the warm-up for `seconds`, or for `batches` if these come first.

    An exception of the dataset is raised, with a `WorkerError` as its cause if a worker has raised it. Raise
    ValueError if the dataset gives no batch.
    """
    row = Row(case)
    try:
        with maker.open(case) as loader:
            _measure(row, loader, seconds, batches)
    except (SegmentFull, BatchTooLarge, WorkerDied, MemoryError) as error:
        row.error = f"{type(error).__name__}: {error}"
    except Exception as error:
        ours = isinstance(error, WorkerError) or isinstance(error.__cause__, WorkerError)
        if ours or not case.workers or case.start_method in ("fork", "thread"):
            raise
        row.error = f"{type(error).__name__}: {error}"  # most likely the dataset cannot be pickled
    return row


def _measure(row, loader, seconds, batches):
    case, begun = row.case, time.perf_counter()
    stream = _forever(loader)
    next(stream)
    row.first_batch_s = time.perf_counter() - begun
    for _ in range(case.workers * PREFETCH):  # made during the wait for the first one
        next(stream)
    while (loader.report()._snapshot.serving["status"] >= SERVING).sum() < case.workers:
        next(stream)  # wait for workers that start late
    before = loader.stats()
    begun = now = time.perf_counter()
    count = 0
    while now < begun + seconds and (batches is None or count < batches):
        next(stream)
        count, now = count + 1, time.perf_counter()
    after, report = loader.stats(), loader.report()
    stream.close()
    row.batches, row.seconds = count, now - begun
    row.samples_per_s = count * case.batch_size / row.seconds
    row.mb_per_s = (after.bytes - before.bytes) / 1e6 / row.seconds
    for name in ("fetch_s", "collate_s", "slot_wait_s", "consumer_wait_s"):
        setattr(row, name, getattr(after, name) - getattr(before, name))
    row.parts = {name: share for name, share in report.shares.items() if name in PARTS}
    if case.workers:
        figures = Figures(report._snapshot)
        row.on_cpu = figures.on_cpu
        row.cause, row.text, _ = first_of(OF_WORKERS, figures, report._known)
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


def sweep(maker, workers, methods, sizes, seconds, batches=None, full=False, announce=lambda case: None):
    """Measure a dataset; return the rows. `announce` is called with each `Case` before it is measured.

    The number of workers is swept with the first start method and batch size. The other methods, and then sizes, are
    measured at the number that was best. With `full`, each is measured with each.
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
        return rows
    for number in workers:
        one(number, methods[0], sizes[0])
    good = [row for row in rows if not row.error and row.case.workers]
    if good:
        at = max(good, key=lambda row: row.samples_per_s).case.workers
        for method in methods[1:]:
            one(at, method, sizes[0])
    good = [row for row in rows if not row.error]
    if good:
        best = max(good, key=lambda row: row.samples_per_s).case
        for size in sizes[1:]:
            one(best.workers, best.start_method, size)
    return rows
