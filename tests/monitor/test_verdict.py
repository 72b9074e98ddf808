"""The verdict names the cause that a simulated job has, and none if it has none.

`bench/verdicts.py` plants the same causes in real loaders.
"""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

import slipring
from tests.monitor.simulated import Job
from tests.support.inside import (
    READ_COUNTS,
    EmptySnapshot,
    Snapshot,
    Watch,
    at_work,
    engine_of,
    look,
    now,
    observing,
    reporting,
    verdict,
)
from tests.support.options import grouped
from tests.support.processes import state, until, worker_pids

WAITS = 0.02  # share of a worker's time on a processor if it mostly waits


@pytest.fixture(autouse=True)
def four_processors(monkeypatch):
    """Make the advice independent of the machine."""
    monkeypatch.setattr(observing("verdict"), "cpus", lambda: 4)


def cause(job, **known):
    return job.verdict(**known).cause


# ---- is the loop data-bound?


def test_a_loop_that_waits_a_tenth_of_its_time_is_data_bound():
    # Two workers make a batch every 10 ms.
    below, above = Job(fetch=20, step=9.1).verdict(), Job(fetch=20, step=8.9).verdict()
    assert (below.cause, below.data_bound, below.advice) == ("ok", False, "")
    assert (above.cause, above.data_bound) == ("decode", True)
    assert below.wait_share == pytest.approx(0.09, abs=0.01) and "waits 11%" in above.sentence


def test_a_slow_step_is_no_fault_of_the_data():
    found = Job(fetch=0.8, step=10, cpu=WAITS).verdict()
    assert (found.cause, found.data_bound, found.advice) == ("consumer", False, "")
    assert "1 would do" in found.sentence


def test_nothing_is_wrong_where_nothing_is():
    found = Job(fetch=4.5, step=4, cpu=WAITS).verdict()
    assert (found.cause, found.data_bound, found.advice) == ("ok", False, "")


def test_workers_that_are_idle_for_half_of_their_time_leave_the_time_to_the_step():
    assert cause(Job(fetch=8 * 0.49, step=4)) == "consumer"
    assert cause(Job(fetch=8 * 0.51, step=4)) == "ok"


def test_a_few_batches_are_too_early():
    assert Job(batches=7, fetch=20).verdict().sentence == "Too early to tell: 7 batches so far."
    assert cause(Job(batches=8, fetch=20)) == "decode"
    with slipring.Loader(range(10)) as unused:
        assert unused.report().verdict.cause == "unknown"


# ---- the dataset


def test_slow_decoding_is_named():
    found = Job(fetch=4, step=0.5).verdict()
    assert (found.cause, found.data_bound) == ("decode", True)
    assert "8 workers would keep up" in found.advice


def test_more_workers_than_any_machine_has_are_not_advised():
    found = Job(fetch=35, step=0.1).verdict()
    assert found.cause == "decode"
    assert "may use 4 processors, and no number of workers on them would keep up" in found.advice
    assert "cheaper" in found.advice and "350" not in found.advice


def test_slow_storage_is_named():
    found = Job(fetch=16, step=1, cpu=WAITS).verdict()
    assert (found.cause, found.data_bound) == ("storage", True)
    assert "more workers" in found.advice


def test_workers_that_compute_for_sixty_percent_of_their_time_are_limited_by_the_processor():
    assert cause(Job(fetch=20, cpu=0.59)) == "storage"
    assert cause(Job(fetch=20, cpu=0.61)) == "decode"
    # A worker that is ready to run would compute.
    assert cause(Job(fetch=20, cpu=0.3, queued=0.29)) == "storage"
    crowded = Job(fetch=20, cpu=0.3, queued=0.31).verdict()
    assert crowded.cause == "decode" and "For 31% of that they are ready to run" in crowded.sentence


