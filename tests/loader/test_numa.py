"""Slots on a NUMA node, workers on its processors, and workers that hold no files of GPUs."""

import contextlib
import os
import re
from pathlib import Path

import numpy as np
import pytest

from slipring import Loader, Workers
from tests.support.datasets import Made
from tests.support.inside import Ring, numa, process, worker_main
from tests.support.sockets import address, empty_tree, nodes, policy_of, two_sockets

METHODS = ["fork", "spawn", "thread"]
BEYOND = 1023  # a node that no machine with these tests has
held = []  # descriptors that a test has opened


def affinity(i):
    return np.array(sorted(os.sched_getaffinity(0)))


def a_megabyte(i):
    return np.full(1 << 20, i, np.uint8)


def files(i):
    """Return the path behind each descriptor that the test holds."""
    return [os.readlink(f"/proc/self/fd/{number}") for number in held]


@pytest.fixture
def placed():
    """Skip where the kernel or a sandbox cannot place memory."""
    if not Path("/proc/self/numa_maps").exists() or Ring(2, 2, node=0).node is None:
        pytest.skip("mbind is refused here, or the kernel has no NUMA")


# ---- real nodes: every machine has node 0


@pytest.mark.parametrize("method", METHODS)
def test_slots_take_their_memory_from_the_requested_node(placed, method):
    workers = Workers(start_method=method, numa=0)
    with Loader(Made(a_megabyte, 40), 4, num_workers=2, workers=workers) as loader:
        batches = [batch[:, 0].tolist() for batch in loader]
        report = loader.report()
        assert policy_of(loader) == "prefer:0"
    assert batches == [[*range(first, first + 4)] for first in range(0, 40, 4)]
    assert report.numa["node"] == 0 and report.numa["slots"].keys() == {0}
    assert 0 < report.numa["slots"][0] <= report.slots["all"]
    assert re.search(r"NUMA: slots take their memory from node 0; \d+ slots? lies? on node 0", str(report))


def test_without_a_device_the_system_places_slots_and_workers():
    with Loader(Made(affinity, 4), 1, num_workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[[*affinity(0)]]] * 4
        assert policy_of(loader) == "default"
        assert loader.report().numa.get("node") is None


# ---- nodes of a tree of files


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The root of a tree in place of /proc and /sys."""
    empty_tree(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def sockets(tree):
    """The processors of each node; there are two GPUs next to each."""
    return two_sockets(tree)


@pytest.mark.parametrize(
    ("devices", "node"),
    [
        (["1b"], 0),
        (["df"], 1),
        (["9b", "df"], 1),
        (["1b", "9b"], None),  # no node is next to both
        (["virtual"], None),
        (["unknown"], None),
        ([], None),
    ],
)
def test_the_node_is_the_one_next_to_the_devices(sockets, devices, node):
    assert numa.chosen("auto", lambda: map(address, devices)) == node
    assert numa.chosen(None, lambda: map(address, devices)) is None
    assert numa.chosen(1, lambda: map(address, devices)) == 1


@pytest.mark.parametrize("memory", ["0", ""])
def test_on_one_node_no_device_is_asked_for_its_address(tree, memory):
    if memory:
        nodes(tree, node0=[0])
    assert numa.chosen("auto", lambda: pytest.fail("asked for addresses")) is None


def test_a_node_that_the_machine_lacks_is_refused(sockets, tree, monkeypatch):
    with (
        Loader([1, 2], num_workers=1, workers=Workers(numa=7)) as loader,
        pytest.raises(ValueError, match=r"numa=7: this machine has only the NUMA nodes \[0, 1\]: give one of them"),
    ):
        iter(loader)
    monkeypatch.setattr(process, "ROOT", str(tree / "empty"))
    with pytest.raises(ValueError, match="numa=0: this machine has no NUMA nodes"):
        numa.chosen(0, list)


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_workers_stay_on_the_processors_of_the_requested_node(sockets, method):
    first, _ = sockets
    with Loader(Made(affinity, 6), 1, num_workers=3, workers=Workers(numa=0, start_method=method)) as loader:
        assert {tuple(batch[0]) for batch in loader} == {tuple(first)}
    assert os.sched_getaffinity(0) == first | sockets[1]  # thread workers leave their process alone


def bound(number, always=False, near=0):
    """Return the processors of this thread after `pin`, and undo it."""
    before = os.sched_getaffinity(0)
    try:
        numa.pin(near, number, always)
        return os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)


def test_workers_for_which_the_node_has_no_processor_stay_free(sockets, monkeypatch):
    first, others = sockets
    assert bound(0) == first and bound(1) == first | others
    assert bound(1, always=True) == first
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(len(others) + 1))  # a rank's share fits into the node
    assert bound(1) == first


def test_workers_of_a_rank_that_is_bound_to_another_node_stay_where_the_launcher_put_them(sockets):
    first, others = sockets
    os.sched_setaffinity(0, others)
    try:
        # A launcher binds a rank before its fork server begins; that of the tests has begun.
        workers = Workers(numa=0, start_method="fork")
        with Loader(Made(affinity, 2), 1, num_workers=1, workers=workers) as loader:
            assert {tuple(batch[0]) for batch in loader} == {tuple(sorted(others))}
    finally:
        os.sched_setaffinity(0, first | others)


def test_a_refused_placement_is_logged_once_and_batches_arrive(tree, caplog):
    nodes(tree, node0=[0], **{f"node{BEYOND}": [0]})
    for _ in range(2):
        with Loader(range(8), 4, num_workers=1, workers=Workers(numa=BEYOND)) as loader:
            assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert loader.report().numa["node"] is None
    said = [record.getMessage() for record in caplog.records if "NUMA" in record.getMessage()]
    assert len(said) == 1
    assert f"slots are not placed on NUMA node {BEYOND}, but where the kernel puts them: mbind: " in said[0]


# ---- files of GPUs


@contextlib.contextmanager
def open_files(*paths):
    held[:] = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
    try:
        yield
    finally:
        while held:
            os.close(held.pop())


def test_forked_workers_hold_no_files_of_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_main, "DEVICE_FILES", str(tmp_path / "nvidia"))
    paths = [tmp_path / name for name in ("nvidia0", "nvidiactl", "other")]
    with (
        open_files(*paths),
        Loader(Made(files, 2), None, num_workers=1, workers=Workers(start_method="fork")) as loader,
    ):
        got = list(loader)
        assert files(0) == [str(path) for path in paths]
    assert got == [["/dev/null", "/dev/null", str(paths[2])]] * 2
