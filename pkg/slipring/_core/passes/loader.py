"""`LoaderMethods`, which all loaders have, and `LoaderCore`, the base of `slipring.Loader` and its subclasses."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from slipring._core.options.arguments import epoch_number, integer
from slipring._core.passes import reshard
from slipring._core.passes import state as core
from slipring._core.passes._iteration import Iteration, Position
from slipring._core.passes.engine import EngineCache
from slipring._core.passes.source import StreamPlan, map_plan, place_of, rank_that_draws, share_of
from slipring._core.passes.tuning import Tuner
from slipring._core.ring._ring import MAX_WORKERS, mix
from slipring._core.ring.weak_registry import register
from slipring._core.workers import error_record
from slipring._core.workers.job import Job
from slipring._core.workers.seeding import Share
from slipring._core.workers.stateful import is_stateful
from slipring._core.workers.worker import Worker
from slipring.errors import Closed
from slipring.sampler import BatchSampler

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from typing_extensions import Self

    from slipring._core.options.option_values import Options
    from slipring._core.passes.tuning import Tuning
    from slipring._observe.report import Report
    from slipring.stats import Stats


class LoaderMethods:
    """The number of workers, the figures and the end of a loader."""

    dataset: Any
    _engines: EngineCache
    _tuner: Tuner | None
    _closed = False

    if TYPE_CHECKING:  # each loader has its own

        @property
        def _options_now(self) -> Options: ...
        @property
        def _makes_batches_itself(self) -> bool: ...
        def _put_num_workers(self, num_workers: int) -> None: ...
        def close(self) -> None: ...

    def resize(self, num_workers: int) -> None:
        """Change the number of workers, also in the middle of an iteration.

        New workers start at once; surplus workers leave after their batch. No batch is lost, and with
        ``rng="batch"`` and a map dataset every byte stays the same. If batches depend on the workers (iterable
        datasets, ``rng="worker"``), the number changes with the next iteration. The same holds for more workers than
        the segment has room for: 4 per processor, the upper bound of ``num_workers=(least, most)``, or the number that
        the loader began with. Slots are added with the next iteration, too: until then, the new workers share the
        existing slots. The loader stops looking for the best number.

        Parameters
        ----------
        num_workers : int
            At least 1. A loader without workers can have some from its next iteration on.

        Raises
        ------
        TypeError, ValueError
            The value is wrong, and the text names it and the rule; or a loader without workers is being iterated.
        Closed
            The loader has been closed.
        """
        num_workers = integer(
            "num_workers", num_workers, 1, MAX_WORKERS, hint="; for none make a loader with num_workers=0"
        )
        with self._engines.locked():
            self._check_open()
            if self._makes_batches_itself:
                raise ValueError(
                    f"num_workers={num_workers} for an iteration that makes its batches itself: end it first, or make "
                    "the loader with workers"
                )
            self._put_num_workers(num_workers)
            if self._tuner is not None:
                self._tuner.stop(num_workers, "resize() has set them")
            options = self._options_now
            for iterator in self._engines.iterators:
                iterator.resize(options)

    @property
    def tuning(self) -> Tuning | None:
        """Tuning or None: what the loader found for ``num_workers="auto"``; None if the number was given."""
        return None if self._tuner is None else self._tuner.tuning

    def stats(self) -> Stats:
        """Return the `slipring.Stats` since the loader was made."""
        return self._engines.stats(self._options_now.n_slots)

    def report(self, *, headroom: object = None, ranks: bool = False) -> Report:
        """Return the `slipring.monitor.Report`: whether the loop waits for data, why, and what would help.

        A report costs nothing until you request it: it uses timestamps that each slot records anyway.

        Parameters
        ----------
        headroom : float, optional
            Seconds of a step without loading, or the `slipring.replay` that measured them. The report then says how
            much time there is to gain.
        ranks : bool
            Gather the verdicts of all ranks (torch.distributed): every rank must call this at the same time.

        Examples
        --------
        >>> import slipring
        >>> with slipring.Loader(range(1000), batch_size=10, num_workers=2) as loader:
        ...     total = sum(batch.sum() for batch in loader)
        ...     report = loader.report()
        >>> report.dict()["batches"]
        100
        """
        from slipring._core.passes.reporting import report

        name = f"{type(self).__name__}({type(self.dataset).__name__})"
        made = report(self, name, headroom)
        self._add_waits(made)
        return made.gathered() if ranks else made  # last: the other ranks get the verdict

    def _add_waits(self, made: Report) -> None:
        """Hook: add the figures to a report that only one kind of loader has."""

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the loader has been closed; make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


MASK_62 = (1 << 62) - 1  # room for the workers' numbers within an int64


class _Pass(NamedTuple):
    """A loader's newest iteration."""

    epoch: int
    num_workers: int
    position: Position
    source: Any  # the `SamplerSource`, or None
    iterator: Any  # a weak reference


