"""Plan the tasks of a pass: which indices, or which worker's next batch, belong to each sequence number."""

import collections
import contextlib
import itertools

from slipring._core.passes._plan import Failed, Listed, SamplerDraws, StreamPlan
from slipring._core.passes._plan import Grouped as grouped
from slipring._core.passes.reshard import SavedSampler, rank_of, ranks_of, saved_sampler
from slipring._core.ring import process
from slipring._core.ring._order import IndexOrder, Slices
from slipring._core.ring._ring import mix
from slipring._core.ring.process import ForkLock, Owner
from slipring._core.workers.fetch import dataset_shrank
from slipring._core.workers.seeding import RankStride
from slipring._core.workers.stateful import attempt, copied, is_stateful
from slipring.errors import state_half_made, state_in_a_step
from slipring.sampler import BatchSampler

__all__ = ["SamplerSource", "StreamPlan", "grouped", "map_plan", "opened"]

_END = object()

_SHUFFLE = 0x5348554646  # keeps the order's seed apart from the batches'


def map_plan(options, dataset, seed, resume=None):
    """Return (plan, source) of one epoch of a map dataset.

    The plan is an iterator that yields, per task, a list of indices as the sampler gave them. If slipring itself sets
    the order, it is a `Slices`. The source is the `SamplerSource` whose state belongs to the loader's, or None.

    `resume` is a state within the epoch, after which the plan continues. A `slipring.BatchSampler` has loaded its part
    of it.
    """
    o, skipped = options, 0 if resume is None else resume.delivered or 0
    sampler = o.sampler if o.batch_sampler is None else o.batch_sampler
    if sampler is None:
        n = len(dataset)
        order = IndexOrder.shuffled(n, mix(seed, _SHUFFLE)) if o.shuffle else IndexOrder(n)
        size, drop_last = min(o.batch_size or 1, 1 << 62), o.drop_last or False
        batches = n // size if drop_last else -(-n // size)
        if skipped > batches:
            raise dataset_shrank(skipped, batches, "the dataset")
        return Slices(order, size, drop_last, skipped), None
    if isinstance(o.batch_sampler, BatchSampler):
        return Listed(iter(sampler), o.check_ranges), None
    group = (o.batch_size or 1) if o.batch_sampler is None else 0
    made = None if resume is not None else iter(sampler)
    if resume is None and not is_stateful(sampler) and not is_stateful(made):
        return (grouped(made, group, o.drop_last, is_plan=True) if group else Listed(made, o.check_ranges)), None
    source = SamplerSource(sampler, group, bool(o.drop_last), resume=resume, made=made)
    if o.workers.chunk_size is not None:
        source.check = o.check_ranges
    return source.lists(), source


class StateLock:
    """A lock between the thread in which user code makes a batch and a thread that queries the code's state.

    `lock` is held while `busy` is set.
    """

    def __init__(self):
        self.lock, self.busy, self.owner = ForkLock(), False, Owner()

    @contextlib.contextmanager
    def wait_idle(self):
        """Wait until no other thread makes a batch.

        Raise RuntimeError if this thread makes one: then a signal handler, the dataset or the sampler requests the
        state.
        """
        if not self.owner.is_here:  # `busy` is of a thread of the parent
            yield
            return
        with self.lock.here():
            if self.busy:
                raise state_in_a_step()
            yield


def opened(source, saved, rng=None, open_source=iter):
    """Return (the sampler's iterator, resumed where a state says; whether sampler or iterator has loaded the state).

    `saved` is a `SavedSampler`. The sampler may draw from `rng`, an object with ``get`` and ``put`` for its state;
    None: the state of its random numbers is unknown. `open_source` returns the sampler's iterator.
    """
    made, loaded = _loaded(source, saved, open_source)
    if loaded and saved.over:
        drawn_from = None if rng is None else rng.get()
        if next(made, _END) is not _END:  # it has begun the next pass too early
            if rng is not None:
                rng.put(drawn_from)
            _loaded(source, saved, open_source)
            made = iter(())
    return made, loaded


def _loaded(source, saved, open_source):
    saved = copied(saved)
    loaded = saved.itself is not None and is_stateful(source)
    if loaded:
        source.load_state_dict(*saved.itself)
    made = open_source(source)
    if saved.iterator is not None and is_stateful(made):
        made.load_state_dict(*saved.iterator)
        loaded = True
    return made, loaded


