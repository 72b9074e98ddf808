"""Spawned workers map the large parts of their dataset from one file, which contains each part once."""

import contextlib
import gc
import mmap
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

import slipring
from slipring import Loader, Memory, SegmentFull, StringList, Workers
from slipring.errors import DescriptorClosed
from tests.support.inside import engine_of, pickling
from tests.support.parts import one_fast
from tests.support.processes import kill_worker, until, wait_dead, worker_pids
from tests.support.spawned import Counting, Parts, address_of, as_it_is, is_shared, mapping_of

STARTED = one_fast(["spawn", "forkserver"])


def seen_by_worker(parts, look, method="spawn"):
    """Return {name: result of `look` in a worker} for each part."""
    with Loader(
        Parts(parts, look),
        1,
        num_workers=1,
        collate_fn=as_it_is,
        workers=Workers(start_method=method),
        memory=Memory(copy="always"),
    ) as loader:
        return dict(zip(parts, (batch["found"] for batch in loader), strict=True))


def counted(loader):
    """Return [(pid, count, inode, shared)] of each sample of `Counting`."""
    return [tuple(int(column[0]) for column in batch) for batch in loader]


# ---- one copy, to which no process writes


@pytest.mark.parametrize("method", STARTED)
def test_all_workers_map_the_same_file_and_each_writes_for_itself(method):
    dataset = Counting()
    with Loader(dataset, 1, num_workers=3, workers=Workers(start_method=method), rng="worker") as loader:
        seen = counted(loader)
    by_worker = {}
    for pid, before, inode, shared in seen:
        assert shared
        by_worker.setdefault(pid, []).append(before)
        assert inode == seen[0][2]
    assert sorted(map(len, by_worker.values())) == [21, 21, 22]
    assert all(counts == list(range(len(counts))) for counts in by_worker.values())
    assert not dataset.rows.any()


@pytest.mark.parametrize("method", STARTED)
def test_a_respawned_worker_maps_the_same_file(method):
    with Loader(
        Counting(400), 1, num_workers=2, workers=Workers(start_method=method, on_death="respawn"), rng="worker"
    ) as loader:
        batches = iter(loader)
        first = [tuple(int(column[0]) for column in next(batches)) for _ in range(4)]
        kill_worker(loader, 0)
        rest = [tuple(int(column[0]) for column in batch) for batch in batches]
        assert loader.stats().respawns == 1
    seen = first + rest
    assert len(seen) == 400 and len({pid for pid, *_ in seen}) == 3
    assert {(inode, shared) for _, _, inode, shared in seen} == {(seen[0][2], 1)}


def test_the_file_can_be_changed_by_nobody():
    with Loader(Counting(), 1, num_workers=1, workers=Workers(start_method="spawn")) as loader:
        next(iter(loader))
        fd = engine_of(loader).pool.shared.file.descriptor.fd
        size = os.fstat(fd).st_size
        for change in (
            lambda: os.pwrite(fd, b"x", 0),
            lambda: os.ftruncate(fd, size // 2),
            lambda: os.ftruncate(fd, size * 2),
            lambda: mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE).close(),
        ):
            with pytest.raises(PermissionError):
                change()


