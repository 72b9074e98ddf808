"""The loader."""

import os
import threading
from typing import Generic, TypeVar

from slipring.errors import Closed
from slipring.iterate._iterator import LoaderIterator
from slipring.iterate.dispatch import StreamPlan, map_plan
from slipring.options import Options, suggesting, warn_of_many_workers
from slipring.ring._ring import mix
from slipring.sampler import rank_of
from slipring.workers import fetch, remote
from slipring.workers.engine_cache import EngineCache
from slipring.workers.seeding import MASK_63
from slipring.workers.worker import Job

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
    num_workers : int
        0: batches are made by this process, when they are asked for.
    collate_fn : callable, optional
        Samples to batch; default `slipring.default_collate`.
    drop_last : bool
        Drop a last batch that is not full.
    timeout : float
        Seconds to wait for a batch; 0 waits for ever.
    worker_init_fn : callable, optional
        Called with the worker's number in each worker. Generators that it seeds are left alone from then on.
    seed : int, optional
        The same seed gives the same epochs. None: a new one, from the system. The `rank` of a sampler that
        has one (`BatchSampler`, torch's DistributedSampler) gives each rank random numbers of its own.
    prefetch_factor : int
        Batches in flight per worker.
    persistent_workers : bool
        Keep the workers between epochs.
    in_order : bool
        Deliver by ticket; False: as they are completed.
    start_method : {None, 'fork', 'forkserver', 'spawn', 'thread'}
        None: multiprocessing's default. 'thread': for datasets whose work releases the GIL.
    chunk_size : int, optional
        Rows per range: several workers fill one batch together, so the first is there sooner.
    dispatch : {'dynamic', 'static'}
        Any free worker takes the next batch, or each its turn (always so for iterable datasets); with
        ``in_order=False`` the turn is of who has least to do.
    rng : {'batch', 'worker'}
        When generators are seeded, that of `slipring.rng` among them: per batch (results do not depend on the
        workers), or once per worker and epoch. What they give is set by `seed`.
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
    _worker_class, _rebuild = None, staticmethod(remote.rebuild)

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
    ):
        given = {k: v for k, v in locals().items() if k not in ("self", "dataset")}
        self.options = Options(**given)
        warn_of_many_workers(num_workers)
        self.dataset = dataset
        self.is_stream = fetch.is_stream(dataset)
        self.options.check_dataset(self.is_stream, dataset)
        if not self.is_stream and sampler is None and batch_sampler is None:
            self._dataset_length()
        self.seed = int.from_bytes(os.urandom(8), "little") & MASK_63 if seed is None else int(seed) & MASK_63
        self.epoch = 0
        self._prepare()

    def _prepare(self):
        self._engines = EngineCache()
        self._closed = False
        self._lock = threading.RLock()
        self._pid = os.getpid()

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
            o, seed = self.options, mix(self.seed, self.epoch) & MASK_62
            engine, on_end = self._engines.lend(o, self._job())
            if self.is_stream:
                plan = StreamPlan(max(1, o.num_workers), o.in_order)
            else:
                plan = map_plan(o, self.dataset, seed)
            iterator = LoaderIterator(o, engine, seed, self.epoch, plan, on_end, rebuild=self._rebuild)
            self._engines.iterators.add(iterator)
            self.epoch += 1
            return iterator

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
            rank=rank_of(o.batch_sampler, o.sampler),
            worker_class=self._worker_class,
            snapshots=o.respawns,
            every=o.snapshot_every_n_steps or 0,
        )

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

    # ---- figures, end

    def stats(self):
        """Return the `Stats` since the loader was made."""
        return self._engines.stats(self.options.n_slots)

    def close(self):
        """End workers and iterations. Batches that are still held stay valid. Safe to call twice."""
        with self._lock:
            self._closed = True
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