class SamplerSource:
    """Lists of indices, one per task, from a sampler; and the data for a resume after any of them.

    `source` is the sampler, with `group` indices per list, or a batch sampler if `group` is 0. `single`: there is no
    batching, and each list is the source's item for one sample. `resume` is the `State` to resume from; without one,
    `made` may be the source's iterator, not yet used. `begins_there`: the source itself begins after the delivered
    samples.
    """

    open_source = staticmethod(iter)
    position = None  # the iteration's `Position`, which its owner puts here
    rng = None  # an object with `get` and `put` for the state of the generator that the sampler draws from

    def __init__(self, source, group, drop_last, *, single=False, resume=None, made=None, begins_there=False):
        self.source, self.group, self.drop_last, self.single = source, group, drop_last, single
        self.begins_there = begins_there
        self.resume = resume
        self.seq = 0 if resume is None else resume.delivered
        self.made = None if resume is not None else made
        self.is_stateful = None  # whether the sampler or its iterator is Stateful
        self.saved = SavedSampler() if resume is None else saved_sampler(resume)
        # Lists that were drawn ahead of the delivery when the state was taken: they come first.
        self.given = collections.deque(() if resume is None else resume.drawn)
        self.kept = {}  # of a Stateful sampler: sequence number -> its list, until it has been delivered
        # Whether the sampler has been drawn from: until then its state may be that of an earlier pass.
        self.asked = self.over = False
        self.at = self.saved or None  # the `SavedSampler` that holds until then
        self.state_lock = StateLock()
        self.drawn = []  # the drawn part of the next list: if a handler raises meanwhile, nothing is lost
        self.first = True  # nothing has been drawn yet in this iteration
        self.fast_path = False  # the next list needs no bookkeeping
        self.check = None  # called with each list's length

    def lists(self):
        """Return an iterator with a list of indices per task, or a `Failed`; see `slipring._core.passes._plan`."""
        return map(self._next, itertools.repeat(None))  # no generator: an exception would end it

    def _next(self, _):
        if self.fast_path:
            drawn = self.drawn
            if self.draws.take(drawn, self.group):
                # No call from here on, as below.
                self.seq += 1
                self.drawn = []
                return drawn
            self.fast_path, self.over = False, self.draws.failed is None
        if self.is_stateful is False:
            indices = self._checked()
        else:
            state_lock = self.state_lock
            with state_lock.lock.here():
                try:
                    state_lock.busy = True
                    indices = self._checked()
                finally:
                    state_lock.busy = False
        if type(indices) is Failed:
            return indices
        # No call from here on: a handler cannot raise, and the list is returned once.
        if self.is_stateful:
            self.kept[self.seq] = indices
            self._forget_delivered()
        self.seq += 1
        self.first = False
        if self.given:
            del self.given[0]
        else:
            self.drawn = []
            kept = self.is_stateful is not False
            self.fast_path = not (kept or self.over or self.check or not self.group)
        return indices

    def _checked(self):
        indices = self._first() if self.first else self._draw()
        if self.check is not None and type(indices) is not Failed:
            try:
                self.check(len(indices))
            except ValueError as error:
                return Failed(error)
        return indices

    def _forget_delivered(self):
        delivered = self.position.delivered
        for seq in [*itertools.takewhile(lambda seq: seq < delivered, self.kept)]:
            self.kept.pop(seq, None)

    def _state_now(self):
        """Return the current `SavedSampler`."""
        itself, iterator = (None if self.source is self.made else self.source), self.made
        states = [(copied(part.state_dict()),) if is_stateful(part) else None for part in (itself, iterator)]
        return SavedSampler(*states, over=self.asked and self.over)

    # ---- drawing

    def open(self):
        """Start with the sampler, without drawing from it; return whether it has loaded a state."""
        loaded = False
        if self.made is None:
            self.made, loaded = opened(self.source, self.saved, self.rng, self.open_source)
        self._put_draws()
        self.to_skip = 0 if loaded or self.begins_there else self.seq
        if not loaded:
            self.given.clear()  # they are drawn again
            self.at = None
        self.is_stateful = is_stateful(self.source) or is_stateful(self.made)
        return loaded

    def _put_draws(self):
        as_given = not self.group and not self.single
        self.draws = SamplerDraws(Listed(self.made, as_given=True) if as_given else self.made)

    def _first(self):
        """Return the first list of the epoch."""
        indices, error = attempt(self._open_and_draw)
        if error is None:
            return indices
        if isinstance(error, StopIteration):
            raise error
        if self.is_stateful is None:  # iter(sampler) or the sampler's load_state_dict failed: neither is called again
            self.release()
            self.is_stateful = False
        return Failed(error)

    def _open_and_draw(self):
        """Open the sampler and return the first list. Here samplers draw the whole order from their generator."""
        if self.is_stateful is None:
            self.open()
        return self._skip()

    def _skip(self):
        while self.to_skip:
            try:
                indices = self._draw()
            except StopIteration:
                return Failed(dataset_shrank(self.seq, self.seq - self.to_skip, "the sampler's order"))
            if type(indices) is Failed:
                return indices
            self.drawn = []
            self.to_skip -= 1
        try:
            return self._draw()
        except StopIteration:
            if self.seq or not self.saved or self.resume.origin:
                raise
        # No index had been drawn when the state was taken: the sampler's own state was from the end of the pass before.
        self.made, self.saved, self.over, self.drawn = self.open_source(self.source), SavedSampler(), False, []
        self._put_draws()
        return self._draw()

    def _draw(self):
        """Return the next list; it stays the same until `_next` has returned it."""
        if self.given:
            return self.given[0]
        self.asked = True
        drawn, group = self.drawn, self.group or 1
        if not self.over:
            self.over = not self.draws.take(drawn, group) and self.draws.failed is None
        if self.draws.failed is not None and len(drawn) < group:
            return self.draws.failed
        if not drawn or (self.drop_last and len(drawn) < group):
            raise StopIteration
        return drawn if self.group or self.single else drawn[0]

    def release(self):
        """Drop the indices that have not been drawn, to make room for those of the next epoch."""
        self.made = iter(())
        self.draws = SamplerDraws(self.made)

    # ---- the position

    def state(self):
        """Return (a copy of the iteration's `Position`, this source's part of the state there)."""
        with self.state_lock.wait_idle():
            position = self.position.copy()
            if self.resume is None and self.is_stateful is None:
                self.open()
            if self.is_stateful and self.draws.is_interrupted and self.drawn:
                raise state_half_made()
            if self.is_stateful:  # its state is from after the lists that it has given, even if a resume skips more
                position = position.before(self.seq)
            return position, self._samplers(position)

    def _samplers(self, position):
        """Return the states of a Stateful sampler and its iterator, and the lists that were drawn and not delivered."""
        at, drawn = self.at, []
        if self.is_stateful and self.drawn and not self.given:
            # `_next` was interrupted: the drawn indices come first.
            with contextlib.suppress(StopIteration):
                drawn = [indices for indices in [self._draw()] if type(indices) is not Failed]
        if self.is_stateful and not self.asked and not self.to_skip and at is None:
            at = self._state_now()
        if self.is_stateful and self.asked and not self.saved.over:
            at = self._state_now()
        if not at:
            return {}
        seqs = range(position.delivered, self.seq) if self.is_stateful else ()
        kept = [self.kept[seq] for seq in seqs]
        drawn = (*kept, *drawn, *self.given)
        saved = at.iterator[0] if at.iterator and isinstance(self.source, BatchSampler) else {}
        if drawn and "position" in saved:
            # The position replaces the lists, whose elements may be of any class.
            position = saved["position"] - len(drawn) * saved["batch_size"] * saved["world_size"]
            at, drawn = SavedSampler(at.itself, ({**saved, "position": position},)), ()
        return dict(sampler=at.itself, sampler_iterator=at.iterator, sampler_over=at.over, drawn=drawn)