class LoaderCore(LoaderMethods):
    """Passes over a dataset, and their states: the part of `slipring.Loader` that has no arguments."""

    options: Options
    is_stream: bool
    seed: int

    _keeps_states = True  # the states of workers' datasets travel with the batches

    # An adapter may have its own worker class, and its own way to rebuild exceptions; see `Job` and `Iteration`.
    _worker_class, _rebuild = Worker, staticmethod(error_record.rebuild)

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

    def _iterate(self, iterator=None):
        """Return the `Iteration` of the next pass, which begins in `iterator` if that is given."""
        with self._engines.locked():
            self._check_open()
            if iterator is not None and (self._newest is None or self._newest.iterator() is not iterator):
                raise StopIteration  # the next pass is another iterator's
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
                plan = StreamPlan(job.num_workers, o.in_order, 0 if resume is None else resume.next_worker)
            else:
                plan, source = map_plan(o, self.dataset, seed, resume)
            position = self._begun_at(resume, places, job.tracked)  # the batch sampler has begun its pass
            if source is not None:
                source.position = position
            on_end = self._at_end(on_end)
            arguments, hooks = (o, engine, seed, plan, position, on_end), {"rebuild": self._rebuild, "tuner": tuner}
            if iterator is None:
                iterator = Iteration(*arguments, **hooks)
                self._engines.iterators.add(iterator)
            else:
                iterator.begin(*arguments, **hooks)
            if resume is not None:
                iterator.next_pass = core.next_pass(self._described(), resume, self._iterate)
            self._newest = _Pass(self.epoch, o.num_workers, position, source, weakref.ref(iterator))
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
        return loaded if loaded is not None and not loaded.finished and loaded.epoch == self.epoch else None

    def _places(self, resume):
        """Return ({number: place} with which workers begin, whether persistent workers know it already)."""
        if resume is not None:
            return reshard.places_of(resume), False
        if self._loaded is not None and self._loaded.finished:
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
                first, origin = resume.delivered or 0, resume.origin or 0
            beyond, next_worker = resume.beyond, resume.next_worker
            if self.is_stream:  # workers count the batches that they have delivered
                first, beyond = first + len(beyond), ()
        word = self.epoch if self.options.rng != "sample" else Share.epoch(self.epoch, origin)
        return Position(word, first, beyond, workers, next_worker)

    @property
    def _engine(self):
        return self._engines.engine

    def _job(self):
        o = self.options
        rank = rank_that_draws(o.rank, o.batch_sampler, o.sampler)
        tracked = self._keeps_states and (self.is_stream or is_stateful(self.dataset))
        return Job(
            self.dataset,
            self.is_stream,
            o.for_worker(),
            self._worker_class,
            rank,
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
        """Return the number of batches per epoch.

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

    # ---- hooks of `LoaderMethods`

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
        """Return the position of the newest iteration, after the batch that it returned last.

        The state has a constant size for map datasets, however much has been read. Batches that raised an exception
        count as delivered. An iterable dataset adds each worker's position. A ``Stateful`` dataset or sampler (with
        ``state_dict`` and ``load_state_dict``) adds its own state.

        Returns
        -------
        dict
            Plain values, which JSON can write: numbers, text, lists, tuples and dicts; and the states of Stateful
            objects. It has the same keys at all times. ``docs/randomness.md`` describes them.

        Raises
        ------
        RuntimeError
            A Stateful object could not return its state, or is in the middle of a step: a signal handler, the dataset
            or the sampler has called this while the same thread makes a batch in this process.

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
        if loaded is not None and loaded.epoch == epoch:
            return loaded.dict()
        described = self._described()
        if newest is None:
            return core.initial(described, epoch=epoch, seed=self.seed).dict()
        iterator = newest.iterator()
        if iterator is not None:
            iterator.ask_state()
        if newest.source is None:
            position, more = newest.position.copy(), {}
        else:
            position, more = newest.source.state()
        if isinstance(sampler := self.options.batch_sampler, BatchSampler):
            more = dict(sampler_iterator=(sampler._state_at(position.delivered),))
        epoch = epoch if position.finished else newest.epoch
        described = dataclasses.replace(described, num_workers=newest.num_workers)  # resize() may have changed it
        return core.built(described, position, epoch=epoch, seed=self.seed, **more).dict()

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next iteration continue where `state_dict` was taken; ``{}`` starts from the beginning.

        The batches are the same as without the interruption. Current iterations end: `next` of their iterators
        raises `slipring.errors.Closed`. If no batch of the epoch is left, the next iteration continues with the
        epoch after it. `seed` and `epoch` are set from the state; if you change `epoch` afterwards, that epoch
        is read from its beginning. A sampler without ``state_dict`` is read again from its beginning, and must
        give the same indices. A state that is refused changes nothing.

        Parameters
        ----------
        state_dict : mapping, or sequence of mappings
            From ``state_dict()``, of any rank if a `BatchSampler` divides the samples. A list of the states of all
            ranks is checked, and lets ranks divide the rest of an iterable dataset that has ``rest_of``; see
            ``docs/randomness.md``.

        Raises
        ------
        AssertionError
            Another number of workers has read the iterable or Stateful dataset.
        TypeError, ValueError
            It is not a state, or the state of another kind of dataset, another order, batch size or division.
        Closed
            The loader has been closed.
        """
        with self._engines.locked():
            self._check_open()
            if isinstance(state_dict, Mapping) and not state_dict:
                self._engines.close(core.ENDED_BY_LOAD)
                self._loaded = self._newest = None
                return
            state = core.checked(self._described(), state_dict, self._tuner is not None)
            reshard.begin_source(self.options.batch_sampler, state)
            self._engines.close(core.ENDED_BY_LOAD)
            if self._tuner is not None and (workers := core.workers_of(state)):
                self._tuner.begin_with(workers, "the state that was loaded is of as many")
                self._put_num_workers(workers)
            if state.seed is not None:
                self.seed = int(state.seed)
            if state.epoch is not None:
                self.epoch = state.epoch
            self._loaded, self._newest = dataclasses.replace(state, epoch=self.epoch), None

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
        """End workers and iterations. Batches that are still in use stay valid. Safe to call twice."""
        with self._engines.locked():
            self._closed = True
            self._engines.close()

    def _rest(self):
        """End workers and iterations; the next pass starts others."""
        with self._engines.locked():
            self._engines.close()
