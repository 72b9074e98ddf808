"""torch's worker info and initial seed, by which libraries draw different numbers in each worker."""

import subprocess
import sys

import numpy as np
import pytest

import slipring
from tests.support.datasets import Made
from tests.support.kinds import KINDS
from tests.support.options import grouped
from tests.support.parts import slow

torch = pytest.importorskip("torch")


class Reseeding:
    """An augmentation with a generator of its own, seeded as Albumentations' Compose seeds its own.

    In a worker it seeds the generator again when torch's initial seed changes.
    """

    def __init__(self):
        self.generator, self.seeded_by = np.random.default_rng(137), None

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None and self.seeded_by != torch.initial_seed():
            self.seeded_by = torch.initial_seed()
            self.generator = np.random.default_rng(137 + self.seeded_by % (1 << 32))
        return self.generator.integers(1 << 62)


def drawn(dataset, num_workers, start_method="fork", epochs=2, **options):
    with slipring.Loader(
        dataset, 4, **grouped(num_workers=num_workers, start_method=start_method, **options)
    ) as loader:
        return [number for _ in range(epochs) for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize("rng", ["batch", "worker"])
def test_an_augmentation_with_a_generator_of_its_own_draws_other_numbers_in_each_worker(rng):
    numbers = drawn(Reseeding(), 3, rng=rng)
    assert len(set(numbers)) == len(numbers) == 128


@pytest.mark.parametrize(
    ("kind", "rng"), [(KINDS["one fork"], "batch"), (KINDS["three forks"], "sample")], ids=["1 fork", "3 forks"]
)
def test_an_augmentation_that_follows_the_seed_draws_the_same_for_any_number_of_workers(kind, rng):
    expected = drawn(Reseeding(), 2, rng=rng, seed=5)
    assert drawn(Reseeding(), rng=rng, seed=5, **kind) == expected


def told():
    """Return torch's and slipring's info about the calling worker."""
    theirs, ours = torch.utils.data.get_worker_info(), slipring.get_worker_info()
    if theirs is None:
        return None
    assert (theirs.id, theirs.num_workers, theirs.seed) == (ours.id, ours.num_workers, ours.seed)
    assert theirs.dataset is ours.dataset
    return theirs.id, theirs.num_workers


def say(i):
    return str(told())


class Telling:
    def __iter__(self):
        yield str(told())


def compare_seeds(number):
    assert torch.utils.data.get_worker_info().seed == torch.initial_seed()


@pytest.mark.parametrize("kind", [KINDS["three forks"], slow(KINDS["one spawn"])], ids=["3 forks", "spawn"])
def test_torchs_worker_info_in_a_process_equals_sliprings(kind):
    options = grouped(**kind, worker_init_fn=compare_seeds)
    every = [str((number, kind["num_workers"])) for number in range(kind["num_workers"])]
    with slipring.Loader(Made(say, 8), 2, **options) as loader:
        said = {text for batch in loader for text in batch}
    assert said <= set(every) and said
    with slipring.Loader(Telling(), batch_size=None, **options) as loader:
        assert sorted(loader) == every


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "start_method": "thread"}])
def test_in_the_programs_own_process_torch_reports_no_worker_and_keeps_its_seed(options):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with slipring.Loader(Made(say, 8), 2, **grouped(**options)) as loader:
        assert {text for batch in loader for text in batch} == {"None"}
    assert torch.initial_seed() == 3 and torch.equal(torch.get_rng_state(), before)


LATE = """
import sys
import slipring

class Late:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 1:
            import torch
        theirs = sys.modules.get("torch")
        if theirs is None:
            return -2
        info = theirs.utils.data.get_worker_info()
        return -1 if info is None else info.id

with slipring.Loader(Late(), 1, num_workers=1, workers=slipring.Workers(start_method="fork")) as loader:
    print([batch.tolist() for batch in loader], "torch" in sys.modules)
"""


def test_a_worker_that_imports_torch_later_is_known_to_it_from_the_next_batch_on():
    run = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] == "[[-2], [-1], [0], [0]] False"