def test_reading_that_takes_more_than_half_of_the_time_is_storage_also_where_it_computes():
    found = Job(fetch=20, parts={"read": 0.51, "decode": 0.4}).verdict()
    assert found.cause == "storage" and "(51% read, 40% decode)" in found.sentence
    assert cause(Job(fetch=20, parts={"read": 0.49, "decode": 0.4})) == "decode"


def test_a_slow_beginning_is_no_workers_fault():
    found = Job(batches=150, fetch=lambda made: 80 if made.number < 25 else 0.8, step=3, cpu=WAITS).verdict()
    assert found.cause == "storage"


# ---- one worker, one sample


def slower(times, worker=1):
    """Return a function for the time of batches if one worker takes `times` as long as the others."""
    return lambda made: 10 * times if made.worker == worker else 10


def test_a_worker_whose_processor_is_taken_is_named():
    job = Job(fetch=slower(4), cpu=lambda worker: 0.4 if worker == 1 else 1, queued=lambda worker: 0.6 * worker)
    found = job.verdict()
    assert found.cause == "worker"
    assert "Worker 1 (pid " in found.sentence and "for 60% of that time" in found.sentence
    assert "no processor" in found.sentence


def test_a_worker_that_waits_longer_than_the_others_is_named():
    found = Job(fetch=slower(10), cpu=WAITS).verdict()
    assert found.cause == "worker" and "Worker 1" in found.sentence and "waits in the dataset" in found.sentence
    assert "it computes for 100% of that time" in Job(fetch=slower(10)).verdict().sentence


def test_a_worker_that_takes_twice_as_long_as_the_others_is_named():
    assert cause(Job(workers=4, fetch=slower(1.9, worker=2))) == "decode"
    found = Job(workers=4, fetch=slower(2.1, worker=2)).verdict()
    assert found.cause == "worker" and "Worker 2" in found.sentence and "2.1 times" in found.sentence


def test_a_slow_sample_is_named_by_its_index():
    found = Job(batches=200, fetch=0.8, step=1, cpu=WAITS, sleepy={77: 300, 400: 290}).verdict()
    assert found.cause == "sample"
    assert "index 77 (300 ms), index 400 (290 ms)" in found.sentence


def every(n, batches, extra):
    """Return samples that take longer: the second one of every n-th batch."""
    return {4 * batch + 1: extra for batch in range(1, batches, n)}


def test_a_sample_that_takes_six_times_as_long_as_the_others_is_slow():
    job = {"workers": 1, "fetch": 8, "step": 7.9}  # a sample takes 2 ms
    assert cause(Job(**job, sleepy=every(5, 100, extra=9.8))) == "decode"
    found = Job(**job, sleepy=every(5, 100, extra=10.2)).verdict()
    assert found.cause == "sample" and "6 times as long" in found.sentence


def test_slow_samples_in_more_than_a_quarter_of_the_batches_are_the_dataset():
    few, many = every(4, 100, extra=20), {**every(4, 100, extra=20), 0: 20}
    assert cause(Job(workers=1, fetch=8, step=7.9, sleepy=few)) == "sample"
    assert cause(Job(workers=1, fetch=8, step=7.9, sleepy=many)) == "decode"


def test_a_slow_sample_that_nobody_waits_for_is_no_cause():
    # The loop waits 100 times for 6 ms, and the slow sample takes less than half of that.
    assert cause(Job(fetch=20, step=4, sleepy={77: 290})) == "decode"
    assert cause(Job(fetch=20, step=4, sleepy={77: 1500})) == "sample"


# ---- collation


def test_a_slow_collate_fn_is_named():
    found = Job(fetch=0.8, collate=6, step=0.5, cpu=WAITS).verdict()
    assert (found.cause, found.data_bound) == ("collate", True)
    assert "6 ms for each batch" in found.sentence and "It waits for something" in found.advice


def test_a_collate_fn_that_takes_half_of_the_workers_time_is_named():
    assert cause(Job(fetch=10.1, collate=9.9)) == "decode"
    assert cause(Job(fetch=9.9, collate=10.1)) == "collate"


