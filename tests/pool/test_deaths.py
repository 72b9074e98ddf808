"""Ranks, workers and the pool's process are killed: nothing is lost for the others, and nothing stays behind."""

import contextlib
import os
import random
import signal
import threading

import pytest

from tests.pool.rank import parent_of, ranks, wait_gone
from tests.support.processes import alive, sleeps_in_futex, until, waits

pytestmark = pytest.mark.fault
BEGINNING_S = 1.0  # in which a rank starts a pool, or joins it
TIMES = 4
MESSAGES = 150  # more than a socket holds


def batches_until_the_end(rank):
    while (batch := rank.ask("batch")) is not None:
        yield batch


def maker_of(batch):
    """Return the pid of the worker that made a batch."""
    return int(batch[0][2])


def kill(pid, number=signal.SIGKILL):
    """Send a signal to a worker, unless it has died meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def error_of(rank):
    """Ask for batches until one is an error, perhaps of the next epoch: others may have made the dead worker's."""
    return until(lambda: (batch := rank.ask("batch")) and "error" in batch and batch, "an error")


def rows_of(batches):
    return sorted(int(row[0]) for batch in batches for row in batch)


def test_a_rank_that_is_killed_takes_nothing_along():
    with ranks(3, data={"n": 400, "slow": 0.001}) as (victim, *others):
        begun = [rank.ask("batch") for rank in (victim, *others)]
        victim.kill()
        for rank, first in zip(others, begun[1:], strict=True):
            assert rows_of([first, *batches_until_the_end(rank)]) == list(range(400))
            assert len(rank.ask("epoch")["pids"]) in (1, 2)


