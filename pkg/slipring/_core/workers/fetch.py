"""Read samples from a dataset, for the tasks of a worker."""

import logging
import operator
from functools import partial
from types import MethodType

from slipring._capabilities import lend_threads
from slipring._core.codec._codec import empty
from slipring._core.codec._collate import default_collate
from slipring._core.codec._rows import DROP, LIST, NO_SAMPLES, NUMPY, RowWriter, draw, read_samples
from slipring._core.codec.samples import one_each
from slipring._core.workers import seeding
from slipring._core.workers.concurrency import is_async, is_awaitable, is_subset, reads_in_one_call
from slipring._core.workers.seeding import BySample
from slipring._core.workers.stateful import (
    SnapshotInterval,
    attempt,
    is_stateful,
    pickled_states,
    stateful_parts,
    states_of,
)
from slipring.errors import shown

_log = logging.getLogger("slipring")
# Classes that are iterated although they inherit a __getitem__, which only raises.
_ITERATED = {
    ("torch", "IterableDataset"),
    ("paddle", "IterableDataset"),
    ("megengine", "StreamDataset"),
    ("slipring", "StreamDataset"),  # of the adapter
}


# Packages whose base classes of datasets have a __getitem__ that only raises.
_WITH_BASES = "torch.", "paddle."
_WHOLE_BATCHES = "fetch_into", "spans"  # methods that a subclass with a __getitem__ of its own does not inherit
_OF_PYTHON_CODE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not a generator, zip, a file


def is_iterator(dataset):
    """Return whether a dataset is a built-in iterator of Python.

    An iterator of a user's class may start again in its ``__iter__``.
    """
    return hasattr(type(dataset), "__next__") and not type(dataset).__flags__ & _OF_PYTHON_CODE


def is_iterated(dataset):
    """Return whether a dataset's class is iterated although it inherits a ``__getitem__``, which only raises."""
    kinds = type(dataset).__mro__
    return any((c.__module__.partition(".")[0], c.__name__) in _ITERATED for c in kinds)


def is_stream(dataset):
    """Return whether a dataset is iterated (True) or indexed (False); raise TypeError if it can be neither."""
    kind = type(dataset)
    if getattr(dataset, "ndim", 1) == 0:
        raise TypeError(f"dataset must have samples, and {shown(dataset)} ({kind.__name__}) is a single number")
    if is_iterated(dataset):
        return True
    if hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__") or hasattr(kind, "fetch_into"):
        return False
    if is_iterator(dataset):
        raise TypeError(
            f"dataset is an iterator ({kind.__name__}), which can be read once: later epochs would be empty, and "
            "workers would deliver samples twice. Pass an iterable that can be iterated again, or pass slipring.stream "
            "a function that returns a new iterator"
        )
    if hasattr(kind, "__iter__"):
        return True
    call = ". Give the dataset itself: a function that makes it needs share= of slipring.torch.DataLoader"
    raise TypeError(
        f"dataset must have __getitem__ and __len__ (or __getitems__, or fetch_into), or __iter__; "
        f"{kind.__name__} has none of them{call if callable(dataset) else ''}"
    )


class Fetcher:
    """Base class: makes the values that the loader delivers from samples, by a job's options.

    `single`: samples are delivered one by one, without batching.
    """

    finish_batch = None  # a map dataset's ``finish_batch(batch, seed)``, which returns the batch to deliver
    own_collate = None  # a map dataset's ``collate_samples(samples)``, which replaces the default collation

    def __init__(self, job):
        self.options, self.collate_fn = job.options, job.options.collate_fn
        self.single = job.options.batch_size is None

    def rules(self):
        """Return how samples become a batch; see `RowWriter`."""
        return NUMPY if self.collate_fn is None and not self.single else LIST

    def row_writer(self, first, end, rules, share=None):
        """Return a `RowWriter` for the samples of rows ``first:end``."""
        return RowWriter(first, end, rules, share, self.options.skip_none)

    def box(self, rows, indices=None):
        """Return a list with the value to deliver, for `Encoder.publish`.

        A sample that is delivered unchanged has no other reference then.
        """
        if self.single and self.collate_fn is None and not self.options.skip_none:
            return rows.read_back()
        return [self.collate(rows, indices)]

    def collate(self, rows, indices=None):
        """Return the batch of the samples in `rows`, or `NO_SAMPLES`.

        `indices`: those of the whole batch, for a collator of `slipring.tokens`.
        """
        if self.single:
            (sample,) = rows.read_back()
            if sample is None and self.options.skip_none:
                return NO_SAMPLES
            return sample if self.collate_fn is None else self.collate_fn(sample)
        collate_fn = default_collate if self.collate_fn is None else self.collate_fn
        batch = rows.batch(partial(collate_fn, indices=indices) if hasattr(collate_fn, "gather_spans") else collate_fn)
        if self.finish_batch is None or batch is NO_SAMPLES:
            return batch
        return self.finish_batch(batch, seeding.sample_seed())


