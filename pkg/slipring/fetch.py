"""From a dataset to samples."""

from slipring._collate import default_collate
from slipring._encode import empty


def is_stream(dataset):
    """Whether a dataset is iterated (True) or indexed (False).

    Raises
    ------
    TypeError
        It can be neither.
    """
    kind = type(dataset)
    # torch's IterableDataset inherits a __getitem__ that only raises.
    if any(c.__name__ == "IterableDataset" and c.__module__.startswith("torch.") for c in kind.__mro__):
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


class StreamFetcher:
    """Reads batch after batch of one pass over an iterable dataset."""

    def __init__(self, dataset, collate_fn, batch_size, drop_last):
        self.iterator = iter(dataset)
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.position = 0  # batches read so far, those included whose reading failed
        self.ended = False

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

    def collate(self, samples):
        """Return the batch of `samples`."""
        if self.batch_size is None:
            return samples[0] if self.collate_fn is None else self.collate_fn(samples[0])
        return default_collate(samples) if self.collate_fn is None else self.collate_fn(samples)
