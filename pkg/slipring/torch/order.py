"""The order of a map dataset's indices: lists of them, one per ticket, and how to go on behind any."""

import collections
import contextlib
import copy
import inspect
import itertools

import torch
from torch.utils.data import BatchSampler

from slipring.fetch import is_stateful

TOLD = ("sampler", "sampler_iterator", "sampler_beyond", "sampler_over")
_END = object()


# ---- generators, as text that any format of checkpoint can carry


def generator_of(loader):
    """The generator that sets the order: the loader's, the sampler's own, or torch's global one (None)."""
    return loader.generator or getattr(loader.sampler, "generator", None)


def state_of(generator):
    """Return a generator's state; None: of torch's global one."""
    return torch.get_rng_state() if generator is None else generator.get_state()


def as_text(state):
    """Return a generator's state as text."""
    return None if state is None else state.numpy().tobytes().hex()


def as_state(text):
    """Return the state that `as_text` has written down."""
    return None if text is None else torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


# ---- samplers that can say where they are


def source_of(loader):
    """Return (sampler, indices per list, drop_last); 0 per list: the sampler gives what a ticket is of.

    torch's own batching cannot say where its sampler is: the same lists are made here.
    """
    sampler = loader._index_sampler
    if type(sampler) is BatchSampler:
        return sampler.sampler, sampler.batch_size, sampler.drop_last
    return sampler, 0, False


def told_of(state):
    """Return what a state holds of a Stateful sampler and its iterator; empty: nothing."""
    return {name: state[name] for name in TOLD if state.get(name) is not None}


def opened(source, told):
    """Return (a sampler's iterator that goes on where a state says, whether anybody could be told).

    Parameters
    ----------
    source : iterable
    told : dict
        "sampler", "sampler_iterator": what they said of themselves; "sampler_beyond": how many indices had
        been drawn since; "sampler_over": the sampler was at its end, and says perhaps where its next pass
        begins.
    """
    made, done = _told(source, told)
    if done and told.get("sampler_over") and next(made, _END) is not _END:
        _told(source, told)
        made = iter(())
    if done:
        for _ in range(told.get("sampler_beyond", 0)):
            next(made, None)
    return made, done


def _told(source, told):
    told = copy.deepcopy(told)
    done = "sampler" in told and is_stateful(source)
    if done:
        source.load_state_dict(told["sampler"])
    made = iter(source)
    if "sampler_iterator" in told and is_stateful(made):
        made.load_state_dict(told["sampler_iterator"])
        done = True
    return made, done


def tell_of_epoch_before(loader, state):
    """Have a Stateful sampler end the epoch that a state is of, as it did then."""
    told = told_of(state)
    if not told:
        return
    made, done = opened(source_of(loader)[0], told)
    if done and "yielded" in state:  # else that epoch has not begun
        with contextlib.suppress(Exception):  # it was raised then
            collections.deque(made, 0)