class MapFetcher(Fetcher):
    """A reader that reads samples by index.

    If the job has a `RankStride`, each sample is read separately, with generators of its own. The dataset may then make
    whole batches only if it asks `seeding.sample_seed` for each sample, and declares this with ``seeds_samples``.
    """

    def __init__(self, job, concurrency):
        super().__init__(job)
        dataset, by_sample, collate_fn, single = job.dataset, job.rank_stride is not None, self.collate_fn, self.single
        self.dataset = BySample(dataset) if by_sample else dataset
        self.unseeded = dataset  # for concurrent reads, which cannot use the global generators
        self.concurrency = concurrency
        one_by_one = by_sample or single or not reads_in_one_call(dataset)
        self.getitems = None if one_by_one else getattr(dataset, "__getitems__", None)
        self.is_async = is_async(dataset)
        maker = batch_maker(dataset)
        self.whole_batches = None if single else whole_batches(maker, by_sample)
        is_default = collate_fn is None or is_own_collate(collate_fn, maker)
        self.into = self.whole_batches if is_default else None
        if not single:
            self.into = self.into or gathered(maker, collate_fn)
            self.finish_batch = own_method(maker, "finish_batch")
            self.own_collate = own_method(maker, "collate_samples")
        if collate_fn is None:
            self.collate_fn = self.own_collate

    def read(self, indices, rows):
        """Read the samples at `indices`, and write each to its row as soon as it is read.

        ``__getitems__`` gets the same `indices` object.
        """
        concurrency, row = self.concurrency, seeding.row()
        if self.getitems is not None:
            with lend_threads(concurrency):
                samples = self.getitems(indices)
            if is_awaitable(samples):
                samples = concurrency.one(samples)
            if not (type(samples) is list and samples and is_awaitable(samples[0])):
                if self.collate_fn is None and type(samples) is not list:  # such as a tuple of a batch's parts
                    samples = one_each(self.dataset, indices, samples)
                rows.take(samples)
                return
        indices = listed(indices)
        if self.getitems is None:
            samples = self._read_each(indices, rows)
        if samples is not None:
            seeding.go_back(row)  # no sample has begun yet
            concurrency.awaited(samples, indices, rows)

    def _read_each(self, indices, rows):
        """Read sample by sample; return a list of awaitables if these are what the dataset returns."""
        if self.single:
            return read_samples(self.dataset, indices, rows)
        if self.is_async:
            return self.concurrency.by_loop(self.unseeded.__getitem__, indices, rows)
        if self.concurrency.has_threads:
            return self.concurrency.by_threads(partial(operator.getitem, self.unseeded), indices, rows)
        return read_samples(self.dataset, indices, rows)

    def whole(self, indices):
        """Return a batch that the dataset itself makes inside the slot."""
        with lend_threads(self.concurrency):
            return self.into(listed(indices), empty)


def listed(indices):
    """Return the indices of a batch as a list."""
    return indices if type(indices) is list else list(indices)


class SubsetBatches:
    """The batches of torch's Subset of a dataset that makes or collates whole batches."""

    def __init__(self, subset, maker):
        self.subset, self.maker = subset, maker
        self.seeds_samples = getattr(maker, "seeds_samples", False)
        self.finish_batch = own_method(maker, "finish_batch")
        self.collate_samples = own_method(maker, "collate_samples")
        for name in ("fetch_into", "spans"):
            if own_method(maker, name) is None:
                setattr(self, name, None)

    def fetch_into(self, indices, empty):
        return self.maker.fetch_into(self._inner(indices), empty)

    def spans(self, indices):
        return self.maker.spans(self._inner(indices))

    def _inner(self, indices):
        of = self.subset.indices
        return [int(of[index]) for index in indices]


