"""The loader."""

import dataclasses
import os
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from slipring._core import error_record, fetch
from slipring._core._iteration import LoaderIterator
from slipring._core._ring import MAX_WORKERS, mix
from slipring._core.engine_cache import EngineCache
from slipring._core.seeding import MASK_63, Share
from slipring._core.source import StreamPlan, map_plan
from slipring._core.tuning import Tuner
from slipring._core.worker import Job
from slipring.errors import Closed
from slipring.monitor.registry import register
from slipring.options import (
    Options,
    check_shuffled,
    epoch_number,
    integer,
    suggesting,
    warn_of_many_workers,
)
from slipring.sampler import place_of, rank_that_draws, read_in_order, share_of

if TYPE_CHECKING:
    from slipring.monitor.report import Report

MASK_62 = (1 << 62) - 1  # room for the workers' numbers within an int64

_Batch = TypeVar("_Batch", covariant=True)


class Loader(Generic[_Batch]):
    """Batches of a dataset, made by workers and handed out as numpy views on shared memory.

    Parameters
    ----------
    dataset
        A map dataset (``__getitem__`` and ``__len__``; also ``__getitems__(indices)``, which returns a list
        of samples, or ``fetch_into(indices, empty)``, which returns a whole batch with arrays from
        ``empty(shape, dtype)``), or an iterable one (``__iter__``; each worker iterates its own copy).
    batch_size : int or None
        Samples per batch; None: no batching, each sample is delivered as it is.
    shuffle : bool
        A new order in every epoch.
    sampler, batch_sampler : iterable, optional
        Of indices, or of lists of indices. Indices reach the dataset as the very type they are. The iterator
        of a `batch_sampler` that must wait for its batches may say so by a method ``would_wait()``: it is
        then asked for more only when it has some, or when there is nothing else to wait for. Its method
        ``close()``, if it has one, is called at the iteration's end.
    num_workers : int or 'auto'
        0: batches are made by this process, when they are asked for. 'auto': as many as make the loop fastest,
        found out while batches flow; see `tuning`. With random numbers or streams that depend on the workers
        (``rng='worker'``, ``dispatch='static'``, iterable datasets) it changes between epochs only.
    collate_fn : callable, optional
        Samples to batch; default `slipring.default_collate`.
    drop_last : bool
        Drop a last batch that is not full.
    timeout : float
        Seconds to wait for a batch; 0 waits for ever.
    worker_init_fn : callable, optional
        Called with the worker's number in each worker. Seeds that it sets stay in effect with ``rng="worker"`` only.
    seed : int, optional
        The same seed gives the same epochs. None: a new one, from the system. Each `rank` draws random numbers
        of its own.
    prefetch_factor : int
        Batches in flight per worker.
    persistent_workers : bool
        Keep the workers between epochs.
    in_order : bool
        Deliver by sequence number; False: as they are completed.
    start_method : {None, 'fork', 'forkserver', 'spawn', 'thread'}
        None: multiprocessing's default. 'thread': for datasets whose work releases the GIL.
    chunk_size : int, optional
        Rows per range: several workers fill one batch together, so the first is there sooner.
    dispatch : {'dynamic', 'static'}
        Any free worker takes the next batch, or each its turn (always so for iterable datasets); with
        ``in_order=False`` the turn is of who has least to do.
    rng : {'batch', 'worker', 'sample'}
        When generators are seeded, that of `slipring.rng` among them: per batch (results do not depend on the
        workers), once per worker and epoch, or before each sample too, from its position in the order of all
        ranks: then they depend neither on `batch_size` and `chunk_size` nor on how many ranks there are.
        'sample' gives other numbers than 'batch', reads samples by ``__getitem__``, costs microseconds for each,
        and needs the same `seed` in all ranks. What ``collate_fn`` draws is the batch's. What they give is set
        by `seed`.
    slots : int, optional
        Slots of the segment; default ``prefetch_factor * num_workers + 16``. So many batches, less two, may
        be held without a copy.
    slot_bytes : int, optional
        Payload bytes to reserve per slot: the largest batch. Memory is committed as needed. Default 16 GiB,
        or what fits.
    backing : {'auto', 'shm', 'memfd'} or str
        Where the memory comes from; an absolute path names a directory on a tmpfs.
    copy : {'auto', 'always', 'never'}
        Copy batches out of their slots: when fewer than two slots would be left, always, or never.
    on_worker_death : {'raise', 'respawn'}
        'respawn': another worker takes a dead one's place and does again what it had in flight. A stream goes
        on by its ``state_dict``, if the dataset or its iterator has one, else what was read is read again.
    max_restarts : int
        With 'respawn': how often the same batch may kill its worker.
    snapshot_every_n_steps : int
        With 'respawn' and an iterable dataset: with how many batches of the loader each worker calls
        ``state_dict()`` once, and pickles what it returns; what came behind that, a new worker reads again.
        0: with its first batch and at the end of its stream only.
    min_workers, max_workers : int, optional
        Bounds of ``num_workers='auto'``. Default: 1, and 4 for each processor, but 16 to 64, or as many as
        processors if those are more.
    fetch_threads : int, optional
        Threads in each worker that read samples of a batch beside one another, for datasets that wait for a disk
        or a network; of a dataset with ``async def __getitem__``, how many are read at once in the worker's event
        loop. Default: no thread, and all coroutines of a batch. What makes a batch in one call (``__getitems__``,
        ``fetch_into``) stays one call. `slipring.rng` begins anew with each sample then.
    rank : int, optional
        The rank whose random numbers are drawn. Default: the sampler's `rank` (`BatchSampler`, torch's
        DistributedSampler), else torch.distributed's, else 0. Ranks that load the same samples, as in a
        tensor-parallel group, need the same. Not for iterable datasets, whose random numbers depend on `seed` and
        worker: give each rank another `seed`.

    Attributes
    ----------
    epoch : int
        The number of the next iteration, which sets its random numbers and its order; may be set.

    Raises
    ------
    TypeError, ValueError
        At construction, naming argument, value and rule.

    Examples
    --------
    >>> import slipring
    >>> class Squares:
    ...     def __len__(self):
    ...         return 10
    ...     def __getitem__(self, i):
    ...         return {"number": i, "square": i * i}
    >>> with slipring.Loader(Squares(), batch_size=4, num_workers=2) as loader:
    ...     for batch in loader:
    ...         print(batch["square"])
    [0 1 4 9]
    [16 25 36 49]
    [64 81]
    """

    # An adapter's own worker, and what makes an exception of a worker's record: see `Job`, `LoaderIterator`.
    _worker_class, _rebuild = None, staticmethod(error_record.rebuild)

    @suggesting(multiprocessing_context="start_method", generator="seed", mp_context="start_method")
    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=False,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        seed=None,
        *,
        prefetch_factor=2,
        persistent_workers=True,
        in_order=True,
        start_method=None,
        chunk_size=None,
        dispatch="dynamic",
        rng="batch",
        slots=None,
        slot_bytes=None,
        backing="auto",
        copy="auto",
        on_worker_death="raise",
        max_restarts=3,
        snapshot_every_n_steps=1,
        min_workers=None,
        max_workers=None,
        fetch_threads=None,
        rank=None,
    ):
        given = {k: v for k, v in locals().items() if k not in ("self", "dataset")}
        self.options = Options(**given)
        if not self.options.auto:
            warn_of_many_workers(num_workers)
        self.dataset = dataset
        self.is_stream = fetch.is_stream(dataset)
        self.options.check_dataset(self.is_stream, dataset)
        if not self.is_stream and sampler is None and batch_sampler is None:
            length = self._dataset_length()
            if shuffle:
                check_shuffled(length)
        _ = self._share  # what is wrong with it is wrong now
        self.seed = int.from_bytes(os.urandom(8), "little") & MASK_63 if seed is None else int(seed) & MASK_63
        self.epoch = 0
        self._prepare()

    @property
    def epoch(self):
        """int: the number of the next pass."""
        return self.__dict__["epoch"]

    @epoch.setter
    def epoch(self, value):
        self.__dict__["epoch"] = epoch_number(value)

    def _prepare(self):
        self._engines = EngineCache()
        o = self.options
        self._tuner = Tuner(o.num_workers, o.min_workers, o.max_workers) if o.auto else None
        self._closed = False
        self._lock = threading.RLock()
        self._pid = os.getpid()
        register(self)

    def __getstate__(self):
        # A copy, here or in another process, has workers and figures of its own.
        return {name: getattr(self, name) for name in ("options", "dataset", "is_stream", "seed", "epoch")}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._prepare()

    # ---- iteration

    def __iter__(self):
        if self._pid != os.getpid():
            # In a forked child: another thread of the parent may have held the lock.
            self._lock, self._pid = threading.RLock(), os.getpid()
        with self._lock:
            if self._closed:
                raise Closed("the loader has been closed; make a new one")
            tuner = None if self._engines.lent else self._tuner
            if tuner is not None and tuner.workers != self.options.num_workers:
                self.options = dataclasses.replace(self.options, num_workers=tuner.workers)
            o, seed = self.options, mix(self.seed, self.epoch) & MASK_62
            engine, on_end = self._engines.lend(o, self._job())
            if self.is_stream:
                plan = self._stream_plan()
            else:
                plan = map_plan(o, self.dataset, seed)
            read_in_order(o.batch_sampler, o.in_order)
            first, origin = place_of(o.batch_sampler)  # of a resumed epoch the batches that it has had count
            iterator = LoaderIterator(
                *(o, engine, seed, self.epoch if o.rng != "sample" else Share.epoch(self.epoch, origin)),
                *(plan, on_end),
                rebuild=self._rebuild,
                first_seq=first,
                tuner=tuner,
            )
            self._engines.iterators.add(iterator)
            self.epoch += 1
            return iterator

    def _stream_plan(self):
        return StreamPlan(max(1, self.options.num_workers), self.options.in_order)

    @property
    def _engine(self):
        return self._engines.engine

    def _job(self):
        o = self.options
        return Job(
            dataset=self.dataset,
            is_stream=self.is_stream,
            collate_fn=o.collate_fn,
            worker_init_fn=o.worker_init_fn,
            num_workers=max(1, o.num_workers),
            batch_size=o.batch_size,
            drop_last=bool(o.drop_last),
            rng=o.rng,
            share=self._share,
            rank=rank_that_draws(o.rank, o.batch_sampler, o.sampler),
            fetch_threads=o.fetch_threads,
            worker_class=self._worker_class,
            snapshots=o.respawns,
            every=o.snapshot_every_n_steps or 0,
        )

    @property
    def _share(self):
        o = self.options
        if o.rng != "sample" or self.is_stream:
            return None
        return share_of(o.batch_sampler, o.sampler, o.batch_size, o.rank)

    def _dataset_length(self):
        try:
            return len(self.dataset)
        except TypeError as error:
            raise TypeError(
                f"dataset ({type(self.dataset).__name__}) has __getitem__ but no __len__: give it one, or "
                "give a sampler or batch_sampler that says which indices to read"
            ) from error

    def __len__(self):
        """Batches per epoch.

        Raises
        ------
        TypeError
            The dataset or sampler has no length.
        """
        o = self.options
        if o.batch_sampler is not None:
            return len(o.batch_sampler)
        n = len(self.dataset if o.sampler is None else o.sampler)
        if o.batch_size is None:
            return n
        return n // o.batch_size if o.drop_last else -(-n // o.batch_size)

    # ---- how many workers

    def resize(self, num_workers):
        """Have so many workers from now on, also in the middle of an iteration.

        New ones begin at once; those that are too many leave after their batch. No batch is lost, and with
        ``rng="batch"`` and a map dataset every byte stays the same. What depends on which worker makes it
        changes with the next iteration: iterable datasets, ``rng="worker"``, ``dispatch="static"``. The same
        holds for more workers than the segment has room for: 4 for each processor, `max_workers`, or as many as
        the loader began with. Slots are added with the next iteration, too: many more workers than there were have
        to share those that there are until then. With ``num_workers="auto"`` nothing is tried any more.

        Parameters
        ----------
        num_workers : int
            At least 1. A loader without workers can have some from its next iteration on.

        Raises
        ------
        TypeError, ValueError
            Naming the value and the rule; also for a loader without workers that is being iterated.
        Closed
            The loader has been closed.
        """
        num_workers = integer(
            "num_workers", num_workers, 1, MAX_WORKERS, hint="; for none make a loader with num_workers=0"
        )
        with self._lock:
            if self._closed:
                raise Closed("the loader has been closed; make a new one")
            iterators = [one for one in self._engines.iterators if one.is_live]
            if iterators and self.options.num_workers == 0:
                raise ValueError(
                    f"num_workers={num_workers} for an iteration that makes its batches itself: end it first, or make "
                    "the loader with workers"
                )
            self.options = dataclasses.replace(self.options, num_workers=num_workers)
            if self._tuner is not None:
                self._tuner.stop(num_workers, "resize() has set them")
            for iterator in iterators:
                iterator.resize(self.options)

    @property
    def tuning(self):
        """Tuning or None: how ``num_workers="auto"`` goes; None where the number was given."""
        return None if self._tuner is None else self._tuner.tuning

    # ---- figures, end

    def stats(self):
        """Return the `Stats` since the loader was made."""
        return self._engines.stats(self.options.n_slots)

    def report(self, *, headroom: object = None, ranks: bool = False) -> "Report":
        """Return the `slipring.monitor.report.Report`: is the loop waiting for data, by what, and what would help.

        Nothing of it is measured before it is asked for but what the slots remember anyway.

        Parameters
        ----------
        headroom : float, optional
            Seconds of a step alone, or the `slipring.replay` that has found them out: how much there is to gain.
        ranks : bool
            Gather the verdicts of all ranks (torch.distributed): every rank must ask at the same time.

        Examples
        --------
        >>> import slipring
        >>> with slipring.Loader(range(1000), batch_size=10, num_workers=2) as loader:
        ...     total = sum(batch.sum() for batch in loader)
        ...     report = loader.report()
        >>> report.dict()["batches"]
        100
        """
        from slipring._core.reporting import report

        made = report(
            self._engines,
            self._name,
            self.options.n_slots,
            self.dataset,
            headroom=headroom,
            tuning=self.tuning,
        )
        return made.gathered() if ranks else made

    @property
    def _name(self):
        return f"{type(self).__name__}({type(self.dataset).__name__})"

    def close(self):
        """End workers and iterations. Batches that are still held stay valid. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._engines.close()

    def _rest(self):
        """End workers and iterations; the next pass starts others."""
        with self._lock:
            self._engines.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        changed = [
            f"{name}={getattr(self.options, name)!r}"
            for name, field in type(self.options).__dataclass_fields__.items()
            if repr(getattr(self.options, name)) != repr(field.default)
        ]
        return f"Loader({', '.join([type(self.dataset).__name__, *changed])})"
