"""Workers' private memory: measured on real processes, and the warning before it is too much."""

import contextlib
import mmap
import os
import signal
import warnings
from functools import partial

import numpy as np
import pytest

from slipring import Loader, Workers
from slipring.errors import WorkerMemoryWarning
from tests.support.inside import engine_of, engines_of
from tests.support.inside import memory as growth
from tests.support.kinds import loading
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import in_child, state, until

MB = 1 << 20


@contextlib.contextmanager
def forked(function):
    """Fork a process that calls `function` and then waits; yield its pid."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept = [function()]  # the process keeps it until it is killed
            os.write(tell, b"." * len(kept))
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(tell)
        assert os.read(ready, 1) == b"."
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def pages(array):
    """Return a view of one byte of each page."""
    return array[:: mmap.PAGESIZE]


@pytest.fixture(scope="module")
def inherited():
    return np.ones(256 * MB, np.uint8)


def write(array, every):
    pages(array)[::every] = 2


def write_shared(array):
    shared = mmap.mmap(-1, 100 * MB)
    pages(np.frombuffer(shared, np.uint8))[:] = 1
    return shared


def reserve(array):
    """Reserve addresses without memory: they must not blur the estimate."""
    holes = mmap.mmap(-1, 1 << 40, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
    holes[0] = 1
    return holes, np.ones(100 * MB, np.uint8)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        pytest.param(np.sum, 0, id="reads what it inherited"),
        pytest.param(write_shared, 0, id="writes to shared memory"),
        pytest.param(partial(write, every=16), 16 * MB, id="writes one page in 16"),
        pytest.param(reserve, 100 * MB, id="allocates, and reserves addresses"),
    ],
)
def test_the_private_memory_of_a_forked_process_is_what_it_wrote(inherited, act, expected):
    with forked(partial(act, inherited)) as pid:
        assert abs(growth.private_bytes(pid) - expected) < 24 * MB


def test_a_process_that_has_gone_has_nothing_to_tell():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    until(lambda: state(pid) == "Z", "it has ended")
    assert growth.private_bytes(pid) is None
    os.waitpid(pid, 0)
    assert growth.private_bytes(pid) is None


class Hoard:
    """Each read makes the worker keep so many MB more; sample i is i."""

    def __init__(self, n, megabytes):
        self.n, self.megabytes, self.kept = n, megabytes, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.kept.append(np.ones(self.megabytes * MB, np.uint8))
        return i


def grown(loader, least):
    """Return stats() once each worker has at least so many bytes: not every call measures."""

    def measured():
        stats = loader.stats()
        return stats if min(stats.worker_private_bytes, default=0) >= least else None

    return until(measured, f"{least} bytes in each worker")


@pytest.mark.parametrize("method", ["fork", "spawn", slow("forkserver")])
def test_stats_report_each_workers_private_memory(method):
    with Loader(Hoard(12, 10), 1, num_workers=2, workers=Workers(start_method=method), rng="worker") as loader:
        assert loader.stats().worker_private_bytes == ()
        assert [batch.item() for batch in loader] == list(range(12))
        stats = grown(loader, 60 * MB)
        assert len(stats.worker_private_bytes) == 2
        assert max(stats.worker_private_bytes) < 60 * MB + 100 * MB  # with spawn, a worker has its own interpreter
    assert loader.stats().worker_private_bytes == stats.worker_private_bytes


def test_workers_that_end_with_their_iteration_are_measured_before():
    with loading(Hoard(8, 10), 1, num_workers=2, start_method="fork", persistent_workers=False, rng="worker") as loader:
        list(loader)
        assert min(loader.stats().worker_private_bytes) >= 40 * MB
    assert engines_of(loader).counters.memory.pools == []  # ended pools are not kept


def test_a_forked_child_reports_its_own_workers():
    def child():
        list(loader)
        found = len(grown(loader, 20 * MB).worker_private_bytes)
        loader.close()
        return found

    with Loader(Hoard(4, 10), 1, num_workers=2, workers=Workers(start_method="fork"), rng="worker") as loader:
        list(loader)
        grown(loader, 20 * MB)
        assert in_child(child) == 2


@pytest.mark.parametrize("share", [1e9, 1.0])
def test_stats_are_measured_again_only_after_a_while(monkeypatch, share):
    calls = []
    monkeypatch.setattr(growth, "private_bytes", lambda pid: calls.append(pid) or MB)
    monkeypatch.setattr(growth, "SHARE", share)  # 1.0: measure again after as much time as a measurement takes
    with Loader(Hoard(4, 1), 1, num_workers=2, workers=Workers(start_method="fork")) as loader:
        list(loader)
        if share == 1.0:
            until(lambda: loader.stats().worker_private_bytes and len(calls) > 2, "measured again")
        else:
            assert [loader.stats().worker_private_bytes for _ in range(5)] == [(MB, MB)] * 5
            assert len(calls) == 2


class Tree:
    """A fake /proc and /sys with one memory cgroup, whose limit and usage the test sets."""

    def __init__(self, root, version):
        self.root, self.v2 = root, version == 2
        kind, lines = ("cgroup2", "0::/job/worker\n") if self.v2 else ("cgroup", "5:memory:/job/worker\n")
        self.mount = "/sys/fs/cgroup" if self.v2 else "/sys/fs/cgroup/memory"
        self.write("/proc/self/cgroup", lines)
        self.write("/proc/self/mountinfo", f"30 23 0:26 / {self.mount} rw - {kind} {kind} rw,memory\n")
        self.write("/proc/meminfo", "MemTotal: 100000000 kB\nMemAvailable: 90000000 kB\n")

    def write(self, path, text):
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        # Atomically: a loader may be reading the file.
        new = file.with_suffix(".new")
        new.write_text(text)
        new.rename(file)

    def set(self, limit, used, group="/job/worker"):
        names = ("memory.max", "memory.current") if self.v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        for name, value in zip(names, (limit, used)):
            self.write(f"{self.mount}{group}/{name}", f"{value}\n")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def tree(request, tmp_path, monkeypatch):
    made = Tree(tmp_path, request.param)
    monkeypatch.setattr(growth, "ROOT", str(tmp_path))
    monkeypatch.setattr(growth, "LOOK_S", 0.0)
    return made


of_one_version = pytest.mark.parametrize("tree", [2], ids=["v2"], indirect=True)


@contextlib.contextmanager
def hoarding(**options):
    """A loader whose workers keep 30 MB per batch; yield (the loader, an iterator)."""
    options = {"num_workers": 2, "start_method": "fork", "rng": "worker", **options}
    with Loader(Hoard(12, 30), 1, **grouped(**options)) as loader:
        yield loader, iter(loader)


def test_copies_of_this_process_in_all_workers_that_would_not_fit_are_told_to_the_log(tree, caplog):
    tree.write("/proc/self/statm", f"0 {100 * MB // mmap.PAGESIZE} 0 0 0 0 0\n")
    tree.set(350 * MB, 100 * MB)
    for workers in (0, 1, 2):  # 3 × 100 MB
        growth.check_copies(workers)
    assert not caplog.records
    growth.check_copies(3)
    assert "419.4 MB" in caplog.text and "367.0 MB" in caplog.text
    assert ("memory.max" if tree.v2 else "memory.limit_in_bytes") in caplog.text


@pytest.mark.parametrize(("tree", "group"), [(1, "/job/worker"), (2, "/job")], indirect=["tree"])
def test_workers_that_could_not_grow_as_much_again_are_named_once(tree, group):
    tree.set(1000 * MB, 100 * MB, group)
    with hoarding() as (loader, it), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):  # 90 MB in each worker, and up to 60 MB for prefetched batches
            next(it)
        assert caught == []
        tree.set(1000 * MB, 900 * MB, group)
        assert len(list(it)) == 6
        tree.set(1000 * MB, 970 * MB, group)  # more than half of the rest is used, too
        assert len(list(loader)) == 12
    (warning,) = caught
    assert warning.category is WorkerMemoryWarning and warning.filename == __file__
    text = str(warning.message)
    parts = "2 workers", "worker 0: ", "worker 1: ", "1,049 MB in all", f"{tree.mount}{group}/memory.", "segment"
    for part in (*parts, "StringList", "arrays", "fewer workers", "raise the limit", "docs/workers.md"):
        assert part in text, (part, text)


@of_one_version
@pytest.mark.parametrize(
    ("limit", "before", "after"),
    [
        pytest.param(100_000, 10_000, 99_900, id="others take more than the workers have grown"),
        pytest.param(4000, 100, 2500, id="the workers have grown little"),
    ],
)
def test_workers_that_are_not_the_cause_are_not_named(tree, limit, before, after):
    tree.set(limit * MB, before * MB)
    with hoarding() as (_, it), warnings.catch_warnings():
        warnings.simplefilter("error")
        next(it)
        tree.set(limit * MB, after * MB)
        assert len(list(it)) == 11


@of_one_version
def test_the_initial_memory_of_spawned_workers_is_not_growth(tree):
    tree.set(400 * MB, 10 * MB)
    with hoarding(start_method="spawn", slots=4, prefetch_factor=1) as (loader, it), warnings.catch_warnings():
        warnings.simplefilter("error")
        first = next(it)
        until(lambda: all(serving for _, _, serving in engine_of(loader).pool.pids()), "all workers have begun")
        next(it)
        memory = engine_of(loader).memory
        assert set(memory._begun) == {pid for _, pid, _ in engine_of(loader).pool.pids()}
        assert min(memory._begun.values()) > 5 * MB  # at least numpy and the interpreter
        assert first.item() == 0


@of_one_version
def test_a_warning_made_an_error_costs_no_batch(tree):
    tree.set(1000 * MB, 100 * MB)
    with hoarding() as (loader, it), warnings.catch_warnings():
        warnings.simplefilter("error", WorkerMemoryWarning)
        came = [next(it).item() for _ in range(6)]
        tree.set(1000 * MB, 900 * MB)
        with pytest.raises(WorkerMemoryWarning):
            next(it)
        assert came + [batch.item() for batch in it] == list(range(12))
        assert len(list(loader)) == 12


@of_one_version
@pytest.mark.parametrize("preload", [None, 1])
def test_torchs_loader_warns_too(tree, preload):
    torch = pytest.importorskip("slipring.torch")
    device = None if preload is None else torch.Device("cpu", preload=preload)
    tree.set(1000 * MB, 100 * MB)
    with torch.DataLoader(Hoard(12, 30), 1, num_workers=2, device=device) as loader:
        it = iter(loader)
        for _ in range(6):
            next(it)
        assert loader.stats().worker_private_bytes
        tree.set(1000 * MB, 900 * MB)
        with pytest.warns(WorkerMemoryWarning, match="2 workers"):
            assert len(list(it)) == 6