def own_method(dataset, name):
    """Return a dataset's optional method, such as its ``collate_samples``, or None.

    A wrapper whose ``__getattr__`` returns the attributes of another dataset does not have that dataset's methods: it
    may change the samples. So may a subclass that has a ``__getitem__`` of its own and inherits ``fetch_into`` or
    ``spans``.
    """
    if name in getattr(dataset, "__dict__", ()):
        return getattr(dataset, name)
    for kind in type(dataset).__mro__:
        if name in vars(kind):
            return getattr(dataset, name)
        if name in _WHOLE_BATCHES and "__getitem__" in vars(kind) and not kind.__module__.startswith(_WITH_BASES):
            return None
    return None


def batch_maker(dataset):
    """Return the object with a dataset's ``fetch_into`` and other hooks: the dataset, or an object for its Subset."""
    if not is_subset(dataset):
        return dataset
    maker = batch_maker(dataset.dataset)
    hooks = "fetch_into", "finish_batch", "collate_samples", "spans"
    has_hooks = any(own_method(maker, name) is not None for name in hooks)
    return SubsetBatches(dataset, maker) if has_hooks else dataset


def whole_batches(dataset, by_sample):
    """Return a dataset's ``fetch_into``, if it has one that may be used; see `MapFetcher`."""
    into = own_method(dataset, "fetch_into")
    return into if not by_sample or getattr(dataset, "seeds_samples", False) else None


def gathered(dataset, collate_fn):
    """Return a ``fetch_into`` that collates a dataset's ``spans``, for a collator of `slipring.tokens`; or None."""
    spans = own_method(dataset, "spans")
    if spans is None or not hasattr(collate_fn, "gather_spans"):
        return None
    return lambda indices, empty: collate_fn.gather_spans(spans, indices)


def is_own_collate(collate_fn, maker):
    """Return whether a `collate_fn` is the ``collate_samples`` of the dataset, which may then make whole batches."""
    return isinstance(collate_fn, MethodType) and collate_fn == own_method(maker, "collate_samples")


def log_lost_fast_path(dataset, collate_fn):
    """Log the reason if a dataset that can make or finish whole batches is read sample by sample."""
    if (reason := _why_by_sample(dataset, collate_fn)) is not None:
        _log.info("samples are read one by one and then collated, because %s", reason)
    parts, reason = _parts(dataset)
    if collate_fn is None and any(own_method(batch_maker(part), "finish_batch") is not None for part in parts):
        _log.warning(
            "batch_transform= is not applied, because %s: call the finish_batch of one of its datasets in collate_fn",
            reason,
        )


def _why_by_sample(dataset, collate_fn):
    maker, kind = batch_maker(dataset), type(dataset)
    if own_method(maker, "fetch_into") is not None:
        if collate_fn is None or is_own_collate(collate_fn, maker):
            return None
        return f"collate_fn={shown(collate_fn)} makes the batches: without it, {kind.__name__} makes them in place"
    parts, reason = _parts(dataset)
    makes = any(own_method(batch_maker(part), "fetch_into") is not None for part in parts)
    return reason if makes else None


def _parts(dataset):
    """Return (the datasets that torch's wrapper reads sample by sample, the reason), or ([], "")."""
    while is_subset(dataset):
        dataset = dataset.dataset
    kind = type(dataset)
    bases = {base.__name__ for base in kind.__mro__ if base.__module__ == "torch.utils.data.dataset"}
    if "ConcatDataset" in bases:
        return getattr(dataset, "datasets", []), "torch's ConcatDataset reads each sample from its own dataset"
    if "Subset" in bases:
        reason = f"{kind.__name__} is a class of its own, which may choose samples differently from torch's Subset"
        return [getattr(dataset, "dataset", None)], reason
    return [], ""


def delivered(position):
    """Return how many batches of the pass a worker had delivered when the state was taken."""
    return position["batches"] if position else 0


def load_dataset(dataset, position):
    """Load the state of a Stateful dataset, if the worker's position has one."""
    states = (position or {}).get("states") or {}
    if "dataset" in states and is_stateful(dataset):
        dataset.load_state_dict(states["dataset"])


def load_stream(dataset, position):
    """Load the states of an iterable dataset and its iterator; return the iterator."""
    load_dataset(dataset, position)
    iterator = iter(dataset)
    states = position["states"] or {}
    if "iterator" in states and is_stateful(iterator):
        iterator.load_state_dict(states["iterator"])
    return iterator


def load_ended(dataset, position, is_stream=True):
    """Load what a dataset keeps from the epoch that ended at `position`."""
    if not is_stream or hasattr(dataset, "check_position"):
        load_dataset(dataset, position)  # its iterators do not depend on earlier passes
    elif position["states"]:
        load_stream(dataset, position)


