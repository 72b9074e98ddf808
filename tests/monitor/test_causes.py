"""Each cause is distinguished from similar ones, with made-up figures."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from tests.monitor.simulated import Job
from tests.support.inside import (
    NO_SLOT,
    PARTICIPANT,
    READ_COUNTS,
    RECORD,
    SLOT,
    STAGES,
    Known,
    observing,
    stage_of,
    verdict,
)

MS = 1_000_000  # ns
TASK, READY, LEASED = 1, 3, 4  # states of a slot


def snapshot(
    n=60, workers=2, waited=8, step=1, fetch=18, collate=0, cpu=1.0, queued=0.0, threads=False, slots=20,
    states=(), loop=None, waiters=0, at_ns=None,
):  # fmt: skip
    """A `Snapshot` of `n` batches whose workers take turns; times in ms, `cpu` and `queued` of the busy time."""
    table = np.zeros(n, RECORD)
    table["run"], table["kind"], table["seq"], table["rows"] = 1, 1, np.arange(n), 4
    table["participant"] = 1 + np.arange(n) % workers
    table["waited_ns"], table["step_ns"] = waited * MS, step * MS
    table["step_ns"][0] = 0
    table["fetch_ns"], table["collate_ns"] = fetch * MS, collate * MS
    table["taken_at"] = 1000 * MS + np.cumsum(table["waited_ns"] + table["step_ns"])
    table["published_at"] = table["taken_at"] - 1
    table["claimed_at"] = table["published_at"] - table["fetch_ns"] - table["collate_ns"]
    participants = np.zeros(workers + 1, PARTICIPANT)
    participants["pid"], participants["status"], participants["at_slot"] = 1 << 30, 2, NO_SLOT
    participants["pid"][0] = participants["pid"][1] if threads else os.getpid()
    of = participants[1:]
    of["fetch_ns"] = of["reported_ns"] = n // workers * (fetch + collate) * MS
    of["cpu_ns"], of["queued_ns"] = of["reported_ns"] * cpu, of["reported_ns"] * queued
    lying = np.zeros(len(states), SLOT)
    lying["state"], lying["batch"]["run"] = states, 1
    loop_steps, loop_wait, loop_ns = loop or (0, 0, 0)
    there = np.arange(workers + 1) > 0
    segment_info = {
        "push": False, "pid_namespace": 1, "ready_waiters": waiters, "run": 1, "n_slots": slots,
        "loop_steps": loop_steps, "loop_wait_ns": loop_wait * MS, "loop_ns": loop_ns * MS,
        "reads": dict.fromkeys(READ_COUNTS, 0),
    }  # fmt: skip
    return SimpleNamespace(
        table=table, taken=table, slots=lying, participants=participants, serving=of, workers=of, there=there,
        told=there, segment_info=segment_info, inline=False, threads=threads, consumer_pid=int(participants["pid"][0]),
        stages=dict.fromkeys(STAGES, stage_of(0, 0, np.zeros(1, np.int64))),
        at_ns=int(table["taken_at"][-1]) if at_ns is None else at_ns,
    )  # fmt: skip


# ---- memory


def test_memory_that_workers_have_of_their_own_hides_no_cause():
    known = Known(private_bytes=(200 << 20,) * 2, parent_bytes=50 << 20, free_bytes=8 << 30, forked=True)
    assert verdict(snapshot(cpu=0.1), known).cause == "storage"
    assert verdict(snapshot(waited=0, step=40), known).cause == "consumer"


def test_copies_of_the_parents_memory_are_a_cause_where_memory_is_short_or_they_take_the_time():
    copies = {"copied_bytes": (200 << 20,) * 2, "parent_bytes": 300 << 20, "forked": True}
    assert verdict(snapshot(cpu=0.1), Known(free_bytes=100 << 20, **copies)).cause == "memory"
    assert verdict(snapshot(), Known(free_bytes=8 << 30, **copies)).cause == "memory"
    assert verdict(snapshot(cpu=0.1), Known(free_bytes=8 << 30, **copies)).cause == "storage"
    assert verdict(snapshot(n=6000), Known(free_bytes=8 << 30, **copies)).cause == "decode"


# ---- processors and Python's lock


def test_threads_that_hold_up_the_step_by_pythons_lock_are_named_though_nothing_is_waited_for():
    found = verdict(snapshot(workers=4, threads=True, waited=0, step=20, fetch=60, cpu=0.3, queued=0.1))
    assert (found.cause, found.data_bound) == ("gil", False)
    assert "so does the step" in found.sentence and "processes" in found.advice


def test_no_more_than_all_of_the_time_is_spent_without_a_processor():
    found = verdict(snapshot(cpu=0.2, queued=43.26))
    assert found.cause == "decode" and "4326%" not in found.sentence
    assert "have no processor, for longer than that" in found.sentence


# ---- slots


def test_slots_are_enough_where_the_workers_are_busy_or_few_are_kept():
    full = [LEASED] * 17
    assert verdict(snapshot(states=full, cpu=0.1)).cause == "storage"  # busy workers
    idle = verdict(snapshot(states=full, fetch=4, cpu=0.1))
    assert idle.cause == "kept" and "keeps 17 batches, of 20 slots" in idle.sentence
    few = verdict(snapshot(workers=4, slots=2, fetch=8, cpu=0.1))
    assert few.cause == "slots" and "slots=24" in few.advice


# ---- one worker


def test_the_time_that_ray_takes_to_start_its_tasks_is_no_wait_of_a_slow_pipeline():
    at = snapshot(cpu=0.1)  # 60 batches, which took 18 ms each
    assert verdict(at, Known(block_wait_ns=30 * 18 * MS, block_ns=60 * 18 * MS)).cause == "storage"
    assert verdict(at, Known(block_wait_ns=34 * 18 * MS, block_ns=60 * 18 * MS)).cause == "ray"
    at.table["fetch_ns"][:2] = 3000 * MS  # the first batch of each worker
    spent = 6000 + 58 * 18
    assert verdict(at, Known(block_wait_ns=(6000 + 280) * MS, block_ns=spent * MS)).cause == "storage"
    assert verdict(at, Known(block_wait_ns=(6000 + 800) * MS, block_ns=spent * MS)).cause == "ray"


# ---- advice


def test_nothing_is_advised_that_is_so_already():
    collating = {"fetch": 2, "collate": 16}
    assert "leave it to slipring" in verdict(snapshot(**collating), Known(own_collate=True)).advice
    ours = verdict(snapshot(**collating), Known(own_collate=False))
    assert ours.cause == "collate" and "collate_fn" not in str(ours) and "leave" not in ours.advice
    sleeps = verdict(snapshot(cpu=0.01, **collating), Known(own_collate=True))
    assert sleeps.cause == "collate" and "processors" not in sleeps.advice

    slow = snapshot()
    slow.table["slowest_ns"], slow.table["fetch_ns"][[9, 30]] = 2 * MS, 400 * MS
    slow.table["slowest_ns"][[9, 30]] = 380 * MS
    assert "in_order=False" in verdict(slow, Known(in_order=True)).advice
    lets_pass = verdict(slow, Known(in_order=False))
    assert lets_pass.cause == "sample" and "in_order" not in lets_pass.advice

    begins = snapshot(waited=0, step=4)
    begins.table["run"][30:] = 2
    begins.table["step_ns"][30], begins.table["waited_ns"][30] = 0, 600 * MS
    assert "persistent_workers=True" in verdict(begins, Known(persistent=False)).advice
    stay = verdict(begins, Known(persistent=True))
    assert stay.cause == "epoch_start" and "persistent_workers" not in stay.advice


def test_with_a_preparing_thread_the_step_is_the_loops_own():
    # The thread requests the next batch at once; the loop's steps take 6 ms, 18 ms with their waits.
    found = verdict(snapshot(waited=17.9, step=0.1, fetch=30, cpu=0.1, loop=(60, 720, 1080)))
    assert "5 workers would be enough; there are 2." in found.advice


def test_the_advice_is_a_sentence():
    assert "Have more workers, " in verdict(snapshot(cpu=0.1, step=0.001)).advice


@pytest.mark.parametrize("cpu", [0.1, 1.0])
def test_no_number_of_workers_is_advised_that_was_no_faster(cpu):
    advice = verdict(snapshot(cpu=cpu, step=0.001), Known(tuned=True, saturated=(2, 44.6, 16, 46.1))).advice
    assert "More workers than 2 bring hardly anything: 16 made 46.1 batches/s, and 2 made 44.6." in advice
    assert "more workers" not in advice and "would" not in advice and ("a lock" in advice) == (cpu < 0.5)


def test_no_number_is_advised_where_the_loader_finds_it_or_where_there_are_many(monkeypatch):
    monkeypatch.setattr(observing("verdict"), "cpus", lambda: 2)
    at = {n: Job(workers=n, fetch=20, step=0.001, cpu=0.1).snapshot() for n in (2, 8, 16)}
    assert "Have more workers, 8 for a start" in verdict(at[2]).advice and "for a lock" in verdict(at[2]).advice
    for n in (8, 16):
        assert verdict(at[n]).advice.endswith('num_workers="auto" finds out how many workers help.')
    assert verdict(at[2], Known(tuned=True)).advice.endswith("or more workers, which wait side by side.")


# ---- under way


def test_the_wait_in_progress_counts():
    at = snapshot(waited=0, step=5, fetch=1, waiters=1)
    assert not verdict(at).data_bound
    at.at_ns += 4_000 * MS
    assert verdict(at).data_bound and verdict(at).wait_share > 0.9
