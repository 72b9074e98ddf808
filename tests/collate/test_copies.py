"""Batches larger than the caches: every way of copying gives the same bytes, and a loader reports its choice."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support.inside import copy_bytes, copy_ways
from tests.support.parts import slow

SHAPE = (3, 300, 300)  # 16 of them are 4.3 MB


class Ready:
    def __init__(self):
        self.pool = np.random.default_rng(0).integers(0, 256, (32, *SHAPE), np.uint8)

    def __len__(self):
        return 32 * 40

    def __getitem__(self, i):
        return self.pool[i % 32]


@pytest.mark.parametrize("way", copy_ways())
def test_a_way_of_copying_copies_every_byte_and_no_other_at_any_alignment(way):
    draw = np.random.default_rng(1)
    source = draw.integers(0, 256, 1024, np.uint8)
    for to in range(65):
        for start in (0, 1, 15, 16, 31, 33, 63):
            for n in (0, 1, 2, 15, 16, 63, 64, 65, 127, 128, 129, 200, 512, 700):
                room = np.full(1024, 77, np.uint8)
                if n:
                    copy_bytes(room[to : to + n], source[start : start + n], way)
                assert np.array_equal(room[to : to + n], source[start : start + n])
                assert (room[:to] == 77).all() and (room[to + n :] == 77).all()


PROGRAM = """
import sys
import numpy as np
import slipring
from tests.collate.test_copies import Ready
kind, data = sys.argv[1], Ready()
how = {"num_workers": 0} if kind == "inline" else {"num_workers": 2, "workers": slipring.Workers(start_method=kind)}
with slipring.Loader(data, 16, **how) as loader:
    ways = [loader.stats().large_copies]
    for epoch in range(4):  # 320 batches: a process measures at most 100
        for number, batch in enumerate(loader):
            assert np.array_equal(batch, data.pool[16 * number % 32 :][:16])
            ways.append(loader.stats().large_copies)
            if ways[-1] is not None:
                break
print(ways[0], ways[-1], sep="; ")
with slipring.Loader(data, 16, **how) as loader:
    next(iter(loader))
    print(loader.stats().large_copies)
"""


def ways_of(kind, **environment):
    env = {name: value for name, value in os.environ.items() if name != "SLIPRING_COPY"} | environment
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", ["fork", slow("thread"), slow("inline")])
def test_a_loader_measures_its_first_large_batches_and_reports_the_way(kind):
    """In a separate program: a process chooses only once."""
    first, second = ways_of(kind)
    assert first in [f"None; {way}" for way in copy_ways()]
    assert first == f"None; {second}", "the next loader knows from the beginning"


@pytest.mark.parametrize("wanted, way", [slow("memcpy", "memcpy"), ("streaming", copy_ways()[-1])])
def test_the_environment_decides_the_way(wanted, way):
    assert ways_of("fork", SLIPRING_COPY=wanted) == [f"None; {way}", way]
