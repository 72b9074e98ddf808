"""States that slipring.torch's loaders refuse: everything stays as it was."""

import multiprocessing

import pytest

torch = pytest.importorskip("torch")

from slipring import BatchSampler  # noqa: E402
from slipring.adapters.torchdata import torchdata_state  # noqa: E402
from tests.support.stateful import Backwards  # noqa: E402
from tests.support.states import wrong_states  # noqa: E402
from tests.support.torch_datasets import Counting, as_lists  # noqa: E402


def shuffled():
    return {"dataset": range(40), "shuffle": True, "generator": torch.Generator().manual_seed(1)}


KINDS = {
    "shuffled": shuffled,
    "global generator": lambda: {"dataset": range(40), "shuffle": True},
    "batch sampler": lambda: {"dataset": range(40), "batch_size": 1, "batch_sampler": BatchSampler(40, 4, seed=1)},
    "stateful sampler": lambda: {"dataset": range(40), "sampler": Backwards(40)},
    "iterable": lambda: {"dataset": Counting()},
    "tuned": lambda: {"dataset": Counting(), "num_workers": (1, 3), "persistent_workers": True},
}
TORCHDATAS = [
    {"_snapshot": {"_snapshot_step": 1, "_main_snapshot": {"_num_workers": "x"}, "_worker_snapshots": {}}},
    {"_num_yielded": -5},
    {"_num_yielded": "x"},
    {"_num_yielded": 2, "_sampler_iter_state": {"yielded": 4, "generator": torch.zeros(3, dtype=torch.uint8)}},
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_state_leaves_the_loader_as_it_was(make, kind):
    def situation():
        processes = {process.pid for process in multiprocessing.active_children()}
        generator, ours = loader.generator, isinstance(loader.batch_sampler, BatchSampler)
        return (
            loader.state_dict(), loader.num_workers, loader.prefetch_factor, loader.tuning, processes,
            torch.get_rng_state().tolist(), generator and generator.get_state().tolist(),
            ours and (loader.batch_sampler.epoch, loader.batch_sampler.seed),
        )  # fmt: skip

    loader = make(**{"batch_size": 4, **KINDS[kind]()})
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    other_kind = {**state, "kind": "map" if state["kind"] == "iterable" else "iterable", "workers": ()}
    no_generator = [{**state, name: text} for name in ("rng", "rng_next") for text in ("no hex", "00ff")]
    torchdatas = [{"_iterator_finished": False, **part} for part in TORCHDATAS if kind == "shuffled" or len(part) == 1]
    before = situation()
    refused = [3, ["a"], {"a": 1}, [state, state], other_kind, *no_generator, *wrong_states(state), *torchdatas]
    for wrong in refused:
        with pytest.raises((TypeError, ValueError, AssertionError)):
            loader.load_state_dict(wrong)
        assert situation() == before
    assert len(as_lists(batches)) > 2


@pytest.mark.parametrize("num_workers", [-5, "x", True, 3.0])
def test_a_number_of_workers_that_cannot_be_is_refused(make, num_workers):
    loader = make(Counting(), batch_size=4)
    state = {**loader.state_dict(), "num_workers": num_workers}
    with pytest.raises((TypeError, ValueError), match="the state's num_workers must be"):
        loader.load_state_dict(state)


def test_a_tuned_loader_takes_the_number_of_workers_from_a_state_that_fits(make):
    one, other = make(Counting(), batch_size=4, num_workers=2), make(Counting(), batch_size=4, num_workers=(1, 3))
    batches = iter(one)
    next(batches)
    for state in (one.state_dict(), torchdata_state(one)):
        other.load_state_dict(state)
        assert other.num_workers == 2 == other.tuning.workers
    assert as_lists(other) == as_lists(batches)
