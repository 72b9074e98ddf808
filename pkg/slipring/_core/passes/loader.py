"""`LoaderCore`: passes over a dataset and their states, for all loaders."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import integer
from slipring._core.passes import state as states
from slipring._core.passes._inflight import Position
from slipring._core.passes.engine import EngineCache
from slipring._core.passes.frontend import Frontend
from slipring._core.passes.reshard import worker_positions
from slipring._core.passes.source import StreamPlan
from slipring._core.passes.tuning import Tuner
from slipring._core.ring import numa
from slipring._core.ring._ring import MAX_WORKERS
from slipring._core.ring.weak_registry import register
from slipring._core.workers.local_worker import LocalWorker
from slipring._core.workers.seeding import RankStride
from slipring.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from slipring._core.passes.tuning import Tuning
    from slipring._observe.report import Report
    from slipring.stats import Stats


@dataclasses.dataclass
class NewestPass:
    """A loader's knowledge of its newest pass, kept after the iterator is gone; see `PassNumbers`."""

    described: states.Described  # when the pass began
    position: Position
    source: Any  # `SamplerSource` or None
    seed: int
    epoch: int
    own: Any
    iterator: weakref.ref[Any]

    def state(self, fields):
        """Return the `State` of the pass's position; `fields` is `Frontend._fields`."""
        iterator = self.iterator()
        if iterator is not None:
            iterator.ask_state()
        position, more = (self.position.copy(), {}) if self.source is None else self.source.state()
        return states.built(self.described, position, **{**more, **fields(self, position)})


