"""slipring.adapters.webdataset.MultiLoader: the behaviour of webdataset's, and its faults that are fixed."""

import copy
import logging
import multiprocessing
import os
import signal
import time
from itertools import chain

import numpy as np
import pytest

from slipring import WorkerDied, Workers
from slipring.adapters.webdataset import MultiLoader


class Shard:
    """Sample i of n is (worker, pid, i, an array of value i); the environment names the worker."""

    def __init__(self, n=20):
        self.n = n

    def __iter__(self):
        worker, workers = int(os.environ["WORKER"]), int(os.environ["NUM_WORKERS"])
        for i in range(worker, self.n, workers):
            yield {"worker": worker, "pid": os.getpid(), "i": i, "array": np.full(100, i)}


class Waits(Shard):
    """Worker 0 waits for `path` to exist before its first sample."""

    def __init__(self, path, n=20):
        self.path, self.n = path, n

    def __iter__(self):
        while os.environ["WORKER"] == "0" and not self.path.exists():
            time.sleep(0.01)
        yield from super().__iter__()


class Fails(Shard):
    """Worker 1 raises at its second sample."""

    def __iter__(self):
        for k, sample in enumerate(super().__iter__()):
            if (k, sample["worker"]) == (1, 1):
                raise LookupError("no such shard")
            yield sample


class Dies(Shard):
    """Worker 1 is killed at its second sample, unless `path` exists."""

    def __init__(self, path, n=20):
        self.path, self.n = path, n

    def __iter__(self):
        for k, sample in enumerate(super().__iter__()):
            if (k, sample["worker"]) == (1, 1) and not self.path.exists():
                self.path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield sample


def produce(n, queue):
    for i in range(n):
        queue.put(i)


class Notes(Shard):
    """Writes a byte to a file before each sample."""

    def __init__(self, path, n=1000):
        self.path, self.n = path, n

    def __iter__(self):
        for sample in super().__iter__():
            with open(self.path, "ab") as file:
                file.write(b".")
            yield sample


class Delegates(Shard):
    """Makes the samples in another process."""

    def __iter__(self):
        queue = multiprocessing.Queue()
        process = multiprocessing.Process(target=produce, args=(self.n, queue))
        process.start()
        for _ in range(self.n):
            yield {"i": queue.get()}
        process.join()


class Helped(Shard):
    """Yields the pid of a helper process that would run forever."""

    def __iter__(self):
        helper = multiprocessing.Process(target=signal.pause, daemon=True)
        helper.start()
        while True:
            yield {"pid": os.getpid(), "helper": helper.pid}


def numbers(samples):
    return sorted(sample["i"] for sample in samples)


def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


# ---- behaviour of webdataset's


def test_each_worker_reads_its_share_and_lives_for_one_iteration():
    loader, pids = MultiLoader(Shard(), 3), set()
    for _ in range(2):
        samples = list(loader)
        assert numbers(samples) == list(range(20))
        assert {s["worker"] for s in samples} == set(range(3))
        assert all((s["array"] == s["i"]).all() for s in samples)
        pids |= {s["pid"] for s in samples}
    assert len(pids - {os.getpid()}) == 6 and not any(alive(pid) for pid in pids)
    assert list(MultiLoader(iter([1, 2, 3]), 0)) == [1, 2, 3]


def test_four_workers_are_the_default_and_the_arguments_stand_where_they_did():
    loader = MultiLoader([1, 2], 4, True, True, "/somewhere/else")
    assert (loader.workers, loader.verbose, loader.nokill, loader.prefix) == (4, True, True, "/somewhere/else")
    assert MultiLoader([1]).workers == 4
    assert sorted(MultiLoader([1, 2])) == [1] * 4 + [2] * 4


@pytest.mark.parametrize("dataset", [[0, "text", None, b"bytes", 2.5, (1, [2])], {"a": 1, "b": 2}, np.arange(3.0)])
def test_whatever_can_be_iterated_is_also_what_could_be_indexed(dataset):
    got = list(MultiLoader(dataset, 1))
    assert got == list(dataset)
    assert [type(g) for g in got] == [type(d) for d in dataset]


def test_samples_come_as_they_arrive(tmp_path):
    samples = iter(MultiLoader(Waits(tmp_path / "go"), 2))
    assert [next(samples)["i"] for _ in range(10)] == list(range(1, 20, 2))
    (tmp_path / "go").touch()
    assert [s["i"] for s in samples] == list(range(0, 20, 2))


def test_with_nokill_the_one_before_continues():
    loader = MultiLoader(Shard(), 2, nokill=True)
    first = iter(loader)
    begun = [next(first)]
    assert numbers(loader) == list(range(20))
    assert numbers([*begun, *first]) == list(range(20))


@pytest.mark.parametrize("end", [lambda loader: loader.kill(), iter], ids=["kill", "another iteration"])
def test_kill_and_a_new_iteration_end_the_workers_and_the_loader_can_be_used_again(end):
    loader = MultiLoader(Shard(1000), 2)
    samples = iter(loader)
    held = next(samples)
    ended = end(loader)
    assert not alive(held["pid"])
    assert (held["array"] == held["i"]).all()
    assert list(samples) == []
    assert numbers(ended or loader) == list(range(1000))


