"""One budget of memory covers the segments and caches of all ranks of a pool."""

import contextlib
import fcntl
import os
import random
import re

import pytest

from slipring import Loader, Workers
from tests.pool.rank import Rank, ranks, unfinished
from tests.pool.test_deaths import batches_until_the_end, kill, maker_of, rows_of
from tests.support.inside import Snapshot, attach
from tests.support.processes import until

MIB = 1 << 20
BATCH = {"n": 64, "size": 28 * 1024}  # a batch of four rows has 0.9 MiB
ENOUGH = int(8.4 * MIB)  # for the controls and two batches of each of three loaders


def quiet(started):
    """Wait until no batch is being made; return what each rank's segment takes."""
    until(lambda: not any(each["unfinished"] for each in usages(started)), "no batch is made")
    return usages(started)


def usages(started):
    return [rank.ask("usage") for rank in started]


def budgets_of(started):
    return [each["budget"] for each in usages(started)]


def taken(started):
    return sum(each["used"] for each in quiet(started))


# ---- wrong values


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"memory": "1GiB"},
            ValueError,
            r"Workers\(memory=1073741824\) limits the memory of a pool",
        ),
        ({"pool": "node", "memory": "much"}, ValueError, "memory must be a size such as '32GiB'"),
        ({"pool": "node", "memory": 0}, ValueError, "memory must be from 1 byte to 64 TiB, not 0"),
        ({"pool": "node", "memory": 1.5}, TypeError, "memory must be a size such as '32GiB' or a number of bytes"),
    ],
)
def test_a_wrong_budget_is_refused_at_once(options, kind, text):
    with pytest.raises(kind, match=text):
        Loader(range(8), num_workers=1, workers=Workers(**options))


@pytest.mark.parametrize("second", [None, "2MB"])
def test_ranks_with_different_budgets_get_an_error_that_names_both(second):
    with ranks(1, memory="64MB") as (first,), Rank() as other:
        first.ask("batch")
        other.ask("make", pool=first.name, num_workers=2, data={"n": 8}, name="other", memory=second)
        answer = other.ask("epoch", name="other")
        theirs = None if second is None else 2_000_000
        assert answer["error"] == "ValueError" and f"process {first.pid}" in answer["text"]
        assert f"memory is {theirs} here and 64000000 there" in answer["text"]
        assert first.ask("epoch")["pids"]


@pytest.mark.parametrize("first", [None, "64MiB"])
def test_a_loader_that_comes_while_the_last_one_leaves_has_a_budget_of_its_own(tmp_path, first):
    os.mkfifo(path := tmp_path / "gate")
    data = {**BATCH, "gate": str(path), "gated": 0}
    with ranks(1, data=data, memory=first, shuffle=False) as (leaving,), Rank() as other:
        leaving.begin("batch")
        with contextlib.closing(gate_of(path)):  # its worker cannot leave before this is closed
            leaving.kill()
            other.ask("make", pool=leaving.name, num_workers=2, data=BATCH, memory=7 * MIB)
            assert "error" not in other.ask("epoch")
            assert other.ask("usage")["budget"] <= 7 * MIB


def gate_of(path):
    """Wait until a process opens a gate; return the gate's other end."""

    def opened():
        with contextlib.suppress(OSError):  # nobody has opened it yet
            return open(path, "wb", opener=lambda name, _: os.open(name, os.O_WRONLY | os.O_NONBLOCK))

    return until(opened, "a worker is at the gate")


# ---- within the budget


@pytest.mark.parametrize("kind", [{}, {"torch": True}])
def test_batches_within_a_tight_budget_are_those_without_one(kind):
    with ranks(2, data=BATCH, **kind) as started:
        expected = [rank.ask("epoch") for rank in started]
    with ranks(2, data=BATCH, memory=7 * MIB, **kind) as started:
        for rank in started:
            rank.begin("epoch")
        for rank, other in zip(started, expected, strict=True):
            answer = rank.answer()
            assert (answer["digest"], answer["state"]) == (other["digest"], other["state"])