def was_last(position):
    """Return whether no batch follows a worker's position in the same pass."""
    return position is not None and not position.get("ended") and bool((position["states"] or {}).get("last"))


def open_stream(dataset, position):
    """Return (iterator, number of batches to skip) for an iterable dataset at a worker's position.

    If `position` is None, the dataset is read from its beginning. Otherwise it is a dict. "batches" is how many batches
    have been read. "states" has the last states of "dataset" and "iterator", as far as they are Stateful, or is None.
    "since" is how many of those batches followed these states, 0 if it is missing. "ended": a pass ended there, and the
    next one begins.
    """
    if position is None:
        return iter(dataset), 0
    if position.get("ended"):
        load_ended(dataset, position)
        return iter(dataset), position["batches"]
    return load_stream(dataset, position), 0 if position["states"] else position["batches"]


def since(position):
    """Return how many batches were read after the states of a worker's position."""
    if position is None or position.get("ended") or not position["states"]:
        return 0
    return position.get("since", 0)


def dataset_shrank(had, found, of="the iterable dataset where it is read here"):
    """Return the exception for a dataset that ends before the position that a state says was delivered."""
    return ValueError(
        f"the state says that {had} batches were delivered of {of}, which now ends after {found}: the "
        "dataset may have changed. Resume with the dataset that the state was taken of, or start again with "
        "load_state_dict({})"
    )


def skip_batches(read, count):
    """Read `count` batches again and drop them; raise ValueError if there are fewer.

    `read` returns None at the end of the stream.
    """
    for done in range(count):
        batch, error = attempt(read)
        if batch is None and error is None:  # an error was raised then
            raise dataset_shrank(count, done)


class IdentityDataset:
    """A map dataset that returns each index as the sample: the sampler gives samples, and workers receive them."""

    def __getitem__(self, sample):
        return sample


class StreamFetcher(Fetcher):
    """A reader of the batches of one pass over an iterable dataset.

    `position` is where to begin; see `open_stream`. `shared`: other workers iterate the same dataset object, so only
    the iterator's state belongs to this worker, which has this `number`. An earlier iteration delivered `before`
    batches of this pass.
    """

    def __init__(self, dataset, job, position=None, shared=False, number=0, before=0):
        super().__init__(job)
        self.number, self.num_workers, self.before = number, job.num_workers, before
        self.iterator, skip = open_stream(dataset, position)
        self.rows = None
        self.parts = stateful_parts(None if shared else dataset, self.iterator)
        self.continues_after_errors = getattr(self.iterator, "continues_after_errors", False)
        self.snapshots = SnapshotInterval(self.options.snapshot_interval)
        self.saved_state = None, None  # position, the states there as bytes
        self.batch_size, self.drop_last = self.options.batch_size or 1, self.options.drop_last
        # Batches read so far, with those whose reading failed. Negative: as many were read after the states of
        # `position`, and must be read again first.
        self.position = 0
        self.ended = was_last(position)
        # A dataset without a state is read again up to the position.
        skip_batches(lambda: self.read(DROP) or None, skip)
        self.position = -since(position)
        if before:
            self.snapshots.go_on(self._seq(0))

    def _seq(self, position):
        """Return the sequence number of the batch before `position`, if all workers have delivered as many.

        The worker counts its own batches since the beginning of the pass. A resumed iteration therefore has the same
        states as an uninterrupted one.
        """
        return (self.before + position - 1) * self.num_workers + self.number

    def states(self, always=False, generators=None):
        """Return `pickled_states` after the batch that was read last; None if none is due, unless `always`."""
        if self.saved_state[0] != self.position:
            due = self.snapshots.due(self._seq(self.position)) or always
            # After a last batch that is not full, the dataset may be at its beginning again.
            states = pickled_states(self.parts, self.ended, generators) if due else None
            self.saved_state = self.position, states
        return self.saved_state[1]

    def states_now(self):
        """Return the current `states_of`, for a caller in this process; None if neither object has a state."""
        states = states_of(self.parts)
        if states and self.ended:
            states["last"] = True
        return states or None

    def read(self, rules):
        """Read the samples of the next batch (without batching: one sample) into `rows`; return False at the end.

        `rules` are the `RowWriter`'s.
        """
        want = self.batch_size
        self.rows = self.row_writer(0, want, rules)
        self.position += 1
        if not self.ended:
            try:
                self.ended = not draw(self.iterator, self.rows, want)
            except BaseException:
                self.rows = RowWriter(0, 0, DROP)
                raise
        count = self.rows.count
        return count > 0 and (count == want or not self.drop_last)