class Order:
    """Lists of indices, one per ticket, and what is needed to go on behind any of them.

    Parameters
    ----------
    loader : DataLoader
    made : iterator
        The index sampler's, not yet used.
    before : Tensor
        The generator's state before `made` was made.
    resume : dict, optional
        A state.
    """

    def __init__(self, loader, made, before, resume=None):
        # Not the loader itself: with persistent workers it keeps the iterator that keeps this.
        self.in_order, self.sampler = loader.in_order, loader.sampler
        self.source, self.group, self.drop_last = source_of(loader)
        self.single = not loader._auto_collation
        self.generator = generator_of(loader)
        self.resume = resume
        self.ticket = 0 if resume is None else resume["yielded"]
        self.low = self.ticket  # every ticket before it has been delivered
        self.above = set() if resume is None else set(resume["above"])  # delivered beyond that
        self.began = None  # the generator's state before the first draw
        self.before = before  # and before iter(), for samplers that draw there
        # A state of torchdata's has that of a generator which torch's sampler would make by itself.
        self.samplers_rng = resume is not None and bool(resume.get("rng_is_the_samplers"))
        self.made = None if self.group else made
        self.tells = None  # whether the sampler or its iterator is Stateful
        told = {} if resume is None else told_of(resume)
        self.told = told
        self.at = told or None  # what they said behind the last ticket delivered
        self.after = {}  # ticket -> what they said when it had been drawn
        self.latest = self.at  # what they have said last
        self._texts = {}

    @property
    def must_be_told(self):
        """bool: whether `delivered` must be called for every ticket; else `low` alone says it all."""
        return self.tells or not self.in_order or bool(self.above)

    def lists(self):
        """Yield a list of indices per ticket."""
        try:
            yield self._noted(self._first())
            while True:  # `for` would call iter() again, which begins some samplers anew
                yield self._noted(self._draw())
        except StopIteration:
            return

    def _noted(self, indices):
        if self.tells:
            if len(indices) < self.group:
                # The sampler was asked for one more, and may be at its beginning again.
                self.latest = {**self.latest, "sampler_beyond": len(indices)}
            else:
                self.latest = self._told_now()
            self.after[self.ticket] = self.latest
        self.ticket += 1
        return indices

    def _told_now(self):
        """What sampler and iterator say of themselves; None if neither can."""
        parts = (
            ("sampler", None if self.source is self.made else self.source),
            ("sampler_iterator", self.made),
        )
        return {name: copy.deepcopy(part.state_dict()) for name, part in parts if is_stateful(part)} or None

    # ---- drawing

    def open(self):
        """Begin with the sampler, of which nothing is drawn yet."""
        if self.tells is not None:
            return
        told = False
        anew = self.samplers_rng or (self.resume is not None and self.resume.get("rng_iter"))
        if self.told or self.made is None or anew:
            self.before = state_of(self.generator)
            self.made, told = opened(self.source, self.told)
        self.to_skip = 0 if told else self.ticket
        self.tells = is_stateful(self.source) or is_stateful(self.made)
        if self.tells or inspect.isgenerator(self.made):
            self.before = None  # it will be told, or has drawn nothing
        if not told:
            self.at = self.latest = None if self.to_skip else self._told_now()

    def _first(self):
        """The first draw of the epoch: here samplers ask their generator for the whole order."""
        resume = self.resume
        if resume is None or resume["rng"] is None:
            self.open()
            self.began = state_of(self.generator)
            return self._skip()
        began, before = as_state(resume["rng"]), as_state(resume.get("rng_iter"))
        with self._generator_put_to() as put:
            put(began if before is None else before)
            self.open()
            if before is not None:
                put(began)
            self.began, self.before = began, before
            return self._skip()

    @contextlib.contextmanager
    def _generator_put_to(self):
        """What puts the generator of the order to a state; torch's global one is put back."""
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
                torch.set_rng_state(now)

    def _skip(self):
        for _ in range(self.to_skip):
            self._draw()
        if self.to_skip and self.tells:
            self.at = self.latest = self._told_now()
        try:
            return self._draw()
        except StopIteration:
            if self.ticket or not self.told:
                raise
        # Nothing had been drawn then: what the sampler said of itself was of the end of the pass before.
        self.made = iter(self.source)
        return self._draw()

    def _draw(self):
        if not self.group:
            drawn = next(self.made)
            return [drawn] if self.single else drawn if type(drawn) is list else list(drawn)
        drawn = list(itertools.islice(self.made, self.group))
        if not drawn or (self.drop_last and len(drawn) < self.group):
            raise StopIteration
        return drawn

    # ---- the place

    def delivered(self, ticket):
        """Note that a ticket's batch has been handed out."""
        if ticket < self.low:
            return  # an exception that was no batch's came behind it
        self.above.add(ticket)
        # Not past what is yet to be drawn, and skipped: the sampler is asked behind it.
        while self.low in self.above and (not self.tells or self.low in self.after):
            self.above.discard(self.low)
            self.at = self.after.pop(self.low, None)
            self.low += 1

    def state(self):
        """Return this order's part of the state."""
        if self.resume is None:
            self.open()
        return {
            "yielded": self.low,
            "above": sorted(self.above) if self.above else [],
            **self._generators(),
            "sampler": None,
            **(self.at or {}),
            **({"rng_is_the_samplers": True} if self.samplers_rng else {}),
        }

    def _generators(self):
        """The generator's states, as text."""
        if self.began is None:  # nothing has been drawn yet
            resume = self.resume
            if resume is not None and resume["rng"] is not None:
                return {name: resume[name] for name in ("rng", "rng_iter") if name in resume}
            return self._text_of(state_of(self.generator))
        if not self._texts:
            self._texts = self._text_of(self.began)
        return self._texts

    def _text_of(self, began):
        drawn_before = self.before is not None and not torch.equal(self.before, began)
        return {"rng": as_text(began), **({"rng_iter": as_text(self.before)} if drawn_before else {})}
