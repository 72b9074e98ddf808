"""States that do not fit a `slipring.Loader`, or that belong to other ranks."""

import multiprocessing
import pickle

import numpy as np
import pytest

from slipring import BatchSampler, Loader
from tests.loader.kinds_of_states import FORKED, SIZE, N, made, taken
from tests.support.datasets import flat
from tests.support.stateful import Counting
from tests.support.states import check_state, wrong_states

pytestmark = pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")


def test_loading_nothing_begins_again():
    with made("shuffled") as loader:
        whole = taken(iter(loader))
    with made("shuffled") as loader:
        batches = iter(loader)
        taken(batches, 3)
        loader.load_state_dict(loader.state_dict())
        loader.load_state_dict({})
        loader.epoch = 0
        assert taken(iter(loader)) == whole


@pytest.mark.parametrize(
    ("saved", "loaded", "error", "said"),
    [
        ({"batch_size": 4}, {"batch_size": 5}, ValueError, "counts batches of batch_size=4.*has batch_size=5"),
        ({"shuffle": True}, {}, ValueError, "order=shuffled, 50 samples.*has order=ascending"),
        ({"shuffle": True}, {"shuffle": True, "dataset": range(49)}, ValueError, "50 samples.*49 samples"),
        ({"dataset": Counting()}, {}, ValueError, "of kind 'iterable'.*of kind 'map'"),
        ({"dataset": Counting(), "num_workers": 2}, {"dataset": Counting()}, AssertionError, "num_workers=2"),
        ({}, {"dataset": range(9)}, ValueError, "5 batches.*ends after 3"),
    ],
    ids=["batch size", "no shuffle", "other length", "other kind", "other workers", "shorter"],
)
def test_a_state_that_counts_something_else_is_refused(saved, loaded, error, said):
    def loader(dataset=range(N), batch_size=4, **options):
        return Loader(dataset, batch_size, workers=FORKED, **options)

    with loader(**saved) as one:
        batches = iter(one)
        taken(batches, 5)
        state = one.state_dict()
    with loader(**loaded) as other, pytest.raises(error, match=said):
        other.load_state_dict(state)
        iter(other)


def test_an_end_of_an_epoch_fits_any_loader():
    with made("shuffled") as loader:
        epochs = [taken(iter(loader)) for _ in range(2)]
    with made("shuffled") as loader:
        taken(iter(loader))
        state = loader.state_dict()
    assert state["finished"] and state["epoch"] == 1
    with made("shuffled", batch_size=10) as loader:
        loader.load_state_dict(state)
        assert flat(taken(iter(loader))) == flat(epochs[1])


class Unsayable(Counting):
    def state_dict(self):
        if self.at > 4:
            raise RuntimeError("lost")
        return super().state_dict()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_cannot_be_said_is_raised_where_it_is_asked_for(num_workers):
    with Loader(Unsayable(), SIZE, num_workers=num_workers, workers=FORKED) as loader:
        batches = iter(loader)
        assert taken(batches, 1) and check_state(loader.state_dict())
        assert len(taken(batches)) == 5
        loader.load_state_dict({})
        batches = iter(loader)
        taken(batches, 3)
        with pytest.raises(RuntimeError, match="lost"):
            loader.state_dict()


def test_a_state_of_torchs_loader_continues_here_and_the_other_way_round():
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    def sampler():
        return BatchSampler(N, SIZE, shuffle=True, seed=1)

    whole = list(sampler())
    theirs = DataLoader(range(N), batch_sampler=sampler(), collate_fn=np.array)
    batches = iter(theirs)
    begun = [next(batches).tolist() for _ in range(4)]
    with Loader(range(N), batch_sampler=sampler()) as ours:
        ours.load_state_dict(theirs.state_dict())
        batches = iter(ours)
        begun += taken(batches, 4)
        state = ours.state_dict()
    theirs.load_state_dict(state)
    assert begun + [batch.tolist() for batch in theirs] == whole


class Exploding:
    """An object whose unpickling leaves a trace."""

    def __reduce__(self):
        return unpickled.append, (1,)


unpickled = []


@pytest.mark.parametrize("form", ["states", "generators"])
def test_a_pickle_in_a_state_is_refused_and_runs_nothing(form):
    with Loader(Counting(), 4, num_workers=1, workers=FORKED) as loader:
        batches = iter(loader)
        taken(batches, 2)
        state = loader.state_dict()
    (position,) = state["workers"]
    hostile = pickle.dumps(Exploding())
    states = hostile if form == "states" else {**position["states"], "generators": hostile}
    with Loader(Counting(), 4, num_workers=1, workers=FORKED) as loader:
        with pytest.raises(TypeError, match="states of a worker must be a dict"):
            loader.load_state_dict({**state, "workers": ({**position, "states": states},)})
        assert loader.state_dict()["workers"] == ()
    assert unpickled == []


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": range(N), "shuffle": True},
        {"dataset": range(N), "batch_size": 1, "batch_sampler": BatchSampler(N, SIZE, shuffle=True, seed=1)},
        {"dataset": Counting()},
        {"dataset": Counting(), "num_workers": (1, 3), "persistent_workers": True},
    ],
    ids=["map", "batch sampler", "iterable", "tuned"],
)
def test_a_refused_state_leaves_the_loader_as_it_was(options):
    def situation():
        processes = {process.pid for process in multiprocessing.active_children()}
        sampler = loader.options.batch_sampler
        counted = sampler and (sampler.epoch, sampler.seed)
        return loader.state_dict(), loader.options, loader.tuning, loader.epoch, loader.seed, processes, counted

    with Loader(**{"batch_size": SIZE, "workers": FORKED, "seed": 3, **options}) as loader:
        batches = iter(loader)
        taken(batches, 2)
        state = loader.state_dict()
        other_kind = {**state, "kind": "map" if state["kind"] == "iterable" else "iterable", "workers": ()}
        too_many = {**state, "num_workers": 1, "workers": [{"batches": 1, "states": None}] * 2}
        before = situation()
        no_states = [3, [], ["a"], {"a": 1}, {"slipring": 99}]
        for wrong in [*no_states, [state, state], other_kind, too_many, *wrong_states(state)]:
            with pytest.raises((TypeError, ValueError, AssertionError), match="state"):
                loader.load_state_dict(wrong)
            assert situation() == before
        assert len(taken(batches)) > 2