class LoaderCore(Frontend):
    """Passes over a dataset, and their states: everything that loaders have in common."""

    def _prepare(self):
        self._engines = EngineCache()
        self._tuner = None if self._tuned is None else Tuner(*self._tuned)
        self._closed = False
        self._loaded = None  # a `State` for the next pass
        self._newest = None  # `NewestPass`, or an exception to raise when its state is requested
        register(self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, here or in another process, has workers and figures of its own.
        return {name: value for name, value in self.__dict__.items() if name not in self._OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()
        self._loaded = state.get("_loaded")

    # ---- iteration

    def begin_pass(self, iterator: Any = None) -> Any:
        """Begin the next pass and return its iterator; `iterator`: the pass begins in this one."""
        if iterator is not None:
            self._end_pass(iterator)  # it may wait for workers; close() ends that wait
        with self._engines.locked(), self._beginning():
            self._check_open()
            tuner = None if self._engines.lent else self._tuner
            if tuner is not None and tuner.workers != self._options_now.num_workers:
                self._put_num_workers(tuner.workers)
            o, loaded = self._options_now, self._loaded
            if iterator is None:
                iterator = self._new_iterator(o)
            if loaded is not None and not o.num_workers and (ended := states.ended_positions(0, loaded)):
                self._load_ended(ended[0], loaded.kind == "iterable")
            numbers = self._numbers(iterator, loaded)
            seed, epoch, resume, own = numbers
            job = self._job(iterator, o)
            if o.num_workers and (node := numa.chosen(o.workers.numa, self._pci_addresses)) is not None:
                job = dataclasses.replace(job, node=node)
            positions, live_on = self._first_positions(o, resume, loaded) if job.tracked else ({}, False)
            loadable = states.loadable(positions)
            if loadable and (o.num_workers or resume is not None):
                job = dataclasses.replace(job, resume=loadable)
            engine, on_end = self._engine_for(o, job, live_on) if o.num_workers else (None, lambda _: None)
            source, workers, origin, beyond, next_worker = None, None, 0, (), 0
            if resume is not None:
                beyond, next_worker = resume.beyond, resume.next_worker
            if job.is_stream:  # workers count the batches that they have delivered
                first = (0 if resume is None else resume.delivered or 0) + len(beyond)
                plan, beyond = StreamPlan(job.num_workers, o.in_order, next_worker), ()
            else:
                plan, source, first, origin = self._order(iterator, o, numbers)
            word = epoch if o.rng != "sample" else RankStride.epoch(epoch, origin)
            if job.tracked:
                workers = states.loaded_positions(o.num_workers, positions if o.num_workers else loadable)
            position = Position(word, first, beyond, workers, next_worker)
            if source is not None:
                source.position = position
            hooks = self._hooks(iterator, o)
            if engine is not None:
                hooks["tuner"] = tuner
            else:
                engine = LocalWorker(
                    *(job, self._engines.local, self._engines.concurrency(o.workers.fetch_threads)),
                    *(seed, word, self._sends_states),
                )
            described = self._described()
            begun = self._begin_in(iterator, (o, engine, seed, plan, position, self._on_end(on_end)), hooks)
            if resume is not None and self._skips_empty_rest:
                begun.next_pass = states.next_pass(described, resume, self._begin_next)
            self._engines.iterators.add(iterator)
            self._newest = NewestPass(described, position, source, seed, epoch, own, weakref.ref(iterator))
            self._loaded = None
            self._count_pass(iterator, self._newest)
            return iterator

    def _begin_next(self, iterator):
        """Begin the pass after one whose rest, after a resume, has no batch."""
        with self._engines.locked():
            if self._newest is None or self._newest.iterator() is not iterator:
                raise StopIteration  # the next pass is another iterator's
            self.begin_pass(iterator)

    def _first_positions(self, options, resume, loaded):
        """Return ({number: position} with which workers begin, whether persistent workers know it already)."""
        if resume is not None:
            return worker_positions(resume), False
        if options.num_workers and not options.persistent_workers:
            return {}, False  # workers begin with the dataset as the loader has it
        if loaded is not None and loaded.finished:
            return states.ended_positions(options.num_workers, loaded), False
        newest = self._newest
        if not isinstance(newest, NewestPass) or not newest.position.finished:
            return {}, False
        if newest.described.num_workers != options.num_workers:
            return {}, False
        return states.at_end(states.raw_positions(newest.position)), True

    # ---- the number of workers, and the figures

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
            if (pool := self._options_now.workers.pool) is not None:
                raise ValueError(
                    f"num_workers={num_workers}: the workers of pool={pool!r} serve other loaders too; make all "
                    "loaders with that number"
                )
            if self._options_now.num_workers == 0 and any(one.is_live for one in self._engines.iterators):
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
            Gather the verdicts of all ranks (torch.distributed): every rank must call this at the same time. Without
            torch.distributed, those of the processes that share the pool of this loader, which need not call it.

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
        made, engine = report(self, name, headroom), self._engines.engine
        in_pool = engine is not None and engine.alive and engine.options.workers.pool is not None
        # Last: the other ranks get the verdict.
        return made.gathered(engine.ring if in_pool else None) if ranks else made

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the loader has been closed; make a new one")

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
            loaded, newest = self._loaded, self._newest
        if loaded is not None and self._is_current(loaded):
            return loaded.dict()
        if isinstance(newest, Exception):
            raise newest
        if newest is None:
            return states.initial(self._described(), **self._fields(None, None)).dict()
        return newest.state(self._fields).dict()

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next iteration continue where `state_dict` was taken; ``{}`` starts from the beginning.

        The batches are the same as without the interruption. Current iterations end: `next` of their iterators
        raises `slipring.errors.Closed`. If no batch of the epoch is left, the next iteration continues with the
        epoch after it. `seed` and `epoch` of a `slipring.Loader` are set from the state; if you change `epoch`
        afterwards, that epoch is read from its beginning. A sampler without ``state_dict`` is read again from its
        beginning, and must give the same indices. A state that is refused changes nothing.

        Parameters
        ----------
        state_dict : mapping, or sequence of mappings
            From ``state_dict()``, of any rank if a `slipring.BatchSampler` divides the samples. A list of the states
            of all ranks is checked, and lets ranks divide the rest of an iterable dataset that has ``rest_of``; see
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
            state = None
            if not isinstance(state_dict, Mapping) or state_dict:
                checked = self._checked(state_dict, self._tuner is not None)
                state = self._put_state(checked)
                if self._tuner is not None and (workers := states.workers_of(state)):
                    self._tuner.begin_with(workers, "the state that was loaded is of as many")
                    self._put_num_workers(workers)
            self._end_all(states.ENDED_BY_LOAD)
            self._loaded, self._newest = state, None

    # ---- the end

    def _end_all(self, reason=None):
        """End workers and iterations; the next pass starts others."""
        with self._engines.locked():
            self._forget_iterator()
            self._engines.close(reason)

    def close(self) -> None:
        """End workers and iterations. Batches that are still in use stay valid. Safe to call twice.

        A `slipring.torch.DataLoader` can be used again.
        """
        self._closed = not self._is_reusable
        self._engines.end_iterations()  # first: a thread that begins a pass may wait for workers
        self._end_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
