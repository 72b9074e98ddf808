"""Random numbers of all generators: bit by bit those of torch's DataLoader."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from tests.support.torch_datasets import (  # noqa: E402
    Augmented,
    AugmentedStream,
    Informed,
    Values,
    assert_as_torch,
    assert_same,
    batches,
    drawing_collate,
    seed_by_worker,
)

SETTINGS = [(0, False), (2, False), (2, True)]
MAP = {"batch_size": 5, "shuffle": True}


def workers(setting):
    return {"num_workers": setting[0], "persistent_workers": setting[1]}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_generator_draws_the_same_in_samples_and_in_a_collate_fn(make, setting):
    for collate_fn in (None, drawing_collate):
        assert_as_torch(make, Augmented(), **MAP, epochs=2, collate_fn=collate_fn, **workers(setting))


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_generator_draws_the_same_in_a_stream(make, setting):
    assert_as_torch(make, AugmentedStream(), batch_size=4, epochs=2, **workers(setting))


@pytest.mark.parametrize("setting", SETTINGS[2:])
def test_a_worker_init_fn_may_seed(make, setting):
    assert_as_torch(make, Augmented(), **MAP, epochs=2, worker_init_fn=seed_by_worker, **workers(setting))


def test_a_spawned_worker_draws_the_same(make):
    ours = batches(make, Augmented(), **MAP, num_workers=1, multiprocessing_context="spawn")
    assert_same(ours, batches(data.DataLoader, Augmented(), **MAP, num_workers=1))


@pytest.mark.parametrize("setting", SETTINGS)
def test_workers_know_the_same_about_themselves(make, setting):
    assert_as_torch(make, Informed(), epochs=2, batch_size=2, **workers(setting))


@pytest.mark.parametrize("setting", SETTINGS[:2])
@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_the_consumers_generators_are_left_as_torch_leaves_them(make, setting, own):
    def ends(cls):
        options = {"generator": torch.Generator().manual_seed(5)} if own else {}
        seen = batches(cls, Values(list(range(9))), **MAP, **options, epochs=2, **workers(setting))
        left = [torch.rand(2), random.random(), np.random.rand(2)]
        return seen, left, [options["generator"].get_state()] if own else []

    assert_same(ends(make), ends(data.DataLoader))


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_consumer_may_draw_between_batches(make, setting):
    def drawn(cls):
        torch.manual_seed(3)
        loader = cls(Values(list(range(20))), batch_size=2, shuffle=True, **workers(setting))
        return [(batch, torch.rand(1)) for _ in range(2) for batch in loader]

    assert_same(drawn(make), drawn(data.DataLoader))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_broken_off_epoch_leaves_the_generator_as_torch_does(make, setting):
    def drawn(cls):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        loader = cls(Augmented(), **MAP, **workers(setting))
        firsts = [next(iter(loader)) for _ in range(3)]
        return firsts, torch.rand(1), list(loader)

    assert_same(drawn(make), drawn(data.DataLoader))
