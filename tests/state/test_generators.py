"""The order of a state: the generator that draws it, and its difference from other orders."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402


def nested(generator):
    return {"batch_sampler": data.BatchSampler(data.RandomSampler(range(10), generator=generator), 3, False)}


def bulk(generator):
    return {
        "sampler": data.BatchSampler(data.RandomSampler(range(10), generator=generator), 3, False),
        "batch_size": None,
    }


def beside_the_loaders(generator):
    sampler = data.RandomSampler(range(10), generator=generator)
    return {"sampler": sampler, "batch_size": 3, "generator": torch.Generator().manual_seed(8)}


def global_one_beside_the_loaders(generator):
    return {"sampler": data.RandomSampler(range(10)), "batch_size": 3, "generator": generator}


class Tens:
    """Samples, each with a random number if a worker reads it."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return i, 0 if data.get_worker_info() is None else torch.randint(1 << 30, ()).item()

    def __getitems__(self, indices):
        return [self[i] for i in indices]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("way", [nested, bulk, beside_the_loaders, global_one_beside_the_loaders])
def test_an_order_continues_from_the_generator_that_it_was_drawn_from(way, options):
    def loader():
        torch.manual_seed(1)
        return DataLoader(Tens(), collate_fn=list, rng="batch", **way(torch.Generator().manual_seed(5)), **options)

    for epochs, batches in ((0, 2), (1, 1), (1, 0)):
        with loader() as first:
            for _ in range(epochs):
                list(first)
            it = iter(first) if batches else None
            for _ in range(batches):
                next(it)
            state = first.state_dict()
            kept = torch.get_rng_state()
            want = [list(it)] if batches else []
            want += [list(first)]
        with loader() as second:
            second.load_state_dict(state)
            torch.set_rng_state(kept)
            got = [list(second) for _ in want]
        assert got == want, (epochs, batches)


def begun(**options):
    loader = DataLoader(range(10), collate_fn=list, **options)
    batches = iter(loader)
    next(batches)
    return loader.state_dict()


def shuffled(**options):
    return data.RandomSampler(range(10), generator=torch.Generator().manual_seed(2), **options)


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (lambda: {"sampler": shuffled()}, dict, "RandomSampler of 10, 10 samples, .*order=SequentialSampler"),
        (lambda: {"sampler": shuffled()}, lambda: {"sampler": shuffled(replacement=True)}, "samples, with replacement"),
    ],
)
def test_a_state_that_counts_batches_of_another_order_is_refused(then, now, said):
    state = begun(**then())
    other = DataLoader(range(10), collate_fn=list, **now())
    with pytest.raises(ValueError, match=said):
        other.load_state_dict(state)
    same = DataLoader(range(10), collate_fn=list, **then())
    same.load_state_dict(state)
    assert len(list(same)) == len(same) - 1
