"""Odd samplers, as clients have them."""

import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402


class BeginsAnew:
    """Its own iterator, which iter() begins anew: Lightning's ``_IndexBatchSamplerWrapper`` is one."""

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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [BeginsAnew, Stateful])
def test_a_sampler_that_is_its_own_iterator_is_begun_once_per_epoch(kind, num_workers):
    for arguments, got in (
        ({"batch_sampler": kind(LISTS)}, LISTS),
        ({"sampler": kind([5, 6]), "batch_size": None}, [5, 6]),
    ):
        with DataLoader(range(9), num_workers=num_workers, **arguments) as loader:
            for _ in range(2):
                assert [torch.as_tensor(batch).tolist() for batch in loader] == got


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
