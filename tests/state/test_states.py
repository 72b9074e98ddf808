"""The states of slipring.torch's loaders: their orders, and loaders or datasets that have changed."""

import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, Sampler  # noqa: E402

from tests.support.samplers import Passes  # noqa: E402
from tests.support.stateful import Backwards  # noqa: E402
from tests.support.torch_datasets import Counting, PlainRange, as_lists  # noqa: E402


class Drawn(Dataset):
    """Numbers, and what each generator draws for them."""

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return i, random.random(), np.random.rand(), torch.rand(1)


def flat(batches):
    return [[x.flatten().tolist() for x in batch] for batch in batches]


def test_with_rng_batch_neither_workers_nor_a_resume_change_a_bit(make):
    options = {"batch_size": 4, "shuffle": True, "rng": "batch"}
    want = None
    for num_workers in (0, 2):
        torch.manual_seed(7)
        loader = make(Drawn(), num_workers=num_workers, **options)
        got = flat(loader)
        want = want or got
        assert got == want
        torch.manual_seed(7)
        iterator = iter(loader)
        assert flat([next(iterator) for _ in range(5)]) == want[:5]
        state = loader.state_dict()
        del iterator
        for others in (0, 2):
            resumed = make(Drawn(), num_workers=others, **options)
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert flat(resumed) == want[5:]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("put_back", ["before iter", "after iter"])
def test_a_program_that_puts_the_global_generator_back_has_the_later_epochs_too(make, num_workers, put_back):
    def rest(iterator):
        return [batch[0].tolist() for batch in iterator], torch.get_rng_state().tolist()

    options = {"batch_size": 4, "shuffle": True, "num_workers": num_workers}
    first, resumed = make(Drawn(), **options), make(Drawn(), **options)
    iterator = iter(first)
    next(iterator)
    state, generator = first.state_dict(), torch.get_rng_state()
    whole = rest(iterator), rest(first)
    torch.manual_seed(99)
    resumed.load_state_dict(state)
    if put_back == "before iter":
        torch.set_rng_state(generator)
    iterator = iter(resumed)
    if put_back == "after iter":
        torch.set_rng_state(generator)
    assert (rest(iterator), rest(resumed)) == whole


@pytest.mark.parametrize(("num_workers", "batch_size"), [(0, None), (1, 4), (2, None)])
def test_a_sampler_that_is_read_ahead_continues_after_the_delivered_batches(make, num_workers, batch_size):
    def build():
        return make(range(30), batch_size=batch_size, sampler=Backwards(30), num_workers=num_workers)

    loader = build()
    iterator = iter(loader)
    got = np.concatenate([np.atleast_1d(next(iterator)) for _ in range(3)]).tolist()
    state = loader.state_dict()
    ahead = [i for indices in state["drawn"] for i in indices]
    assert state["sampler"] == ({"at": len(got) + len(ahead)},)
    resumed = build()
    resumed.load_state_dict(state)
    got += np.concatenate([np.atleast_1d(batch) for batch in resumed]).tolist()
    assert got == list(range(29, -1, -1))


@pytest.mark.parametrize("options", [{"shuffle": True}, {}])
def test_a_resume_before_the_first_batch_draws_as_the_epoch_did(make, options):
    torch.manual_seed(1)
    first, second = make(Drawn(), **options), make(Drawn(), **options)
    iterator = iter(first)
    state = first.state_dict()
    want, after = [batch[-1].tolist() for batch in iterator], torch.rand(())
    second.load_state_dict(state)
    torch.manual_seed(2)
    assert [batch[-1].tolist() for batch in second] == want
    assert torch.rand(()) == after


def test_a_state_from_before_the_first_epoch_takes_the_same_loader_back_there(make):
    loader = make(range(11), batch_size=4, sampler=Passes(11), num_workers=2)
    state = loader.state_dict()
    epochs = [as_lists(loader) for _ in range(2)]
    loader.load_state_dict(state)
    assert [as_lists(loader) for _ in range(2)] == epochs


class DrawsAtOnce(Sampler):
    """Draws its order from torch's global generator in iter()."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter(torch.randperm(self.n).tolist())


class BatchesAtOnce(DrawsAtOnce):
    def __iter__(self):
        return iter(torch.randperm(self.n).reshape(-1, 2).tolist())


@pytest.mark.parametrize(("num_workers", "taken"), [(0, 0), (2, 3)])
@pytest.mark.parametrize("how", ["sampler", "batched", "batch_sampler"])
def test_an_order_that_iter_draws_continues(make, how, num_workers, taken):
    options = {
        "sampler": {"batch_size": None, "sampler": DrawsAtOnce(10)},
        "batched": {"batch_size": 2, "sampler": DrawsAtOnce(10)},
        "batch_sampler": {"batch_sampler": BatchesAtOnce(10)},
    }[how]
    torch.manual_seed(1)
    loader = make(range(10), num_workers=num_workers, **options)
    iterator = iter(loader)
    as_lists(next(iterator) for _ in range(taken))
    state = loader.state_dict()
    rest = as_lists(iterator)
    torch.manual_seed(2)
    resumed = make(range(10), num_workers=num_workers, **options)
    resumed.load_state_dict(state)
    assert as_lists(resumed) == rest


def test_an_older_iterator_that_is_dropped_last_leaves_no_state(make):
    loader = make(range(8), batch_size=2)
    older, newer = iter(loader), iter(loader)
    as_lists(next(older) for _ in range(3))
    next(newer)
    del newer
    del older
    assert loader.state_dict()["delivered"] == 1


# ---- loaders and datasets that have changed


def numbers(loader):
    return torch.cat([torch.as_tensor(batch).reshape(-1) for batch in loader]).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_with_another_batch_size_is_refused_where_batches_are_counted(make, num_workers):
    first = make(range(20), batch_size=2, num_workers=num_workers)
    iterator = iter(first)
    other = [make(range(20), batch_size=size, shuffle=False, num_workers=num_workers) for size in (4, None, 2)]
    begun = first.state_dict()
    next(iterator)
    state = first.state_dict()
    list(iterator)
    for loader in other[:2]:
        with pytest.raises(ValueError, match="the state counts batches of batch_size=2, the loader has batch"):
            loader.load_state_dict(state)
        for fits in (begun, first.state_dict()):
            loader.load_state_dict(fits)
            assert numbers(loader) == list(range(20))
    del state["batch_size"]  # as saved by an earlier release
    other[2].load_state_dict(state)
    assert numbers(other[2]) == list(range(2, 20))


@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
def test_a_stream_that_says_where_it_is_may_continue_in_batches_of_another_size(make):
    for dataset, exact in ((Counting, True), (PlainRange, False)):
        first, second = make(dataset(), batch_size=3), make(dataset(), batch_size=2)
        whole = numbers(first)
        next(iter(first))
        if exact:
            second.load_state_dict(first.state_dict())
            assert numbers(second) == whole[3:]
        else:
            with pytest.raises(ValueError, match="Use the same batch_size"):
                second.load_state_dict(first.state_dict())
