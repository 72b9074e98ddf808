"""Datasets whose samples are coroutines: gathered within a batch, in the worker's event loop."""

import asyncio
import concurrent.futures
import inspect
import threading

import numpy as np
import pytest

import slipring
from slipring import Workers
from tests.loader.kinds import KINDS, every_kind
from tests.support.datasets import patiently
from tests.support.options import grouped


class Numbers:
    """Coroutines that let others run before they return."""

    def __init__(self, n=50):
        self.n = n

    def __len__(self):
        return self.n

    async def __getitem__(self, i):
        for _ in range(self.n - i):  # the last sample is ready first
            await asyncio.sleep(0)
        return i


class Asked(Numbers):
    """The whole batch is one coroutine."""

    async def __getitems__(self, indices):
        return await asyncio.gather(*map(self.__getitem__, indices))


class Plain(Numbers):
    """No async def: it returns the coroutine of another function."""

    def __getitem__(self, i):
        return Numbers.__getitem__(self, i)


class Counted(Numbers):
    """Each sample is the largest number of samples that were read at the same time."""

    running = most = 0

    async def __getitem__(self, i):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        return self.most


class Drawn(Numbers):
    """Each sample draws several times, and other samples run in between."""

    async def __getitem__(self, i):
        drawn = []
        for _ in range(4):
            drawn.append(slipring.rng().integers(1 << 62))
            await asyncio.sleep(0)
        return np.array(drawn), slipring.get_worker_info() is not None


class Failing(Numbers):
    async def __getitem__(self, i):
        if i == 14:
            raise OSError("no sample 14")  # the first in time, not in order
        await asyncio.sleep(0)
        if i == 13:
            raise OSError("no sample 13")
        if i == 30:
            raise asyncio.CancelledError
        return i


class Held(Numbers):
    async def __getitem__(self, i):
        if i >= 8:
            await asyncio.Event().wait()
        return i


class Loops(Numbers):
    """Each sample is whether the process has read all samples in one event loop, which is open."""

    loop = None

    async def __getitem__(self, i):
        loop = asyncio.get_running_loop()
        same = self.loop in (None, loop)
        self.loop = loop
        return same


@every_kind
@pytest.mark.parametrize("dataset", [Numbers(), Asked(), Plain()], ids=["getitem", "getitems", "returned"])
def test_batches_are_in_order_whichever_sample_is_ready_first(kind, dataset):
    with slipring.Loader(dataset, 16, **grouped(**KINDS[kind])) as loader:
        for _ in range(2):
            assert np.concatenate(list(loader)).tolist() == list(range(50))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_threads_leave_it_to_the_loop_to_await_the_datasets_coroutines(num_workers):
    with slipring.Loader(Plain(), 16, num_workers=num_workers, workers=Workers(fetch_threads=3)) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(50))


@pytest.mark.parametrize("kind", ["processes", "threads", "none"])
def test_samples_without_batches_are_awaited(kind):
    with slipring.Loader(Numbers(10), None, **grouped(**KINDS[kind])) as loader:
        assert list(loader) == list(range(10))


@pytest.mark.parametrize(("most", "expected"), [(None, 16), (5, 5), (1, 1)])
def test_fetch_threads_bounds_how_many_are_read_at_once(most, expected):
    with slipring.Loader(Counted(48), 16, num_workers=1, workers=Workers(fetch_threads=most)) as loader:
        assert max(batch.max() for batch in loader) == expected


@every_kind
def test_the_draws_of_a_sample_depend_neither_on_workers_nor_on_turns(kind):
    def drawn(**options):
        with slipring.Loader(Drawn(), 16, seed=5, **grouped(**options)) as loader:
            return [batch[0].tolist() for batch in loader]

    expected = drawn(num_workers=0, fetch_threads=1)
    assert drawn(**KINDS[kind]) == expected
    assert len(set(np.concatenate(expected).ravel().tolist())) == 200


class Returned(Drawn):
    def __getitem__(self, i):
        return Drawn.__getitem__(self, i)


