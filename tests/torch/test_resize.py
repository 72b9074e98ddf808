"""slipring.torch: resize(n) and num_workers="auto"."""

import random

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.support import datasets  # noqa: E402
from tests.support.inside import engines_of  # noqa: E402
from tests.support.parts import slow  # noqa: E402
from tests.support.resizing import plain, resized  # noqa: E402
from tests.support.torch_datasets import Made  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict"),
]


def drawn(i):
    """Return a sample with random numbers."""
    return i, torch.rand(2), random.random()


class Numbered(datasets.Numbered, torch.utils.data.IterableDataset):
    """The stream as an IterableDataset."""


@pytest.mark.parametrize(
    ("method", "more"), [("fork", {}), ("fork", {"preload": 2, "persistent_workers": True}), slow("spawn", {})], ids=str
)
def test_every_byte_is_that_of_a_fixed_number(method, more):
    def made(number, how):
        given = {"rng": "batch", "multiprocessing_context": how}
        return DataLoader(
            Made(drawn, 400), 5, shuffle=True, num_workers=number, generator=seeded(), **grouped(**given, **more)
        )

    def seeded():
        return torch.Generator().manual_seed(5)

    torch.manual_seed(3)
    with made(2, "fork") as loader:
        want = [[plain(batch) for batch in loader] for _ in range(2)]
    torch.manual_seed(3)
    with made(1, method) as loader:
        assert [resized(loader, {4: 3, 30: 1, 50: 4}) for _ in range(2)] == want
        assert loader.num_workers == 4


def test_with_torchs_seeds_it_changes_with_the_next_epoch():
    with DataLoader(Made(drawn, 80), 4, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        loader.resize(3)
        assert engines_of(loader).engine.pool.target == 2
        assert sum(1 for _ in batches) == 19
        assert sum(1 for _ in loader) == 20


def test_a_stream_continues_with_the_number_that_its_state_has():
    def made():
        return DataLoader(Numbered(), 2, num_workers=(1, 8))

    with made() as loader:
        loader.resize(3)
        batches = iter(loader)
        got = [plain(next(batches)) for _ in range(7)]
        state = loader.state_dict()
    with made() as loader:
        loader.load_state_dict(state)
        got += [plain(batch) for batch in loader]
    assert {n for batch in got for n in batch[1]} == {3}
    assert sorted(i for batch in got for i in batch[0]) == list(range(60))


def test_a_map_datasets_state_sets_no_number_of_workers():
    with DataLoader(Made(drawn, 80), 4, num_workers=6, rng="batch") as loader:
        batches = iter(loader)
        got = [plain(next(batches)) for _ in range(7)]
        state = loader.state_dict()
    assert state["num_workers"] == 6
    with DataLoader(Made(drawn, 80), 4, num_workers=(None, 2)) as loader:
        assert loader.rng == "batch"  # no value depends on the number of workers
        loader.load_state_dict(state)
        batches = iter(loader)
        assert loader.num_workers == engines_of(loader).engine.pool.target <= 2 and loader.tuning.workers <= 2
        got += [plain(batch) for batch in batches]
        assert loader.tuning.workers <= 2
    assert [i for batch in got for i in batch[0]] == list(range(80))
