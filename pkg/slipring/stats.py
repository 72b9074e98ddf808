"""A loader's figures."""

import dataclasses

from slipring._core.workers.memory import WorkerMemory


@dataclasses.dataclass(frozen=True)
class Stats:
    """A loader's figures since it was made; times are sums in seconds.

    Attributes
    ----------
    batches : int
        Batches delivered.
    bytes : int
        Payload bytes delivered.
    copied_batches, copied_bytes : int
        Batches copied out of their slot (see the loader's `copy`), and their bytes.
    kept_batches : int
        Batches that were copied once more, in the worker, because its code kept an array from
        `slipring.empty` (the consumer alone has the delivered arrays).
    pickled_leaves : int
        Values without a leaf kind of their own, which were pickled.
    pickled_tasks : int
        Lists of indices that were not all ints, and were sent to the worker as pickles.
    skipped_samples : int
        Samples that the dataset has skipped, in the delivered batches (``on_error="skip"`` of `slipring.images` and
        `slipring.clips`).
    backing, backing_reason : str or None
        Where the segment's memory comes from and why; None before the first iteration. If there is no
        segment now, those of the last one.
    slots : int
        Slots of the segment.
    slot_bytes : int
        Payload bytes reserved per slot: the largest batch that fits.
    slot_bytes_limited_by : str or None
        The limit that made the reservation smaller than requested.
    slot_bytes_committed : int
        Bytes of real memory under the segment, controls and task areas included.
    large_copies : str or None
        How batches of 4 MiB and more are copied into slots: "memcpy", or past the caches by "stores of 16 bytes" or
        "stores of 64 bytes". The first ones are copied in both ways and timed; None: not known yet.
    fetch_s, collate_s : float
        Summed over workers: reading samples; putting them together in the slot.
    slot_wait_s : float
        Summed over workers: waiting for a slot with a task. Large: the consumer is the bottleneck.
    consumer_wait_s : float
        The consumer waiting for a batch, or for a sampler that is not slipring's. Large: the workers, or that sampler,
        are the bottleneck.
    respawns : int
        Workers that were replaced after a death.
    resumed_streams : int
        Those among them whose stream continued from its own state (``state_dict``).
    replayed_batches : int
        Batches of streams that were read again, and dropped, to reach the position of a dead worker.
    worker_private_bytes : tuple of (int or None)
        The private memory of each worker process, to some percent: memory that it has allocated, and pages of its
        parent that it has copied by writing to them, as reading a Python object does. The segment and files do not
        count. None if /proc does not report it. It is measured at the request (some ms per worker, but less than 1 % of
        the time), and before workers end with their iteration. If there are no workers now, those of the last ones.
    remote_reads : int
        Attempts to read files behind URLs (`slipring.Storage`) for batches, by all workers.
    remote_timeouts, remote_broken, remote_refused, remote_rejected : int
        The failed attempts among them: without an answer in time; with a broken connection or a wrong answer; refused
        for the moment (the statuses 408, 425, 429 and 500 to 599); refused for good, which are not repeated.
    remote_bytes : int
        Bytes received.
    remote_s, remote_lost_s : float
        Time of the successful attempts; time of the failed ones and of the pauses after them.
    moved_batches : int
        Batches copied to a device (`slipring.torch` with ``device=``).
    staged_batches : int
        Those among them that went through a pinned copy, because their slot is not pinned itself.
    registered_bytes : int
        Bytes of the slots that are pinned at present.
    registration_refused : str or None
        The reason why a slot is not pinned.

    Examples
    --------
    >>> import slipring
    >>> with slipring.Loader(range(10), batch_size=4) as loader:
    ...     total = sum(batch.sum() for batch in loader)
    ...     stats = loader.stats()
    >>> stats.batches, stats.pickled_leaves
    (3, 0)
    """

    batches: int = 0
    bytes: int = 0
    copied_batches: int = 0
    copied_bytes: int = 0
    kept_batches: int = 0
    pickled_leaves: int = 0
    pickled_tasks: int = 0
    skipped_samples: int = 0
    backing: str | None = None
    backing_reason: str | None = None
    slots: int = 0
    slot_bytes: int = 0
    slot_bytes_limited_by: str | None = None
    slot_bytes_committed: int = 0
    large_copies: str | None = None
    fetch_s: float = 0.0
    collate_s: float = 0.0
    slot_wait_s: float = 0.0
    consumer_wait_s: float = 0.0
    respawns: int = 0
    resumed_streams: int = 0
    replayed_batches: int = 0
    worker_private_bytes: tuple[int | None, ...] = ()
    remote_reads: int = 0
    remote_timeouts: int = 0
    remote_broken: int = 0
    remote_refused: int = 0
    remote_rejected: int = 0
    remote_bytes: int = 0
    remote_s: float = 0.0
    remote_lost_s: float = 0.0
    moved_batches: int = 0
    staged_batches: int = 0
    registered_bytes: int = 0
    registration_refused: str | None = None


