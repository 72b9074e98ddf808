"""num_workers=0: what differs from a worker is only the process."""

import contextlib
import dataclasses
import signal

import numpy as np
import pytest

import slipring
from slipring import Loader
from tests.support.signals import Raised, handling, raising_once
from tests.support.stateful import Counting


@dataclasses.dataclass
class Sample:
    image: object
    label: int


class Same:
    """A dataset whose samples are all of one kind."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.make(i)


KINDS = {
    "dataclass": lambda i: Sample(np.full(3, i), i),
    "in a dict": lambda i: {"a": Sample(np.full(3, i), i), "b": [i]},
    "text": lambda i: (str(i), np.float32(i)),
    "object": lambda i: {"kept": slice(i), "x": np.arange(i + 1)[:1]},
}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_a_worker(kind):
    def batches(num_workers):
        with Loader(Same(KINDS[kind]), 2, num_workers=num_workers) as loader:
            found = list(loader)
            return repr(found), loader.stats().batches

    assert batches(0) == batches(1)


class Finished(Same):
    """A dataset that returns an array of its own in place of each batch."""

    kept = np.zeros(3)

    def finish_batch(self, batch, seed):
        return self.kept


def test_a_batch_never_lies_in_memory_of_the_dataset():
    dataset = Finished(float)
    for batch_size, collate_fn in ((2, None), (None, None), (2, lambda samples: dataset.kept)):
        dataset.make = float if batch_size else lambda i: dataset.kept
        with Loader(dataset, batch_size, collate_fn=collate_fn) as loader:
            for batch in loader:
                assert not np.shares_memory(batch, dataset.kept)


class Passes:
    """A Stateful dataset that counts its passes; its iterator is a generator."""

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        yield from range(100 * self.passes, 100 * self.passes + 4)

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]


def firsts(loader):
    return [int(batch[0]) for batch in loader]


def test_a_state_before_the_first_batch_keeps_that_of_the_epoch_before():
    with Loader(Passes(), 2) as loader:
        assert firsts(loader) == [100, 102]
        state = loader.state_dict()
        it = iter(loader)
        between = loader.state_dict()
        assert firsts(it) == [200, 202]
    for one in (state, between):
        with Loader(Passes(), 2) as loader:
            loader.load_state_dict(one)
            it = iter(loader)
            again = loader.state_dict()
            assert firsts(it) == [200, 202]
        with Loader(Passes(), 2) as loader:
            loader.load_state_dict(again)
            assert firsts(loader) == [200, 202]


def test_ctrl_c_before_a_sample_is_drawn_leaves_a_state_that_continues():
    class Interrupted(Counting):
        def __iter__(self):
            signal.raise_signal(signal.SIGUSR1)
            return super().__iter__()

    with handling(raising_once(KeyboardInterrupt)), Loader(Interrupted(), 4) as loader:
        it = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(it)
        with pytest.raises(slipring.errors.Closed, match="ran the dataset"):
            next(it)
        assert len(list(loader)) == len(list(Loader(Counting(), 4)))


@pytest.mark.parametrize("kind", [Loader, slipring.stream])
def test_a_handler_that_raises_leaves_the_callers_generators_and_no_worker_info(kind):
    """From Python 3.14 on, it may also raise between the two steps that begin the block of a `with` statement."""

    def handler(number, frame):
        raise Raised

    data = np.zeros(1000) if kind is Loader else lambda worker, workers: ({"x": np.zeros(2)} for _ in range(2000))
    before, interrupted = np.random.get_state()[1:3], 0
    with handling(handler, signal.SIGVTALRM), contextlib.ExitStack() as stack, kind(data, 2) as loader:
        stack.callback(signal.setitimer, signal.ITIMER_VIRTUAL, 0)
        while interrupted < 300:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 3e-4)
                for _ in loader:
                    pass
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except Raised:
                interrupted += 1
            assert slipring.get_worker_info() is None
            after = np.random.get_state()[1:3]
            assert after[0].tolist() == before[0].tolist() and after[1] == before[1]
