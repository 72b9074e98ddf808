"""Unusual samplers, as clients have them."""

import pickle

import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.support.inside import pickled  # noqa: E402
from tests.support.stateful import Reads  # noqa: E402


class BeginsAnew:
    """Its own iterator, which iter() restarts: Lightning's ``_IndexBatchSamplerWrapper`` is one."""

    def __init__(self, values):
        self.values = values
        self.at = 0

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1]

    def __len__(self):
        return len(self.values)


class Stateful(BeginsAnew):
    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


LISTS = [[3, 1], [4, 0], [2]]


@pytest.mark.parametrize(("kind", "num_workers"), [(BeginsAnew, 2), (Stateful, 0)])
def test_a_sampler_that_is_its_own_iterator_is_begun_once_per_epoch(kind, num_workers):
    for arguments, got in (
        ({"batch_sampler": kind(LISTS)}, LISTS),
        ({"sampler": kind([5, 6]), "batch_size": None}, [5, 6]),
    ):
        with DataLoader(range(9), num_workers=num_workers, **arguments) as loader:
            for _ in range(2):
                assert [torch.as_tensor(batch).tolist() for batch in loader] == got


def test_a_part_of_a_permutation_is_sent_without_the_rest_of_it():
    permutation = torch.randperm(100_000)
    for part in (permutation[:4], list(permutation[:4]), permutation[:4].double().expand(3, 4)[0]):
        assert len(pickled(part)) < 3000
        assert [int(index) for index in pickle.loads(pickled(part))] == permutation[:4].tolist()


class Asked:
    """Its samples are the types of the requested indices."""

    def __getitems__(self, indices):
        return [type(indices).__name__ for _ in indices]

    def fetch_into(self, indices, empty):
        assert type(indices) is list
        return [type(index).__name__ for index in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_were_drawn_ahead_are_resumed_as_the_sampler_gave_them(num_workers):
    def loader():
        sampler = Stateful(torch.arange(12).split(3))
        return DataLoader(Asked(), batch_sampler=sampler, num_workers=num_workers, collate_fn=list)

    with loader() as first:
        iterator = iter(first)
        next(iterator)
        state = pickle.loads(pickle.dumps(first.state_dict()))
        del iterator
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == [["Tensor"] * 3] * 3


def test_fetch_into_gets_a_list_of_indices():
    batches = [torch.tensor([3, 1]), (2, 4)]
    with DataLoader(Asked(), batch_sampler=batches, num_workers=1) as loader:
        assert list(loader) == [["Tensor"] * 2, ["int"] * 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_that_cannot_begin_is_asked_once(num_workers):
    class NoManifest:
        begun = 0

        def __iter__(self):
            self.begun += 1
            raise LookupError("the manifest is missing")

    sampler = NoManifest()
    with DataLoader(range(6), 2, sampler=sampler, num_workers=num_workers) as loader:
        iterator = iter(loader)
        with pytest.raises(LookupError, match="the manifest is missing"):
            next(iterator)
        assert list(iterator) == []
        assert sampler.begun == 1
        assert loader.state_dict()["finished"]
        with pytest.raises(LookupError, match="the manifest is missing"):
            next(iter(loader))


def test_a_batch_that_is_no_list_is_refused_after_the_batches_before_it():
    batches = [[0, 1], [2, 3], torch.tensor(3)]
    with DataLoader(Reads(6), collate_fn=list, batch_sampler=batches, num_workers=1) as loader:
        iterator = iter(loader)
        assert [[i for i, _ in next(iterator)] for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(TypeError):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