def files_of_datasets():
    """Return (process, descriptor) of each such file that a process has open."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:slipring-dataset"):
                    found.add((int(pid), int(fd)))
        except OSError:  # the process has ended, or closed the file
            continue
    return found


def test_the_file_goes_with_the_workers_of_an_epoch_and_with_the_loader():
    for persistent in (False, True):
        with Loader(
            Counting(), 1, num_workers=1, persistent_workers=persistent, workers=Workers(start_method="spawn")
        ) as loader:
            batches = iter(loader)
            next(batches)
            assert any(pid == os.getpid() for pid, _ in files_of_datasets())
            for _ in batches:
                pass
            assert (engine_of(loader).pool.shared is not None) == persistent
        assert not any(pid == os.getpid() for pid, _ in files_of_datasets())


def test_the_file_goes_with_a_consumer_that_is_killed():
    program = (
        "from slipring import Loader, Workers\nfrom tests.support.spawned import Counting\n"
        "import signal\n"
        "if __name__ == '__main__':\n"
        "    loader = Loader(Counting(), 1, num_workers=1, workers=Workers(start_method='spawn'))\n"
        "    batches = iter(loader)\n    print(int(next(batches)[0][0]), flush=True)\n    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as consumer:
        worker = int(consumer.stdout.readline())
        assert consumer.pid in {pid for pid, _ in files_of_datasets()}
        with open(f"/proc/{worker}/maps") as maps:
            assert "/memfd:slipring-dataset" in maps.read()
        os.kill(consumer.pid, signal.SIGKILL)
    wait_dead(worker)
    assert consumer.pid not in {pid for pid, _ in files_of_datasets()}


def test_a_file_that_other_code_has_closed_is_named_when_a_worker_needs_it():
    with Loader(
        Counting(400), 1, num_workers=2, workers=Workers(start_method="spawn", on_death="respawn"), rng="worker"
    ) as loader:
        batches = iter(loader)
        next(batches)
        os.close(engine_of(loader).pool.shared.file.descriptor.fd)
        with open(os.devnull) as other:  # it gets the closed descriptor's number
            kill_worker(loader, 0)
            with pytest.raises(DescriptorClosed, match="descriptor of the pickled dataset"):
                list(batches)
            loader.close()
            assert os.fstat(other.fileno()).st_rdev == os.stat(os.devnull).st_rdev


def test_objects_that_dataset_and_collate_fn_share_are_shared_in_the_worker():
    dataset = Counting(8)
    with Loader(
        dataset,
        2,
        num_workers=1,
        collate_fn=dataset.collated,
        workers=Workers(start_method="spawn"),
        memory=Memory(copy="always"),
    ) as loader:
        assert all(same for _, same in loader)


# ---- the bytes that are sent


class Measured(np.ndarray):
    """A subclass of array."""


class Fresh:
    """Makes new arrays at each pickling."""

    def __reduce__(self):
        return tuple, ([np.full(3000, i) for i in range(40)],)


class Refers:
    """Has the same memory in two arrays."""

    def __init__(self):
        self.whole = np.arange(5000.0)
        self.also = self.whole[:]


def described(array):
    lies = is_shared(mapping_of(address_of(array)))
    return array.tobytes(), type(array).__name__, array.dtype.str, array.strides, array.flags.writeable, lies


def arrays():
    """Return {name: (array, whether its memory comes from the file, its strides there)}."""
    ramp = np.arange(24 * 60, dtype=np.int32).reshape(24, 60)
    fixed = ramp.copy()
    fixed.flags.writeable = False
    structured = np.zeros(600, [("a", "<i2"), ("b", "<f8")])
    structured["b"] = range(600)
    found = {
        "plain": ramp,
        "Fortran's order": np.asfortranarray(ramp),
        "dimensions in another order": np.moveaxis(np.arange(6000).reshape(10, 20, 30), 0, 1),
        "backwards": ramp[::-1, ::-1],
        "read-only": fixed,
        "broadcast": np.broadcast_to(np.arange(500), (40, 500)),
        "dates": np.arange("2020-01-01", "2025-01-01", dtype="M8[D]"),
        "records": structured,
        "of a subclass": ramp.view(Measured),
        "other byte order": ramp.astype(">i4"),
        "no dimension": np.array(("x" * 2000,), [("text", "U2000")]),
        "half": np.arange(2000, dtype=np.float16),
    }
    sent = {name: (array, True, array.strides) for name, array in found.items()}
    gaps = ramp[:, ::2]
    sent["with gaps"] = gaps, True, np.ascontiguousarray(gaps).strides
    gaps = fixed[:, ::2]
    sent["read-only, with gaps"] = gaps, True, np.ascontiguousarray(gaps).strides
    sent["small"] = np.arange(5), False, (8,)
    sent["empty"] = np.zeros((0, 4)), False, np.zeros((0, 4)).strides
    return sent


@pytest.fixture(scope="module")
def arrays_in_worker():
    return seen_by_worker({name: array for name, (array, *_) in arrays().items()}, described)


@pytest.mark.parametrize("name", arrays())
def test_an_array_arrives_as_it_was(arrays_in_worker, name):
    array, shared, strides = arrays()[name]
    data, kind, dtype, seen, writeable, lies = arrays_in_worker[name]
    assert (data, kind, dtype) == (array.tobytes(), type(array).__name__, array.dtype.str)
    assert lies == shared
    assert array.size == 0 or seen == strides
    assert writeable == array.flags.writeable


def objects(value):
    if isinstance(value, Refers):
        value.whole[0] = 7
        return float(value.also[0])
    if isinstance(value, np.ma.MaskedArray):
        return value.filled(-1).sum()
    if isinstance(value, tuple):
        return [int(each[0]) for each in value], all(is_shared(mapping_of(address_of(each))) for each in value)
    if isinstance(value, np.ndarray):
        return [each.sum() for each in value[:2]] + [value[2]]
    return bytes(value)


def test_other_objects_arrive_as_they_were():
    mixed = np.empty(3, object)
    mixed[:] = [np.ones(3000), np.ones(5000), "text"]
    parts = {
        "fresh": Fresh(),
        "refers": Refers(),
        "masked": np.ma.masked_array(np.ones(3000, np.int64), [True] + [False] * 2999),
        "objects": mixed,
        "bytes": b"ab" * 4000,
        "bytearray": bytearray(b"cd" * 4000),
    }
    seen = seen_by_worker(parts, objects)
    assert seen["fresh"] == ([*range(40)], True)
    assert seen["refers"] == 7.0  # as in this process: both arrays share memory
    assert seen["masked"] == 2998
    assert seen["objects"] == [3000.0, 5000.0, "text"]
    assert seen["bytes"] == b"ab" * 4000 and seen["bytearray"] == b"cd" * 4000


def arrow(value):
    if isinstance(value, StringList):
        buffers = value._array.buffers()
        return value[3], len(value), [is_shared(mapping_of(each.address)) for each in buffers[1:]]
    columns = [chunk for column in value.columns for chunk in column.chunks]
    buffers = [each for chunk in columns for each in chunk.buffers() if each is not None]
    return (value.num_rows, value.column("n")[7].as_py(), [is_shared(mapping_of(each.address)) for each in buffers])


def test_arrow_tables_and_string_lists_lie_in_the_file():
    pa = pytest.importorskip("pyarrow")
    names = [f"picture-{i:06d}.jpg" for i in range(3000)]
    table = pa.table({"n": range(3000), "name": names})
    seen = seen_by_worker({"names": StringList(names), "slice": StringList(names)[100:], "table": table}, arrow)
    assert seen["names"] == ("picture-000003.jpg", 3000, [True, True])
    assert seen["slice"] == ("picture-000103.jpg", 2900, [True, True])
    rows, seventh, shared = seen["table"]
    assert (rows, seventh) == (3000, 7) and len(shared) >= 3 and all(shared)


# ---- arrays over files


def over_file(array):
    mode, _, path = mapping_of(address_of(array))
    before = array.tobytes()
    if array.flags.writeable:
        array[...] = 0
    return before, path, mode, type(array).__name__, array.strides, getattr(array, "filename", None)


@pytest.fixture
def on_disk(tmp_path):
    path = tmp_path / "rows.bin"
    np.arange(200_000, dtype=np.int64).tofile(path)
    return path


def test_an_array_over_a_file_stays_over_it_and_writes_nothing_to_it(on_disk):
    whole = np.memmap(on_disk, np.int64, "r+", shape=(1000, 200))
    parts = {
        "whole": whole,
        "read-only": np.memmap(on_disk, np.int64, "r", offset=8 * 1000),
        "every second row": whole[::2],
        "columns": whole[:, 3:5],
        "as an array": np.asarray(whole),
    }
    seen = seen_by_worker(parts, over_file)
    for name, array in parts.items():
        data, path, mode, kind, strides, filename = seen[name]
        assert data == array.tobytes() and path == str(on_disk) and strides == array.strides, name
        assert mode == ("rw-p" if array.flags.writeable else "r--s"), name
        assert kind == type(array).__name__ and str(filename) == str(getattr(array, "filename", None)), name
    assert np.fromfile(on_disk, np.int64).tolist() == [*range(200_000)]


def test_attributes_changed_in_this_process_only_are_sent(on_disk):
    changed = np.memmap(on_disk, np.int64, "c")
    changed[5] = -1
    seen = seen_by_worker({"changed": changed}, over_file)
    assert seen["changed"][0] == changed.tobytes()
    assert seen["changed"][1].startswith("/memfd:slipring-dataset")


def test_an_array_over_a_file_that_has_no_name_any_more_is_sent(on_disk):
    kept = np.memmap(on_disk, np.int64, "r")
    on_disk.unlink()
    np.zeros(200_000, np.int64).tofile(on_disk)  # another file has the name
    data, path, *_ = seen_by_worker({"kept": kept}, over_file)["kept"]
    assert data == np.arange(200_000).tobytes() and path.startswith("/memfd:slipring-dataset")


def test_a_file_that_is_replaced_before_a_worker_has_mapped_it_is_an_error(on_disk, capfd):
    dataset = Parts({"kept": np.memmap(on_disk, np.int64, "r")}, over_file)
    shared = pickling.SharedPickle(dataset.parts["kept"])
    with contextlib.closing(shared):
        replaced = on_disk.with_suffix(".new")
        np.zeros(10, np.int64).tofile(replaced)
        os.replace(replaced, on_disk)
        process = multiprocessing.get_context("spawn").Process(target=address_of, args=(shared,))
        process.start()
        process.join()
        assert process.exitcode == 1
    assert f"the dataset maps '{on_disk}', which was replaced" in capfd.readouterr().err


# ---- objects that each process needs for itself


def told(part):
    part.put("from the worker")
    return "put"


@pytest.mark.parametrize("method", STARTED)
def test_descriptors_in_a_dataset_go_to_every_worker_also_to_a_respawned_one(method):
    with contextlib.closing(slipring.Queue(64)) as queue:
        dataset = Parts({i: queue for i in range(30)}, told)
        with Loader(
            dataset, 1, num_workers=2, collate_fn=as_it_is, workers=Workers(start_method=method, on_death="respawn")
        ) as loader:
            batches = iter(loader)
            pids = {next(batches)["pid"]}
            for pid in worker_pids(loader).values():
                os.kill(pid, signal.SIGKILL)
            pids |= {batch["pid"] for batch in batches}
            assert loader.stats().respawns >= 1 and len(pids) >= 2
        assert {queue.get(timeout=60) for _ in range(30)} == {"from the worker"}


# ---- without enough memory


def test_a_dataset_for_which_there_is_no_memory_is_refused_before_it_is_written(monkeypatch):
    monkeypatch.setattr(
        pickling, "memory_available", lambda: (10 << 20, 1 << 30, "the container's limit", "memory.max")
    )
    told = r"no memory to hand the dataset to workers: 6\d\.\d MB.*fork"
    with (
        Loader(Counting(size=1 << 20), 1, num_workers=1, workers=Workers(start_method="spawn")) as loader,
        pytest.raises(SegmentFull, match=told) as raised,
    ):
        iter(loader)
    assert raised.value.needed == 64 << 20 and raised.value.free == 10 << 20
    assert raised.value.limit == "the container's limit"


def test_a_limit_on_file_sizes_is_reported():
    program = (
        "import resource\nimport numpy as np\nfrom slipring.errors import SegmentFull\n"
        "from tests.support.inside import SharedPickle\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n    SharedPickle(np.zeros(4 << 20, np.uint8))\n"
        "except SegmentFull as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "free within what the system allows (File too large)" in done.stdout


def test_a_pickle_that_fails_leaves_no_file_open():
    gc.collect()
    before = files_of_datasets()
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickling.SharedPickle((np.zeros(4096), lambda: None))
    until(lambda: files_of_datasets() <= before, "the file is closed")
