"""Read samples from a dataset, for the tasks of a worker."""

import inspect
import operator
import pickle
import traceback
from functools import partial

from slipring._core import seeding
from slipring._core._codec import empty
from slipring._core._collate import DROP, LIST, RowWriter, default_collate, draw, read_samples
from slipring._core._ring import in_a_handler
from slipring._core.concurrency import is_async, is_awaitable, reads_in_one_call
from slipring._core.seeding import BySample
from slipring.errors import SlipringError, shown

# Classes that are iterated although they inherit a __getitem__, which only raises.
_ITERATED = {
    ("torch", "IterableDataset"),
    ("paddle", "IterableDataset"),
    ("megengine", "StreamDataset"),
    ("slipring", "StreamDataset"),  # of the adapter
}


_OF_PYTHON_CODE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not a generator, zip, a file


def is_iterator(dataset):
    """Return whether it is one of Python's built-in iterators. A user's class may start again in its ``__iter__``."""
    return hasattr(type(dataset), "__next__") and not type(dataset).__flags__ & _OF_PYTHON_CODE


def is_iterated(dataset):
    """Whether it is of a class that is iterated although it inherits a __getitem__, which only raises."""
    kinds = type(dataset).__mro__
    return any((c.__module__.partition(".")[0], c.__name__) in _ITERATED for c in kinds)


def is_stream(dataset):
    """Whether a dataset is iterated (True) or indexed (False).

    Raises
    ------
    TypeError
        It can be neither.
    """
    kind = type(dataset)
    if getattr(dataset, "ndim", 1) == 0:
        raise TypeError(
            f"dataset must have samples, and {shown(dataset)} ({kind.__name__}) is a single number"
        )
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
    raise TypeError(
        f"dataset must have __getitem__ and __len__ (or __getitems__, or fetch_into), or __iter__; "
        f"{kind.__name__} has none of them"
    )


class MapFetcher:
    """Reads samples by index and puts them together.

    Parameters
    ----------
    dataset, collate_fn
        As the loader's.
    concurrency : Concurrency
    by_sample : bool
        Each sample is read by itself, with generators of its own; a dataset makes whole batches only if it asks
        `slipring._core.seeding.sample_seed` for each sample, and says so: ``seeds_samples``.

    Attributes
    ----------
    failed : (Exception, int) or None
        What a sample has raised last, and its position among those that were asked for.
    """

    failed = None

    def __init__(self, dataset, collate_fn, concurrency, by_sample=False):
        self.dataset = BySample(dataset) if by_sample else dataset
        self.unseeded = dataset  # for who reads samples beside one another: global generators are not theirs
        self.collate_fn = collate_fn
        self.concurrency = concurrency
        self.getitems = None if by_sample else getattr(dataset, "__getitems__", None)
        if concurrency.has_threads and not reads_in_one_call(dataset):
            self.getitems = None
        self.is_async = is_async(dataset)
        self.into = whole_batches(dataset, by_sample) if collate_fn is None else None

    def read(self, indices, rows):
        """Read the samples at `indices`, and write each to its row as soon as it is read.

        Parameters
        ----------
        indices : sized iterable
            ``__getitems__`` gets the same object.
        rows : RowWriter
        """
        beside, row = self.concurrency, seeding.row()
        if self.getitems is not None:
            with beside.offered():
                samples = self.getitems(indices)
            if is_awaitable(samples):
                samples = beside.one(samples)
            if not (type(samples) is list and samples and is_awaitable(samples[0])):
                rows.take(samples)
                return
        indices = listed(indices)
        if self.getitems is None:
            samples = self._read_each(indices, rows)
        if samples is not None:
            seeding.go_back(row)  # that was no sample's beginning
            beside.awaited(samples, indices, self, rows)

    def _read_each(self, indices, rows):
        """Read sample by sample; return a list of awaitables if these are what the dataset returns."""
        if self.is_async:
            return self.concurrency.by_loop(self.unseeded.__getitem__, indices, self, rows)
        if self.concurrency.has_threads:
            return self.concurrency.by_threads(partial(operator.getitem, self.unseeded), indices, self, rows)
        return read_samples(self.dataset, indices, self, rows)

    def samples(self, indices):
        """Return a list of the samples at `indices`."""
        rows = RowWriter(0, len(indices), LIST)
        self.read(indices, rows)
        return rows.read_back()

    def collate(self, rows):
        """Return the batch of the samples in `rows`."""
        return rows.batch(default_collate if self.collate_fn is None else self.collate_fn)

    def one(self, index):
        """Return one sample, without batching."""
        try:
            row = seeding.row()
            sample = self.dataset[index]
            if is_awaitable(sample):
                seeding.go_back(row)
                rows = RowWriter(0, 1, LIST)
                self.concurrency.awaited([sample], [index], self, rows)
                (sample,) = rows.read_back()
        except Exception as error:
            self.failed = error, 0
            raise
        return sample if self.collate_fn is None else self.collate_fn(sample)

    def whole(self, indices):
        """Return a batch that the dataset itself makes inside the slot."""
        with self.concurrency.offered():
            return self.into(listed(indices), empty)