def test_pickled_leaves_are_named_where_collation_takes_half_of_the_workers_time():
    found = Job(fetch=0.8, collate=6, step=0.5).verdict(pickled=256.0)
    assert (found.cause, found.data_bound) == ("pickled", True)
    assert "each batch has 256 pickled leaves" in found.sentence
    assert cause(Job(fetch=0.8, collate=6, step=0.5), pickled=0.0) == "collate"
    assert cause(Job(fetch=6, collate=0.8, step=0.5), pickled=256.0) == "decode"


def test_unpickling_is_named_where_it_takes_a_tenth_of_the_loops_time():
    job = Job(fetch=0.8, step=10, cpu=WAITS)
    found = job.verdict(pickled=3.0, unpickle_ns=6e6)
    assert (found.cause, found.data_bound) == ("pickled", False)
    assert "unpickling them takes 61% of the loop's time: each batch has 3 pickled leaves" in found.sentence
    assert cause(job, pickled=3.0, unpickle_ns=0.9e6) == "consumer"


def test_a_report_counts_the_pickled_leaves_of_each_batch(monkeypatch):
    monkeypatch.setattr(reporting, "Report", lambda name, snapshot, stats, known, **rest: known)
    with slipring.Loader(range(8), batch_size=2, num_workers=1, collate_fn=lambda s: [{k} for k in s]) as loader:
        assert sum(len(batch) for batch in loader) == 8
        known = loader.report()
    assert known.pickled == 2 and known.unpickle_ns > 0


# ---- epochs, samplers


def test_a_wait_at_each_epochs_begin_is_named():
    job = {"batches": 40, "epochs": 3, "fetch": 0.8, "step": 6, "start": 600}
    found = Job(**job, persistent=False).verdict()
    assert found.cause == "epoch_start" and "persistent_workers=True" in found.advice
    assert "601 ms, 2 seen" in found.sentence  # the first wait of all does not count
    assert cause(Job(**job)) == "consumer"


def test_a_wait_at_each_epochs_begin_is_the_cause_only_where_the_loop_waits_for_little_else():
    job = {"batches": 40, "epochs": 3, "fetch": 20, "start": 600, "persistent": False}
    assert cause(Job(**job, step=9.2)) == "epoch_start"
    assert cause(Job(**job, step=8.5)) == "decode"  # the loop waits for 15 % of the time after it, too


def test_a_slow_sampler_is_named():
    found = Job(batches=40, fetch=0.1, step=2, draw=8).verdict()
    assert (found.cause, found.data_bound) == ("sampler", True)
    assert cause(Job(batches=40, fetch=20, step=2, draw=1)) == "decode"


# ---- slots


def test_too_few_slots_are_named():
    found = Job(workers=4, slots=2, batches=150, fetch=8, cpu=WAITS).verdict()
    assert found.cause == "slots" and "2 slots" in found.sentence and "slots=24" in found.advice


def test_slots_are_too_few_up_to_one_more_than_workers():
    job = {"workers": 4, "batches": 150, "fetch": 8, "wake": 4}  # the time to wake the workers counts as idle, too
    assert cause(Job(**job, slots=5)) == "slots"
    assert cause(Job(**job, slots=6)) == "decode"
    # Workers that are busy for three quarters of their time have enough slots.
    assert cause(Job(**{**job, "wake": 2.9}, slots=5)) == "slots"
    assert cause(Job(**{**job, "wake": 1.6}, slots=5)) == "decode"


def test_batches_that_the_program_keeps_are_named():
    found = Job(slots=16, batches=150, fetch=4, keep=18, cpu=WAITS).verdict()
    assert found.cause == "kept" and "16 slots" in found.sentence and "slots=32" in found.advice


