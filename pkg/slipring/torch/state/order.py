"""The order of a map dataset's indices: a list of them per task, and how to resume after any task."""

import collections
import contextlib
import functools
import inspect
import itertools
import pickle

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from slipring._core._ring import in_a_handler, reductions
from slipring._core.fetch import cut_off, generator_ended, is_stateful, shorter
from slipring.sampler import BatchSampler as OurBatchSampler
from slipring.sampler import read_in_order
from slipring.torch.samplers import indices_of
from slipring.torch.state.asking import Making, copied
from slipring.torch.state.generators import as_state, as_text, generator_of, put_to, state_of
from slipring.torch.state.rest import source_behind

SAID = ("sampler", "sampler_iterator")  # in a tuple each: see `slipring.torch.state.iteration`
_END = object()


# ---- indices that are tensors


def _reduced(tensor):
    """Return a tensor's reduction, as `object.__reduce__` does, without the rest of a storage that others share."""
    if tensor.device.type == "cpu" and tensor.dtype == torch.int64:
        return torch.from_numpy, (tensor.numpy(),)
    return tensor.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


reductions[torch.Tensor] = _reduced


# ---- samplers that can say where they are


def source_of(loader):
    """Return (sampler, indices per list, drop_last); 0 per list: the sampler gives each task's indices.

    torch's own batching cannot say where its sampler is: the same lists are made here.
    """
    sampler = loader._index_sampler
    # Without batching, each list of a BatchSampler is one index: torch's bulk loading.
    if loader._auto_collation and type(sampler) is BatchSampler:
        return sampler.sampler, sampler.batch_size, sampler.drop_last
    return sampler, 0, False


def batch_size_of(loader):
    """Return the indices, or samples, per batch; 0: there is no batching; None: a batch sampler does not say."""
    source, size, _ = source_of(loader)
    if size or not loader._auto_collation:
        return size
    size = getattr(source, "batch_size", None)
    return size if type(size) is int else None


def kind_of_order(loader):
    """Return, as text, what must be the same for a position in the order of torch's samplers to hold; None: unknown."""
    sampler = source_of(loader)[0]
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    kind = type(sampler)
    if kind is SequentialSampler:
        return kind.__name__
    if kind not in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        return None
    how = ", with replacement" if getattr(sampler, "replacement", False) else ""
    n = f" of {len(sampler.data_source)}" if kind is RandomSampler else ""
    return f"{kind.__name__}{n}, {len(sampler)} samples{how}"


def saved_state_of(state):
    """Return what a state holds of a Stateful sampler and its iterator; empty: nothing."""
    said = {name: state[name][0] for name in SAID if state[name] is not None}
    return {**said, "sampler_over": True} if state["sampler_over"] else said


def opened(source, saved_state, generator):
    """Return (the sampler's iterator, resumed where a state says; whether sampler or iterator has loaded the state).

    `saved_state` has "sampler" and "sampler_iterator", their own states. With "sampler_over" the sampler was at its
    end, and its state may say where its next pass begins. The sampler may draw from `generator`; None is torch's
    global one.
    """
    made, loaded = _loaded(source, saved_state)
    if loaded and saved_state.get("sampler_over"):
        drawn_from = state_of(generator)
        if next(made, _END) is not _END:  # it has begun the next pass, which is not its turn yet
            put_to(generator, drawn_from)
            _loaded(source, saved_state)
            made = iter(())
    return made, loaded


def _loaded(source, saved_state):
    saved_state = copied(saved_state)
    loaded = "sampler" in saved_state and is_stateful(source)
    if loaded:
        source.load_state_dict(saved_state["sampler"])
    made = indices_of(source)
    if "sampler_iterator" in saved_state and is_stateful(made):
        made.load_state_dict(saved_state["sampler_iterator"])
        loaded = True
    return made, loaded


def _draws(iterator):
    """Return an iterator for callers that call iter() again: a sampler that is its own iterator would start over."""
    return iterator if type(iterator).__module__ == "builtins" else map(next, itertools.repeat(iterator))


