"""Spawned workers map the large parts of their dataset from one file, which contains each part once."""

import contextlib
import mmap
import multiprocessing
import os
import pickle
import resource
import signal

import numpy as np
import pytest

import slipring
from slipring import Loader, Memory, SegmentFull, StringList, Workers
from slipring.errors import DescriptorClosed
from tests.support.inside import engine_of, pickling
from tests.support.leaks import link
from tests.support.parts import slow
from tests.support.processes import LONG_S, in_child, kill_worker, worker_pids
from tests.support.spawned import Counting, Parts, address_of, as_it_is, is_shared, mapping_of


def seen_by_worker(parts, look):
    """Return {name: result of `look` in a worker} for each part."""
    options = {"workers": Workers(start_method="spawn"), "memory": Memory(copy="always")}
    with Loader(Parts(parts, look), 1, num_workers=1, collate_fn=as_it_is, **options) as loader:
        return dict(zip(parts, (batch["found"] for batch in loader), strict=True))


@pytest.mark.parametrize("method", ["spawn", slow("forkserver")])
def test_all_workers_also_a_respawned_one_map_the_same_file_and_each_writes_for_itself(method):
    dataset = Counting(400)
    workers = Workers(start_method=method, on_death="respawn")
    with Loader(dataset, 1, num_workers=2, workers=workers, rng="worker") as loader:
        batches = iter(loader)
        seen = [next(batches) for _ in range(4)]
        kill_worker(loader, 0)
        seen = [[int(column[0]) for column in batch] for batch in [*seen, *batches]]
        assert loader.stats().respawns == 1
    assert len(seen) == 400 and {(inode, shared) for _, _, inode, shared in seen} == {(seen[0][2], 1)}
    counts = {}
    for pid, before, *_ in seen:
        counts.setdefault(pid, []).append(before)
    assert len(counts) == 3 and all(sorted(each) == list(range(len(each))) for each in counts.values())
    assert not dataset.rows.any()


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


def open_files():
    """Return the descriptors of such files in this process."""
    return [fd for fd in os.listdir("/proc/self/fd") if "memfd:slipring-dataset" in link(f"/proc/self/fd/{fd}")]


def test_the_file_goes_with_the_workers_of_an_epoch():
    options = {"persistent_workers": False, "workers": Workers(start_method="spawn")}
    with Loader(Counting(), 1, num_workers=1, **options) as loader:
        batches = iter(loader)
        next(batches)
        assert len(open_files()) == 1
        assert len(list(batches)) == 63
        assert open_files() == []


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
        dataset, 2, num_workers=1, collate_fn=dataset.collated, workers=Workers(start_method="spawn")
    ) as loader:
        assert all(same for _, same in loader)


class Measured(np.ndarray):
    """A subclass of array."""


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
        "records": structured,
        "of a subclass": ramp.view(Measured),
        "other byte order": ramp.astype(">i4"),
        "no dimension": np.array(("x" * 2000,), [("text", "U2000")]),
    }
    sent = {name: (array, True, array.strides) for name, array in found.items()}
    gaps = ramp[:, ::2]
    sent["with gaps"] = gaps, True, np.ascontiguousarray(gaps).strides
    sent["small"] = np.arange(5), False, (8,)
    sent["empty"] = np.zeros((0, 4)), False, np.zeros((0, 4)).strides
    return sent


def test_an_array_arrives_as_it_was():
    sent = arrays()
    seen = seen_by_worker({name: array for name, (array, *_) in sent.items()}, described)
    for name, (array, shared, strides) in sent.items():
        data, kind, dtype, found, writeable, lies = seen[name]
        assert (data, kind, dtype) == (array.tobytes(), type(array).__name__, array.dtype.str), name
        assert (lies, writeable) == (shared, array.flags.writeable), name
        assert array.size == 0 or found == strides, name


class Refers:
    """Has the same memory in two arrays."""

    def __init__(self):
        self.whole = np.arange(5000.0)
        self.also = self.whole[:]


def objects(value):
    if isinstance(value, Refers):
        value.whole[0] = 7
        return float(value.also[0])
    if isinstance(value, np.ma.MaskedArray):
        return value.filled(-1).sum()
    return [each.sum() for each in value[:2]] + [value[2]]


def test_other_objects_arrive_as_they_were():
    mixed = np.empty(3, object)
    mixed[:] = [np.ones(3000), np.ones(5000), "text"]
    parts = {
        "refers": Refers(),
        "masked": np.ma.masked_array(np.ones(3000, np.int64), [True] + [False] * 2999),
        "objects": mixed,
    }
    seen = seen_by_worker(parts, objects)
    assert seen["refers"] == 7.0  # as in this process: both arrays share memory
    assert seen["masked"] == 2998
    assert seen["objects"] == [3000.0, 5000.0, "text"]


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


def test_an_array_that_was_changed_in_this_process_or_whose_file_has_no_name_any_more_is_sent(on_disk):
    changed, kept = (np.memmap(on_disk, np.int64, mode) for mode in "cr")
    changed[5] = -1
    on_disk.unlink()
    np.zeros(200_000, np.int64).tofile(on_disk)  # another file has the name
    for array in (changed, kept):
        data, path, *_ = seen_by_worker({0: array}, over_file)[0]
        assert data == array.tobytes() and path.startswith("/memfd:slipring-dataset")


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


def told(part):
    part.put("from the worker")
    return "put"


def test_descriptors_in_a_dataset_go_to_every_worker_also_to_a_respawned_one():
    workers = Workers(start_method="spawn", on_death="respawn")
    with contextlib.closing(slipring.Queue(64)) as queue:
        dataset = Parts({i: queue for i in range(30)}, told)
        with Loader(dataset, 1, num_workers=2, collate_fn=as_it_is, workers=workers) as loader:
            batches = iter(loader)
            pids = {next(batches)["pid"]}
            for pid in worker_pids(loader).values():
                os.kill(pid, signal.SIGKILL)
            pids |= {batch["pid"] for batch in batches}
            assert loader.stats().respawns >= 1 and len(pids) >= 2
        assert {queue.get(timeout=LONG_S) for _ in range(30)} == {"from the worker"}


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
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        with pytest.raises(SegmentFull, match=r"free within the limit on file size \(RLIMIT_FSIZE"):
            pickling.SharedPickle(np.zeros(4 << 20, np.uint8))

    in_child(limited)


def test_a_pickle_that_fails_leaves_no_file_open():
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as caught:
        pickling.SharedPickle((np.zeros(4096), lambda: None))
    assert open_files() == [], caught  # the kept exception refers to the object
