"""torch's DataLoader over slipring's ring."""

import warnings
import weakref
from typing import TypeVar

import torch
import torch.utils.data

from slipring._core import process_pool as _process_pool  # noqa: F401 - torch has imported its slow parts
from slipring._core._ring import MAX_WORKERS
from slipring._core.concurrency import Concurrency
from slipring._core.engine_cache import EngineCache
from slipring._core.shards import IterableSource
from slipring._core.tuning import Tuner
from slipring.monitor.registry import register
from slipring.options import (
    Options,
    bounds,
    check_bounds,
    function,
    integer,
    iterable,
    suggesting,
)
from slipring.torch import private
from slipring.torch.collate import convert, default_collate
from slipring.torch.contexts import start_of
from slipring.torch.device import cuda as _device
from slipring.torch.device.mover import Mover
from slipring.torch.device.registered import RegisteredSlots
from slipring.torch.drop_in.standin import StandIn
from slipring.torch.epoch import Epoch
from slipring.torch.inline import InlineIterator
from slipring.torch.iterators import WorkersIterator
from slipring.torch.state.elastic import share
from slipring.torch.state.iteration import checked, initial, workers_of

OF_THE_CORE = (
    "chunk_size", "dispatch", "rng", "copy", "slots", "slot_bytes", "backing", "on_worker_death",
    "max_restarts", "snapshot_every_n_steps", "min_workers", "max_workers", "fetch_threads", "rank",
)  # fmt: skip

# torch's kind of loader knows an iterable dataset by its class.
torch.utils.data.IterableDataset.register(IterableSource)

