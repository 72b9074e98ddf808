"""A signal handler calls next() inside next(), or another thread starts a new epoch during next()."""

import itertools
import os
import signal
import threading
from typing import ClassVar

import pytest

from slipring import Loader, Memory
from slipring.errors import Closed
from tests.support.datasets import Made, Waiting, ids
from tests.support.options import grouped
from tests.support.processes import LONG_S
from tests.support.signals import handling

N = 60
MAIN = os.getpid()


def alarm():
    """Send a signal; its handler runs before this returns."""
    if os.getpid() == MAIN:
        signal.raise_signal(signal.SIGALRM)


class Key:
    """An index that is pickled; pickling calls `meanwhile` in the consumer's process."""

    def __init__(self, number, meanwhile=None):
        self.number, self.meanwhile = number, meanwhile

    def __reduce__(self):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return Key, (self.number,)


def number_of(index):
    return getattr(index, "number", index)


NUMBERS = Made(number_of, N)


class Lists:
    """Batches of one index each; `meanwhile` is called before those in `at`."""

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


def numbers_of(batches):
    return [int(batch[0]) for batch in batches]


@pytest.mark.parametrize(("asks", "num_workers"), [("pickles", 2), ("draws", 0), ("draws", 1)])
def test_a_handler_that_asks_while_the_next_task_is_made_has_an_error_and_no_batch_is_lost(asks, num_workers):
    errors = []
    options = {
        "pickles": {"sampler": [Key(i, alarm if i in (20, 30) else None) for i in range(N)], "batch_size": 1},
        "draws": {"batch_sampler": Lists((20, 30), alarm)},
    }[asks]
    with Loader(NUMBERS, num_workers=num_workers, **grouped(**options)) as loader:
        iterator = iter(loader)
        with handling(refused(iterator, errors), signal.SIGALRM):
            assert numbers_of(iterator) == list(range(N))
    assert len(errors) == 2


def refused(iterator, errors):
    """Return a handler that calls next(), and records its exception."""

    def ask(*_):
        with pytest.raises(RuntimeError, match=r"next\(\) is not reentrant.*set a flag") as caught:
            next(iterator)
        errors.append(caught.value)

    return ask


KINDS = [{"num_workers": 0}, {"num_workers": 1}]


@pytest.mark.parametrize("options", KINDS, ids=["inline", "process"])
def test_a_handler_that_asks_while_a_batch_is_waited_for_has_an_error_and_the_wait_continues(options, tmp_path):
    errors = []
    with Loader(Waiting(tmp_path / "go on", at=5, n=N), 1, collate_fn=ids, **grouped(**options)) as loader:
        iterator = iter(loader)
        ask = refused(iterator, errors)

        def handler(*_):
            ask()
            (tmp_path / "go on").touch()

        got = numbers_of(itertools.islice(iterator, 5))
        with handling(handler, signal.SIGALRM):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            assert got + numbers_of(iterator) == list(range(N))
    assert len(errors) == 1


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

    with Loader(
        NUMBERS, 1, sampler=Sampler(), num_workers=1, persistent_workers=True, memory=Memory(slots=6)
    ) as loader:
        first = iter(loader)
        thread = threading.Thread(target=ended, args=(first,), daemon=True)
        thread.start()
        assert pickling.wait(LONG_S)
        first.close()
        second = iter(loader)
        go_on.set()
        thread.join(LONG_S)
        assert numbers_of(second) == [200 + i for i in range(40)]


# ---- the iteration is closed inside next()


class Parcel:
    """A sample whose unpickling calls `opened[number]`, if there is one."""

    opened: ClassVar = {}

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return Parcel.open, (self.number,)

    @classmethod
    def open(cls, number):
        cls.opened.get(number, int)()
        return cls(number)


@pytest.mark.parametrize("closed_by", ["the batch's own code", "another thread"])
def test_a_batch_during_which_the_iteration_is_closed_is_not_counted(closed_by, monkeypatch):
    def close():
        if closed_by == "another thread":
            thread = threading.Thread(target=iterator.close)
            thread.start()
            thread.join()
        else:
            iterator.close()

    with Loader(Made(Parcel, N), None, num_workers=1) as loader:
        iterator = iter(loader)
        monkeypatch.setitem(Parcel.opened, 2, close)
        assert [next(iterator).number for _ in range(2)] == [0, 1]
        with pytest.raises(Closed, match="ended the iteration"):
            next(iterator)
        monkeypatch.undo()
        loader.load_state_dict(loader.state_dict())
        assert [parcel.number for parcel in loader] == list(range(2, N))
