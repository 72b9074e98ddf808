"""on_worker_death="respawn" under torch's face: the batches of torch's own loader, where nobody dies."""

import os
import random
import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.fault.procs import wait_dead  # noqa: E402
from tests.fault.scenes import Death, Once  # noqa: E402

pytestmark = pytest.mark.fault

# Another method needs seconds per worker, to import torch.
CASES = [("fork", 2), ("fork", None), ("spawn", None)]


def draws():
    """Of every generator that torch seeds in a worker."""
    return torch.rand(()).item(), random.random(), np.random.random()


class Rows(torch.utils.data.Dataset):
    def __init__(self, n, on=None):
        self.n, self.on = n, on or {}

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i in self.on:
            self.on[i]()
        return i, torch.full((3,), i)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, n, on=None):
        self.n, self.on, self.at = n, on or {}, 0

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for i in range(self.at, self.n):
            if (worker.id, i) in self.on:
                self.on[worker.id, i]()
            self.at = i + 1
            yield worker.id, i, draws()
        self.at = 0


class Stateful(Stream):
    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def torchs(data, **options):
    """What torch's own loader gives."""
    loader = torch.utils.data.DataLoader(
        data, 4, num_workers=2, generator=torch.Generator().manual_seed(5), **options
    )
    return [plain(batch) for batch in loader]


def ours(data, **options):
    options = {"num_workers": 2, "on_worker_death": "respawn", **options}
    return DataLoader(data, 4, generator=torch.Generator().manual_seed(5), **options)


@pytest.mark.parametrize(("method", "chunk_size"), CASES)
def test_a_map_dataset_is_delivered_as_if_nobody_had_died(tmp_path, method, chunk_size):
    on = {i: Once(tmp_path / f"died-{i}", Death("SIGKILL")) for i in (3, 21, 39)}
    options = {"shuffle": True, "multiprocessing_context": method}
    with ours(Rows(40, on), chunk_size=chunk_size, **options) as loader:
        assert [plain(batch) for batch in loader] == torchs(Rows(40), **options)
        assert loader.stats().respawns == 3


@pytest.mark.parametrize(("kind", "method"), [(Stream, "fork"), (Stateful, "fork"), (Stateful, "forkserver")])
def test_a_stream_is_delivered_as_if_nobody_had_died(tmp_path, kind, method):
    deaths = {(0, 17): "SIGKILL", (1, 0): "os._exit", (1, 26): "SIGSEGV", (0, 29): "SIGKILL"}
    on = {at: Once(tmp_path / f"died-{at}", Death(how)) for at, how in deaths.items()}
    with ours(kind(30, on), multiprocessing_context=method) as loader:
        assert [plain(batch) for batch in loader] == torchs(kind(30), multiprocessing_context=method)
        stats = loader.stats()
        assert stats.respawns == 4
        assert (stats.resumed_streams, stats.replayed_batches) == ((3, 0) if kind is Stateful else (0, 17))


@pytest.mark.parametrize("kind", [Stream, Stateful])
@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
def test_a_state_taken_after_a_death_is_that_of_the_batches_delivered(tmp_path, kind):
    on = {(1, 14): Once(tmp_path / "died", Death("SIGKILL"))}
    with ours(kind(30, on)) as loader:
        it = iter(loader)
        got = [plain(next(it)) for _ in range(10)]
        assert loader.stats().respawns == 1
        state = loader.state_dict()
        del it
    with ours(kind(30)) as loader:
        loader.load_state_dict(state)
        got += [plain(batch) for batch in loader]
    assert [batch[:2] for batch in got] == [batch[:2] for batch in torchs(kind(30))]


@pytest.mark.parametrize("kind", [Stream, Stateful])
@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
def test_a_death_in_a_resumed_epoch_loses_nothing(tmp_path, kind):
    with ours(kind(30)) as loader:
        it = iter(loader)
        got = [plain(next(it)) for _ in range(5)]
        state = loader.state_dict()
        del it
    on = {at: Once(tmp_path / f"died-{at}", Death("SIGKILL")) for at in ((0, 12), (1, 8), (1, 22))}
    with ours(kind(30, on)) as loader:
        loader.load_state_dict(state)
        got += [plain(batch) for batch in loader]
        assert loader.stats().respawns == 3
    assert [batch[:2] for batch in got] == [batch[:2] for batch in torchs(kind(30))]


def test_idle_workers_killed_between_epochs_are_replaced():
    with ours(Stateful(30), persistent_workers=True) as loader:
        want = [batch[:2] for batch in torchs(Stateful(30))]
        for _ in range(3):
            assert [plain(batch)[:2] for batch in loader] == want
            for process in list(loader._keeper.engine.pool.processes.values()):
                os.kill(process.pid, signal.SIGKILL)
                wait_dead(process.pid)
        assert [plain(batch)[:2] for batch in loader] == want
        assert loader.stats().respawns == 6
