"""Samplers with a state, in the forms that real samplers have."""

import torch
from torch.utils.data import Sampler


class Passes(Sampler):
    """Each pass begins one index later; the state after a pass says where the next pass begins."""

    def __init__(self, n):
        self.n, self.at, self.passes = n, 0, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            yield (self.at - 1 + self.passes) % self.n
        self.at, self.passes = 0, self.passes + 1

    def state_dict(self):
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state):
        self.at, self.passes = state["at"], state["passes"]


class Counted(Sampler):
    """Like torchdata's StatefulDistributedSampler: a loaded state applies to the next pass."""

    def __init__(self, n):
        self.n, self.given, self.told = n, 0, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        self.given, self.told = self.told, 0
        while self.given < self.n:
            self.given += 1
            yield self.given - 1

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.told = state["given"]


class OfItsIterator(Sampler):
    """Only its iterator has a state: the order comes from a generator that no other code can reach."""

    def __init__(self, n):
        self.n, self.hidden = n, torch.Generator().manual_seed(n)

    def __len__(self):
        return self.n

    def __iter__(self):
        return Drawn(self)


class Drawn:
    def __init__(self, sampler):
        self.sampler, self.began = sampler, sampler.hidden.get_state()
        self.draw()

    def draw(self):
        self.order, self.at = torch.randperm(self.sampler.n, generator=self.sampler.hidden).tolist(), 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.order):
            raise StopIteration
        self.at += 1
        return self.order[self.at - 1]

    def state_dict(self):
        return {"began": self.began.tolist(), "at": self.at}

    def load_state_dict(self, state):
        self.began = torch.tensor(state["began"], dtype=torch.uint8)
        self.sampler.hidden.set_state(self.began)
        self.draw()
        self.at = state["at"]


class Both(Passes):
    """The sampler's state is the number of the pass, its iterator's state the position in it."""

    def __iter__(self):
        self.passes += 1
        return InPass(self)

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"] - 1


class InPass:
    def __init__(self, sampler):
        self.n, self.passes, self.at = sampler.n, sampler.passes, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return (self.at - 1 + self.passes) % self.n

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
