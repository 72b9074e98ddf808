"""slipring.torch.DataLoader compared with torch's: the same script, the same bytes."""

import contextlib
import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader as Theirs  # noqa: E402
from torch.utils.data import Dataset, IterableDataset, get_worker_info  # noqa: E402

from slipring.torch import DataLoader as Ours  # noqa: E402
from tests.support.parts import slow  # noqa: E402


class Drawn(Dataset):
    """Sample i is i, a number from each generator, and the worker's info."""

    def __len__(self):
        return 26

    def __getitem__(self, i):
        info = get_worker_info()
        told = -1 if info is None else (info.id, info.num_workers, info.seed, info.dataset is self)
        return i, random.random(), np.random.rand(), torch.rand(2), torch.initial_seed(), told


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, 23, step):
            yield i, random.random(), torch.rand(1)


def seed_all():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def plain(value):
    """Return a batch in a form for `==`, including types."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, dict):
        return type(value), [(k, plain(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [plain(v) for v in value]
    return type(value), value


def two_epochs(cls, dataset, seeded, **options):
    """Return all batches of two epochs, and the caller's draws afterwards."""
    seed_all()
    if seeded:
        options["generator"] = torch.Generator()
        options["generator"].manual_seed(7)
    loader = cls(dataset, **options)
    batches = [plain(batch) for _ in range(2) for batch in loader]
    after = random.random(), np.random.rand(), torch.rand(1).item()
    if seeded:
        after = (
            *after,
            options["generator"].initial_seed(),
            torch.rand(1, generator=options["generator"]).item(),
        )
    with contextlib.suppress(AttributeError):  # torch's cannot be closed
        loader.close()
    return batches, after


@pytest.fixture(autouse=True)
def many_workers_are_meant():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


OPTIONS = {
    "plain": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "the last batch dropped": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "without batching": {"batch_size": None},
    "more ahead": {"batch_size": 3, "prefetch_factor": 5},
}
WORKERS = [0, slow(1), 2, slow(3)]


@pytest.mark.parametrize("seeded", [False, True], ids=["global", "generator"])
@pytest.mark.parametrize("persistent_workers", [False, True], ids=["anew", "persistent"])
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("mode", OPTIONS)
def test_map_datasets_give_the_same_batches_and_random_numbers(mode, num_workers, persistent_workers, seeded):
    options = {**OPTIONS[mode], "num_workers": num_workers}
    if not num_workers:
        options.pop("prefetch_factor", None)
        if persistent_workers:
            return
    options["persistent_workers"] = persistent_workers
    got, want = (two_epochs(cls, Drawn(), seeded, **options) for cls in (Ours, Theirs))
    assert got == want


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("persistent_workers", [False, True], ids=["anew", "persistent"])
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}])
def test_streams_give_the_same_batches_and_random_numbers(options, num_workers, persistent_workers):
    if persistent_workers and not num_workers:
        return
    options = {**options, "num_workers": num_workers, "persistent_workers": persistent_workers}
    got, want = (two_epochs(cls, Stream(), False, **options) for cls in (Ours, Theirs))
    assert got == want


@pytest.mark.slow  # each worker imports torch
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_other_start_methods_give_the_same_batches(context):
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2, "multiprocessing_context": context}
    got, want = (two_epochs(cls, Drawn(), False, **options) for cls in (Ours, Theirs))
    assert got == want


# ---- a training loop


class Augmented(Dataset):
    """Sample i is a point with noise from every generator."""

    def __init__(self):
        generator = torch.Generator()
        generator.manual_seed(0)
        self.x = torch.randn(96, 8, generator=generator)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self):
        return 96

    def __getitem__(self, i):
        noise = 0.1 * torch.randn(8) + random.gauss(0, 0.1) + float(np.random.normal(0, 0.1))
        return self.x[i] * random.choice([1, 2]) + noise, self.y[i]


def losses(cls, num_workers, persistent_workers):
    """Return the loss after each step of two epochs, including the model's own randomness."""
    seed_all()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = cls(
        Augmented(),
        batch_size=16,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
    seen = []
    for _ in range(2):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    if cls is Ours:
        assert loader.stats().batches == 12
        loader.close()
    return seen


@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_a_training_loop_reaches_the_same_loss_to_the_bit(num_workers, persistent_workers):
    got = losses(Ours, num_workers, persistent_workers)
    assert len(got) == 12 and got == losses(Theirs, num_workers, persistent_workers)