def test_all_ranks_together_take_no_more_than_the_budget_and_each_has_its_part():
    memory = 14 * MIB
    with ranks(3, data=BATCH, memory=memory, shuffle=False) as started:
        for round_ in range(16):
            for rank in started:
                assert [row[0] for row in rank.ask("batch")] == [4 * round_ + i for i in range(4)]
            assert taken(started) <= memory
        until(lambda: max(found := budgets_of(started)) < 1.1 * min(found), "about equal parts")
        assert sum(budgets_of(started)) <= memory


def test_a_loader_reads_ahead_only_what_its_part_allows():
    with ranks(1, data=BATCH, memory=8 * MIB, prefetch_factor=8) as (rank,):
        rank.ask("batch")
        rank.ask("batch")
        until(lambda: quiet([rank])[0]["used"] > 3 * MIB, "batches that are ready ahead")
        (found,) = quiet([rank])
        assert found["used"] <= found["budget"] < 8 * MIB  # a part stays free for another loader
        assert found["budget"] - found["used"] < 2 * MIB  # and its own part is used
        assert len(list(batches_until_the_end(rank))) == 14


def test_a_program_that_keeps_more_batches_than_fit_gets_copies():
    with ranks(1, data=BATCH, memory=6 * MIB, shuffle=False) as (rank,):
        assert rank.ask("keep", n=16) == list(range(64))
        assert taken([rank]) <= 6 * MIB


def test_with_copy_never_it_gets_an_error_that_names_the_budget():
    with ranks(1, data=BATCH, memory=6 * MIB, copy="never") as (rank,):
        answer = rank.ask("keep", n=16)
        assert answer["error"] == "SegmentFull" and "memory=6291456 of its pool" in answer["text"]
        assert "Raise memory=" in answer["text"] and "keep fewer batches" in answer["text"]


def test_batches_that_grow_get_the_memory_that_is_left():
    with ranks(2, data=BATCH, memory=16 * MIB, shuffle=False, dataset="Growing") as started:
        for rank in started:
            rank.begin("epoch")
        for rank in started:
            assert "error" not in rank.answer()


# ---- too little


def test_a_budget_without_room_for_one_batch_is_an_error_at_once_that_says_what_is_needed():
    with ranks(1, data=BATCH, memory=2 * MIB) as (rank,):
        answer = rank.ask("batch")
        assert answer["error"] == "SegmentFull"
        assert "memory=2097152 of its pool" in answer["text"] and "Raise memory=" in answer["text"]
        assert answer["fields"]["needed"] > MIB // 2 and answer["fields"]["free"] < MIB
        least = re.search(r"two batches of each of these loaders and the caches need ([0-9.]+) MB", answer["text"])
    with ranks(1, data=BATCH, memory=int(float(least[1]) * 1e6) - 200_000) as (rank,):
        assert rank.ask("epoch")["error"] == "SegmentFull"
    with ranks(1, data=BATCH, memory=int(float(least[1]) * 1e6) + 100_000) as (rank,):
        assert "error" not in rank.ask("epoch")


def test_a_rank_for_which_nothing_is_left_gets_an_error_and_the_others_go_on():
    with ranks(2, data=BATCH, memory=4 * MIB) as (first, second):
        first.ask("batch")
        answer = second.ask("batch")
        assert answer["error"] == "SegmentFull" and "the rest is for 2 loaders" in answer["text"]
        assert len(list(batches_until_the_end(first))) == 15
        first.ask("close")
        assert len(rows_of(batches_until_the_end(second))) == 60  # it gets the memory that the first one had


