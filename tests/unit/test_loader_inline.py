"""num_workers=0: the caller's own thread makes the batches, and nobody else notices."""

import pytest

import slipring


class Draws:
    """An iterable dataset of random numbers."""

    def __iter__(self):
        for _ in range(6):
            yield float(slipring.rng().random())


class InterruptedOnce:
    def __init__(self):
        self.armed = True

    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i == 2 and self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return i


class Slow:
    """An iterable dataset whose worker 0 waits until all of worker 1's samples are made."""

    def __init__(self, event):
        self.event = event

    def __iter__(self):
        worker = slipring.get_worker_info().id
        if worker == 0:
            self.event.wait(60)
        for i in range(20):
            yield worker, i
        self.event.set()


def values(loader):
    return [batch.tolist() for batch in loader]


def test_two_streams_in_turn_draw_what_each_draws_alone():
    alone = [values(slipring.Loader(Draws(), 2, seed=seed)) for seed in (1, 2)]
    in_turn = zip(slipring.Loader(Draws(), 2, seed=1), slipring.Loader(Draws(), 2, seed=2))
    assert [list(side) for side in zip(*[(a.tolist(), b.tolist()) for a, b in in_turn])] == alone
    assert alone[0] == values(slipring.Loader(Draws(), 2, seed=1, num_workers=1))


def test_a_batch_leaves_no_generator_behind_in_the_caller():
    next(iter(slipring.Loader(Draws(), 2)))
    with pytest.raises(RuntimeError, match="generator of the batch being made"):
        slipring.rng()


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_after_ctrl_c_the_interrupted_batch_is_made_again(chunk_size):
    iterator = iter(slipring.Loader(InterruptedOnce(), 2, chunk_size=chunk_size))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [b.tolist() for b in iterator] == [[2, 3]]


def test_out_of_order_a_slow_worker_does_not_end_up_with_all_tasks():
    import multiprocessing

    event = multiprocessing.get_context("fork").Event()
    with slipring.Loader(Slow(event), 2, num_workers=2, in_order=False, start_method="fork") as loader:
        workers = [int(batch[0][0]) for batch in loader]
    assert workers[:10] == [1] * 10
    assert sorted(workers) == [0] * 10 + [1] * 10
