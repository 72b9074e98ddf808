"""num_workers="auto" over several epochs: short ones, those that are broken off, streams."""

import itertools
import threading
import time
from types import SimpleNamespace

import pytest

import slipring
from slipring import Loader
from slipring.workers import tuning
from slipring.workers.tuning import BATCHES, LONG_WINDOW, WINDOW, Tuner, Tuning
from tests.datasets import Squares
from tests.loader.test_tuning import grew


class Slow:
    """Samples that come from far away; ten batches of two."""

    def __init__(self, n=20):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(0.004)
        return i


class Far:
    """The same as a stream, of which each worker has its share."""

    def __iter__(self):
        me = slipring.get_worker_info()
        for i in range(me.id, 20, me.num_workers):
            time.sleep(0.004)
            yield i, me.num_workers


def auto(data, most=6, **options):
    return Loader(data, 2, num_workers="auto", max_workers=most, **options)


def settle(loader, epoch=lambda loader: sum(1 for _ in loader)):
    """Go through epochs until nothing is tried any more; return the numbers of their batches."""
    counts = []
    while not loader.tuning.settled:
        assert sum(counts) < 10 * BATCHES, (counts, loader.tuning)
        counts.append(epoch(loader))
    return counts


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new workers"])
@pytest.mark.parametrize("method", ["fork", "thread"])
def test_epochs_of_ten_batches_settle_as_long_ones_do(method, persistent):
    with auto(Slow(), start_method=method, persistent_workers=persistent) as loader:
        counts = settle(loader)
        found, spent = loader.tuning, loader._tuner.spent
    assert set(counts) == {10} and grew(found)
    assert spent <= BATCHES + LONG_WINDOW  # others came while workers began
    assert found.reason.startswith(f"{found.workers} worker") and found.reason != Tuning.reason


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new workers"])
def test_short_epochs_of_a_stream_have_one_number_each_until_it_settles(persistent):
    seen = []

    def epoch(loader):
        batches = [batch for _, batch in loader]
        seen.append({int(n) for batch in batches for n in batch})
        return len(batches)

    with auto(Far(), persistent_workers=persistent) as loader:
        settle(loader, epoch)
        epoch(loader)
        assert loader._tuner.spent <= BATCHES + LONG_WINDOW
        assert seen[-1] == {loader.tuning.workers}
    assert all(len(numbers) == 1 for numbers in seen) and grew(loader.tuning)


def test_epochs_that_are_broken_off_settle_too():
    def epoch(loader):
        return sum(1 for _ in itertools.islice(loader, 10))

    with auto(Slow(4000), start_method="thread") as loader:
        assert set(settle(loader, epoch)) == {10}
        assert loader._tuner.spent <= BATCHES + LONG_WINDOW


def test_what_a_program_does_between_short_epochs_is_no_part_of_them():
    with auto(Slow(), start_method="thread") as loader:
        rates = []
        while not loader.tuning.history:
            begun = time.perf_counter()
            assert sum(1 for _ in loader) == 10
            rates.append(10 / (time.perf_counter() - begun))
            time.sleep(0.3)
        _, rate, _ = loader.tuning.history[0]
    # What was measured begins with the first batch, which leaves nine of the ten.
    assert rate >= 0.9 * min(rates)


def test_the_tail_of_an_epoch_is_no_part_of_what_is_measured():
    goes_on, heads = threading.Event(), []

    class Tail(Squares):
        def __getitem__(self, i):
            if i >= 76:
                goes_on.wait()
            time.sleep(0.0005)
            return super().__getitem__(i)

    with auto(Tail(80), start_method="thread", min_workers=2) as loader:
        while not loader.tuning.history:
            goes_on.clear()
            begun, batches = time.perf_counter(), iter(loader)
            for _ in range(38):
                next(batches)
            heads.append(time.perf_counter() - begun)
            opens = threading.Timer(0.5 + 10 * heads[-1], goes_on.set)
            opens.start()
            assert sum(1 for _ in batches) == 2
            opens.join()
        assert not loader._tuner.whole
    _, rate, _ = loader.tuning.history[0]
    assert rate >= WINDOW / sum(heads)  # with one of the last two batches it would be less


def test_a_look_at_one_batch_does_not_have_the_next_long_epoch_measured_as_a_short_one():
    with auto(Slow(4000), start_method="thread") as loader:
        next(iter(loader))
        assert loader._tuner.whole
        for _ in loader:
            if loader.tuning.settled:
                break
        assert loader.tuning.settled and not loader._tuner.whole