def test_verbose_is_told_to_the_log_and_not_to_stdout(caplog, capfd):
    caplog.set_level(logging.INFO, "slipring")
    loader = MultiLoader(Shard(), 2, verbose=True)
    assert numbers(loader) == list(range(20))
    assert [r.message for r in caplog.records] == ["2 workers read Shard", "all workers have come to the end"]
    samples = iter(loader)
    next(samples)
    caplog.clear()
    loader.kill()
    loader.kill()
    assert list(samples) == [] and numbers(MultiLoader(Shard(), 2)) == list(range(20))
    assert [r.message for r in caplog.records] == ["the workers were ended"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_may_start_processes(method):
    assert numbers(MultiLoader(Delegates(5), 2, worker_options=Workers(start_method=method))) == sorted([*range(5)] * 2)


def test_a_daemon_of_the_dataset_ends_with_its_worker():
    loader = MultiLoader(Helped(), 1)
    sample = next(iter(loader))
    loader.kill()
    assert not alive(sample["pid"]) and not alive(sample["helper"])


def test_workers_do_not_run_ahead_for_ever(tmp_path):
    samples = iter(MultiLoader(Notes(tmp_path / "notes"), 2))
    held = [next(samples) for _ in range(10)]
    time.sleep(0.5)  # enough time for hundreds of samples
    assert len(held) <= (tmp_path / "notes").stat().st_size <= 10 + 2 * 2  # two samples in flight per worker
    samples.close()


def test_every_worker_and_epoch_draws_other_numbers_and_a_seed_makes_them_reproducible():
    class Draws(Shard):
        def __iter__(self):
            yield float(np.random.rand())

    def drawn(**options):
        loader = MultiLoader(Draws(), 4, worker_options=Workers(start_method="fork"), **options)
        return [sorted(loader) for _ in range(2)]

    assert len(set(chain(*drawn()))) == 8
    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)


def test_a_copy_has_workers_of_its_own():
    loader = MultiLoader(Shard(), 2)
    samples = iter(loader)
    begun = [next(samples)]
    other = copy.copy(loader)
    assert numbers(other) == list(range(20))
    assert (other.workers, other.nokill) == (2, False)
    other.kill()
    assert numbers([*begun, *samples]) == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (([1], {"chunk_size": 2}), TypeError, r"'chunk_size'. Give worker_options=slipring.Workers\(chunk_size="),
        (([1], {"workers": Workers()}), TypeError, r"not Workers\(\); give slipring.Workers as worker_options="),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, kind, text):
    named = arguments[-1] if isinstance(arguments[-1], dict) else {}
    with pytest.raises(kind, match=text):
        MultiLoader(*arguments[: -1 if named else None], **named)


# ---- faults that are fixed


def test_a_workers_exception_is_raised_here_and_the_others_continue():
    samples = iter(MultiLoader(Fails(), 2))
    got, errors = [], []
    while True:
        try:
            got.append(next(samples))
        except LookupError as error:
            errors.append(error)
        except StopIteration:
            break
    assert [str(error) for error in errors] == ["no such shard"] and "worker 1" in str(errors[0].__cause__)
    assert numbers(got) == sorted([*range(0, 20, 2), 1])


def test_a_workers_death_is_raised_here(tmp_path):
    with pytest.raises(WorkerDied, match=r"worker 1 .*SIGKILL"):
        list(MultiLoader(Dies(tmp_path / "died"), 2))


def test_a_dead_worker_can_be_replaced_and_nothing_is_lost(tmp_path):
    loader = MultiLoader(Dies(tmp_path / "died"), 2, worker_options=Workers(on_death="respawn"))
    assert numbers(loader) == list(range(20))
    assert loader.stats().respawns == 1


# ---- with webdataset


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Four tar files of five samples each."""
    from tests.support.shards import shard

    folder = tmp_path_factory.mktemp("shards")
    samples = [[(f"{i:03}.cls", str(i).encode()), (f"{i:03}.txt", b"a text")] for i in range(20)]
    return [str(shard(folder / f"{k}.tar", chain(*samples[5 * k : 5 * k + 5]))) for k in range(4)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("forked")  # a fork server has the environment of its own start
def test_webdatasets_own_splitters_give_each_worker_its_shards(shards, monkeypatch):
    wds = pytest.importorskip("webdataset", reason="pip install -r requirements-clients.txt")
    dataset = wds.WebDataset(shards, shardshuffle=False, nodesplitter=wds.split_by_node)
    dataset = dataset.decode().to_tuple("cls", "txt", "__url__")

    def read():
        samples = list(MultiLoader(dataset, workers=2))
        assert len({url for *_, url in samples}) == len(samples) // 5
        return sorted((int(i), text) for i, text, _ in samples)

    assert read() == [(i, "a text") for i in range(20)]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert read() == [(i, "a text") for i in (*range(5, 10), *range(15, 20))]