_COUNTERS = (
    "batches", "bytes", "copied_batches", "copied_bytes", "kept_batches", "pickled_leaves",
    "pickled_tasks", "skipped_samples",
)  # fmt: skip
_OWN = ("respawns", "resumed_streams", "replayed_batches", "moved_batches", "staged_batches")  # of all segments
_TIMES = {"fetch_s": "fetch_ns", "collate_s": "collate_ns", "slot_wait_s": "idle_ns", "consumer_wait_s": "wait_ns"}
_READS = {
    "attempts": "remote_reads",
    **{name: f"remote_{name}" for name in ("timeouts", "broken", "refused", "rejected", "bytes")},
    "ns": "remote_s",
    "lost_ns": "remote_lost_s",
}


def _read_figures(reads):
    """Return the fields of `Stats` for counts of remote reads."""
    return {field: reads[name] / 1e9 if field.endswith("_s") else reads[name] for name, field in _READS.items()}


class Counters:
    """The sums of the meters of all segments that a loader has used, closed ones included."""

    def __init__(self):
        self.meters = []  # of the segments that live
        self.respawns = self.resumed_streams = self.replayed_batches = 0
        self.moved_batches = self.staged_batches = 0  # `Mover` counts them
        self.memory = WorkerMemory()
        self.last = None  # the `info` of the last closed segment
        self.seen = None  # its last `slipring._observe.snapshot.Snapshot`
        self._gone = dict.fromkeys((*_COUNTERS, *_TIMES, *_READS.values()), 0)

    def respawned(self):
        """Count a worker that was replaced."""
        self.respawns += 1

    def goes_on(self, by_state, replayed):
        """Count a stream that a new worker continues, and the batches that it must read again."""
        self.resumed_streams += by_state
        self.replayed_batches += replayed

    def fold(self, meter, info, seen=None):
        """Keep the figures of a segment that is closed: its meter's, and those of its memory in `info`."""
        self.meters.remove(meter)
        self.last, self.seen = info, seen or self.seen
        for figures in (self._figures(meter), _read_figures(info["reads"])):
            for name, value in figures.items():
                self._gone[name] += value

    @staticmethod
    def _figures(meter):
        figures = {name: getattr(meter, name) for name in _COUNTERS}
        figures.update({name: getattr(meter, source) / 1e9 for name, source in _TIMES.items()})
        figures.update(_read_figures(meter.reads))
        return figures

    def stats(self, info, slots):
        """Return the `Stats`; `info` is the current segment's (``Ring.info``), None for the last one's."""
        sums = dict(self._gone)
        if info is not None:
            for name, value in _read_figures(info["reads"]).items():
                sums[name] += value
        info = info or self.last
        for meter in self.meters:
            for name, value in self._figures(meter).items():
                sums[name] += value
        segment = {}
        if info is not None:
            segment = {
                "backing": info["backing"],
                "backing_reason": info["reason"],
                "slots": slots,
                "slot_bytes": info["capacity"],
                "slot_bytes_limited_by": info["limited_by"],
                "slot_bytes_committed": info["committed"],
                "large_copies": info["large_copies"],
            }
        own = {name: getattr(self, name) for name in _OWN}
        return Stats(**sums, **segment, **own, worker_private_bytes=self.memory.measure())
