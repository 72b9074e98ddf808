"""num_workers=0: the caller's own thread makes the batches, without an effect on other threads."""

import multiprocessing
import random

import pytest

import slipring
from slipring import Workers
from tests.support.datasets import Numbers, outcomes, throw
from tests.support.processes import LONG_S


class Draws:
    """An iterable dataset of random numbers."""

    def __iter__(self):
        for _ in range(6):
            yield float(slipring.rng().random())


class Slow:
    """An iterable dataset whose worker 0 waits until all of worker 1's samples are made."""

    def __init__(self, event):
        self.event = event

    def __iter__(self):
        worker = slipring.get_worker_info().id
        if worker == 0 and not self.event.wait(LONG_S):
            raise RuntimeError("the other worker has not been given all of its tasks")
        for i in range(20):
            yield worker, i
        self.event.set()


def values(loader):
    return [batch.tolist() for batch in loader]


def test_two_streams_in_turn_draw_the_same_as_each_alone():
    alone = [values(slipring.Loader(Draws(), 2, seed=seed)) for seed in (1, 2)]
    in_turn = zip(slipring.Loader(Draws(), 2, seed=1), slipring.Loader(Draws(), 2, seed=2))
    assert [list(side) for side in zip(*[(a.tolist(), b.tolist()) for a, b in in_turn])] == alone
    assert alone[0] == values(slipring.Loader(Draws(), 2, seed=1, num_workers=1))


def test_out_of_order_a_slow_worker_does_not_end_up_with_all_tasks():
    event = multiprocessing.get_context("fork").Event()
    with slipring.Loader(Slow(event), 2, num_workers=2, in_order=False, workers=Workers(start_method="fork")) as loader:
        workers = [int(batch[0][0]) for batch in loader]
    assert sorted(workers) == [0] * 10 + [1] * 10


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_ctrl_c_in_the_dataset_ends_the_iteration_and_the_state_says_where(chunk_size):
    armed = []
    dataset = Numbers(4, {2: lambda: armed and throw(armed.pop())})
    with slipring.Loader(dataset, 2, workers=Workers(chunk_size=chunk_size)) as loader:
        for _ in range(3):
            armed.append(KeyboardInterrupt)
            iterator = iter(loader)
            assert next(iterator).tolist() == [0, 1]
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
            with pytest.raises(slipring.errors.Closed, match=r"KeyboardInterrupt that was raised .* ran the dataset"):
                next(iterator)
            loader.load_state_dict(loader.state_dict())
            assert values(loader) == [[2, 3]]


class Closing:
    """An iterable dataset that records the end of its generator."""

    def __init__(self):
        self.closed = 0

    def __iter__(self):
        try:
            yield from range(10)
        finally:
            self.closed += 1


def test_an_iterator_of_the_dataset_goes_with_the_iteration():
    dataset = Closing()
    loader = slipring.Loader(dataset, 2)
    for _ in loader:
        break
    assert dataset.closed == 1
    for _ in loader:
        pass
    assert dataset.closed == 2


class FailsOnce:
    """An iterable dataset that draws random numbers, before an error and after."""

    def __iter__(self):
        return self

    def __init__(self):
        self.n = 0

    def __next__(self):
        self.n += 1
        drawn = float(slipring.rng().random()) + random.random()
        if self.n == 3:
            raise ValueError(drawn)
        if self.n > 5:
            raise StopIteration
        return drawn


def test_an_error_does_not_set_the_generators_back():
    def drawn(num_workers):
        loader = slipring.Loader(FailsOnce(), 1, seed=1, num_workers=num_workers)
        return [found.args[0] if isinstance(found, Exception) else found.item() for found in outcomes(iter(loader))]

    assert drawn(0) == drawn(1)
    assert len(set(drawn(0))) == 5
