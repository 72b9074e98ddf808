"""A stream whose states any number of ranks and workers can load: `rest_of` divides the remaining lines.

Two ranks begin, and three ranks continue: docs/randomness.md explains it.
"""

import itertools

import slipring


class Lines:
    """Lines of some files, here numbers: 100, 101, ... of the first."""

    def __init__(self, files, rank, world_size):
        self.files, self.rank, self.world_size = files, rank, world_size

    def __iter__(self):
        info = slipring.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return Reading([[file, 0] for file in self.files[self.rank :: self.world_size][worker::workers]])

    def rest_of(self, states, num_workers):
        """Return the state to load, for each of this rank's present workers."""
        left = []
        for rank, workers in enumerate(states):
            for worker, state in enumerate(workers):  # None: it had delivered nothing
                begun = [[file, 0] for file in self.files[rank :: len(states)][worker :: len(workers)]]
                left += begun if state is None else state["iterator"]["left"]
        own = left[self.rank :: self.world_size]
        return [{"iterator": {"left": own[n::num_workers]}} for n in range(num_workers)]


class Reading:
    def __init__(self, left):
        self.left = left  # [file, next line] of each

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        (file, line), *others = self.left
        self.left = [[file, line + 1], *others] if line < 9 else others  # each has ten lines
        return 100 * file + line

    def state_dict(self):
        return {"left": self.left}

    def load_state_dict(self, state):
        self.left = state["left"]


def ranks(n, num_workers):
    return [slipring.Loader(Lines([1, 2, 3, 4, 5], r, n), 4, num_workers=num_workers) for r in range(n)]


if __name__ == "__main__":
    seen, states = [], []
    for loader in ranks(2, num_workers=0):
        seen += [line for batch in itertools.islice(loader, 3) for line in batch.tolist()]
        states.append(loader.state_dict())
    for loader in ranks(3, num_workers=1):
        loader.load_state_dict(states)
        seen += [line for batch in loader for line in batch.tolist()]
        loader.close()
    print(len(seen), len(set(seen)))
