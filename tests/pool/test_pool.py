"""Loaders of several processes share one pool of workers, and each delivers what it would deliver with its own."""

import pytest

from tests.pool.rank import Rank, parent_of, ranks, wait_gone

EPOCHS = 2


def epochs_of_own_loaders(n, **options):
    """Return what each rank delivers with workers of its own."""
    found = []
    for number in range(n):
        with Rank() as rank:
            rank.ask("make", **{"num_workers": 2, "shuffle": True, "seed": number, **options})
            found.append([rank.ask("epoch") for _ in range(EPOCHS)])
            rank.ask("close")
    return found


@pytest.mark.parametrize(
    "kind", [{}, {"torch": True}, {"rng": "sample"}, {"persistent_workers": False, "drop_last": True}]
)
def test_each_rank_gets_the_bytes_and_states_of_a_loader_of_its_own(kind):
    own = epochs_of_own_loaders(2, **kind)
    with ranks(2, **kind) as started:
        for epoch in range(EPOCHS):
            for rank in started:
                rank.begin("epoch")
            shared = [rank.answer() for rank in started]
            for mine, theirs in zip(shared, own, strict=True):
                assert mine["digest"] == theirs[epoch]["digest"]
                assert mine["state"] == theirs[epoch]["state"]
        assert own[0][0]["digest"] != own[1][0]["digest"]  # the seeds differ, so equal bytes would show a mix-up


def test_the_ranks_have_the_same_worker_processes_which_end_with_the_last_rank():
    with ranks(2) as (first, second):
        workers = set(first.ask("epoch")["pids"]) | set(second.ask("epoch")["pids"])
        assert len(workers) <= 2
        pool = {parent_of(pid) for pid in workers}
        assert len(pool) == 1 and not pool & {first.pid, second.pid}
        first.ask("close")
        assert set(second.ask("epoch")["pids"]) <= workers
        second.ask("close")
        wait_gone(*workers, *pool)


def test_the_first_rank_may_end_and_the_pool_serves_the_others():
    with ranks(3) as (first, second, third):
        workers = first.ask("epoch")["pids"]
        expected = second.ask("epoch")["digest"]
        first.process.stdin.close()
        first.process.wait()
        assert third.ask("epoch")["digest"] != expected
        assert second.ask("epoch")["pids"][0] in workers


def test_two_loaders_of_a_rank_with_other_datasets_share_the_workers():
    with ranks(2) as started:
        pool = None
        for rank in started:
            rank.ask("batch")  # the workers are at work when the second dataset comes
        for number, rank in enumerate(started):
            rank.ask("make", name="eval", data={"n": 40, "root": "there"}, pool=rank.name, num_workers=2, seed=number)
        seen = [rank.ask("epoch", name="eval") for rank in started]
        for rank in started:
            while rank.ask("batch") is not None:
                pass
            parents = {parent_of(pid) for found in seen for pid in found["pids"]}
            parents.update(parent_of(pid) for pid in rank.ask("epoch")["pids"])
            pool = pool or parents
            assert parents == pool and len(pool) == 1


def test_many_small_datasets_share_the_workers():
    with ranks(1) as (rank,):
        pids = set()
        for number in range(35):
            rank.ask("make", name=f"{number}", data={"n": 8 + number}, pool=rank.name, num_workers=2)
        firsts = [rank.ask("batch", name=f"{number}") for number in range(35)]
        assert all(batch is not None for batch in firsts)
        for number in range(35):
            pids.update(rank.ask("epoch", name=f"{number}")["pids"])
        assert len(pids) <= 2
