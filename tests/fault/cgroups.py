"""Memory cgroups with a limit, for tests that fill them."""

import contextlib
import os
import pathlib

import pytest

from tests.support.processes import until

CGROUP = pathlib.Path("/sys/fs/cgroup")


def cgroup_v1(limit, nested):
    """Make a memory cgroup with a limit, or an unlimited one below it; yield (its tasks file, the limited one)."""
    top = CGROUP / "memory"
    if not (top / "memory.limit_in_bytes").exists():
        pytest.skip("no memory cgroup v1 is mounted")
    return made(top, nested, {"memory.use_hierarchy": "1", "memory.limit_in_bytes": str(limit)})


def cgroup_v2(limit, nested):
    """The same for cgroup v2."""
    top = next((p for p in (CGROUP, CGROUP / "unified") if (p / "cgroup.controllers").exists()), None)
    if top is None or "memory" not in (top / "cgroup.controllers").read_text().split():
        pytest.skip("cgroup v2 has no memory controller here")
    with contextlib.suppress(OSError):
        (top / "cgroup.subtree_control").write_text("+memory")
    below = {"cgroup.subtree_control": "+memory"} if nested else {}
    return made(top, nested, {**below, "memory.max": str(limit)})


@contextlib.contextmanager
def made(top, nested, settings):
    """Make a cgroup with these settings, and one below it if `nested`."""
    limited = top / f"slipring-test-{os.getpid()}"
    group = limited / "below" if nested else limited
    try:
        try:
            limited.mkdir()
            for name, value in settings.items():
                (limited / name).write_text(value)
            group.mkdir(exist_ok=True)
        except OSError as error:
            pytest.skip(f"memory cgroups cannot be made here: {error}")
        yield group / "cgroup.procs", limited
    finally:
        for one in dict.fromkeys((group, limited)):
            until(lambda one=one: removed(one), f"the last process has left {one}")


def removed(group):
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def oom_kills(group):
    """Return how often the kernel killed processes in a cgroup and below it (v1 counts each group alone)."""
    files = [*group.rglob("memory.oom_control"), *group.rglob("memory.events")]
    texts = [file.read_text() for file in files]
    return sum(int(dict(line.split() for line in text.splitlines())["oom_kill"]) for text in texts)