def test_the_caches_of_the_dataset_count():
    with ranks(1, data={**BATCH, "cache": "32MiB"}, memory=40 * MIB) as (rank,):
        rank.ask("batch")
        rank.ask("batch")
        (found,) = quiet([rank])
        assert MIB < found["budget"] < 8 * MIB
    with ranks(1, data={**BATCH, "cache": "32MiB"}, memory=33 * MIB) as (rank,):
        answer = rank.ask("batch")
        assert answer["error"] == "SegmentFull" and "33.6 MB of 34.6 MB are for caches" in answer["text"]


# ---- ranks wait for one another


@pytest.fixture
def crowded():
    """Three ranks; the first two have read ahead and pause, so that the third one's first batch has no memory."""
    with ranks(3, data=BATCH, memory=ENOUGH, prefetch_factor=4) as (first, second, third):
        for rank, budget in ((first, 5.4 * MIB), (second, 2.7 * MIB)):
            rank.ask("batch")
            until(lambda rank=rank, budget=budget: rank.ask("usage")["budget"] > budget, "its part of the memory")
            rank.ask("batch")  # from now on, it reads ahead as much as that allows
            quiet([first, second] if rank is second else [first])
        assert first.ask("usage")["used"] > 4.3 * MIB  # four batches are ready
        yield first, second, third


def test_a_rank_waits_until_others_give_memory_back(crowded):
    first, second, third = crowded
    third.begin("batch")
    while batch := first.ask("batch"):
        assert "error" not in batch
    assert "error" not in third.answer()
    assert taken(crowded) <= ENOUGH
    assert rows_of(batches_until_the_end(second))


def test_workers_that_wait_for_the_memory_of_a_rank_that_pauses_serve_the_others(tmp_path):
    data = {"n": 64, "size": 64 * 1024, "lock": str(tmp_path / "lock")}
    options = {"dataset": "Late", "data": data, "memory": 16 * MIB, "prefetch_factor": 4, "shuffle": False}
    with ranks(2, **options) as (paused, other):
        with open(data["lock"], "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # nobody knows yet how large batches are: eight are requested
            seen = [paused.ask("batch")]
            paused.begin("batch")
            until(lambda: sum(unfinished(Snapshot(job.watch)) for job in attach(paused.pid)) == 8, "eight requests")
        seen.append(paused.answer())
        until(lambda: paused.ask("usage")["short"] == 2, "all workers wait for memory")
        assert "error" not in other.ask("batch")
        assert paused.ask("usage")["unfinished"]
        seen += batches_until_the_end(paused)
        paused.ask("close")
        assert len(list(batches_until_the_end(other))) == 15
        assert rows_of(seen) == list(range(64))
        with Rank() as alone:
            alone.ask("make", num_workers=2, **{**options, "memory": None, "seed": 0})
            own = list(batches_until_the_end(alone))
        assert [row[:2] for batch in seen for row in batch] == [row[:2] for batch in own for row in batch]


@pytest.mark.slow
def test_a_rank_that_nobody_gives_memory_gets_an_error_after_a_while(crowded):
    first, _, third = crowded
    answer = third.ask("batch")
    assert answer["error"] == "SegmentFull" and "the rest is for 3 loaders" in answer["text"]
    assert len(list(batches_until_the_end(first))) == 14


def test_workers_and_ranks_that_are_killed_cost_no_memory_and_no_batch():
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    print("seed", seed)
    rng = random.Random(seed)
    with ranks(3, data={**BATCH, "n": 200}, memory=13 * MIB, on_death="respawn") as started:
        victim = started.pop()
        victim.ask("batch")
        seen = [[] for _ in started]
        for step in range(24):
            for rank, batches in zip(started, seen, strict=True):
                batches.append(rank.ask("batch"))
            if step % 6 == 2:
                kill(maker_of(rng.choice(seen)[-1]))
            if step == 10:
                victim.kill()
        for rank, batches in zip(started, seen, strict=True):
            assert rows_of([*batches, *batches_until_the_end(rank)]) == list(range(200))
        assert taken(started) <= 13 * MIB