@pytest.mark.parametrize("batch_size", [None, 8])
@pytest.mark.parametrize("dataset", [Drawn(), Returned()], ids=["async def", "returned"])
def test_with_rng_sample_a_samples_position_determines_its_draws(dataset, batch_size):
    def drawn(dataset, **options):
        with slipring.Loader(dataset, seed=3, rng="sample", **grouped(**options)) as loader:
            return np.stack([rows for batch in loader for rows in np.reshape(batch[0], (-1, 4))])

    expected = drawn(Drawn(), batch_size=16)
    np.testing.assert_array_equal(drawn(dataset, batch_size=batch_size), expected)
    np.testing.assert_array_equal(drawn(dataset, batch_size=batch_size, num_workers=2), expected)


class Cancelled(Numbers):
    """Samples that are cancelled while they wait, as by asyncio.timeout(), and return a partial result."""

    async def __getitem__(self, i):
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return i, slipring.rng().integers(1 << 62)


@every_kind
def test_a_sample_that_is_cancelled_while_it_waits_may_go_on(kind):
    def batches(**options):
        with slipring.Loader(Cancelled(), 16, seed=5, **grouped(**options)) as loader:
            return [np.stack(batch).tolist() for batch in loader]

    found = batches(**KINDS[kind])
    assert [i for indices, _ in found for i in indices] == list(range(50))
    assert found == batches(fetch_threads=1)


class Made(Numbers):
    """Makes the coroutines of the whole batch; the first one fails."""

    def __init__(self, n=50):
        super().__init__(n)
        self.made = []

    def __getitems__(self, indices):
        self.made = [self.read(i) for i in indices]
        return self.made

    async def read(self, i):
        raise OSError(f"no sample {i}")


def test_coroutines_that_are_not_awaited_after_an_error_are_closed():
    dataset = Made(8)
    with (
        slipring.Loader(dataset, 8, workers=Workers(fetch_threads=1)) as loader,
        pytest.raises(OSError, match="no sample 0"),
    ):
        next(iter(loader))
    assert [inspect.getcoroutinestate(one) for one in dataset.made] == [inspect.CORO_CLOSED] * 8


@every_kind
def test_the_first_sample_in_order_that_failed_is_named_and_the_iteration_goes_on(kind):
    with slipring.Loader(Failing(50), 8, **grouped(**KINDS[kind])) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(OSError, match="no sample 13") as caught:
            next(iterator)
        cause = caught.value.__cause__
        assert (cause.index, cause.row, cause.seq) == (13, 5, 1)
        assert next(iterator).tolist() == list(range(16, 24))
        with pytest.raises(concurrent.futures.CancelledError) as caught:
            next(iterator)
        assert caught.value.__cause__.index == 30
        assert sum(1 for _ in iterator) == 3


@pytest.mark.parametrize(
    "kind", ["processes", pytest.param("threads", marks=pytest.mark.leaks_ok("a thread waits for ever"))]
)
def test_a_read_that_never_ends_is_overdue_and_keeps_nobody(kind):
    # The timeout starts before the workers start.
    options = {"start_method": "fork", **KINDS[kind], "num_workers": 1}
    with slipring.Loader(Held(16), 8, timeout=1, **grouped(**options)) as loader:
        iterator = iter(loader)
        assert patiently(iterator).tolist() == list(range(8))
        with pytest.raises(TimeoutError):
            next(iterator)


@pytest.mark.parametrize("kind", ["processes", "none"])
def test_a_worker_has_one_loop_for_all_epochs(kind):
    options = {**KINDS[kind], "num_workers": min(1, KINDS[kind]["num_workers"])}
    with slipring.Loader(Loops(), 8, **grouped(**options)) as loader:
        assert all(batch.all() for _ in range(3) for batch in loader)


def test_a_loop_that_runs_already_is_not_in_the_way():
    async def main():
        with slipring.Loader(Numbers(), 16) as loader:
            return np.concatenate(list(loader)).tolist()

    assert asyncio.run(main()) == list(range(50))


def test_the_loop_ends_with_its_worker():
    def loops():
        return {thread for thread in threading.enumerate() if thread.name == "slipring-loop"}

    before = loops()
    with slipring.Loader(Numbers(), 16, num_workers=2, workers=Workers(start_method="thread")) as loader:
        list(loader)
        assert len(loops() - before) in (1, 2)  # one worker may have made all batches
    assert loops() <= before


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_face_awaits_them_too_and_through_a_subset(num_workers):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    for dataset in (Numbers(), torch.utils.data.Subset(Numbers(), range(50))):
        with DataLoader(dataset, 16, num_workers=num_workers) as loader:
            for _ in range(2):
                assert torch.cat(list(loader)).tolist() == list(range(50))