def test_a_fifth_of_the_batches_copied_is_a_program_that_keeps_them():
    assert cause(Job(fetch=20), copied_share=0.19) == "decode"
    assert cause(Job(fetch=20), copied_share=0.21) == "kept"
    found = Job(fetch=20).verdict(copied_share=0.98)  # none of them is kept at the end
    assert "98% of all were copied" in found.sentence and " 0 " not in found.sentence


# ---- threads


def test_threads_that_wait_for_pythons_lock_are_named():
    found = Job(workers=4, threads=True, batches=25, fetch=40, step=0.5, cpu=0.25).verdict()
    assert (found.cause, found.data_bound) == ("gil", True)
    assert "together have 1.0 processors" in found.sentence and "processes" in found.advice


@pytest.mark.parametrize(("cpu", "named"), [(0.12, "storage"), (0.13, "gil"), (0.34, "gil"), (0.36, "storage")])
def test_threads_that_together_have_about_one_processor_wait_for_pythons_lock(cpu, named):
    assert cause(Job(workers=4, threads=True, fetch=40, step=0.5, cpu=cpu)) == named
    assert cause(Job(workers=4, fetch=40, step=0.5, cpu=cpu)) == "storage"  # each process has its own lock


# ---- memory, caches


MIB = 1 << 20


def test_workers_that_copy_their_parents_memory_are_named():
    copies = {"copied_bytes": (200 * MIB,) * 2, "parent_bytes": 300 * MIB, "forked": True}
    found = Job(fetch=4, step=0.1).verdict(free_bytes=8 << 30, **copies)
    assert found.cause == "memory" and "StringList" in found.advice


def test_copies_of_a_quarter_of_the_memory_that_was_left_are_named():
    copies = {"copied_bytes": (100 * MIB,) * 2, "parent_bytes": 1 << 40, "forked": True}
    waiting = Job(fetch=20, cpu=WAITS)
    assert cause(waiting, free_bytes=610 * MIB, **copies) == "storage"
    assert cause(waiting, free_bytes=590 * MIB, **copies) == "memory"
    assert cause(waiting, free_bytes=590 * MIB, **{**copies, "forked": False}) == "storage"


def test_copies_of_less_than_64_mib_are_not_worth_a_word():
    waiting = Job(fetch=20, cpu=WAITS)
    assert cause(waiting, copied_bytes=(63 * MIB,), free_bytes=MIB, forked=True) == "storage"
    assert cause(waiting, copied_bytes=(65 * MIB,), free_bytes=MIB, forked=True) == "memory"


def test_workers_that_have_memory_of_their_own_are_not_said_to_copy_their_parents():
    known = {"private_bytes": (160 * MIB,) * 2, "copied_bytes": (4 * MIB,) * 2, "forked": True}
    assert cause(Job(fetch=12, cpu=WAITS), free_bytes=100 * MIB, parent_bytes=50 * MIB, **known) == "storage"


def test_page_faults_that_take_a_fifth_of_the_time_to_make_a_batch_are_named():
    computing = Job(fetch=20, step=0.1)
    assert cause(computing, faults=1500.0) == "decode"
    found = computing.verdict(faults=4000.0)
    assert found.cause == "page_faults"
    assert "takes 4,000 page faults, about 50% of the time" in found.sentence and "slipring.empty" in found.advice


def cached(later, epochs=3):
    """Return a job whose cache is empty in the first epoch, and later misses this share of the samples."""
    return Job(rows=100, batches=50, epochs=epochs, fetch=8, step=0.2, missed=lambda m: later if m.epoch else 1.0)


def test_a_cache_that_is_too_small_is_named():
    found = cached(0.6).verdict(cache_full="its budget of 1 MB is used up", cache_bytes=5_000_000)
    assert found.cause == "cache" and "60% of the lookups miss" in found.sentence
    assert "its budget of 1 MB is used up; all samples would take 5.0 MB" in found.sentence


