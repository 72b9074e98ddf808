"""The order of a map dataset's indices: a list of indices per task, and the resume after any task."""

import contextlib
import inspect
import pickle

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from slipring._core.passes._plan import SamplerDraws
from slipring._core.passes.reshard import saved_sampler
from slipring._core.passes.source import SamplerSource, opened
from slipring._core.ring._ring import reducers
from slipring.sampler import BatchSampler as OurBatchSampler
from slipring.torch.generators import OrderRng, as_state, as_text, generator_of
from slipring.torch.samplers import indices_of, wrapped_source

# ---- indices that are tensors


def _reduced(tensor):
    """Return a tensor's reduction, like `object.__reduce__`, without the rest of a shared storage."""
    if tensor.device.type == "cpu" and tensor.dtype == torch.int64:
        return torch.from_numpy, (tensor.numpy(),)
    return tensor.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


reducers[torch.Tensor] = _reduced


# ---- samplers with a position


def source_of(loader):
    """Return (sampler, indices per list, drop_last); with 0 per list, the sampler yields each task's indices.

    torch's own batching does not reveal its sampler's position, so the same lists are made here.
    """
    sampler = loader._index_sampler
    # Without batching, a BatchSampler's list is one index: torch's bulk loading.
    if loader._auto_collation and type(sampler) is BatchSampler:
        return sampler.sampler, sampler.batch_size, sampler.drop_last
    return sampler, 0, False


def batch_size_of(loader):
    """Return the indices, or samples, per batch: 0 without batching, None if a batch sampler does not tell."""
    source, size, _ = source_of(loader)
    if size or not loader._auto_collation:
        return size
    size = getattr(source, "batch_size", None)
    return size if type(size) is int else None


def kind_of_order(loader):
    """Return a text that must stay the same for a position in the order of torch's samplers; None: unknown."""
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


def end_epoch_before(loader, state):
    """End a Stateful sampler's epoch, from which the state is, as it ended then."""
    saved, source = saved_sampler(state), source_of(loader)[0]
    if not saved or isinstance(source, OurBatchSampler):
        return
    made, loaded = opened(source, saved, OrderRng(generator_of(loader)), indices_of)
    if loaded and state.delivered is not None:  # else that epoch has not begun
        draws = SamplerDraws(made)
        while draws.take([], 4096):  # it had raised then too
            pass


class Order(SamplerSource):
    """A `SamplerSource` with the generator of torch's samplers.

    `made` is the index sampler's iterator, not yet used; it is used only if nothing resumes. `before` is the
    generator's state before `made` was created.
    """

    open_source = staticmethod(indices_of)

    def __init__(self, loader, made, before, resume=None):
        source, group, drop_last = source_of(loader)
        wrapped = wrapped_source(source, resume)
        super().__init__(
            wrapped, group, drop_last, single=not loader._auto_collation, resume=resume, made=None if group else made,
            begins_there=wrapped is not source,
        )  # fmt: skip
        # Not the loader itself: with persistent workers, the loader refers to the iterator that refers to this.
        self.sampler = loader.sampler
        # The position, in the order of all ranks, of sequence number 0; None: no other number of ranks has begun this
        # epoch.
        self.origin = None if resume is None else resume.origin
        self.rng = OrderRng(generator_of(loader))
        self.began = None  # the generator's state before the first draw
        self.before = before  # its state before iter(), for samplers that draw there
        # A state of torchdata has the state of a generator that torch's sampler would make itself.
        self.samplers_rng = resume is not None and resume.rng_is_the_samplers
        self._texts = {}

    # ---- drawing

    def open(self):
        """Open the sampler, without drawing from it."""
        if self.is_stateful is not None:
            return
        if self.made is None:
            self.before = self.rng.get()
        super().open()
        if self.is_stateful or inspect.isgenerator(self.made):
            self.before = None  # it loads its state, or has not drawn

    def _open_and_draw(self):
        """Open the sampler and return the first list. Samplers draw the whole order from their generator here."""
        resume = self.resume
        if resume is None or resume.rng is None:
            self.open()
            if self.began is None:
                self.began = self.rng.get()
            return self._skip()
        began, before = as_state(resume.rng), as_state(resume.rng_before_iter)
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
        """Yield the function that sets the state of the order's generator.

        torch's global generator is restored afterwards, unless the state is from before the first batch. In that case
        these draws were still to come, and those of the dataset follow them.
        """
        if self.rng.generator is not None:
            yield self.rng.put
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
                if self.resume.delivered or self.resume.beyond:
                    torch.set_rng_state(now)

    # ---- the position

    def state(self):
        """Return (a copy of the iteration's `Position`, this order's part of the state there)."""
        position, more = super().state()
        own = dict(rng_is_the_samplers=self.samplers_rng, origin=self.origin)
        return position, {**self._generators(), **more, **own}

    def _generators(self):
        """Return the generators' states, as text."""
        if self.began is None:  # nothing has been drawn yet
            resume = self.resume
            if resume is not None and resume.rng is not None:
                return dict(rng=resume.rng, rng_before_iter=resume.rng_before_iter)
            return self._text_of(self.rng.get())
        if not self._texts:
            self._texts = self._text_of(self.began)
        return self._texts

    def _text_of(self, began):
        drawn_before = self.before is not None and not torch.equal(self.before, began)
        return dict(rng=as_text(began), rng_before_iter=as_text(self.before) if drawn_before else None)
