"""slipring.torch's state beyond torchdata's own tests, and states that torchdata has saved."""

import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset  # noqa: E402

from tests.support.stateful import Backwards  # noqa: E402
from tests.support.torch_datasets import Counting, PlainRange  # noqa: E402

LOADERS = [0, 2]


class Drawn(Dataset):
    """Numbers, and what each generator draws for them."""

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return i, random.random(), np.random.rand(), torch.rand(1)


def flat(batches):
    return [[x.flatten().tolist() for x in batch] for batch in batches]


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_with_rng_batch_neither_workers_nor_a_resume_change_a_bit(make):
    options = {"batch_size": 4, "shuffle": True, "rng": "batch"}
    want = None
    for num_workers in LOADERS:
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


@pytest.mark.parametrize("num_workers", LOADERS)
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


# ---- torchdata's states


def theirs(kind, num_workers, **more):
    """Return the relevant parts of a state that torchdata 0.11 makes after 3 batches."""
    main = {"_num_workers": num_workers, "_base_seed": 5, "_index_sampler_state": None, **more}
    if num_workers == 0:
        return {**main, "_num_yielded": 3, "dataset_state": None, "fetcher_state": None, "_iterator_finished": False}
    fetcher = None if kind == "map" else {"fetcher_ended": False, "dataset_iter_state": None}
    return {
        "_snapshot": {
            "_snapshot_step": 2,
            "_last_yielded_worker_id": 1,
            "_main_snapshot": main,
            "_worker_snapshots": {
                f"worker_{i}": {"worker_id": i, "dataset_state": None, "fetcher_state": fetcher}
                for i in range(num_workers)
            },
        },
        "_steps_since_snapshot": 1,
        "_iterator_finished": False,
    }


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_of_torchdatas_is_taken_over(make, num_workers):
    generator = torch.Generator()
    generator.manual_seed(3)
    order = torch.randperm(40, generator=generator).tolist()
    generator.manual_seed(3)
    inner = {"yielded": 12, "generator": generator.get_state()}
    state = theirs("map", num_workers, _sampler_iter_state={"samples_yielded": 12, "sampler_iter_state": inner})
    loader = make(range(40), batch_size=4, shuffle=True, num_workers=2)
    loader.load_state_dict(state)
    got = lists(loader)
    assert got == [order[i : i + 4] for i in range(12, 40, 4)]
    assert loader.sampler.generator is None
    loader.load_state_dict(state)
    iterator = iter(loader)
    assert next(iterator).tolist() == got[0]
    again = loader.state_dict()  # now in our format
    loader.load_state_dict(again)
    assert lists(loader) == got[1:]


@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_streams_state_of_torchdatas_is_taken_over(make, num_workers):
    loader = make(PlainRange(), batch_size=4, num_workers=num_workers)
    want = lists(loader)
    loader.load_state_dict(theirs("stream", num_workers))
    assert lists(loader) == want[3:]


def test_a_state_of_torchdatas_that_says_too_little_says_so(make):
    state = theirs("stream", 2)
    state["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"] = {"i": 3}
    with pytest.raises(ValueError, match=r"1 batches after its last snapshot.*snapshot_every_n_steps=1"):
        make(Counting(), batch_size=4, num_workers=2).load_state_dict(state)
