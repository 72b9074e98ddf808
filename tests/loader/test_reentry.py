"""next() in the midst of next(): a signal's handler asks the iterator, or another thread begins an epoch anew."""

import itertools
import os
import signal
import threading

import pytest

from slipring import Closed, Loader

N = 60
MAIN = os.getpid()


def alarm():
    """The signal comes, and its handler runs, before this returns."""
    if os.getpid() == MAIN:
        signal.raise_signal(signal.SIGALRM)


@pytest.fixture
def on_alarm():
    """A function that sets the handler."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.signal(signal.SIGALRM, before)


class Key:
    """An index that travels as a pickle; `meanwhile` is called while that is made, in the trainer."""

    def __init__(self, number, meanwhile=None):
        self.number, self.meanwhile = number, meanwhile

    def __reduce__(self):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return Key, (self.number,)


class Numbers:
    def __len__(self):
        return N

    def __getitem__(self, index):
        return getattr(index, "number", index)


class Lists:
    """Batches of one index each; `meanwhile` is called when those in `at` are asked for."""

    def __init__(self, at, meanwhile):
        self.at, self.meanwhile, self.given = set(at), meanwhile, 0

    def __iter__(self):
        return self

    def __next__(self):
        number, self.given = self.given, self.given + 1
        if number == N:
            raise StopIteration
        if number in self.at:
            self.meanwhile()
        return [number]


class Late(Lists):
    """The same, each an iterable that calls `meanwhile` while it is listed."""

    def __next__(self):
        number, self.given = self.given, self.given + 1
        if number == N:
            raise StopIteration
        return self.batch(number)

    def batch(self, number):
        if number in self.at:
            self.meanwhile()
        yield number


def numbers_of(batches):
    return [int(batch[0]) for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("asks", ["pickles", "draws", "lists"])
def test_a_handler_that_asks_while_the_next_task_is_made_has_a_batch_or_an_error_and_none_is_lost(
    asks, num_workers, on_alarm
):
    got, errors = [], []
    options = {
        "pickles": {"sampler": [Key(i, alarm if i in (20, 30) else None) for i in range(N)], "batch_size": 1},
        "draws": {"batch_sampler": Lists((20, 30), alarm)},
        "lists": {"batch_sampler": Late((20, 30), alarm)},
    }[asks]
    with Loader(Numbers(), num_workers=num_workers, **options) as loader:
        iterator = iter(loader)

        def ask():
            try:
                got.extend(numbers_of([next(iterator)]))
            except RuntimeError as error:
                errors.append(str(error))

        on_alarm(ask)
        for batch in iterator:
            got.extend(numbers_of([batch]))
    assert sorted(got) == list(range(N))
    assert len(errors) == (0 if num_workers else 2)  # without workers nothing is in flight
    assert all("let the handler note the signal" in error for error in errors)


def test_a_handler_that_asks_where_no_slot_is_free_loses_no_batch(on_alarm):
    got, kept = [], []
    with Loader(
        Numbers(),
        batch_sampler=Lists((20, 30, 40), alarm),
        num_workers=1,
        slots=5,
        copy="never",
        prefetch_factor=4,
    ) as loader:
        iterator = iter(loader)

        def keep(batch):
            got.extend(numbers_of([batch]))
            kept.append(batch)

        on_alarm(lambda: keep(next(iterator)))
        for batch in iterator:
            keep(batch)
            del kept[:-2], batch
    assert sorted(got) == list(range(N))


def ended(iterator):
    with pytest.raises(Closed):
        list(iterator)


def test_an_epoch_that_is_begun_while_another_threads_indices_are_pickled_has_its_own_batches():
    pickling, go_on = threading.Event(), threading.Event()

    def hold():
        pickling.set()
        go_on.wait()

    epochs = itertools.count(1)

    class Sampler:
        def __len__(self):
            return 40

        def __iter__(self):
            epoch = next(epochs)
            held = hold if epoch == 1 else None
            return iter([Key(100 * epoch + i, held if i == 12 else None) for i in range(40)])

    with Loader(Numbers(), 1, sampler=Sampler(), num_workers=1, slots=6, persistent_workers=True) as loader:
        first = iter(loader)
        thread = threading.Thread(target=ended, args=(first,), daemon=True)
        thread.start()
        assert pickling.wait(60)
        first.close()
        second = iter(loader)
        go_on.set()
        thread.join(60)
        assert numbers_of(second) == [200 + i for i in range(40)]


class Unpickles:
    """A value that calls `meanwhile` when the trainer makes it of its pickle."""

    meanwhile = None

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return made, (self.number,)


def made(number):
    meanwhile = Unpickles.meanwhile
    if meanwhile is not None and os.getpid() == MAIN:
        meanwhile(number)
    return Unpickles(number)


class Values(Numbers):
    def __getitem__(self, index):
        return Unpickles(index)


def first_of(samples):
    return samples[0]


def test_deliveries_that_are_broken_off_one_within_another_come_again_in_their_order(on_alarm, monkeypatch):
    class Broken(Exception):
        pass

    asked = []

    def meanwhile(
        number,
    ):  # the handler asks while batch 5 is made, and another signal's exception comes into that
        asked.append(number)
        if asked.count(5) == 1 and number in (5, 6):
            alarm() if number == 5 else raise_broken()

    def raise_broken():
        on_alarm(broken)
        alarm()

    def broken():
        raise Broken

    monkeypatch.setattr(Unpickles, "meanwhile", staticmethod(meanwhile))
    got = []
    with Loader(Values(), 1, num_workers=1, collate_fn=first_of) as loader:
        iterator = iter(loader)
        on_alarm(lambda: got.append(next(iterator).number))
        with pytest.raises(Broken):
            for value in iterator:
                got.append(value.number)
        assert got == list(range(5)) and asked == [0, 1, 2, 3, 4, 5, 6]
        got.extend(value.number for value in iterator)
    assert got == list(range(N))
