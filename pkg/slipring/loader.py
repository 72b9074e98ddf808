"""The loader."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from slipring._core import error_record, fetch, reshard
from slipring._core import state as core
from slipring._core._iteration import Iteration, Position
from slipring._core._ring import mix
from slipring._core.arguments import epoch_number
from slipring._core.engine_cache import EngineCache
from slipring._core.loader import LoaderMethods
from slipring._core.option_values import Options
from slipring._core.seeding import MASK_63, Share
from slipring._core.shards import IterableSource
from slipring._core.source import StreamPlan, map_plan
from slipring._core.tuning import Tuner
from slipring._core.weak_registry import register
from slipring._core.worker import Job
from slipring._core.worker_count import warn_of_many_workers
from slipring.options import LoaderOptions, declares
from slipring.sampler import BatchSampler, place_of, rank_that_draws, share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import SupportsIndex, TypeAlias

    from typing_extensions import TypeVar, Unpack

    from slipring.typing import BatchDataset, ListDataset, MapDataset

    _Batch = TypeVar("_Batch", covariant=True, default=Any)
    _Made = TypeVar("_Made")
    _Sample = TypeVar("_Sample")
    Samples: TypeAlias = MapDataset[_Sample] | Iterable[_Sample] | ListDataset[_Sample]
else:
    _Batch = TypeVar("_Batch", covariant=True)


class _Pass(NamedTuple):
    """What a loader knows of its newest iteration."""

    epoch: int
    position: Position
    source: Any  # the `SamplerSource`, or None
    iterator: Any  # a weak reference


MASK_62 = (1 << 62) - 1  # room for the workers' numbers within an int64


@declares(LoaderOptions)
class Loader(LoaderMethods, Generic[_Batch]):
    """Batches of a dataset, made by workers and handed out as numpy views on shared memory.

    Parameters
    ----------
    dataset
        A map dataset (``__getitem__`` and ``__len__``; also ``__getitems__(indices)``, which returns a list
        of samples, or ``fetch_into(indices, empty)``, which returns a whole batch with arrays from
        ``empty(shape, dtype)``), or an iterable one (``__iter__``; each worker iterates its own copy).
    batch_size : int or None
        Samples per batch; None: no batching, each sample is delivered as it is.
    collate_fn : callable, optional
        Samples to batch; default `slipring.default_collate`.
    {options}

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

    dataset: Any
    options: Options
    is_stream: bool
    seed: int

    _keeps_states = True  # the states of workers' datasets travel with the batches

    # An adapter's own worker, and what makes an exception of a worker's record: see `Job`, `Iteration`.
    _worker_class, _rebuild = None, staticmethod(error_record.rebuild)

    # What `collate_fn` returns is the batch. Without batching it is given a sample.
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: Samples[_Sample],
        batch_size: None,
        *,
        collate_fn: Callable[[_Sample], _Made],
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[_Sample],
        dataset: Samples[_Sample],
        batch_size: None,
        *,
        collate_fn: None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: Samples[_Sample],
        batch_size: int = 1,
        *,
        collate_fn: Callable[[list[_Sample]], _Made],
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    # The dataset makes its batches.
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: BatchDataset[_Made],
        batch_size: int = 1,
        *,
        collate_fn: None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    # `default_collate` makes the batch: say what it is by Loader[...](...).
    @overload
    def __init__(
        self,
        dataset: Samples[Any],
        batch_size: int | None = 1,
        *,
        collate_fn: None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        collate_fn: Callable[[Any], Any] | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        self.options = Options(batch_size=batch_size, collate_fn=collate_fn, **options)
        if not self.options.auto:
            warn_of_many_workers(self.options.num_workers)
        self.dataset = dataset
        self.is_stream = fetch.is_stream(dataset)
        self.options.check_dataset(self.is_stream, dataset)
        o = self.options
        if not self.is_stream and o.sampler is None and o.batch_sampler is None:
            self._check_length()
        _ = self._share  # what is wrong with it is wrong now
        self.seed = (int.from_bytes(os.urandom(8), "little") if o.seed is None else o.seed) & MASK_63
        self.epoch = 0
        self._prepare()

    @property
    def epoch(self) -> int:
        """int: the number of the next pass."""
        return self.__dict__["epoch"]

    @epoch.setter
    def epoch(self, value: SupportsIndex) -> None:
        self.__dict__["epoch"] = epoch_number(value)

    def _prepare(self):
        self._engines = EngineCache()
        o = self.options
        self._tuner = Tuner(o.num_workers, *o.bounds) if o.auto else None
        self._closed = False
        self._loaded = None  # a state for the next pass
        self._newest = None  # `_Pass`
        register(self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, here or in another process, has workers and figures of its own.
        kept = ("options", "dataset", "is_stream", "seed", "epoch", "_loaded")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()
        self._loaded = state["_loaded"]

    # ---- iteration

    def __iter__(self) -> Iteration[_Batch]:
        with self._engines.locked():
            self._check_open()
            tuner = None if self._engines.lent else self._tuner
            if tuner is not None and tuner.workers != self.options.num_workers:
                self.options = dataclasses.replace(self.options, num_workers=tuner.workers)
            o, seed = self.options, mix(self.seed, self.epoch) & MASK_62
            resume, source = self._resume, None
            job = self._job()
            places, live_on = self._places(resume) if job.tracked else ({}, False)
            engine, on_end = self._engines.lend(
                o, dataclasses.replace(job, resume=core.loadable(places)) if places else job, live_on
            )
            if self.is_stream:
                plan = StreamPlan(job.num_workers, o.in_order, 0 if resume is None else resume["next_worker"])
            else:
                plan, source = map_plan(o, self.dataset, seed, resume)
            position = self._begun_at(resume, places, job.tracked)  # the batch sampler has begun its pass
            if source is not None:
                source.position = position
            on_end = self._at_end(on_end)
            iterator = Iteration(o, engine, seed, plan, position, on_end, rebuild=self._rebuild, tuner=tuner)
            self._engines.iterators.add(iterator)
            self._newest = _Pass(self.epoch, position, source, weakref.ref(iterator))
            self._loaded = None
            self.epoch += 1
            return iterator

    def _at_end(self, on_end):
        """Return the callback for the end of the new pass; its argument, the engine, must be passed to `on_end`."""
        return on_end

    @property
    def _resume(self):
        """dict or None: the state within which the next pass begins; setting `epoch` to another one drops it."""
        loaded = self._loaded
        return loaded if loaded is not None and not loaded["finished"] and loaded["epoch"] == self.epoch else None

    def _places(self, resume):
        """Return ({number: place} with which workers begin, whether workers that persist know it already)."""
        if resume is not None:
            return reshard.places_of(resume), False
        if self._loaded is not None and self._loaded["finished"]:
            return core.ended_places(self.options.num_workers, self._loaded), False
        newest = self._newest
        if newest is None or not (newest.position.finished and self.options.persistent_workers):
            return {}, False  # workers begin with the dataset as the loader has it
        return core.at_end(core.raw_places(newest.position)), True

    def _begun_at(self, resume, places, tracked):
        """Return the `Position` at which the next pass begins."""
        workers = core.positions_of(self.options.num_workers, places) if tracked else None
        first, origin = place_of(self.options.batch_sampler)  # of a resumed epoch
        beyond, next_worker = (), 0
        if resume is not None:
            if not isinstance(self.options.batch_sampler, BatchSampler):
                first, origin = resume["delivered"] or 0, resume["origin"] or 0
            beyond, next_worker = resume["beyond"], resume["next_worker"]
            if self.is_stream:  # workers know themselves what they have delivered
                first, beyond = first + len(beyond), ()
        word = self.epoch if self.options.rng != "sample" else Share.epoch(self.epoch, origin)
        return Position(word, first, beyond, workers, next_worker)

    @property
    def _engine(self):
        return self._engines.engine

    def _job(self):
        o = self.options
        rank = rank_that_draws(o.rank, o.batch_sampler, o.sampler)
        tracked = self._keeps_states and (self.is_stream or fetch.is_stateful(self.dataset))
        return Job(
            self.dataset,
            self.is_stream,
            o.for_worker(),
            rank,
            self._worker_class,
            self._share,
            tracked=tracked,
        )

    @property
    def _share(self):
        o = self.options
        if o.rng != "sample" or self.is_stream:
            return None
        return share_of(o.batch_sampler, o.sampler, o.batch_size, o.rank)

    def _check_length(self):
        try:
            len(self.dataset)
        except TypeError as error:
            raise TypeError(
                f"dataset ({type(self.dataset).__name__}) has __getitem__ but no __len__: give it one, or "
                "give a sampler or batch_sampler that says which indices to read"
            ) from error

    def __len__(self) -> int:
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

    # ---- what `LoaderMethods` asks for

    @property
    def _options_now(self):
        return self.options

    @property
    def _makes_batches_itself(self):
        return self.options.num_workers == 0 and any(one.is_live for one in self._engines.iterators)

    def _put_num_workers(self, num_workers):
        self.options = dataclasses.replace(self.options, num_workers=num_workers)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return where the newest iteration is: after the batch that it returned last.

        The state has a constant size for map datasets, however much has been read. Batches that raised an exception
        count as delivered. An iterable dataset adds each worker's place, and a ``Stateful`` dataset or sampler (with
        ``state_dict`` and ``load_state_dict``) what it says of itself.

        Returns
        -------
        dict
            Plain values, which JSON can write: numbers, text, lists, tuples and dicts; and the states of Stateful
            objects. It has the same keys at all times. ``docs/state.md`` describes them.

        Raises
        ------
        RuntimeError
            A Stateful object could not say where it is, or is in the middle of a step: a signal handler, the dataset or
            the sampler has called this while the same thread makes a batch in this process.

        Examples
        --------
        >>> import slipring
        >>> with slipring.Loader(range(6), batch_size=2, shuffle=True, seed=1) as loader:
        ...     batches = iter(loader)
        ...     first = next(batches).tolist()
        ...     state = loader.state_dict()
        ...     rest = [batch.tolist() for batch in batches]
        >>> with slipring.Loader(range(6), batch_size=2, shuffle=True) as loader:
        ...     loader.load_state_dict(state)
        ...     [batch.tolist() for batch in loader] == rest
        True
        """
        with self._engines.locked():
            loaded, newest, epoch = self._loaded, self._newest, self.epoch
        if loaded is not None and loaded["epoch"] == epoch:
            return dict(loaded)
        described = self._described()
        if newest is None:
            return core.initial(described, epoch=epoch, seed=self.seed)
        iterator = newest.iterator()
        if iterator is not None:
            iterator.ask_state()
        if newest.source is None:
            position, more = newest.position.copy(), {}
        else:
            position, more = newest.source.state()
        if isinstance(sampler := self.options.batch_sampler, BatchSampler):
            more = {"sampler_iterator": (sampler._state_at(position.delivered),)}
        return core.built(
            described, position, epoch=epoch if position.finished else newest.epoch, seed=self.seed, **more
        )

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next iteration continue where `state_dict` was taken; ``{}`` begins anew.

        The same batches come as without the interruption. Iterations that are under way end. `seed` and `epoch` become
        the state's; if you set `epoch` to another one afterwards, that epoch is read from its beginning. A sampler
        without ``state_dict`` is read again from its beginning, and must give the same indices.

        Parameters
        ----------
        state_dict : mapping, or sequence of mappings
            Of ``state_dict()``, of any rank if a `BatchSampler` divides the samples. A list of the states of all ranks
            is checked, and lets ranks divide an iterable dataset again that has ``rest_of``; see ``docs/elastic.md``.

        Raises
        ------
        AssertionError
            Workers of another number have read the iterable or Stateful dataset.
        TypeError, ValueError
            It is no state, or one of another kind of dataset, another order, batch size or division.
        Closed
            The loader has been closed.
        """
        with self._engines.locked():
            self._check_open()
            if isinstance(state_dict, Mapping) and not state_dict:
                self._engines.close()
                self._loaded = self._newest = None
                return
            if self._tuner is not None and (workers := core.workers_of(state_dict)):
                self._tuner.begin_with(workers, "the state that was loaded is of as many")
                self._put_num_workers(workers)
            described = self._described()
            state = core.checked(described, state_dict)
            reshard.begin_source(self.options.batch_sampler, state)
            self._engines.close()
            if state["seed"] is not None:
                self.seed = int(state["seed"])
            if state["epoch"] is not None:
                self.epoch = state["epoch"]
            self._loaded, self._newest = {**state, "epoch": self.epoch}, None

    def _described(self):
        o = self.options
        source = o.sampler if o.batch_sampler is None else o.batch_sampler
        size = (o.batch_size or 0) if o.batch_sampler is None else getattr(source, "batch_size", None)
        order = None
        if source is None and not self.is_stream:
            order = f"shuffled, {len(self.dataset)} samples" if o.shuffle else "ascending"
        return core.Described(
            is_stream=self.is_stream,
            dataset=self.dataset,
            num_workers=o.num_workers,
            rank=o.rank,
            in_order=o.in_order,
            source=source,
            group=(o.batch_size or 1) if o.batch_sampler is None else 0,
            batch_size=size if type(size) is int else None,
            order=order,
        )

    # ---- the end

    def close(self) -> None:
        """End workers and iterations. Batches that are still held stay valid. Safe to call twice."""
        with self._engines.locked():
            self._closed = True
            self._engines.close()

    def _rest(self):
        """End workers and iterations; the next pass starts others."""
        with self._engines.locked():
            self._engines.close()

    def __repr__(self) -> str:
        given = {name: getattr(self.options, name) for name in self.options.__dataclass_fields__}
        if (bounds := given.pop("bounds")) is not None:
            given["num_workers"] = bounds
        defaults = {name: field.default for name, field in self.options.__dataclass_fields__.items()}
        changed = [f"{name}={value!r}" for name, value in given.items() if repr(value) != repr(defaults[name])]
        name = repr(self.dataset) if isinstance(self.dataset, IterableSource) else type(self.dataset).__name__
        return f"Loader({', '.join([name, *changed])})"