def begin_behind(loader, state):
    """Have a `slipring.BatchSampler` begin its next pass where a state between two epochs says.

    That happens when the state is loaded, so that ``set_epoch()`` holds if it comes later.
    """
    source, place = source_of(loader)[0], saved_state_of(state).get("sampler_iterator")
    if not (state["finished"] and place and isinstance(source, OurBatchSampler)):
        return
    if state["yielded"] is None:  # that epoch has not begun
        source.resume(place)
    else:
        source.epoch, source.seed = int(place["epoch"]) + 1, int(place["seed"])


def end_epoch_before(loader, state):
    """Let a Stateful sampler end the epoch that a state is of, as it did then."""
    saved_state, source = saved_state_of(state), source_of(loader)[0]
    if not saved_state or isinstance(source, OurBatchSampler):
        return
    made, loaded = opened(source, saved_state, generator_of(loader))
    if loaded and state["yielded"] is not None:  # else that epoch has not begun
        with contextlib.suppress(Exception):  # it was raised then
            collections.deque(_draws(made), 0)


class Order:
    """Lists of indices, one per task, and what is needed to resume after any of them.

    `made` is the index sampler's iterator, not yet used; it counts only if nothing resumes. `before` is the
    generator's state before `made` was created.
    """

    def __init__(self, loader, made, before, resume=None, keep=False):
        # Not the loader itself: with persistent workers it keeps the iterator that keeps this.
        self.in_order, self.sampler = loader.in_order, loader.sampler
        source, self.group, self.drop_last = source_of(loader)
        self.source = source_behind(source, resume)
        # The position, in the order of all ranks, of sequence number 0; None: no other ranks have begun this epoch.
        self.origin = None if resume is None else resume["origin"]
        self.single = not loader._auto_collation
        self.begins_there = self.source is not source  # behind what was delivered
        self.generator = generator_of(loader)
        self.resume = resume
        self.seq = 0 if resume is None else resume["yielded"]
        self.low_water = self.seq  # every task before it has been delivered
        self.above = set() if resume is None else set(resume["above"])  # delivered beyond that
        self.began = None  # the generator's state before the first draw
        self.before = before  # and before iter(), for samplers that draw there
        # A state of torchdata's has that of a generator which torch's sampler would make by itself.
        self.samplers_rng = resume is not None and resume["rng_is_the_samplers"]
        self.made = None if self.group or resume is not None else made
        self.is_stateful = None  # whether the sampler or its iterator is Stateful
        self.saved_state = {} if resume is None else saved_state_of(resume)
        # Lists that were drawn ahead of the delivery when the state was taken: they come first.
        self.given = collections.deque(() if resume is None else resume["ahead"])
        # Sequence number -> its list, until it has been delivered. `keep`: also if the sampler is not Stateful.
        self.keep, self.kept = keep, {}
        # Whether the sampler has been drawn from: until then it may say what an earlier pass has left.
        self.asked = self.over = False
        self.at = self.saved_state or None  # what holds of the sampler until then
        self.making = Making()
        self.drawn = []  # the next list, as far as it is drawn: what a handler raises meanwhile loses nothing
        self.first = True  # nothing has been drawn yet in this iteration
        self.swift = False  # nobody needs to know of the next list but who gets it
        self.cut_off = None  # makes the exception that is raised instead of a draw
        self.check = None  # called with each list's length
        self._texts = {}

    @property
    def needs_every_delivery(self):
        """bool: whether `delivered` must be called for every task; else the caller may set `low_water` alone."""
        return self.keep or self.is_stateful or not self.in_order or bool(self.above)

    def lists(self):
        """Return an iterator with a list of indices per task. It continues after an exception of a signal handler."""
        return map(self._next, itertools.repeat(None))  # no generator: an exception ends those

    def _next(self, _):
        if self.swift:
            drawn, group = self.drawn, self.group
            try:
                drawn.extend(itertools.islice(self.draws, group - len(drawn)))
            except BaseException as error:
                self._cut(error)
                raise
            if len(drawn) == group:
                # No call from here on, as below.
                self.seq += 1
                self.drawn = []
                return drawn
            self.swift, self.over = False, True
        if self.is_stateful is False and not self.keep:
            indices = self._first() if self.first else self._draw()
            if self.check is not None:
                self.check(len(indices))
        else:
            making = self.making
            with making.lock:
                try:
                    making.busy = True
                    indices = self._first() if self.first else self._draw()
                    if self.check is not None:
                        self.check(len(indices))
                finally:
                    making.busy = False
        # No call from here on: a handler cannot raise, and the list is given once.
        if self.is_stateful or self.keep:
            self.kept[self.seq] = indices
        self.seq += 1
        self.first = False
        if self.given:
            del self.given[0]
        else:
            self.drawn = []
            kept = self.is_stateful is not False or self.keep
            self.swift = not (kept or self.over or self.cut_off or self.check or not self.group)
        return indices

    def _state_now(self):
        """Return the current states of sampler and iterator; None if neither has one."""
        parts = (
            ("sampler", None if self.source is self.made else self.source),
            ("sampler_iterator", self.made),
        )
        return {name: copied(part.state_dict()) for name, part in parts if is_stateful(part)} or None

    # ---- drawing

    def open(self):
        """Start with the sampler, without drawing from it."""
        if self.is_stateful is not None:
            return
        loaded = False
        if self.made is None:
            self.before = state_of(self.generator)
            self.made, loaded = opened(self.source, self.saved_state, self.generator)
        read_in_order(self.source, self.in_order)
        self.draws = _draws(self.made)
        self.to_skip = 0 if loaded or self.begins_there else self.seq
        if not loaded:
            self.given.clear()  # they are drawn again
        self.is_stateful = is_stateful(self.source) or is_stateful(self.made)
        if self.is_stateful or inspect.isgenerator(self.made):
            self.before = None  # it loads its state, or has drawn nothing
        if not loaded:
            self.at = None

    def _first(self):
        """Return the first list of the epoch."""
        if self.cut_off is not None:
            raise self.cut_off()
        try:
            return self._open_and_draw()
        except BaseException as error:
            if self.is_stateful is None:  # it was iter(sampler), which is called once
                self._cut(error)
            raise

    def _open_and_draw(self):
        """Open the sampler and return the first list. Here samplers draw the whole order from their generator."""
        resume = self.resume
        if resume is None or resume["rng"] is None:
            self.open()
            if self.began is None:
                self.began = state_of(self.generator)
            return self._skip()
        began, before = as_state(resume["rng"]), as_state(resume["rng_iter"])
        with self._generator_put_to() as put:
            if self.began is None:
                put(began if before is None else before)
                self.open()
                if before is not None:
                    put(began)
                self.began, self.before = began, before
            return self._skip()

    @contextlib.contextmanager
    def _generator_put_to(self):
        """Give the function that sets the state of the order's generator.

        torch's global generator is restored afterwards, unless the state is from before the first batch. Then these
        draws are the ones that were still to come, and those of the dataset follow them.
        """
        if self.generator is not None:
            yield self.generator.set_state
        elif self.samplers_rng:
            self.sampler.generator = torch.Generator()
            try:
                yield self.sampler.generator.set_state
            finally:
                self.sampler.generator = None
        else:
            now = torch.get_rng_state()
            try:
                yield torch.set_rng_state
            finally:
                if self.low_water or self.above:
                    torch.set_rng_state(now)

    def _skip(self):
        while self.to_skip:
            try:
                self._draw()
            except StopIteration:
                if self.cut_off is not None:
                    raise
                self.cut_off = StopIteration
                raise shorter(self.seq, self.seq - self.to_skip, "the sampler's order") from None
            self.drawn = []
            self.to_skip -= 1
        try:
            return self._draw()
        except StopIteration:
            if self.seq or not self.saved_state or self.resume["origin"]:
                raise
        # Nothing had been drawn then: what the sampler said of itself was of the end of the pass before.
        self.made, self.saved_state, self.over, self.drawn = indices_of(self.source), {}, False, []
        self.draws = _draws(self.made)
        return self._draw()

    def _draw(self):
        """Return the next list; it stays the same until `_next` has given it away."""
        if self.given:
            return self.given[0]
        if self.cut_off is not None:
            raise self.cut_off()
        self.asked = True
        drawn, group = self.drawn, self.group or 1
        if len(drawn) < group and not self.over:
            try:
                drawn.extend(itertools.islice(self.draws, group - len(drawn)))
            except BaseException as error:
                self._cut(error)
                raise
            self.over = len(drawn) < group
        if not self.group:
            if not drawn:
                raise StopIteration
            if self.single:
                return drawn
            if not hasattr(drawn[0], "__len__"):
                drawn[0] = list(drawn[0])  # kept: an iterator gives its indices once
            return drawn[0]
        if not drawn or (self.drop_last and len(drawn) < group):
            raise StopIteration
        return drawn

    def _cut(self, error):
        """Record what an exception of a draw means for the draws after it."""
        if isinstance(error, Exception) and not in_a_handler(error):
            self.cut_off = StopIteration
        elif cut_off(self.made, error) is not None:
            self.cut_off = functools.partial(generator_ended, "the sampler's iterator")
        self.swift = self.swift and self.cut_off is None

    def release(self):
        """Drop the indices that have not been drawn, so that the next epoch's have room."""
        self.made = self.draws = iter(())

    # ---- the place

    def delivered(self, seq):
        """Record that a task's batch has been handed out."""
        if seq < self.low_water:
            return  # an exception that was no batch's came behind it
        self.above.add(seq)
        # Not past what is yet to be drawn, and skipped: the sampler is asked behind it.
        kept = self.is_stateful or self.keep
        while (low := self.low_water) in self.above and (not kept or low in self.kept):
            # First: a handler that raises leaves what is behind us, which counts for nothing.
            self.low_water = low + 1
            self.above.discard(low)
            self.kept.pop(low, None)

    def asked_for(self, seq):
        """Return [sequence number, indices] of a task that is kept; None if nothing is."""
        return [seq, self.kept[seq]] if self.keep and seq in self.kept else None

    def state(self):
        """Return this order's part of the state."""
        with self.making.at_rest():
            if self.resume is None and self.cut_off is None:
                self.open()
            return {
                "yielded": self.low_water,
                "above": sorted(seq for seq in self.above if seq >= self.low_water),
                **self._generators(),
                **self._samplers(),
                "rng_is_the_samplers": self.samplers_rng,
                "origin": self.origin,
            }

    def _samplers(self):
        """Return the states of a Stateful sampler and its iterator, and what was drawn from them and not delivered."""
        at, drawn = self.at, []
        if self.is_stateful and self.drawn and not self.given:
            # It was interrupted: what was drawn comes first.
            with contextlib.suppress(StopIteration):
                drawn = [self._draw()]
        if self.is_stateful and not self.asked and not self.to_skip and at is None:
            at = self._state_now()
        if self.is_stateful and self.asked and not self.saved_state.get("sampler_over"):
            at = {**(self._state_now() or {}), **({"sampler_over": True} if self.over else {})}
        if not at:
            return {}
        seqs = range(self.low_water, self.seq) if self.is_stateful else ()
        kept = [self.kept[seq] for seq in seqs]
        said = {name: (at[name],) for name in SAID if name in at}
        return {**said, "sampler_over": bool(at.get("sampler_over")), "ahead": (*kept, *drawn, *self.given)}

    def _generators(self):
        """Return the generator's states, as text."""
        if self.began is None:  # nothing has been drawn yet
            resume = self.resume
            if resume is not None and resume["rng"] is not None:
                return {name: resume[name] for name in ("rng", "rng_iter")}
            return self._text_of(state_of(self.generator))
        if not self._texts:
            self._texts = self._text_of(self.began)
        return self._texts

    def _text_of(self, began):
        drawn_before = self.before is not None and not torch.equal(self.before, began)
        return {"rng": as_text(began), **({"rng_iter": as_text(self.before)} if drawn_before else {})}
