"""num_workers="auto" over several epochs: short ones, interrupted ones, streams."""

import itertools

import pytest

from slipring import Loader, Workers
from tests.loader.tuned import ENDLESS, Tuned
from tests.support.datasets import Numbered, Squares
from tests.support.inside import BATCHES, LONG_WINDOW, WINDOW, Tuner, engine_of


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new workers"])
def test_short_epochs_of_a_stream_have_one_number_each_until_it_settles(persistent):
    def seen():
        return {int(n) for _, batch in loader for n in batch}

    with Loader(Numbered(20), 2, num_workers=(None, 6), persistent_workers=persistent) as loader:
        while not loader.tuning.settled:
            assert len(seen()) == 1
        assert seen() == {loader.tuning.workers}


@pytest.mark.parametrize(("persistent", "stream"), [(True, False), (False, True)])
def test_epochs_of_ten_batches_settle_as_long_ones_do(monkeypatch, persistent, stream):
    long, short = Tuned(monkeypatch), Tuned(monkeypatch, persistent=persistent, stream=stream, begins=30.0)
    long.settle()
    counts = short.settle(10)
    assert set(counts) == {10} and short.tuner.whole
    assert short.tuning.workers == long.tuning.workers == 6 and short.tried == long.tried
    assert short.tuner.spent <= sum(counts) <= BATCHES


@pytest.mark.parametrize(
    ("n", "take", "step", "most"), [(2, None, 0.0, 12), (10, None, 1.0, 2), (30, None, 30.0, 6), (2000, 10, 0.0, 6)]
)
def test_short_and_interrupted_epochs_settle_within_200_batches_and_a_window(monkeypatch, n, take, step, most):
    job = Tuned(monkeypatch, step=step, most=most)
    counts = job.settle(n, take)
    assert set(counts) == {take or n} and sum(counts) <= BATCHES + LONG_WINDOW
    assert 1 <= job.tuning.workers <= most and all(1 <= tried <= most for tried in job.tried)
    assert n == 2 or job.tuning.workers == (1 if step == 30 else most)


def test_the_time_between_short_epochs_is_no_part_of_them(monkeypatch):
    quick, busy = Tuned(monkeypatch), Tuned(monkeypatch)
    quick.settle(10)
    busy.settle(10, between=300.0)
    assert busy.tuning == quick.tuning and busy.tuning.history
    # Two workers make ten batches of 8 ms in 40 ms.
    assert busy.tuning.history[0][1] == pytest.approx(10 / 0.040, rel=0.02)


def test_the_tail_of_an_epoch_is_not_measured(monkeypatch):
    plain, late = Tuned(monkeypatch, each=1.0), Tuned(monkeypatch, each=1.0)
    assert plain.settle(40) == late.settle(40, tail=500.0)
    assert late.tuning.history == plain.tuning.history and not late.tuner.whole
    # Without the last batch, two workers make 2 batches each ms, and six make 6.
    for workers, rate, _ in late.tuning.history:
        assert rate == pytest.approx(workers * 1000, rel=0.1)


def test_a_look_at_one_batch_does_not_have_the_next_long_epoch_measured_as_a_short_one(monkeypatch):
    job = Tuned(monkeypatch)
    list(zip(job.epoch(2000), range(1)))
    assert job.tuner.whole
    (count,) = job.settle()
    assert WINDOW < count <= BATCHES and not job.tuner.whole and job.tuning.workers == 6


@pytest.mark.parametrize("n", [10, ENDLESS], ids=["short epochs", "one long epoch"])
def test_work_that_has_changed_is_measured_again(monkeypatch, n):
    job = Tuned(monkeypatch)
    job.settle(n)
    before = len(job.tuning.history)
    assert job.tuning.workers == 6

    def batches(count):
        """The search takes so many more batches, for epochs of any length."""
        yield from itertools.islice(itertools.chain.from_iterable(iter(lambda: job.epoch(n), None)), count)

    for _ in batches(1000):
        pass
    assert len(job.tuning.history) == before  # nothing has changed
    job.step = 20.0  # now the loop takes most of the time
    for _ in batches(1500):
        if len(job.tuning.history) > before and job.tuning.settled:
            break
    assert job.tuning.settled and job.tuning.workers == 1
    assert len(job.tuning.history) > before and set(job.tried) == {1, 2, 6}


def test_work_that_has_become_more_is_measured_again(monkeypatch):
    job = Tuned(monkeypatch, each=1.0, step=20.0)
    job.settle(10)
    assert job.tuning.workers == 1
    job.each = 60.0
    for _ in range(200):
        list(job.epoch(10))
        if job.tuning.workers > 1 and job.tuning.settled:
            break
    assert job.tuning.settled and job.tuning.workers == 4  # 60 ms of work for each step of 20 ms, and a margin


def test_a_resize_amidst_a_look_is_not_lost(monkeypatch):
    """As another thread or a signal handler does: a look that is in progress must not change the number."""
    asked = []

    def go_on(tuner, window):
        if not asked:
            asked.append(tuner.workers)
            loader.resize(3)
        tuner._change(5)

    monkeypatch.setattr(Tuner, "_go_on", go_on)
    with Loader(Squares(1 << 40), 2, workers=Workers(start_method="thread"), num_workers=(None, 6)) as loader:
        batches = iter(loader)
        while not asked:
            next(batches)
        for _ in range(20):
            next(batches)
        assert engine_of(loader).pool.target == 3
        assert (loader.tuning.workers, loader.tuning.settled) == (3, True)
        assert "resize()" in loader.tuning.reason
        batches.close()
        next(iter(loader))
        assert loader.options.num_workers == engine_of(loader).pool.target == 3


def test_no_more_workers_than_the_slots_serve(monkeypatch):
    job = Tuned(monkeypatch, most=12, slots=6)
    job.settle()
    assert max(job.tried) == job.tuning.workers == 5 and "its 6 slots serve no more" in job.tuning.reason
