"""torch's DataLoader over slipring's ring."""

import multiprocessing
import warnings
import weakref
from typing import TypeVar

import torch
import torch.utils.data

from slipring.options import Options, suggesting
from slipring.torch import private
from slipring.torch.collate import default_collate
from slipring.torch.device import cuda as _device
from slipring.torch.device.mover import Mover
from slipring.torch.device.registered import RegisteredSlots
from slipring.torch.drop_in.standin import StandIn
from slipring.torch.inline import InlineIterator
from slipring.torch.iterators import WorkersIterator
from slipring.torch.state.iteration import checked, initial
from slipring.workers import pool as _pool  # noqa: F401 - now: torch has brought what it takes long to import
from slipring.workers.engine_cache import EngineCache

OF_THE_CORE = (
    "chunk_size", "dispatch", "rng", "copy", "slots", "slot_bytes", "backing", "on_worker_death",
    "max_restarts", "snapshot_every_n_steps",
)  # fmt: skip


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
        As torch's.
    snapshot_every_n_steps : int
        With workers, what is Stateful among the dataset and its iterator is asked for its state by each
        worker once in so many of the loader's batches, and the state is pickled to come along; what came
        behind it is read again after a resume, and dropped. A state is exact after every batch, whatever the
        number is. 0: with a worker's first batch and at its stream's end only. Samplers, and all without
        workers, are asked by `state_dict` itself.
    rng : {'worker', 'batch'}
        'worker': torch's seeds, one per worker's life, so that the same script gives the same bytes as with
        torch's loader. 'batch': random numbers depend neither on the workers nor on a resume.
    dispatch : {'static', 'dynamic'}
        Whose turn it is, as torch; with ``rng='batch'`` also: who is free.
    chunk_size, copy, slots, slot_bytes, backing, on_worker_death, max_restarts
        As `slipring.Loader`'s.
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
    ):
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
        self._begin()
        _device.check(self)
        # The extras are wrong now, not at the first batch. (If there is an accelerator is asked then: that
        # may initialize a driver, which a process that is yet to be forked must not have.)
        self._core_options(self.preload or 0)
        if dispatch == "dynamic" and rng == "worker" and num_workers:
            warnings.warn(
                "dispatch='dynamic' needs rng='batch': with rng='worker' what a sample draws depends on its "
                "worker, so that batches go to the workers in turn. Give rng='batch', or leave dispatch out",
                stacklevel=4,
            )

    def _begin(self):
        self._engines = EngineCache()
        self._latest = None  # weak reference to the newest iterator: whose state state_dict() is
        self._left = None  # the state in which that one ended
        self._resume = None  # a loaded state, for the next iterator

    def __getstate__(self):
        # A copy, here or in another process, has workers and figures of its own.
        own = {"_engines", "_latest", "_left", "_iterator"}
        return {**{k: v for k, v in self.__dict__.items() if k not in own}, "_iterator": None}

    def __setstate__(self, state):
        resume = state.get("_resume")
        self.__dict__.update(state)
        self._begin()
        self._resume = resume

    def _core_options(self, ahead=None):
        ahead = self._ahead if ahead is None else ahead
        context = self.multiprocessing_context
        return Options(
            batch_size=(self.batch_size or 1) if self._auto_collation else None,
            num_workers=max(1, self.num_workers),
            timeout=float(self.timeout),
            prefetch_factor=max(1, self.prefetch_factor or 1),
            persistent_workers=bool(self.persistent_workers),
            in_order=bool(self.in_order),
            start_method=(context or multiprocessing).get_start_method(),
            worker_init_fn=self.worker_init_fn,
            ahead=ahead * len(self.devices or [self.device]),
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
        stock = self.collate_fn is private.collate.default_collate
        return default_collate if stock else self.collate_fn

    # ---- iteration

    def _get_iterator(self):
        if self.num_workers == 0:
            made = InlineIterator(self)
        else:
            self.check_worker_number_rationality()
            if self.prefetch_factor == 0:
                raise AssertionError(
                    "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
                )
            made = WorkersIterator(self)
        return made

    def __iter__(self):
        if self._iterator is not None and self._iterator.foreign:
            self._iterator = None  # a forked child starts workers of its own
        resume = self._resume
        try:
            iterator = super().__iter__()
        except BaseException:
            if self._resume is None:
                self._resume = resume  # it has not begun: what was loaded still is where it is to go on
            raise
        self._latest, self._left = weakref.ref(iterator), None
        iterator.home, iterator.known_as = weakref.ref(self), self._latest
        return iterator

    # ---- state

    def state_dict(self):
        """Return where the newest iterator is, or was when it was dropped.

        Of constant size for map datasets, whatever was read so far; streams add each worker's position, and
        what a ``Stateful`` dataset or sampler says about itself.

        Returns
        -------
        dict
            Of plain values; numbers, text, lists and dicts (and the states of Stateful objects).
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

        Raises
        ------
        AssertionError
            An iterable dataset was read by another number of workers.
        TypeError
            It is no dict.
        ValueError
            It is no state of this kind of dataset.
        """
        self._resume = checked(self, state_dict) if state_dict else None
        self._latest = self._left = None
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
            self._engines.forget_workers()

    # ---- figures, end

    def stats(self):
        """Return the `slipring.Stats` since the loader was made.

        Without workers it counts batches and what reading and collating them takes: nothing lies in a slot.
        """
        return self._engines.stats(self._core_options().n_slots)

    def close(self):
        """End workers and iterations. Batches still held stay valid. The loader can be used again."""
        self._iterator = None
        self._engines.close()

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