def test_the_pool_ends_when_all_ranks_are_killed():
    with ranks(2, data={"n": 400, "slow": 0.01}) as started:
        workers = {int(row[2]) for rank in started for row in rank.ask("batch")}
        pool = parent_of(workers.pop())
        for rank in started:
            rank.kill()
        wait_gone(pool, *workers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_is_replaced_and_its_batches_are_made_again(number):
    with ranks(2, data={"n": 400, "slow": 0.001}, on_death="respawn", num_workers=2) as started:
        seen = [[rank.ask("batch")] for rank in started]
        for _ in range(3):
            kill(maker_of(seen[0][-1]), number)
            for rank, batches in zip(started, seen, strict=True):
                until(
                    lambda rank=rank, batches=batches: (
                        batches.append(rank.ask("batch")) or alive(maker_of(batches[-1]))
                    ),
                    "a batch of a worker that lives",
                )
        for rank, batches in zip(started, seen, strict=True):
            assert rows_of([*batches, *batches_until_the_end(rank)]) == list(range(400))


def test_without_respawn_each_rank_gets_an_error_that_names_the_worker_and_can_go_on():
    with ranks(2, data={"n": 400, "slow": 0.001}) as started:
        worker = maker_of(started[0].ask("batch"))
        started[1].ask("batch")
        os.kill(worker, signal.SIGKILL)
        for rank in started:
            answer = error_of(rank)
            assert answer["error"] == "WorkerDied"
            assert f"(pid {worker}) of pool='test-" in answer["text"] and "was killed by SIGKILL" in answer["text"]
        for rank in started:
            assert len(rank.ask("epoch")["pids"]) in (1, 2)


def test_if_the_pool_dies_each_rank_gets_an_error_and_the_next_epoch_begins_another():
    with ranks(2, data={"n": 400, "slow": 0.005}) as started:
        workers = {int(row[2]) for rank in started for row in rank.ask("batch")}
        pool = parent_of(next(iter(workers)))
        os.kill(pool, signal.SIGKILL)
        wait_gone(*workers)
        for rank in started:
            answer = error_of(rank)
            assert answer["error"] == "WorkerDied"
            assert "the process of pool='test-" in answer["text"] and f"(pid {pool}) has died" in answer["text"]
        for rank in started:
            found = rank.ask("epoch")["pids"]
            assert found and not workers & set(found)


def test_a_sample_that_kills_its_workers_does_not_keep_the_machine_busy_while_the_loop_is_in_a_step(tmp_path):
    (deaths := tmp_path / "deaths").touch()
    with ranks(1, dataset="Poisoned", data={"n": 64, "root": str(deaths)}, shuffle=False) as (rank,):
        rank.ask("batch")
        times = until(lambda: len(found := deaths.read_text().split()) >= 6 and found, "six deaths of two workers")
        assert float(times[5]) - float(times[0]) > 0.5  # one of them is the third worker with its number
        assert error_of(rank)["error"] == "WorkerDied"


def test_a_stopped_rank_delays_no_other():
    with ranks(2, data={"n": 200}) as (stopped, other):
        stopped.ask("batch")
        os.kill(stopped.pid, signal.SIGSTOP)
        for _ in range(3):
            assert other.ask("epoch")["pids"]
        os.kill(stopped.pid, signal.SIGCONT)
        assert alive(stopped.pid) and stopped.ask("batch")


def test_a_stopped_worker_stops_neither_the_pool_nor_a_loader():
    """Each iteration sends a message to each worker, and the stopped one reads none."""
    with ranks(2) as (first, second):
        pids = until(lambda: len(found := first.ask("epoch")["pids"]) == 2 and found, "two workers")
        stopped, other = map(int, pids)
        os.kill(stopped, signal.SIGSTOP)
        assert first.ask("iterate", n=MESSAGES) == [other]
        assert second.ask("epoch")["pids"] == [other]
        os.kill(stopped, signal.SIGCONT)
        assert first.ask("finish") == 15 * MESSAGES
        until(lambda: second.ask("epoch")["pids"] == pids, "an epoch of both workers")


def test_a_worker_that_has_read_all_that_its_socket_held_is_woken_for_the_rest(tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    with ranks(1, num_workers=1) as (rank,):
        rank.ask("epoch")
        rank.ask("make", name="gated", pool=rank.name, num_workers=1, data={"n": 8, "gate": str(gate), "gated": 7})
        worker = maker_of(rank.ask("batch", name="gated"))  # it has both datasets
        until(lambda: waits(worker), "the worker is at the gate")
        rank.ask("begin_others", n=400)
        pool = parent_of(worker)
        until(lambda: waits(pool), "the pool has sent what the socket takes")
        os.kill(pool, signal.SIGSTOP)
        with open(gate, "wb"):
            pass
        until(lambda: sleeps_in_futex(worker), "the worker has read its messages")
        os.kill(pool, signal.SIGCONT)
        assert maker_of(rank.ask("newest")) == worker


def test_a_loader_that_goes_while_a_worker_is_busy_costs_no_worker(tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    with ranks(1, data={"n": 64, "gate": str(gate), "gated": 63}, shuffle=False, timeout=0.2) as (rank,):
        assert "error" not in rank.ask("batch")
        rank.ask("make", name="other", pool=rank.name, num_workers=2, data={"n": 64, "slow": 0.001})
        pids = until(lambda: len(found := rank.ask("epoch", name="other")["pids"]) == 2 and found, "two workers")
        assert error_of(rank)["error"] == "LoaderTimeout"
        rank.ask("close")
        with open(gate, "wb"):
            pass
        until(lambda: rank.ask("epoch", name="other")["pids"] == pids, "an epoch of the same workers")


def test_a_rank_that_is_killed_while_it_begins_stops_no_other():
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(TIMES):
        with ranks(3, data={"n": 64}, persistent_workers=False) as started:
            victim = started.pop(rng.randrange(3))
            for rank in (victim, *started):
                rank.begin("epoch")
            threading.Event().wait(rng.random() * BEGINNING_S)
            victim.kill()
            pids = {pid for rank in started for pid in rank.answer()["pids"]}
            pool = next(filter(None, map(parent_of, pids)))
            for rank in started:
                assert rank.ask("epoch")["pids"]
                rank.ask("close")
            wait_gone(pool, *pids)


def test_random_kills_of_ranks_and_workers_lose_and_double_nothing():
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    print("seed", seed)
    rng = random.Random(seed)
    with ranks(4, data={"n": 300, "slow": 0.0005}, on_death="respawn", num_workers=3) as started:
        seen = {rank: [] for rank in started}
        for step in range(40):
            for rank in started:
                seen[rank].append(rank.ask("batch"))
            if step % 4 == 1:
                kill(maker_of(seen[started[0]][-1]))
            if step in (10, 25):
                started.pop(rng.randrange(1, len(started))).kill()
        for rank in started:
            assert rows_of([*seen[rank], *batches_until_the_end(rank)]) == list(range(300))