def test_a_cache_is_too_small_where_it_is_full_and_misses_a_fifth_of_the_lookups():
    assert cause(cached(0.19), cache_full="full") == "decode"
    assert cause(cached(0.21), cache_full="full") == "cache"
    assert cause(cached(0.21)) == "decode"
    assert cause(cached(0.21, epochs=1), cache_full="full") == "decode"  # no sample was looked up again


# ---- devices


def test_a_slow_copy_to_the_device_is_named():
    found = Job(batches=200, fetch=0.1, step=1, copy=6, preload=1).verdict()
    assert (found.cause, found.data_bound) == ("copy", True)
    assert "takes 6 ms of the 6 ms of a step" in found.sentence


def test_a_copy_that_takes_half_of_a_step_is_named():
    # The workers make a batch every 10 ms, and the thread waits for it while it does not copy.
    assert cause(Job(fetch=20, step=1, copy=4.9, preload=1)) == "decode"
    assert cause(Job(fetch=20, step=1, copy=5.1, preload=1)) == "copy"


def test_a_copy_that_takes_little_is_not_named_where_the_loop_takes_batches_in_bursts():
    found = Job(fetch=6, copy=3, preload=1, step=lambda number: 0 if number % 4 else 40).verdict()
    assert found.data_bound and found.cause != "copy"


def test_a_thread_that_waits_is_not_a_loop_that_waits():
    found = Job(fetch=4, step=10, preload=2).verdict()
    assert (found.data_bound, found.cause) == (False, "consumer") and found.wait_share < 0.01


# ---- batches that cost little, or are made by the loop


def test_batches_that_cost_less_than_their_way_are_named():
    small = {"workers": 1, "prefetch": 1, "step": 0, "wake": 0.3}
    found = Job(**small, fetch=0.19).verdict()
    assert (found.cause, found.data_bound) == ("tiny", True)
    assert cause(Job(**small, fetch=0.21)) == "decode"


def test_batches_made_in_the_loop_are_named():
    found = Job(workers=0, fetch=4, step=1, cpu=WAITS).verdict()
    assert found.cause == "no_workers" and "num_workers=4" in found.advice


def test_of_batches_made_in_the_loop_no_worker_is_reported():
    found = Job(workers=0, batches=20, fetch=0.1, step=80).verdict()
    assert found.cause == "ok" and "worker" not in found.sentence


def test_batches_made_in_torchs_loop_are_named():
    def made(fetch_ns, batches=8):
        meter = SimpleNamespace(
            batches=batches, fetch_ns=fetch_ns, collate_ns=0, spent_ns=1_000_000, reads=dict.fromkeys(READ_COUNTS, 0)
        )
        return verdict(EmptySnapshot(meter))

    assert (made(110_000).cause, made(110_000).data_bound) == ("no_workers", True)
    assert (made(90_000).cause, made(90_000).data_bound) == ("ok", False)
    assert "num_workers=3" in made(720_000).advice  # their batches take three times the step
    assert made(110_000, batches=7).cause == "unknown"


# ---- under way


def test_one_sample_that_the_loop_waits_for_now_is_named():
    job = Job(of=200, fetch=0.4, step=1, sleepy={401: 1e9})
    early = job.verdict(later=0.9e3, waits=True)
    late = job.verdict(later=1.2e3, waits=True)
    assert early.cause != "sample" and late.cause == "sample"
    assert "row 1 of its batch, which begins at index 400" in late.sentence


def test_a_step_under_way_for_a_second_is_reported():
    job = Job(of=200, batches=50, fetch=20, step=9.1)
    assert job.verdict(later=900).cause == "ok"
    found = job.verdict(later=1100)
    assert (found.cause, found.data_bound) == ("consumer", False)
    assert "in its step for 1.11 s" in found.sentence


