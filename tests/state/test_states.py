"""slipring.torch's state beyond torchdata's own tests, and states that torchdata has saved."""

import json
import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, get_worker_info  # noqa: E402

from tests.support.stateful import Backwards  # noqa: E402
from tests.support.torch_datasets import Counting, Made, PlainRange  # noqa: E402

LOADERS = [0, 1, 2]


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


def initial_seed(i):
    return torch.tensor([torch.initial_seed(), get_worker_info().seed])


def test_the_initial_seed_in_a_worker_is_that_of_the_worker(make):
    for batch in make(Made(initial_seed), num_workers=2, rng="worker"):
        said, documented = batch[0].tolist()
        assert said == documented


def test_with_rng_batch_the_initial_seed_is_that_of_the_batch_for_any_number_of_workers(make):
    def seeds(num_workers):
        torch.manual_seed(1)
        return [batch[:, 0].tolist() for batch in make(Made(initial_seed), num_workers=num_workers, rng="batch")]

    found = seeds(1)
    assert found == seeds(2) and len({seed for batch in found for seed in batch}) == len(found)


def test_out_of_order_a_resume_brings_exactly_the_undelivered_batches(make):
    options = {"batch_size": 4, "num_workers": 2, "in_order": False}
    for taken in range(1, 12, 2):
        loader = make(Drawn(), **options)
        iterator = iter(loader)
        got = [next(iterator)[0].tolist() for _ in range(taken)]
        resumed = make(Drawn(), **options)
        resumed.load_state_dict(loader.state_dict())
        got += [batch[0].tolist() for batch in resumed]
        assert sorted(got) == [list(range(i, i + 4)) for i in range(0, 48, 4)]


@pytest.mark.parametrize("num_workers", LOADERS)
def test_a_state_before_the_first_batch_is_the_whole_epoch(make, num_workers):
    options = {"batch_size": 4, "shuffle": True, "num_workers": num_workers}
    loader = make(Drawn(), **options)
    state = loader.state_dict()
    want = [batch[0].tolist() for batch in loader]
    torch.manual_seed(99)
    resumed = make(Drawn(), **options)
    resumed.load_state_dict(state)
    assert [batch[0].tolist() for batch in resumed] == want


@pytest.mark.parametrize("num_workers", LOADERS)
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_generator_goes_on_into_the_epochs_after_a_resume(make, num_workers, persistent_workers):
    def seeded(seed):
        generator = torch.Generator()
        generator.manual_seed(seed)
        keep = persistent_workers and num_workers > 0
        return make(
            Drawn(),
            batch_size=4,
            shuffle=True,
            num_workers=num_workers,
            generator=generator,
            persistent_workers=keep,
        )

    def indices(loader):
        return [batch[0].tolist() for batch in loader]

    first = seeded(5)
    epochs = [indices(first) for _ in range(3)]
    second = seeded(5)
    indices(second)
    iterator = iter(second)
    begun = [next(iterator)[0].tolist() for _ in range(4)]
    in_the_middle = second.state_dict()
    assert begun + indices(iterator) == epochs[1]
    at_the_end = second.state_dict()
    third = seeded(1)
    third.load_state_dict(in_the_middle)
    assert begun + indices(third) == epochs[1]
    assert indices(third) == epochs[2]
    fourth = seeded(2)
    fourth.load_state_dict(at_the_end)
    assert indices(fourth) == epochs[2]


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


@pytest.mark.parametrize("dataset", [Counting, PlainRange])
@pytest.mark.parametrize("num_workers", LOADERS)
@pytest.mark.parametrize("taken", [1, 2, 5, 8])
def test_a_stream_goes_on_where_each_worker_was(make, dataset, num_workers, taken):
    loader = make(dataset(), batch_size=3, num_workers=num_workers)
    want = lists(loader)
    assert lists(loader) == want
    taken = min(taken, len(want) - 1)
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(taken)]
    state = loader.state_dict()
    resumed = make(dataset(), batch_size=3, num_workers=num_workers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed.load_state_dict(state)
    assert bool(caught) == (dataset is PlainRange)
    assert resumed.state_dict() == state
    assert got + lists(resumed) == want
    assert lists(resumed) == want  # the next epoch is complete


def test_a_stream_cannot_go_on_with_other_workers(make):
    loader = make(PlainRange(), batch_size=3, num_workers=2)
    next(iter(loader))
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(AssertionError, match="num_workers=2, the loader has num_workers=1"):
        make(PlainRange(), batch_size=3, num_workers=1).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("num_workers", LOADERS)
@pytest.mark.parametrize("batch_size", [4, None])
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


@pytest.mark.parametrize("num_workers", LOADERS)
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_after_a_break_the_state_is_that_of_the_loop(make, num_workers, persistent_workers):
    keep = persistent_workers and num_workers > 0
    options = {"batch_size": 4, "shuffle": True, "num_workers": num_workers, "persistent_workers": keep}
    loader = make(range(40), **options)
    got = []
    for batch in loader:
        got.append(batch.tolist())
        if len(got) == 3:
            break
    del batch
    state = loader.state_dict()
    assert state["delivered"] == 3 and not state["finished"]
    resumed = make(range(40), **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert sorted(i for batch in got + lists(resumed) for i in batch) == list(range(40))
    assert len(lists(loader)) == 10  # the loader itself starts from the beginning
    assert loader.state_dict()["finished"]


class FailsAt(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        if i == 9:
            raise LookupError(i)
        return i


@pytest.mark.parametrize("num_workers", LOADERS)
def test_a_resume_goes_on_behind_a_batch_that_failed(make, num_workers):
    loader = make(FailsAt(), batch_size=4, num_workers=num_workers)
    iterator = iter(loader)
    assert lists([next(iterator), next(iterator)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(LookupError):
        next(iterator)
    state = loader.state_dict()
    assert state["delivered"] == 3
    assert lists(iterator) == [[12, 13, 14, 15], [16, 17, 18, 19]]
    resumed = make(FailsAt(), batch_size=4, num_workers=num_workers)
    resumed.load_state_dict(state)
    assert lists(resumed) == [[12, 13, 14, 15], [16, 17, 18, 19]]


NO_STATE = ValueError, "no state of a slipring loader"
NO_DICT = TypeError, r"a state must be a dict, as state_dict\(\) returns it, not"


@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        ({"a": 1}, NO_STATE),
        ({"slipring": 99, "kind": "map"}, NO_STATE),
        *((state, NO_DICT) for state in (3, "x", b"x", [1])),
    ],
)
def test_an_object_that_is_no_state_is_refused(make, state, refusal):
    kind, text = refusal
    with pytest.raises(kind, match=text):
        make(range(4)).load_state_dict(state)


def test_a_state_of_the_other_kind_of_dataset_is_refused(make):
    with pytest.raises(ValueError, match="of kind 'map', the loader's dataset is of kind 'iterable'"):
        make(PlainRange()).load_state_dict(make(range(4)).state_dict())


def test_no_state_begins_anew(make):
    loader = make(range(6), num_workers=1)
    next(iter(loader))
    loader.load_state_dict({})
    assert lists(loader) == [[i] for i in range(6)]


# ---- torchdata's states


def theirs(kind, num_workers, **more):
    """Return the relevant parts of a state that torchdata 0.11 makes after 3 batches."""
    main = {"_num_workers": num_workers, "_base_seed": 5, "_index_sampler_state": None, **more}
    if num_workers == 0:
        return {
            **main,
            "_num_yielded": 3,
            "dataset_state": None,
            "fetcher_state": None,
            "_iterator_finished": False,
        }
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