T_co = TypeVar("T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T_co], metaclass=StandIn):
    """`torch.utils.data.DataLoader`, faster, with `torchdata.stateful_dataloader`'s state.

    Every argument of torch's has its meaning and default; batches have torch's types. They are views on
    shared memory: writable, and valid as long as they are referred to. For the other arguments see
    `slipring.Loader`; `dispatch` and `rng` have torch's behaviour as their defaults here. All are attributes
    of the same name.

    Parameters
    ----------
    dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last
    timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers
    pin_memory_device, in_order
        As torch's. ``num_workers='auto'`` finds out how many are best while batches flow (see `tuning`), and
        means ``rng='batch', dispatch='dynamic'``: batches depend on no worker.
    snapshot_every_n_steps : int
        With workers, what is Stateful among the dataset and its iterator is asked for its state by each
        worker once in so many of the loader's batches, and the state is pickled to come along; what came
        behind it is read again after a resume, and dropped. A state is exact after every batch, whatever the
        number is. 0: with a worker's first batch and at its stream's end only. Samplers, and all without
        workers, are asked by `state_dict` itself.
    rng : {'worker', 'batch', 'sample'}
        'worker': torch's seeds, one per worker's life, so that the same script gives the same bytes as with
        torch's loader. 'batch': random numbers depend neither on the workers nor on a resume. 'sample': each
        sample's, from its position in all ranks' order, nor on ranks and batch size; see `slipring.Loader`.
    dispatch : {'static', 'dynamic'}
        Whose turn it is, as torch; with ``rng='batch'`` also: who is free.
    chunk_size, copy, slots, slot_bytes, backing, on_worker_death, max_restarts, min_workers, max_workers
    fetch_threads
        As `slipring.Loader`'s.
    rank : int, optional
        As `slipring.Loader`'s: with ``rng='batch'`` or 'sample', whose random numbers are drawn. States say it too,
        also those of an iterable dataset.
    device : torch.device, str or int, optional
        Where batches' tensors are to be: copied from the slots themselves, which are pinned, on a stream of
        the loader's. ``pin_memory`` adds nothing to it. Strings and other objects pass through.
    devices : sequence of them, optional
        In place of `device`: a step is a list of batches, one for each. Too few at the end are dropped.
    preload : int, optional
        How many steps a thread has ready before they are asked for. Default: 1 with a device, else 0.
        Without workers batches are made and copied when they are asked for.
    non_blocking : bool
        A batch is handed out when the caller's current stream is ordered after the copy. False: when
        the copy is done.
    memory_format : torch.memory_format, optional
        Of leaves with 4 dimensions (``torch.channels_last``) or 5 (``channels_last_3d``), on the device.
    transform_device : callable, optional
        Of a batch on the device; works on the loader's stream, in the thread that preloads, and returns what
        is handed out. Slots can so carry uint8 and training see bfloat16.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        At construction; for torch's arguments with torch's text.

    Examples
    --------
    >>> import torch
    >>> from slipring.torch import DataLoader
    >>> data = torch.utils.data.TensorDataset(torch.arange(10))
    >>> with DataLoader(data, batch_size=4, num_workers=2) as loader:
    ...     for (batch,) in loader:
    ...         print(batch)
    tensor([0, 1, 2, 3])
    tensor([4, 5, 6, 7])
    tensor([8, 9])
    """

    fetch_threads = rank = None  # nor had what was pickled before any
    _auto = False  # the number of workers is given; also to what was pickled before there was another way

    @suggesting(
        start_method="multiprocessing_context", seed="generator", mp_context="multiprocessing_context"
    )
    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        in_order=True,
        snapshot_every_n_steps=1,
        chunk_size=None,
        dispatch="static",
        rng="worker",
        copy="auto",
        slots=None,
        slot_bytes=None,
        backing="auto",
        on_worker_death="raise",
        max_restarts=3,
        device=None,
        devices=None,
        preload=None,
        non_blocking=True,
        memory_format=None,
        transform_device=None,
        min_workers=None,
        max_workers=None,
        fetch_threads=None,
        rank=None,
    ):
        # Other text is refused by torch, in its own words.
        self._auto = isinstance(num_workers, str) and num_workers == "auto"
        if self._auto:
            num_workers, min_workers, max_workers = bounds(num_workers, min_workers, max_workers, slots)
            # Nobody knows how many there will be: nothing may depend on it.
            dispatch, rng = "dynamic", rng if rng == "sample" else "batch"
        else:
            check_bounds(num_workers, min_workers=min_workers, max_workers=max_workers)
        self.min_workers, self.max_workers = min_workers, max_workers
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.chunk_size = chunk_size
        self.dispatch = dispatch
        self.rng = rng
        self.copy = copy
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.backing = backing
        self.on_worker_death = on_worker_death
        self.max_restarts = max_restarts
        self.fetch_threads = fetch_threads
        self.rank = rank
        self.device = device
        self.devices = devices
        self.preload = preload
        self.non_blocking = non_blocking
        self.memory_format = memory_format
        self.transform_device = transform_device
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        # What torch itself finds out at the first batch.
        function("collate_fn", collate_fn)
        function("worker_init_fn", worker_init_fn)
        for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            if given is not None:
                iterable(name, given, "an iterable of indices")
        self._begin()
        _device.check(self)
        # The extras are wrong now, not at the first batch. (If there is an accelerator is asked then: that
        # may initialize a driver, which a process that is yet to be forked must not have.)
        options = self._core_options(self.preload or 0)
        self.rank = options.rank
        share(self)
        if (
            options.method == "thread"
            and self._dataset_kind == private.DatasetKind.Iterable
            and num_workers > 1
        ):
            raise ValueError(
                f"num_workers={num_workers} threads of {multiprocessing_context!r} would each read the whole of "
                f"{type(dataset).__name__}: torch's get_worker_info() cannot tell threads of a process apart. Use one, "
                "or processes"
            )
        if fetch_threads is not None and self._dataset_kind == private.DatasetKind.Iterable:
            raise ValueError(
                f"fetch_threads={fetch_threads} reads samples by their indices; {type(dataset).__name__} is an "
                "iterable dataset, which gives one after the other"
            )
        if dispatch == "dynamic" and rng == "worker" and num_workers:
            warnings.warn(
                "dispatch='dynamic' needs rng='batch': with rng='worker' what a sample draws depends on its "
                "worker, so that batches go to the workers in turn. Give rng='batch', or leave dispatch out",
                stacklevel=4,
            )

    def _begin(self):
        self._engines = EngineCache()
        self._concurrency = Concurrency(self.fetch_threads)  # without workers
        self._latest = None  # weak reference to the newest iterator: whose state state_dict() is
        self._left = None  # the state in which that one ended
        self._epochs = 0  # that have begun
        self._resume = None  # a loaded state, for the next iterator
        self._tuner = Tuner(self.num_workers, self.min_workers, self.max_workers) if self._auto else None
        register(self)

    def __getstate__(self):
        # A copy, here or in another process, has workers and figures of its own.
        own = {"_engines", "_concurrency", "_latest", "_left", "_epochs", "_iterator", "_tuner"}
        return {**{k: v for k, v in self.__dict__.items() if k not in own}, "_iterator": None}

    def __setstate__(self, state):
        resume = state.get("_resume")
        self.__dict__.update(state)
        self._begin()
        self._resume = resume

    def _core_options(self, ahead=None):
        ahead = self._ahead if ahead is None else ahead
        method, context = start_of(self.multiprocessing_context)
        return Options(
            batch_size=(self.batch_size or 1) if self._auto_collation else None,
            num_workers=max(1, self.num_workers),
            timeout=self.timeout,
            prefetch_factor=max(1, self.prefetch_factor or 1),
            persistent_workers=bool(self.persistent_workers),
            in_order=bool(self.in_order),
            start_method=method,
            context=context,
            worker_init_fn=self.worker_init_fn,
            ahead=ahead * len(self.devices or [self.device]),
            auto=self._auto,
            **{name: getattr(self, name) for name in OF_THE_CORE},
        )

    @property
    def slipring_device(self):
        """`device`, for clients whose own loaders have an attribute of that name (Accelerate)."""
        return self.device

    @property
    def _ahead(self):
        if self.preload is None:
            return int(self.device is not None or self.devices is not None or self._pins)
        return self.preload

    @property
    def _pins(self):
        """bool: whether batches of workers are to be pinned, as torch pins them."""
        if not (self.pin_memory and self.num_workers) or self.device is not None or self.devices is not None:
            return False
        return torch.accelerator.is_available() and torch.accelerator.current_accelerator().type != "mps"

    def _mover(self, engine=None):
        """What copies batches from an engine's slots to the devices; None if they stay where they are."""
        if self.device is None and self.devices is None and not self._ahead:
            _unpin(engine)
            return None
        wanted = self.devices if self.devices is not None else [self.device or "cpu"]
        places = [_device.open_device(torch.device(one)) for one in wanted]
        count, transform = self._engines.moves, self.transform_device
        if self._pins:
            transform = _pinning(transform)
        mover = Mover(places, self.memory_format, transform, self.non_blocking, count)
        if mover.host is None:
            _unpin(engine)
        elif engine is not None:
            mover.pins = engine.attachment = engine.attachment or RegisteredSlots(engine.ring, mover.host)
        return mover

    def _core_collate(self):
        if self.collate_fn is private.collate.default_collate:
            return default_collate
        return convert if self.collate_fn is private.collate.default_convert else self.collate_fn

    # ---- iteration

    def _get_iterator(self):
        if self.num_workers == 0:
            made = InlineIterator(self)
        else:
            if not self._auto:
                self.check_worker_number_rationality()
            if self.prefetch_factor == 0:
                raise AssertionError(
                    "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
                )
            made = WorkersIterator(self)
        return made

    def __iter__(self):
        if isinstance(self._iterator, Epoch) and self._iterator.foreign:
            self._iterator = None  # a forked child starts workers of its own
        resume = self._resume
        try:
            iterator = super().__iter__()
        except BaseException:
            if self._resume is None:
                self._resume = resume  # it has not begun: what was loaded still is where it is to go on
            raise
        if not isinstance(iterator, Epoch):
            return self._of_a_subclass(iterator)
        self._latest, self._left = weakref.ref(iterator), None
        iterator.home, iterator.known_as = weakref.ref(self), self._latest
        return iterator

    def _of_a_subclass(self, iterator):
        """Return an iterator that a subclass has made of another class, by its own ``_get_iterator``."""
        made = f"{type(self).__name__}._get_iterator() returns a {type(iterator).__name__}"
        self._latest, self._left = None, RuntimeError(f"{made}, so this loader does not know where it is")
        if self._resume is not None:
            raise RuntimeError(f"{made}, which cannot resume from a state: call load_state_dict({{}}) first")
        return iterator

    # ---- how many workers

    def resize(self, num_workers):
        """Have so many workers from now on: see `slipring.Loader.resize`.

        In the middle of an epoch where nothing depends on them, with ``rng='batch'``, ``dispatch='dynamic'`` and
        a map dataset that is not Stateful; else from the next one on. Random numbers of ``rng='worker'`` begin
        anew then, also where workers persist.

        Parameters
        ----------
        num_workers : int
            At least 1.

        Raises
        ------
        TypeError, ValueError
            Naming the value and the rule; also for a loader without workers that is being iterated.
        """
        num_workers = integer(
            "num_workers", num_workers, 1, MAX_WORKERS, hint="; for none make a loader with num_workers=0"
        )
        latest = None if self._latest is None else self._latest()
        if self.num_workers == 0 and latest is not None and not latest._finished:
            raise ValueError(
                f"num_workers={num_workers} for an iteration that makes its batches itself: end it first, or make "
                "the loader with workers"
            )
        self.num_workers = num_workers
        if self.prefetch_factor is None:
            self.prefetch_factor = 2  # torch's default, with workers
        if self._tuner is not None:
            self._tuner.stop(num_workers, "resize() has set them")
        for iterator in self._engines.iterators:
            iterator.resize(self._core_options())

    @property
    def tuning(self):
        """Tuning or None: how ``num_workers="auto"`` goes; None where the number was given."""
        return None if self._tuner is None else self._tuner.tuning

    # ---- state

    def state_dict(self):
        """Return where the newest iterator is, or was when it was dropped.

        Of constant size for map datasets, whatever was read so far; streams add each worker's position, and
        what a ``Stateful`` dataset or sampler says about itself.

        Returns
        -------
        dict
            Of plain values; numbers, text, lists, tuples and dicts (and the states of Stateful objects). It has the
            same keys at all times, so that torch.distributed.checkpoint can load it.
        """
        if self._resume is not None:
            return dict(self._resume)
        latest = None if self._latest is None else self._latest()
        if latest is not None:
            return latest.state_dict()
        if isinstance(self._left, Exception):
            raise self._left
        return initial(self) if self._left is None else dict(self._left)

    def load_state_dict(self, state_dict):
        """Have the next iterator go on where `state_dict` was taken; ``{}`` begins anew.

        Ranks and batch size may be others than those of the state, which may be any rank's, and a list of all
        ranks' states; of streams it must be that. ``docs/elastic.md`` has the cases.

        Raises
        ------
        AssertionError
            An iterable dataset was read by another number of workers.
        TypeError
            It is no dict, nor a list of them.
        ValueError
            It is no state of this kind of dataset, or of a division that cannot be gone on with.
        """
        if self._tuner is not None and (workers := workers_of(state_dict)):
            self._tuner.begin_with(workers, "the state that was loaded is of as many")
            self.num_workers = workers
        self._resume = checked(self, state_dict) if state_dict or isinstance(state_dict, list) else None
        self._latest = self._left = None
        if self._iterator is not None:
            if isinstance(self._iterator, Epoch):
                self._iterator.close()
            self._iterator = None
            self._engines.forget_workers()

    # ---- figures, end

    def stats(self):
        """Return the `slipring.Stats` since the loader was made.

        Without workers it counts batches and what reading and collating them takes: nothing lies in a slot.
        """
        return self._engines.stats(self._core_options().n_slots)

    def report(self, *, headroom=None, ranks=False):
        """Return the `slipring.monitor.report.Report`; see `slipring.Loader.report`."""
        from slipring._core.reporting import report

        name = f"{type(self).__name__}({type(self.dataset).__name__})"
        made = report(
            self._engines,
            name,
            self._core_options().n_slots,
            self.dataset,
            headroom=headroom,
            tuning=self.tuning,
        )
        return made.gathered() if ranks else made

    def close(self):
        """End workers and iterations. Batches still held stay valid. The loader can be used again."""
        self._iterator = None
        self._engines.close()
        self._concurrency.close()

    _rest = close  # for `slipring.replay`

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def _pinning(transform):
    """What has a batch pinned in the thread that preloads, so that the copy is not part of next()."""
    device = torch.accelerator.current_accelerator().type
    index = torch.accelerator.current_device_index()

    def pin(batch):
        torch.accelerator.set_device_index(index)  # of the thread
        batch = private.pin_memory.pin_memory(batch, device)
        return batch if transform is None else transform(batch)

    return pin


def _unpin(engine):
    """Take back what an earlier epoch has registered, before views of it get out; see `RegisteredSlots`."""
    if engine is not None and engine.attachment is not None:
        engine.attachment.close()
        engine.attachment = None