def test_that_too_few_batches_have_come_is_said_only_where_it_is_so():
    with auto(Slow(), start_method="thread") as loader:
        assert loader.tuning.reason == Tuning.reason
        while not loader.tuning.settled:
            history = loader.tuning.history
            assert sum(1 for _ in loader) == 10
            if loader.tuning.history != history and not loader.tuning.settled:
                assert "tried in place of" in loader.tuning.reason or "once more" in loader.tuning.reason
        assert loader._tuner.spent <= BATCHES + LONG_WINDOW


def test_work_that_has_changed_is_measured_anew_over_short_epochs(monkeypatch):
    monkeypatch.setattr(tuning, "AGAIN_NS", 100_000_000)
    data = Slow()
    with auto(data, start_method="thread", min_workers=1) as loader:
        settle(loader)
        first, found = len(loader.tuning.history), loader.tuning.workers

        def step(batches):
            for _ in batches:
                time.sleep(0.02)  # now the loop is what takes the time

        for _ in range(40):
            step(loader)
            if len(loader.tuning.history) > first and loader.tuning.settled:
                break
        assert len(loader.tuning.history) > first
        assert loader.tuning.workers < found or found <= 2  # a loaded machine allowed no more before


def test_the_first_batchs_wait_and_what_is_between_epochs_ask_for_no_more_workers(monkeypatch):
    clock = [1]
    monkeypatch.setattr(tuning, "now", lambda: clock[0])
    meter = SimpleNamespace(batches=0, wait_ns=0, fetch_ns=0, collate_ns=0)
    pool = SimpleNamespace(steady=True, wanted=2, processor_ns=lambda: meter.fetch_ns)
    options = SimpleNamespace(persistent_workers=True, prefetch_factor=2, ahead=0)
    engine = SimpleNamespace(ring=SimpleNamespace(meter=meter, n_slots=40), pool=pool, options=options)
    tuner = Tuner(2, 2, 8)

    def epoch(batches=5, made=8_000_000, step=10_000_000):
        tuner.begin(engine)
        meter.wait_ns += made
        meter.batches += batches
        meter.fetch_ns += batches * made
        clock[0] += made + batches * step
        tuner.end(clock[0])
        clock[0] += 1_000_000_000  # the program does something else

    epoch()  # it tells that epochs are short
    for _ in range(4):
        assert not tuner.settled
        epoch()
    assert tuner.history == [(2, pytest.approx(5 / 0.058), 0.0)] and tuner.settled


# ---- somebody else sets the number


def test_a_resize_amidst_a_look_is_not_lost(monkeypatch):
    """As from another thread, or a signal's handler: the look that it comes into must change nothing any more."""
    asked = []

    def go_on(tuner, window):
        if not asked:
            asked.append(tuner.workers)
            loader.resize(3)
        tuner._change(5)

    monkeypatch.setattr(Tuner, "_go_on", go_on)
    with Loader(Squares(4000), 2, num_workers="auto", max_workers=6, start_method="thread") as loader:
        for _ in loader:
            time.sleep(0.0002)
        assert asked and loader._engine.pool.wanted == 3
        assert (loader.tuning.workers, loader.tuning.settled) == (
            3,
            True,
        ) and "resize()" in loader.tuning.reason
        next(iter(loader))
        assert loader.options.num_workers == loader._engine.pool.wanted == 3


# ---- slots


def test_no_more_workers_than_the_slots_serve():
    with auto(Slow(4000), most=12, slots=6, start_method="thread") as loader:
        for _ in loader:
            assert loader._engine.pool.wanted <= 5
            if loader.tuning.settled:
                break
        found = loader.tuning
    assert found.settled and found.workers <= 5 and max(n for n, _, _ in found.history) <= 5
    assert "6 slots serve no more" in found.reason or found.workers < 5  # a loaded machine says why


def test_it_begins_with_no_more_workers_than_the_slots_serve():
    with auto(Slow(), slots=2) as loader:
        assert loader.options.num_workers == 1
    assert auto(Slow(), slots=2, min_workers=3).options.num_workers == 3


def test_the_slots_are_enough_for_all_workers_from_the_beginning():
    with auto(Slow(4000), most=12, start_method="thread") as loader:
        batches = iter(loader)
        next(batches)
        ring = loader._engine.ring
        assert ring.n_slots >= loader.options.prefetch_factor * 12 + 2
        loader.resize(12)
        batches.close()
        next(iter(loader))
        assert loader._engine.ring is ring
