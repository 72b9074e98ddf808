"""Workers(on_death="respawn") in torch's drop-in: the batches of torch's own loader without deaths."""

import os
import random
import signal

import numpy as np
import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.support.inside import engines_of  # noqa: E402
from tests.support.parts import slow  # noqa: E402
from tests.support.processes import sleeps_in_futex, until, wait_dead  # noqa: E402
from tests.support.scenes import Death, Nth, Once  # noqa: E402

pytestmark = pytest.mark.fault


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
            yield worker.id, i, torch.rand(()).item(), random.random(), np.random.random()
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
    """Return the batches of torch's own loader."""
    loader = torch.utils.data.DataLoader(
        data, 4, num_workers=2, generator=torch.Generator().manual_seed(5), **grouped(**options)
    )
    return [plain(batch) for batch in loader]


def ours(data, **options):
    options = {"num_workers": 2, "on_death": "respawn", **options}
    return DataLoader(data, 4, generator=torch.Generator().manual_seed(5), **grouped(**options))


# Other methods need seconds per worker to import torch.
@pytest.mark.parametrize(("method", "chunk_size"), [("fork", 2), ("fork", None), slow("spawn", None)])
def test_a_map_dataset_is_delivered_as_without_deaths(tmp_path, method, chunk_size):
    on = {i: Once(tmp_path / f"died-{i}", Death("SIGKILL")) for i in (3, 21, 39)}
    options = {"shuffle": True, "multiprocessing_context": method}
    with ours(Rows(40, on), chunk_size=chunk_size, **options) as loader:
        assert [plain(batch) for batch in loader] == torchs(Rows(40), **options)
        assert loader.stats().respawns == 3


@pytest.mark.parametrize(("kind", "method"), [(Stream, "fork"), (Stateful, "fork"), slow(Stateful, "forkserver")])
def test_a_stream_is_delivered_as_without_deaths(tmp_path, kind, method):
    deaths = {(0, 17): "SIGKILL", (1, 0): "os._exit", (1, 26): "SIGSEGV", (0, 29): "SIGKILL"}
    on = {at: Once(tmp_path / f"died-{at}", Death(how)) for at, how in deaths.items()}
    with ours(kind(30, on), multiprocessing_context=method) as loader:
        assert [plain(batch) for batch in loader] == torchs(kind(30), multiprocessing_context=method)
        stats = loader.stats()
        assert stats.respawns == 4
        assert (stats.resumed_streams, stats.replayed_batches) == ((3, 0) if kind is Stateful else (0, 17))


@pytest.mark.parametrize("kind", [Stream, Stateful])
@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
def test_a_state_taken_after_a_death_is_that_of_the_batches_delivered_and_survives_others(tmp_path, kind):
    on = {(1, 14): Once(tmp_path / "died", Death("SIGKILL"))}
    with ours(kind(30, on)) as loader:
        it = iter(loader)
        got = [plain(next(it)) for _ in range(10)]
        assert loader.stats().respawns == 1
        state = loader.state_dict()
        del it
    on = {at: Once(tmp_path / f"died-{at}", Death("SIGKILL")) for at in ((0, 22), (1, 21), (1, 27))}
    with ours(kind(30, on)) as loader:
        loader.load_state_dict(state)
        got += [plain(batch) for batch in loader]
        assert loader.stats().respawns == 3
    assert [batch[:2] for batch in got] == [batch[:2] for batch in torchs(kind(30))]


class Counts(Rows):
    """A Stateful map dataset; each sample has the number of earlier reads."""

    reads = 0

    def __getitem__(self, i):
        self.reads += 1
        return 1000 * self.reads + super().__getitem__(i)[0]

    def state_dict(self):
        return {"reads": self.reads}

    def load_state_dict(self, state):
        self.reads = state["reads"]


def resumed_in_the_first_epoch(data):
    """Return a loader whose next epoch continues after three batches, and these batches."""
    with ours(Counts(40), persistent_workers=True) as loader:
        it = iter(loader)
        head = [plain(next(it)) for _ in range(3)]
        state = loader.state_dict()
        del it
    loader = ours(data, persistent_workers=True)
    loader.load_state_dict(state)
    return head, loader


def kill_workers(loader):
    for process in list(engines_of(loader).engine.pool.processes.values()):
        os.kill(process.pid, signal.SIGKILL)
        wait_dead(process.pid)


def test_a_replacement_after_a_resumed_epoch_knows_how_the_epoch_ended():
    """A map dataset that keeps its values from epoch to epoch."""
    with ours(Counts(40), persistent_workers=True) as loader:
        want = [[plain(batch) for batch in loader] for _ in range(4)]
    head, loader = resumed_in_the_first_epoch(Counts(40))
    with loader:
        got = [head + [plain(batch) for batch in loader]]
        for _ in range(3):
            kill_workers(loader)
            got.append([plain(batch) for batch in loader])
        assert loader.stats().respawns == 6
    assert got == want


def test_a_replacement_in_a_later_epoch_starts_as_that_epoch_did(tmp_path):
    head, loader = resumed_in_the_first_epoch(Counts(40, {21: Nth(4, tmp_path / "n", Death("SIGKILL"))}))
    with loader:
        got = [head + [plain(batch) for batch in loader]]
        got += [[plain(batch) for batch in loader] for _ in range(4)]
        assert loader.stats().respawns == 1
    first = [[batch[0] // 1000 for batch in epoch[1::2]] for epoch in got]  # earlier reads of worker 1
    assert first[:3] == [[20 * epoch + 4 * turn + 1 for turn in range(5)] for epoch in range(3)]
    # It died while it made the third of five batches.
    assert first[3] == [61, 65, 61, 65, 69] and first[4][0] == 73


def test_a_replacement_after_an_abandoned_epoch_starts_with_the_loaders_dataset():
    _, loader = resumed_in_the_first_epoch(Counts(40))
    with loader:
        assert len(list(loader)) == 7
        next(iter(loader))
        for process in engines_of(loader).engine.pool.processes.values():
            # Otherwise it would die in the abandoned epoch.
            until(lambda pid=process.pid: sleeps_in_futex(pid), "the worker has nothing to do")
        kill_workers(loader)
        assert [batch[0].item() // 1000 for batch in loader] == [1, 1, 5, 5, 9, 9, 13, 13, 17, 17]