@pytest.mark.parametrize(("usual", "hangs"), [(20, 10.0), (1500, 15.0)])
def test_a_worker_hangs_after_ten_seconds_or_ten_times_what_took_longest(usual, hangs):
    # Batches 10 and 11 start at the same moment, and batch 11 does not end.
    job = Job(batches=10, of=30, fetch=lambda made: 1e12 if made.number == 11 else usual, step=0.1, cpu=WAITS)
    begun = (job.clock - max(int(batch["claimed_at"]) for batch in job.lying if batch and batch["seq"] == 11)) / 1e6
    assert job.verdict(later=1e3 * (hangs - 0.1) - begun, waits=True).cause != "hung"
    found = job.verdict(later=1e3 * (hangs + 0.1) - begun, waits=True)
    assert (found.cause, found.data_bound) == ("hung", True)
    assert "row 0 of its batch, which begins at index 44" in found.sentence


# ---- real processes that hang or are stopped


class Data:
    """Reading a sample calls a function of its index."""

    def __init__(self, n, read):
        self.n, self.read = n, read

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.read(i)
        return np.zeros(100, np.float32)


def loader(data, **options):
    """Return a loader with forked workers, because its datasets use local functions of tests."""
    return slipring.Loader(data, **grouped(**{"batch_size": 4, "num_workers": 2, "start_method": "fork", **options}))


def hangs(i, goes_on):
    """Wait for a byte at index 45."""
    if i == 45:
        os.read(goes_on, 1)


class Whole(Data):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Stream:
    def __init__(self, read):
        self.read = read

    def __iter__(self):
        for i in range(80):
            self.read(i)
            yield i


@pytest.mark.parametrize(
    ("how", "does"),
    [
        ("sample", "row 1 of its batch, which begins at index 44"),
        ("getitems", "making one batch"),
        ("stream", "making one batch"),
        ("collate", "putting one batch"),
    ],
)
def test_a_worker_that_hangs_is_named_with_its_batch(how, does):
    goes_on, told = os.pipe()

    def read(i):
        hangs(i, goes_on)

    def collate(samples):
        hangs(int(samples[1][0]), goes_on)
        return np.stack(samples)

    class Numbered(Data):
        def __getitem__(self, i):
            return np.full(3, i)

    made = {
        "sample": lambda: loader(Data(80, read)),
        "getitems": lambda: loader(Whole(80, read)),
        "stream": lambda: loader(Stream(read), num_workers=1),
        "collate": lambda: loader(Numbered(80, read), collate_fn=collate),
    }
    with made[how]() as hanging:
        batches = iter(hanging)
        for _ in range(11):  # the next one never comes
            next(batches)
        until(lambda: at_work(look(engine_of(hanging).ring)), "a worker is at it")
        until(lambda: not (look(engine_of(hanging).ring).table["published_at"] == 0).sum() > 1, "no other")
        found = verdict(Snapshot(Watch(engine_of(hanging).ring.controls), at_ns=now() + 60_000_000_000))
        os.write(told, b"x")
    os.close(goes_on)
    os.close(told)
    assert found.cause == "hung" and does in found.sentence and (how == "sample" or "batch 11" in found.sentence)


def test_a_worker_that_is_stopped_does_not_hang():
    with loader(Data(80, lambda i: None)) as halted:
        next(iter(halted))
        until(lambda: look(engine_of(halted).ring).there.sum() == 2, "both have begun")
        pid = worker_pids(halted)[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: state(pid) == "T", "it is stopped")
            found = halted.report().verdict
        finally:
            os.kill(pid, signal.SIGCONT)
    assert (found.cause, found.data_bound) == ("stopped", False)
    assert f"worker 1 (pid {pid})" in found.sentence and f"kill -CONT {pid}" in found.advice


def test_a_queue_without_a_reader_is_full():
    queue = slipring.Queue(4)
    for i in range(4):
        queue.put(i)
    found = queue.report().verdict
    queue.close()
    assert found.cause == "consumer" and "Nobody has got any" in found.sentence
