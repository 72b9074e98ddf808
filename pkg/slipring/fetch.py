"""From a dataset to samples."""

import contextlib
import pickle

from slipring._collate import default_collate
from slipring._encode import empty

# Classes that are iterated although they inherit a __getitem__, which only raises.
_ITERATED = {("torch", "IterableDataset"), ("paddle", "IterableDataset"), ("megengine", "StreamDataset")}


def is_stream(dataset):
    """Whether a dataset is iterated (True) or indexed (False).

    Raises
    ------
    TypeError
        It can be neither.
    """
    kind = type(dataset)
    if any((c.__module__.partition(".")[0], c.__name__) in _ITERATED for c in kind.__mro__):
        return True
    if hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__") or hasattr(kind, "fetch_into"):
        return False
    if hasattr(kind, "__iter__"):
        return True
    raise TypeError(
        f"dataset must have __getitem__ and __len__ (or __getitems__, or fetch_into), or __iter__; "
        f"{kind.__name__} has none of them"
    )


class MapFetcher:
    """Reads samples by index and puts them together."""

    def __init__(self, dataset, collate_fn):
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.getitems = getattr(dataset, "__getitems__", None)
        self.into = getattr(dataset, "fetch_into", None)

    def samples(self, indices):
        """Return a list of the samples at `indices`."""
        if self.getitems is not None:
            return self.getitems(indices)
        dataset = self.dataset
        return [dataset[i] for i in indices]

    def collate(self, samples):
        """Return the batch of `samples`."""
        return default_collate(samples) if self.collate_fn is None else self.collate_fn(samples)

    def one(self, index):
        """Return one sample, without batching."""
        sample = self.dataset[index]
        return sample if self.collate_fn is None else self.collate_fn(sample)

    def whole(self, indices):
        """Return a batch that the dataset itself makes inside the slot."""
        return self.into(indices, empty)


def is_stateful(thing):
    """Whether it can say where it is, and be told: torchdata's protocol."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def states_of(dataset, iterator):
    """Return what a dataset and its iterator say of themselves, if they can; an object that is both, once."""
    parts = (("dataset", None if dataset is iterator else dataset), ("iterator", iterator))
    return {name: part.state_dict() for name, part in parts if is_stateful(part)}


def load_dataset(dataset, place):
    """Tell a Stateful dataset where it was."""
    states = (place or {}).get("states") or {}
    if "dataset" in states and is_stateful(dataset):
        dataset.load_state_dict(states["dataset"])


def load_stream(dataset, place):
    """Tell an iterable dataset where it was, and its iterator; returns that."""
    load_dataset(dataset, place)
    iterator = iter(dataset)
    states = place["states"] or {}
    if "iterator" in states and is_stateful(iterator):
        iterator.load_state_dict(states["iterator"])
    return iterator


def was_last(place):
    """Whether nothing comes behind the batch that a worker's place is of, in the same pass."""
    return place is not None and not place.get("ended") and bool((place["states"] or {}).get("last"))


def open_stream(dataset, place):
    """Return (iterator, batches to be skipped) of an iterable dataset at a worker's place, if any.

    Parameters
    ----------
    place : dict or None
        "batches": how many have been read; "states": what "dataset" and "iterator" said of themselves then,
        as far as they are Stateful, or None; "ended": it was the end of a pass, and the next one begins.
    """
    if place is None:
        return iter(dataset), 0
    if place.get("ended"):
        if place["states"]:
            load_stream(dataset, place)
        return iter(dataset), 0
    return load_stream(dataset, place), 0 if place["states"] else place["batches"]


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
    """

    def __init__(self, dataset, collate_fn, batch_size, drop_last, place=None, shared=False):
        self.iterator, skip = open_stream(dataset, place)
        self.dataset = None if shared else dataset
        self.told = None, None
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.position = 0  # batches read so far, those included whose reading failed
        self.ended = was_last(place)
        for _ in range(skip):  # what cannot say where it was is read once more up to there
            with contextlib.suppress(Exception):  # it was raised then
                self.samples()
        self.position = 0

    def states(self):
        """Return as bytes what dataset and iterator say of their place; None if neither can."""
        if self.told[0] != self.position:
            states = states_of(self.dataset, self.iterator)
            if states and self.ended:  # not full: the dataset may be at its beginning again
                states["last"] = True
            self.told = self.position, pickle.dumps(states) if states else None
        return self.told[1]

    def samples(self):
        """Return the next batch's samples (without batching: the next sample in a list); None at the end."""
        want = 1 if self.batch_size is None else self.batch_size
        samples = []
        self.position += 1
        while len(samples) < want and not self.ended:
            try:
                samples.append(next(self.iterator))
            except StopIteration:
                self.ended = True
        if not samples or (len(samples) < want and self.drop_last):
            return None
        return samples

    def last(self):
        """Return what goes to the consumer with the end of the stream."""
        return None

    def collate(self, samples):
        """Return the batch of `samples`."""
        if self.batch_size is None:
            return samples[0] if self.collate_fn is None else self.collate_fn(samples[0])
        return default_collate(samples) if self.collate_fn is None else self.collate_fn(samples)