def listed(indices):
    """Return the indices of a batch as a list."""
    return indices if type(indices) is list else list(indices)


def whole_batches(dataset, by_sample):
    """Return a dataset's ``fetch_into``, if it has one that may be used; see `MapFetcher`."""
    into = getattr(dataset, "fetch_into", None)
    return into if not by_sample or getattr(dataset, "seeds_samples", False) else None


def is_stateful(thing):
    """Whether it can save and load where it is: torchdata's protocol."""
    save = getattr(thing, "state_dict", None)
    return callable(save) and callable(getattr(thing, "load_state_dict", None)) and not _needs_arguments(save)


def _needs_arguments(function):
    """Whether a Python function or method cannot be called without arguments."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    needed = code.co_argcount - inspect.ismethod(function) - len(function.__defaults__ or ())
    return needed > 0 or code.co_kwonlyargcount > len(function.__kwdefaults__ or ())


def states_of(dataset, iterator):
    """Return what a dataset and its iterator say of themselves, if they can; an object that is both, once."""
    parts = (("dataset", None if dataset is iterator else dataset), ("iterator", iterator))
    return {name: part.state_dict() for name, part in parts if is_stateful(part)}


class Unsaid:
    """What a worker sends in place of a state that could not be asked or pickled; raised when it is wanted.

    Parameters
    ----------
    text : str
    """

    def __init__(self, text):
        self.text = text


def pickled_states(dataset, iterator, last=False):
    """Return what `states_of` says, pickled, and whether it does; (None, False) if neither can say anything.

    Parameters
    ----------
    last : bool
        Nothing comes behind: the dataset may be at its beginning again.
    """
    try:
        states = states_of(dataset, iterator)
        if not states:
            return None, False
        if last:
            states["last"] = True
        return pickle.dumps(states), True
    except Exception:  # no batch is to be lost over it
        return pickle.dumps(Unsaid(traceback.format_exc())), False


class Every:
    """Which of a worker's batches go with a state: the first of an iteration, then one in `n` of all workers' batches.

    Parameters
    ----------
    n : int
        0: only the first.
    """

    def __init__(self, n):
        self.n = n
        self.at = None

    def due(self, seq):
        """Whether a state goes with this batch; if so, the next one is due `n` batches later."""
        at = self._group(seq)
        due, self.at = at != self.at, at
        return due

    def go_on(self, seq):
        """Continue after the last task that an earlier run delivered: states are due as in that run."""
        self.at = self._group(seq)

    def _group(self, seq):
        return (seq + 1) // self.n if self.n else 0


def load_dataset(dataset, place):
    """Tell a Stateful dataset where it was."""
    states = (place or {}).get("states") or {}
    if "dataset" in states and is_stateful(dataset):
        dataset.load_state_dict(states["dataset"])


def load_stream(dataset, place):
    """Tell an iterable dataset where it was, and its iterator; returns that."""
    load_dataset(dataset, place)
    iterator = iter(dataset)
    load_iterator(iterator, place)
    return iterator


def load_iterator(iterator, place):
    """Tell a Stateful iterator where it was."""
    states = place["states"] or {}
    if "iterator" in states and is_stateful(iterator):
        iterator.load_state_dict(states["iterator"])


def was_last(place):
    """Whether nothing comes behind the batch that a worker's place is of, in the same pass."""
    return place is not None and not place.get("ended") and bool((place["states"] or {}).get("last"))


def open_stream(dataset, place):
    """Return (iterator, batches to be skipped) of an iterable dataset at a worker's place, if any.

    Parameters
    ----------
    place : dict or None
        "batches": how many have been read; "states": what "dataset" and "iterator" last said of themselves,
        as far as they are Stateful, or None; "since": how many of those batches came behind that, 0 if it is
        not there; "ended": it was the end of a pass, and the next one begins.
    """
    if place is None:
        return iter(dataset), 0
    if place.get("ended"):
        if place["states"]:
            load_stream(dataset, place)
        return iter(dataset), 0
    return load_stream(dataset, place), 0 if place["states"] else place["batches"]


def since(place):
    """Return how many batches were read behind the states of a worker's place."""
    if place is None or place.get("ended") or not place["states"]:
        return 0
    return place.get("since", 0)


