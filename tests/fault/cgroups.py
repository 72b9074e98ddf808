"""Memory cgroups with a limit, for tests that fill them."""

import contextlib
import os
import pathlib

import pytest

from tests.support.processes import until

CGROUP = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cgroup_v1(limit, nested):
    """Make a memory cgroup with a limit, or an unlimited one below it; yield (its tasks file, the limited one)."""
    top = CGROUP / "memory"
    if not (top / "memory.limit_in_bytes").exists():
        pytest.skip("no memory cgroup v1 is mounted")
    limited = top / f"slipring-test-{os.getpid()}"
    group = limited / "below" if nested else limited
    try:
        limited.mkdir()
        (limited / "memory.use_hierarchy").write_text("1")
        group.mkdir(exist_ok=True)
        (limited / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            remove_groups(group, limited)
        pytest.skip(f"memory cgroups cannot be made here: {error}")
    try:
        yield group / "cgroup.procs", limited
    finally:
        remove_groups(group, limited)


def remove_groups(*groups):
    """Remove cgroups as soon as the last process has left them."""
    for group in dict.fromkeys(groups):
        until(lambda group=group: not group.exists() or removed(group), f"{group} is empty")


def removed(group):
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@contextlib.contextmanager
def cgroup_v2(limit, nested):
    """The same for cgroup v2."""
    top = next((p for p in (CGROUP, CGROUP / "unified") if (p / "cgroup.controllers").exists()), None)
    if top is None or "memory" not in (top / "cgroup.controllers").read_text().split():
        pytest.skip("cgroup v2 has no memory controller here")
    limited = top / f"slipring-test-{os.getpid()}"
    group = limited / "below" if nested else limited
    try:
        (top / "cgroup.subtree_control").write_text("+memory")
        limited.mkdir()
        if nested:
            (limited / "cgroup.subtree_control").write_text("+memory")
            group.mkdir()
        (limited / "memory.max").write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            remove_groups(group, limited)
        pytest.skip(f"memory cgroups cannot be made here: {error}")
    try:
        yield group / "cgroup.procs", limited
    finally:
        remove_groups(group, limited)


def oom_kills(group):
    """Return how often the kernel killed processes in a cgroup and below it (v1 counts each group alone)."""
    files = [*group.rglob("memory.oom_control"), *group.rglob("memory.events")]
    texts = [file.read_text() for file in files]
    return sum(int(dict(line.split() for line in text.splitlines())["oom_kill"]) for text in texts)
