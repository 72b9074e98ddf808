"""`slipring.rng` in torch's face without workers, where all other generators are the caller's."""

import random

import pytest
import torch

import slipring
from slipring import Loader, Workers
from slipring.torch import DataLoader


class Draws:
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return int(slipring.rng().integers(1 << 60)), random.random(), float(torch.rand(()))


class AsyncDraws(Draws):
    async def __getitem__(self, i):
        return super().__getitem__(i)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from map(Draws().__getitem__, range(12))


class Pipe(torch.utils.data.IterDataPipe):
    def __iter__(self):
        yield from map(Draws().__getitem__, range(12))


class Others(Draws):
    """The same numbers of the other generators."""

    def __getitem__(self, i):
        return i, random.random(), float(torch.rand(()))


def nested(samples):
    """Return the numbers that a loader draws which is iterated while a batch is made."""
    return [int(number) for batch in DataLoader(Draws(), 4) for number in batch[0]]


def direct(samples):
    return [Draws()[i][0] for i in range(12)]


def seeded(dataset, theirs=DataLoader, **options):
    """Return (numbers of slipring.rng, numbers of the caller's generators) of two epochs."""
    random.seed(1)
    torch.manual_seed(2)
    loader = theirs(dataset, 4, **options)
    batches = [batch for _ in range(2) for batch in loader]
    return [number for batch in batches for number in batch[0].tolist()], [batch[1:] for batch in batches]


@pytest.mark.parametrize(
    ("dataset", "fetch_threads"),
    [(Draws(), None), (Draws(), 2), (AsyncDraws(), None), (Stream(), None)],
    ids=["map", "threads", "async", "stream"],
)
def test_it_draws_numbers_that_follow_torchs_seed(dataset, fetch_threads):
    numbers, _ = seeded(dataset, workers=Workers(fetch_threads=fetch_threads))
    assert len(set(numbers)) == 24
    assert seeded(dataset, workers=Workers(fetch_threads=fetch_threads))[0] == numbers
    with pytest.raises(RuntimeError, match="no loader makes a batch here"):
        slipring.rng()


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        *((Draws(), {"rng": rng}) for rng in ("worker", "batch", "sample")),
        *((Stream(), {"rng": rng}) for rng in ("worker", "batch")),
        (Draws(), {"workers": Workers(fetch_threads=2)}),
        (AsyncDraws(), {}),
        (Pipe(), {}),
    ],
)
def test_a_single_worker_draws_the_same(dataset, options):
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    expected, _ = seeded(dataset, num_workers=1, generator=generators[0], **options)
    drawn, _ = seeded(dataset, generator=generators[1], **options)
    # For pipes, torch draws one seed more in the first epoch with workers, so that the second epoch differs.
    assert drawn == expected if not isinstance(dataset, Pipe) else drawn[:12] == expected[:12]


def test_the_other_generators_are_the_callers_as_in_torchs_loader():
    assert str(seeded(Draws())[1]) == str(seeded(Others(), torch.utils.data.DataLoader)[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_that_is_iterated_in_a_worker_draws_from_the_workers_generator(num_workers):
    (expected,) = Loader(range(2), 2, collate_fn=direct, seed=3)
    assert len(set(expected)) == 12
    with Loader(range(2), 2, collate_fn=nested, seed=3, num_workers=num_workers) as loader:
        assert list(loader) == [expected]


@pytest.mark.parametrize("indices", [list, set, tuple, dict.fromkeys])
def test_with_ranges_the_numbers_do_not_depend_on_whether_there_are_workers(indices):
    def epoch(num_workers):
        batches = [indices(range(first, first + 4)) for first in (0, 4, 8)]
        options = {"rng": "batch", "workers": Workers(chunk_size=3), "generator": torch.Generator().manual_seed(1)}
        return str(list(DataLoader(Draws(), batch_sampler=batches, num_workers=num_workers, **options)))

    assert epoch(0) == epoch(2)


@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_resumed_stream_draws_the_numbers_again_that_belong_to_its_position(num_workers):
    with DataLoader(Stream(), 4, num_workers=num_workers) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = [batch[0].tolist() for batch in batches]
    with DataLoader(Stream(), 4, num_workers=num_workers) as resumed:
        resumed.load_state_dict(state)
        assert [batch[0].tolist() for batch in resumed] == expected
