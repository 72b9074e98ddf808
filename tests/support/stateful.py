"""Datasets and samplers with a state, for the tests of resuming; torch is not needed."""

import slipring


def first_of_worker():
    """Return the first number of this worker's range; 0 without workers."""
    info = slipring.get_worker_info()
    return 0 if info is None else 100 * info.id


class Positioned:
    """Has a state: how many items the current pass has read."""

    at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Plain:
    """Yields its `items()`, and has no state."""

    def __iter__(self):
        return iter(self.items())


class Walk(Positioned):
    """Yields its `items()` from its position on; after the last item it is at the beginning again."""

    def __iter__(self):
        items = self.items()
        while self.at < len(items):
            self.at += 1
            yield items[self.at - 1]
        self.at = 0


class Laps(Walk):
    """Adds to each item 10000 for each pass before it; its state has the number of passes."""

    laps = 0

    def __iter__(self):
        yield from (10000 * self.laps + item for item in super().__iter__())
        self.laps += 1

    def state_dict(self):
        return {"at": self.at, "laps": self.laps}

    def load_state_dict(self, state):
        self.at, self.laps = state["at"], state["laps"]


class OwnIterator:
    """Is its own iterator over its `items()`, and has a state only after `iter()`."""

    def __iter__(self):
        self.left = list(self.items())
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def state_dict(self):
        return {"left": list(self.left)}

    def load_state_dict(self, state):
        assert hasattr(self, "left"), "a state was loaded before iter()"
        self.left = list(state["left"])


class Range:
    """The items of a worker are `n` numbers of its own."""

    def __init__(self, n=23):
        self.n = n

    def items(self):
        first = first_of_worker()
        return range(first + 1, first + self.n + 1)


class Counting(Walk, Range):
    """An iterable dataset with a state."""


class PlainRange(Plain, Range):
    """An iterable dataset without a state."""


class Backwards(Walk):
    """A sampler with a state, which counts down."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def items(self):
        return range(self.n - 1, -1, -1)


class Reads(Positioned):
    """A map dataset whose state is the number of samples that this copy has read; sample i is (i, that number)."""

    def __init__(self, n=40):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.at += 1
        return i, self.at
