"""When memory runs out, a cache keeps no more, says so once, and continues. Never SIGBUS, never a kill."""

import json
import logging
import subprocess
import sys

import numpy as np
import pytest

import slipring
from tests.fault.cgroups import cgroup_v1, cgroup_v2, oom_kills
from tests.fault.test_full import fill
from tests.support.processes import LONG_S, ROOT

pytestmark = pytest.mark.fault

MB = 1 << 20


def array(key):
    return np.full(MB // 4, key, np.int32)


def fill_up(cache, n=100):
    """Keep as many entries as fit, and check all of them."""
    kept = [cache.put(key, array(key)) for key in range(n)]
    for key in range(n):
        assert (cache.get_or_make(key, lambda key=key: array(key)) == key).all()
    return kept


def test_a_full_file_system_ends_the_keeping_and_nothing_else(small, caplog):
    with slipring.Cache("64MiB", backing=small(16 * MB)) as cache, caplog.at_level(logging.WARNING, "slipring"):
        kept = fill_up(cache)
        stats = cache.stats()
    assert 8 < sum(kept) < 17 and stats.refused_memory > 50 and stats.refused_budget == 0
    said = [record.getMessage() for record in caplog.records if "keeps no more" in record.getMessage()]
    assert len(said) == 1 and "file system" in said[0]


def test_others_may_fill_the_file_system(small):
    place = small(16 * MB)
    with slipring.Cache("64MiB", backing=place) as cache:
        assert cache.put(0, array(0)) and cache.put(1, array(1))
        fill(place)
        fill_up(cache, 20)
        assert (cache.get(0) == 0).all() and 19 not in cache


def test_if_there_is_no_room_at_all_it_is_an_error_with_numbers(small):
    place = small(1 * MB)
    fill(place)
    with pytest.raises(slipring.SegmentFull, match="no room for a cache's first pages") as refused:
        slipring.Cache("1MiB", backing=place)
    assert refused.value.needed > refused.value.free and "file system" in refused.value.limit


IN_A_GROUP = """
import json, logging, sys
import numpy as np
import slipring
from tests.fault.test_cache_memory import fill_up
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("slipring").addHandler(handler)
with slipring.Cache("10GiB") as cache:
    kept = fill_up(cache, 400)
    print(json.dumps({"kept": sum(kept), "said": said, "stats": vars(cache.stats())}))
"""


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
def test_a_full_memory_cgroup_ends_the_keeping_and_no_process_is_killed(cgroup):
    with cgroup(400 * MB, False) as (procs, limited):
        enter = ["sh", "-c", f'echo $$ > "{procs}"; exec "$@"', "sh", sys.executable, "-c", IN_A_GROUP]
        done = subprocess.run(enter, cwd=ROOT, capture_output=True, text=True, timeout=LONG_S)
        assert oom_kills(limited) == 0
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    # The cache may use most of the free memory, but not a sixteenth of the limit and 64 MiB.
    assert 100 < told["kept"] < 320 and told["stats"]["refused_memory"] > 50
    assert "entries are kept as long as there is room" in told["said"][0]
    assert [line for line in told["said"] if "keeps no more" in line and "cgroup" in line] == told["said"][1:2]
