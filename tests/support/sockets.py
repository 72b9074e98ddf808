"""A machine with two sockets, as a tree of files in place of /sys."""

import os
from pathlib import Path

import pytest

from tests.support.inside import engine_of, process


def empty_tree(path, monkeypatch):
    """Let the package read an empty tree at `path` in place of /proc and /sys, and know of no other ranks."""
    for name in process.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(process, "ROOT", str(path))


def nodes(tree, **lists):
    """Write nodes that have memory, by name, with their processors."""
    folder = tree / "sys/devices/system/node"
    for name, cpus in lists.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "cpulist").write_text(",".join(map(str, sorted(cpus))) + "\n")
    (folder / "has_memory").write_text(",".join(name.removeprefix("node") for name in lists) + "\n")


def address(name):
    """Return the PCI address of a device of the tree."""
    return f"0000:{name}:00.0"


def two_sockets(tree):
    """Write two nodes with two GPUs each: node 0 has one of this process's processors, node 1 the others.

    Return both sets of processors.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("this process has one processor: every binding is the same")
    nodes(tree, node0=[first], node1=others)
    for name, node in {"1b": 0, "43": 0, "9b": 1, "df": 1, "virtual": -1}.items():
        folder = tree / "sys/bus/pci/devices" / address(name)
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return {first}, set(others)


def policy_of(loader):
    """Return the memory policy of a loader's slots, as /proc/self/numa_maps names it."""
    wanted = engine_of(loader).ring.slot_memory(0)[0]
    lines = [line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines()]
    return max((int(start, 16), policy) for start, policy, *_ in lines if int(start, 16) <= wanted)[1]