def shorter(had, found, of="the iterable dataset where it is read here"):
    """Return the exception for what ends before what a state says was delivered of it."""
    return ValueError(
        f"the state says that {had} batches were delivered of {of}, which now ends after {found}: the "
        "dataset may have changed. Resume with the dataset that the state was taken of, or begin anew with "
        "load_state_dict({})"
    )


def skip_batches(read, count):
    """Read so many batches again, and drop them; `read` returns None at the end of the stream.

    Raises
    ------
    ValueError
        There are fewer.
    """
    for done in range(count):
        try:
            batch = read()
        except Exception as error:
            if in_a_handler(error):
                raise
            continue  # it was raised then
        if batch is None:
            raise shorter(count, done)


def cut_off(iterator, error):
    """Return an exception that is a handler's and has ended a generator, whose rest is lost; else None."""
    ended = inspect.isgenerator(iterator) and iterator.gi_frame is None
    return error if ended and (not isinstance(error, Exception) or in_a_handler(error)) else None


def generator_ended(name):
    """Return the exception for who asks a generator on that a handler's exception has ended."""
    return SlipringError(
        f"{name} is a generator, and Python has ended it because a signal's handler raised an exception "
        "inside it: what it had not given yet is lost. Begin anew, or resume from a state"
    )


class Given:
    """A map dataset whose samples are what the sampler gives: workers are sent samples, not indices."""

    def __getitem__(self, sample):
        return sample


class StreamFetcher:
    """Reads batch after batch of one pass over an iterable dataset.

    Parameters
    ----------
    dataset, collate_fn, batch_size, drop_last
        As the loader's.
    place : dict, optional
        Where to begin; see `open_stream`.
    shared : bool
        Other workers iterate the same dataset object: only the iterator's state is this worker's own.
    every : int
        See `Every`.

    Attributes
    ----------
    position : int
        Batches read so far, those included whose reading failed. Negative: so many were read behind the
        place's states, and are to be read again first.
    seq : int
        Of the batch that is being made.
    """

    seq = 0

    def __init__(self, dataset, collate_fn, batch_size, drop_last, place=None, shared=False, every=1):
        self.iterator, skip = open_stream(dataset, place)
        self.rows, self.cut_off = None, None
        self.dataset = None if shared else dataset
        self.every = Every(every)
        self.saved_state = None, None, False  # position, the states there as bytes, whether they are there
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.position = 0
        self.ended = was_last(place)
        # A dataset without a state is read again up to the place.
        skip_batches(lambda: self.read(DROP) or None, skip)
        self.position = -since(place)

    def states(self, last=False):
        """Return as bytes what dataset and iterator say of their place; None if neither can, or none is due.

        Parameters
        ----------
        last : bool
            With the end of the stream they are always due.
        """
        if self.saved_state[0] != self.position:
            due = self.is_due() or last
            # A last batch that is not full: the dataset may be at its beginning again.
            states = pickled_states(self.dataset, self.iterator, self.ended) if due else (None, False)
            self.saved_state = self.position, *states
        return self.saved_state[1]

    def is_due(self):
        """Whether a state goes with the batch that was read last."""
        return self.every.due(self.seq)

    def snapshot(self, last=False):
        """Return the same as `states`, but None as well if they could not be asked or pickled."""
        states = self.states(last)
        return states if self.saved_state[2] else None

    def read(self, rules, again=False):
        """Read the samples of the next batch (without batching: one sample) into `rows`; return False at the end.

        Parameters
        ----------
        rules : int
            The `RowWriter`'s.
        again : bool
            Continue the same batch, after a signal handler raised an exception. `rows` has the samples that were
            read before.
        """
        want = 1 if self.batch_size is None else self.batch_size
        if not again:
            rows = RowWriter(0, want, rules)
            # No call comes between: a handler cannot raise.
            self.rows = rows
            self.position += 1
        if self.cut_off is not None:
            raise generator_ended("the dataset's iterator") from self.cut_off
        if self.rows.count < want and not self.ended:
            try:
                more = draw(self.iterator, self.rows, want)
            except BaseException as error:
                self.cut_off = cut_off(self.iterator, error)
                if isinstance(error, Exception) and not in_a_handler(error):
                    self.rows = RowWriter(0, 0, DROP)
                raise
            self.ended = not more
        count = self.rows.count
        return count > 0 and (count == want or not self.drop_last)

    def last(self):
        """Return what goes to the consumer with the end of the stream."""
        return None

    def collate(self):
        """Return the batch of the samples that were read."""
        if self.batch_size is None:
            (sample,) = self.rows.read_back()
            return sample if self.collate_fn is None else self.collate_fn(sample)
        return self.rows.batch(default_collate if self.collate_fn is None else self.collate_fn)