def rank_that_draws(given, *samplers):
    """Return the rank whose random numbers a loader draws: `given`, a sampler's, torch.distributed's, or 0.

    The sampler's rank takes precedence over torch.distributed's: ranks that get the same samples, as those of a
    tensor-parallel group, draw the same numbers.
    """
    rank = rank_of(*samplers) if given is None else given
    return (process.global_rank() or (0,))[0] if rank is None else rank


def rank_stride(dataset, is_stream, batch_sampler, sampler, batch_size, rank=None):
    """Return a rank's `RankStride` of each step, as its sampler divides the indices; for ``rng="sample"``.

    `rank` takes the place of the sampler's. Raise ValueError if there are no single samples, or if the position of a
    sample in the order of all ranks is unknown.
    """
    if is_stream or not hasattr(dataset, "__getitem__"):
        why = "is iterated: its samples have no position" if is_stream else "has no __getitem__"
        raise ValueError(
            f"rng='sample' reads samples one by one, each with random numbers of its position, but "
            f"{type(dataset).__name__} {why}: use rng='batch'"
        )
    source = sampler if batch_sampler is None else batch_sampler
    if batch_sampler is not None and not getattr(batch_sampler, "_has_positions", False):
        raise ValueError(
            f"rng='sample' seeds by a sample's position in the order, which batch_sampler "
            f"({type(batch_sampler).__name__}) does not tell: use slipring.BatchSampler, or batch_size= with "
            "sampler=, or rng='batch'"
        )
    rank, ranks = (rank_of(source) or 0) if rank is None else rank, ranks_of(source)
    if rank >= ranks:
        raise ValueError(
            f"rng='sample' seeds by a sample's position in the order of all ranks: rank={rank} must be less than the "
            f"sampler's world_size or num_replicas, {ranks} (1 if it has none). Use slipring.BatchSampler, or "
            "rng='batch'"
        )
    return RankStride((batch_size or 1) if batch_sampler is None else batch_sampler.batch_size, rank, ranks)


def steps_before(batch_sampler):
    """Return (whole steps, indices before those) that a `BatchSampler` has given before its newest pass began.

    The latter are less than a step, and 0 if all steps had this size.
    """
    if not isinstance(batch_sampler, BatchSampler):
        return 0, 0
    return divmod(batch_sampler._beginning[1], batch_sampler.batch_size * batch_sampler.world_size)
