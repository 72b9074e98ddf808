"""Random numbers: the same for any worker, and the caller's own generators stay unchanged."""

import random
import subprocess
import sys

import numpy as np
import pytest

import slipring
from slipring import Loader
from tests.support.datasets import Random, RandomStream, Squares, seed_random
from tests.support.inside import seeding
from tests.support.kinds import KINDS, kinds, loading
from tests.support.options import grouped


def draws(dataset=None, batch_size=4, epochs=2, **kwargs):
    """Return the batches of each epoch as nested lists."""
    dataset = Random() if dataset is None else dataset
    with Loader(dataset, batch_size, **grouped(**{"seed": 11, **kwargs})) as loader:
        return [[[part.tolist() for part in batch] for batch in loader] for _ in range(epochs)]


def only_rng(epochs):
    """Return the batches without the numbers of the global generators."""
    return [[batch[:2] for batch in epoch] for epoch in epochs]


@kinds("one fork", "three forks", "spawn")
def test_random_numbers_do_not_depend_on_the_workers(kind):
    expected = draws(shuffle=True)
    assert draws(shuffle=True, **kind) == expected
    drawn = [tuple(x) for epoch in expected for batch in epoch for x in batch[2]]
    assert len(set(drawn)) == len(drawn), "no number comes twice"


def test_thread_workers_draw_the_same_through_slipring_rng():
    expected = only_rng(draws())
    assert draws(Random(use_globals=False), num_workers=3, start_method="thread") == expected
    assert draws(Random(use_globals=False), num_workers=0) == expected


def test_neither_order_nor_persistence_nor_look_ahead_matter():
    expected = draws()
    for kwargs in (
        {"in_order": False, "num_workers": 1},
        {"persistent_workers": False},
        {"prefetch_factor": 7},
        {"slots": 3},
    ):
        assert draws(**{"num_workers": 2, **kwargs}) == expected, kwargs


def test_epochs_differ_and_seeds_differ():
    first, second = draws()
    assert first != second
    assert draws(seed=12)[0] != first
    assert draws(seed=None) != draws(seed=None)
    assert draws(seed=-1) == draws(seed=-1) != draws(seed=2**63)


def test_an_abandoned_epoch_counts():
    expected = draws(epochs=3)[2]
    with Loader(Random(), 4, seed=11, num_workers=2) as loader:
        for _ in range(2):
            for _ in loader:
                break
        assert [[part.tolist() for part in batch] for batch in loader] == expected


def drawn_by_collate(samples):
    assert slipring.rng() is slipring.rng() and isinstance(slipring.rng(), np.random.Generator)
    return np.array([slipring.rng().random(), random.random(), np.random.random()])


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_collate_fn_draws_the_same_too(chunk_size):
    def batches(num_workers):
        kwargs = {"chunk_size": chunk_size, "collate_fn": drawn_by_collate, "seed": 1, "num_workers": num_workers}
        with Loader(Squares(20), 5, **grouped(**kwargs)) as loader:
            return [batch.tolist() for batch in loader]

    assert batches(0) == batches(2)
    assert len({tuple(b) for b in batches(0)}) == 4


def states():
    torch = sys.modules.get("torch")
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, keys.tolist(), rest, torch and torch.get_rng_state().tolist()


@pytest.mark.parametrize(
    ("dataset", "rng", "kind"),
    [
        (Random(), "batch", "inline"),
        (Random(), "worker", "inline"),
        (RandomStream(), "batch", "inline"),
        (Random(use_globals=False), "worker", "thread"),
    ],
)
def test_the_callers_generators_stay_as_they_were(dataset, rng, kind):
    pytest.importorskip("torch")
    before = states()
    with loading(dataset, 3, rng=rng, seed=1, **KINDS[kind]) as loader:
        for _ in loader:
            assert states() == before
        for _ in loader:
            break
    assert states() == before


def test_a_failing_dataset_leaves_the_callers_generators_as_they_were():
    def fail(samples):
        random.random()
        raise ValueError

    before = states()
    with Loader(Random(), 3, collate_fn=fail) as loader, pytest.raises(ValueError):
        next(iter(loader))
    assert states() == before


def test_with_rng_worker_generators_are_seeded_once_per_worker_and_epoch():
    first, second = draws(Random(16), rng="worker", num_workers=2)
    assert first != second
    assert [first, second] == draws(Random(16), rng="worker", num_workers=2, persistent_workers=False)
    assert first[0] != first[1], "workers differ"
    # Each worker continues to draw: worker 0 made batches 0 and 2.
    alone = draws(Random(8), rng="worker", num_workers=1)[0]
    assert [batch[2] for batch in alone] == [batch[2] for batch in first[::2]]
    assert draws(Random(8), rng="worker", num_workers=0)[0] == alone


def test_streams_draw_on_per_worker_and_epoch():
    first, second = draws(RandomStream(), num_workers=2)
    assert first != second and [first, second] == draws(RandomStream(), num_workers=2)
    assert [first, second] == draws(RandomStream(), num_workers=2, persistent_workers=False)
    assert draws(RandomStream(), num_workers=0) == draws(RandomStream(), num_workers=1)
    values = [value for batch in first for value in batch[0]]
    assert len(set(values)) == len(values) == 40


@pytest.mark.parametrize("rng", ["batch", "sample"])
def test_the_loader_seeds_again_generators_that_worker_init_fn_has_seeded(rng):
    kwargs = {"num_workers": 2, "start_method": "fork", "rng": rng}
    assert draws(Random(24), worker_init_fn=seed_random, **kwargs) == draws(Random(24), **kwargs)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_with_rng_worker_generators_stay_as_worker_init_fn_has_seeded_them(start_method):
    kwargs = {"num_workers": 2, "start_method": start_method, "rng": "worker"}
    expected = [random.Random(1000 + worker) for worker in range(2)]
    for batches in draws(Random(24), worker_init_fn=seed_random, persistent_workers=True, **kwargs):
        for k, batch in enumerate(batches):
            assert [x[0] for x in batch[2]] == [expected[k % 2].random() for _ in range(4)]


def test_outside_of_a_worker_there_is_no_generator_of_a_batch():
    with pytest.raises(RuntimeError, match="generator of the batch being made"):
        slipring.rng()
    with Loader(Random(), 4) as loader:
        next(iter(loader))
    with pytest.raises(RuntimeError, match=r"default_rng"):
        slipring.rng()


PROGRAM = """
import sys
import slipring
from tests.support.datasets import Random
with slipring.Loader(Random(), 4, num_workers=1, workers=slipring.Workers(start_method="fork")) as loader:
    batches = iter(loader)
    assert "numpy.random" in sys.modules
    assert len(list(batches)) == 10
heavy = {"torch", "pyarrow", "pandas", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_loader_imports_nothing_when_a_worker_draws_and_never_imports_torch():
    """numpy imports its random module lazily; a worker that is forked during the import would wait forever."""
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], check=True)


def test_a_seed_is_the_same_on_every_machine():
    assert seeding.batch_seed(1, 2, 3, 4, 5) == 12850494180072361784
