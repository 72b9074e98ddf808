"""slipring.adapters.webdataset.MultiLoader: the behaviour of webdataset's, and its faults that are fixed."""

import copy
import io
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest

from slipring import WorkerDied, Workers
from slipring.adapters.webdataset import MultiLoader
from tests.support.parts import slow

AHEAD = 2  # samples in flight per worker, by default


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


class Notes(Shard):
    """Writes a byte to a file before each sample."""

    def __init__(self, path, n=1000):
        self.path, self.n = path, n

    def __iter__(self):
        for sample in super().__iter__():
            with open(self.path, "ab") as file:
                file.write(b".")
            yield sample


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


@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_reads_its_share_and_all_of_it_arrives(workers):
    samples = list(MultiLoader(Shard(), workers))
    assert numbers(samples) == list(range(20))
    assert {s["worker"] for s in samples} == set(range(workers))
    assert len({s["pid"] for s in samples} - {os.getpid()}) == workers
    assert all((s["array"] == s["i"]).all() for s in samples)


def test_four_workers_are_the_default_and_the_arguments_stand_where_they_did():
    loader = MultiLoader([1, 2], 4, True, True, "/somewhere/else")
    assert (loader.workers, loader.verbose, loader.nokill, loader.prefix) == (4, True, True, "/somewhere/else")
    assert MultiLoader([1]).workers == 4
    assert sorted(MultiLoader([1, 2])) == [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    "dataset", [[0, "text", None, b"bytes", 2.5, (1, [2])], range(5), {"a": 1, "b": 2}, np.arange(3.0)]
)
def test_whatever_can_be_iterated_is_also_what_could_be_indexed(dataset):
    got = list(MultiLoader(dataset, 1))
    assert got == list(dataset)
    assert [type(g) for g in got] == [type(d) for d in dataset]


def test_samples_come_as_they_arrive(tmp_path):
    samples = iter(MultiLoader(Waits(tmp_path / "go"), 2))
    assert [next(samples)["i"] for _ in range(10)] == list(range(1, 20, 2))
    (tmp_path / "go").touch()
    assert [s["i"] for s in samples] == list(range(0, 20, 2))


def test_the_end_is_when_every_worker_has_ended():
    class Uneven(Shard):
        def __iter__(self):
            return iter(range(50 * int(os.environ["WORKER"])))

    assert sorted(MultiLoader(Uneven(), 3, worker_options=Workers(start_method="fork"))) == sorted(
        [*range(50), *range(100)]
    )
    assert list(MultiLoader((), 3)) == []


def test_a_new_iteration_ends_the_workers_of_the_one_before():
    loader = MultiLoader(Shard(1000), 2)
    first = iter(loader)
    pids = {next(first)["pid"] for _ in range(10)}
    assert numbers(loader) == list(range(1000))
    assert not any(alive(pid) for pid in pids)
    assert list(first) == []


def test_with_nokill_the_one_before_continues():
    loader = MultiLoader(Shard(), 2, nokill=True)
    first = iter(loader)
    begun = [next(first)]
    assert numbers(loader) == list(range(20))
    assert numbers([*begun, *first]) == list(range(20))


def test_kill_ends_the_workers_and_the_loader_can_be_used_again():
    loader = MultiLoader(Shard(1000), 2)
    samples = iter(loader)
    held = next(samples)
    loader.kill()
    assert not alive(held["pid"])
    assert (held["array"] == held["i"]).all()
    assert list(samples) == []
    loader.kill()
    assert numbers(loader) == list(range(1000))


def test_workers_are_there_for_one_iteration():
    loader = MultiLoader(Shard(), 2)
    pids = [{s["pid"] for s in loader} for _ in range(2)]
    assert not pids[0] & pids[1]
    assert not any(alive(pid) for pid in pids[0] | pids[1])


def test_verbose_is_told_to_the_log_and_not_to_stdout(caplog, capfd):
    caplog.set_level(logging.INFO, "slipring")
    loader = MultiLoader(Shard(), 2, verbose=True)
    assert numbers(loader) == list(range(20))
    iter(loader)
    assert [r.message for r in caplog.records] == [
        "2 workers read Shard",
        "all workers have come to the end",
        "2 workers read Shard",
    ]
    assert capfd.readouterr() == ("", "")
    caplog.clear()
    samples = iter(loader)
    next(samples)
    loader.kill()
    assert list(samples) == []
    assert [r.message for r in caplog.records] == ["2 workers read Shard", "the workers were ended"]
    samples = iter(loader)
    assert numbers(samples) == list(range(20))
    caplog.clear()
    loader.kill()
    assert not caplog.records, "there are none"
    assert numbers(MultiLoader(Shard(), 2)) == list(range(20))
    assert not caplog.records


@pytest.mark.parametrize("method", ["fork", slow("forkserver"), "spawn"])
def test_processes_may_be_started_in_any_way(method):
    assert numbers(MultiLoader(Shard(), 2, worker_options=Workers(start_method=method))) == list(range(20))


