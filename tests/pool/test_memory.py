"""The dataset is in memory once, however many ranks there are."""

from tests.pool.rank import parent_of, pss, ranks
from tests.support.processes import descendants

OBJECTS = 300_000


def test_four_ranks_take_the_memory_of_one_for_the_datasets_python_objects():
    used = {}
    for n_ranks in (1, 4):
        for n in (64, OBJECTS):
            with ranks(n_ranks, dataset="Loaded", data={"n": n}, batch_size=256) as started:
                pids = set().union(*(rank.ask("epoch")["pids"] for rank in started))
                pool = parent_of(pids.pop())
                used[n_ranks, n] = sum(map(pss, [pool, *descendants(pool), *(rank.pid for rank in started)]))
    alone, together = (used[n_ranks, OBJECTS] - used[n_ranks, 64] for n_ranks in (1, 4))
    assert alone > 20e6, "the dataset is too small to be measured"
    assert together <= 1.2 * alone