@pytest.mark.parametrize("method", ["fork", slow("forkserver"), "spawn"])
def test_a_dataset_may_start_processes(method):
    assert numbers(MultiLoader(Delegates(5), 2, worker_options=Workers(start_method=method))) == sorted([*range(5)] * 2)


def test_a_daemon_of_the_dataset_ends_with_its_worker():
    loader = MultiLoader(Helped(), 1)
    sample = next(iter(loader))
    loader.kill()
    assert not alive(sample["pid"]) and not alive(sample["helper"])


def test_without_workers_it_is_read_here_when_it_is_asked_for():
    samples = iter(MultiLoader(iter([1, 2, 3]), 0))
    assert list(samples) == [1, 2, 3]


def test_it_needs_neither_torch_nor_webdataset_nor_zmq():
    code = (
        "import sys; from slipring.adapters.webdataset import MultiLoader; print(sorted(MultiLoader([1], 2)), "
        "sorted({'torch', 'webdataset', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[1, 1] []"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_workers_of_its_own(duplicate):
    loader = MultiLoader(Shard(), 2)
    samples = iter(loader)
    begun = [next(samples)]
    other = duplicate(loader)
    assert numbers(other) == list(range(20))
    assert (other.workers, other.nokill) == (2, False)
    other.kill()
    assert numbers([*begun, *samples]) == list(range(20))


def test_nonsense_is_refused_at_construction():
    with pytest.raises(TypeError, match="dataset must be an iterable of samples, not 5"):
        MultiLoader(5)
    with pytest.raises(ValueError, match=r"^workers must be from 0"):
        MultiLoader([1], -1)
    with pytest.raises(TypeError, match="no_such"):
        MultiLoader([1], no_such=1)


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
    assert [str(e) for e in errors] == ["no such shard"] or "no such shard" in str(errors[0])
    assert len(errors) == 1 and "worker 1" in str(errors[0].__cause__)
    assert numbers(got) == sorted([*range(0, 20, 2), 1])


def test_a_workers_death_is_raised_here(tmp_path):
    with pytest.raises(WorkerDied, match=r"worker 1 .*SIGKILL"):
        list(MultiLoader(Dies(tmp_path / "died"), 2))


def test_options_of_workers_are_advised_by_the_name_that_they_have_here():
    with pytest.raises(TypeError, match=r"'chunk_size'. Give worker_options=slipring.Workers\(chunk_size="):
        MultiLoader([1], chunk_size=2)
    with pytest.raises(TypeError, match=r"not Workers\(\); give slipring.Workers as worker_options="):
        MultiLoader([1], workers=Workers())


def test_a_dead_worker_can_be_replaced_and_nothing_is_lost(tmp_path):
    loader = MultiLoader(Dies(tmp_path / "died"), 2, worker_options=Workers(on_death="respawn"))
    assert numbers(loader) == list(range(20))
    assert loader.stats().respawns == 1


def test_nothing_is_lost_when_workers_end_long_before_the_reader_reads():
    class Big(Shard):
        def __iter__(self):
            yield np.full(1 << 20, int(os.environ["WORKER"]), np.uint8)

    samples = iter(MultiLoader(Big(), 4, worker_options=Workers(start_method="fork")))
    held = [next(samples)]
    time.sleep(0.2)  # webdataset's workers would have ended by now, and lost the unsent part
    held += samples
    assert sorted(int(s[0]) for s in held) == [0, 1, 2, 3]
    assert all(len(s) == 1 << 20 and (s == s[0]).all() for s in held)


def test_workers_do_not_run_ahead_for_ever(tmp_path):
    notes = tmp_path / "notes"
    samples = iter(MultiLoader(Notes(notes), 2))
    held = [next(samples) for _ in range(10)]
    time.sleep(0.5)  # enough time for hundreds of samples
    assert len(held) <= notes.stat().st_size <= 10 + AHEAD * 2
    samples.close()


def test_a_program_ends_after_a_break():
    code = (
        "from slipring.adapters.webdataset import MultiLoader\n"
        "for i, sample in enumerate(MultiLoader(range(1 << 40), 2)):\n"
        "    if i == 5:\n"
        "        break\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=220, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_workers_draw_different_numbers():
    class Draws(Shard):
        def __iter__(self):
            yield float(np.random.rand())

    seeded = {"seed": 1, "worker_options": Workers(start_method="fork")}
    assert len(set(MultiLoader(Draws(), 4, worker_options=Workers(start_method="fork")))) == 4
    assert sorted(MultiLoader(Draws(), 4, **seeded)) == sorted(MultiLoader(Draws(), 4, **seeded))


# ---- with webdataset


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Four tar files of five samples each."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(shard * 5, shard * 5 + 5):
                for name, content in ((f"{i:03}.cls", str(i).encode()), (f"{i:03}.txt", b"a text")):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return [str(folder / f"{shard}.tar") for shard in range(4)]


@pytest.mark.filterwarnings("ignore")
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
