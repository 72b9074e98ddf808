"""Map datasets: their samples, their batches, and the calls of the dataset."""

import threading

import numpy as np
import pytest

import slipring
from slipring import Loader, Workers
from tests.support.datasets import (
    Counting,
    Echo,
    Fetched,
    Informed,
    Into,
    NoPickle,
    Opaque,
    Squares,
    Values,
    Waiting,
    Where,
    as_list,
    flat,
    numbers,
)
from tests.support.inside import process_worker_info
from tests.support.kinds import kinds, loaded, loading
from tests.support.options import grouped

WORKERS = ["inline", "one fork", "fork", "three forks", "thread"]
EVERY_KIND = [*WORKERS, "forkserver", "spawn"]


@kinds(*EVERY_KIND)
@pytest.mark.parametrize("dataset", [Squares, Fetched, Into])
def test_every_sample_comes_once_and_in_order(dataset, kind):
    with loading(dataset(103), 10, **kind) as loader:
        assert len(loader) == 11
        for _ in range(2):
            assert flat(numbers(loader)) == list(range(103))


@kinds(*WORKERS)
def test_a_last_batch_that_is_not_full_is_dropped_on_demand(kind):
    assert [len(b) for b in numbers(loaded(Squares(23), 5, **kind))] == [5, 5, 5, 5, 3]
    with loading(Squares(23), 5, drop_last=True, **kind) as loader:
        assert len(loader) == 4
        assert numbers(loader) == [list(range(k, k + 5)) for k in range(0, 20, 5)]
    with loading(Squares(4), 5, drop_last=True, **kind) as loader:
        assert len(loader) == 0 and list(loader) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_empty_dataset_has_no_batches(num_workers):
    with Loader([], 4, num_workers=num_workers, shuffle=True) as loader:
        assert len(loader) == 0
        assert list(loader) == [] and list(loader) == []


@kinds(*WORKERS)
def test_without_batching_each_sample_is_delivered_as_it_is(kind):
    values = [np.arange(3), {"a": 1}, "text", None, 0, (), [], b"", False, Opaque(3)]
    with loading(Values(values), None, **kind) as loader:
        assert len(loader) == len(values)
        got = list(loader)
    assert [type(v) for v in got] == [type(v) for v in values]
    assert got[0].tolist() == [0, 1, 2] and got[1:] == values[1:]
    assert loaded(Values([1, 2]), None, collate_fn=str, **kind) == ["1", "2"]


def test_without_batching_the_order_is_the_samplers():
    assert loaded(Values([5, 6, 7]), None, sampler=[2, 0], num_workers=1) == [7, 5]
    shuffled = loaded(Values(list(range(50))), None, shuffle=True, seed=1)
    assert sorted(shuffled) == list(range(50)) != shuffled


# ---- shuffle ----


def test_a_seed_repeats_the_order_and_every_epoch_has_its_own():
    def epochs(**kwargs):
        with Loader(Squares(60), 7, shuffle=True, **grouped(**kwargs)) as loader:
            return [flat(numbers(loader)) for _ in range(3)]

    first = epochs(seed=5)
    assert all(sorted(e) == list(range(60)) for e in first)
    assert first[0] != first[1] != first[2] != first[0]
    for kwargs in ({}, {"num_workers": 1}, {"num_workers": 3}, {"num_workers": 2, "start_method": "thread"}):
        assert epochs(seed=5, **kwargs) == first
    assert epochs(seed=6)[0] != first[0]
    assert epochs()[0] != epochs()[0]


def test_the_callers_generators_do_not_set_the_order():
    def order():
        np.random.seed(0)
        return numbers(loaded(Squares(60), 60, shuffle=True))

    assert order() != order()


# ---- samplers ----


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("indices", "pickled"),
    [
        ([3, 1, 2, -5], 0),
        ([True, 1], 1),
        (["a", "b"], 1),
        ([1 << 70, -(1 << 63)], 1),
        ([(1 << 63) - 1, -(1 << 63)], 0),
        ([slice(1, 2), frozenset({1})], 1),
    ],
)
def test_indices_arrive_as_the_very_type_they_are(num_workers, indices, pickled):
    with Loader(Echo(), len(indices), sampler=indices, num_workers=num_workers) as loader:
        [(types, texts)] = list(loader)
        assert types == [f"{type(i).__module__}.{type(i).__name__}" for i in indices]
        assert texts == [repr(i) for i in indices]
        assert loader.stats().pickled_tasks == pickled


def test_indices_that_are_tensors_arrive_as_tensors():
    torch = pytest.importorskip("torch")
    [(types, texts)] = loaded(Echo(), 2, sampler=torch.arange(2), num_workers=1)
    assert types == ["torch.Tensor"] * 2 and texts == ["tensor(0)", "tensor(1)"]


def test_a_sampler_may_be_anything_iterable():
    expected = [[4, 2], [0]]
    for sampler in ([4, 2, 0], (4, 2, 0), range(4, -1, -2), np.array([4, 2, 0]), iter([4, 2, 0]), {4: 1, 2: 1, 0: 1}):
        assert numbers(loaded(Squares(), 2, sampler=sampler)) == expected, sampler


def test_a_sampler_is_asked_again_in_each_epoch():
    class Rotating:
        epoch = 0

        def __iter__(self):
            self.epoch += 1
            return iter([self.epoch, self.epoch + 1])

        def __len__(self):
            return 2

    with Loader(Squares(), 2, sampler=Rotating(), num_workers=2) as loader:
        assert [numbers(loader) for _ in range(3)] == [[[1, 2]], [[2, 3]], [[3, 4]]]


def test_a_sampler_is_asked_no_further_than_batches_may_be_in_flight():
    asked = []

    def endless():
        i = 0
        while True:
            asked.append(i)
            yield i % 50
            i += 1

    with Loader(Squares(50), 2, sampler=endless(), num_workers=2, prefetch_factor=3) as loader:
        iterator = iter(loader)
        for received in range(1, 20):
            next(iterator)
            assert len(asked) <= 2 * (received - 1 + 2 * 3)
    with pytest.raises(TypeError):
        len(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_sampler_makes_the_batches(num_workers):
    batches = [[3], [1, 2, 9], (5, 4), range(3), np.array([7, 8])]
    with Loader(Squares(), batch_sampler=batches, num_workers=num_workers) as loader:
        assert len(loader) == 5
        for _ in range(2):
            assert numbers(loader) == [[3], [1, 2, 9], [5, 4], [0, 1, 2], [7, 8]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_empty_batch_is_an_error_at_its_turn(num_workers):
    with Loader(Squares(), batch_sampler=[[1], [], [2]], num_workers=num_workers) as loader:
        iterator = iter(loader)
        assert numbers([next(iterator)]) == [[1]]
        with pytest.raises(ValueError, match="empty batch"):
            next(iterator)
        assert numbers(iterator) == [[2]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lists_of_indices_may_be_huge(num_workers):
    n = 100_000
    with Loader(Values(range(n)), n, num_workers=num_workers, shuffle=True) as loader:
        for _ in range(3):
            [batch] = list(loader)
            assert np.array_equal(np.sort(batch), np.arange(n))
        assert loader.stats().pickled_tasks == 0


def test_pickled_lists_of_indices_may_be_huge_too():
    names = [f"sample-{i:06d}" for i in range(50_000)]
    [(types, texts)] = loaded(Echo(), len(names), sampler=names, num_workers=1)
    assert texts == [repr(n) for n in names] and set(types) == {"builtins.str"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_index_that_cannot_be_pickled_is_an_error_at_its_turn(num_workers):
    with Loader(Squares(), sampler=[0, 1, NoPickle(), 3], num_workers=num_workers) as loader:
        for _ in range(2):
            iterator = iter(loader)
            assert numbers([next(iterator), next(iterator)]) == [[0], [1]]
            with pytest.raises(TypeError, match="stays at home"):
                next(iterator)
            assert list(iterator) == []


# ---- collate ----


@pytest.mark.parametrize("num_workers", [0, 2])
def test_arrays_from_empty_are_not_copied(num_workers):
    """Arrays that are made in the slot stay there: the batch is no larger than its arrays."""
    with Loader(Into(64), 64, num_workers=num_workers) as loader:
        [(rows, which)] = list(loader)
        exact = rows.nbytes + which.nbytes
        assert exact <= loader.stats().bytes < exact + 1024
        assert not rows.flags.owndata and rows.flags.writeable and rows.flags.aligned


def collate_into_slot(samples):
    out = slipring.empty((len(samples), 1000), np.float64)
    out[:] = samples[0][1]
    return {"rows": out}


def test_a_collate_fn_can_make_its_batch_inside_the_slot():
    with Loader(Squares(8), 4, collate_fn=collate_into_slot, num_workers=1) as loader:
        got = [batch["rows"][:, 0].tolist() for batch in loader]
        assert got == [[0.0] * 4, [4.0] * 4]
        assert loader.stats().bytes < 2 * (4 * 8000 + 1024)


# ---- which worker makes which batch ----


def test_batches_are_made_by_the_workers():
    import os

    batches = loaded(Where(40), 2, num_workers=2, collate_fn=as_list)
    rows = [row for batch in batches for row in batch]
    assert [r[0] for r in rows] == list(range(40))
    assert {r[1] for r in rows} <= {0, 1} and os.getpid() not in {r[2] for r in rows}
    [(_, worker, process), _] = loaded(Where(2), None, num_workers=0)
    assert (worker, process) == (-1, os.getpid())


def test_static_dispatch_gives_each_worker_its_turn():
    with Loader(Where(30), 2, num_workers=3, rng="worker") as loader:
        for _ in range(2):
            assert [set(batch[1].tolist()) for batch in loader] == [{k % 3} for k in range(15)]


def test_one_slow_batch_does_not_keep_the_other_workers_from_going_on(tmp_path):
    """All other batches come before the slow one is released: each worker takes the next task."""
    gate = tmp_path / "gate"
    with Loader(Waiting(gate, at=3, n=8), num_workers=2, prefetch_factor=4, in_order=False) as loader:
        iterator = iter(loader)
        first = [next(iterator)[1].item() for _ in range(7)]
        assert 3 not in first
        gate.touch()
        assert [*first, next(iterator)[1].item()][-1] == 3
        assert list(iterator) == []


@kinds(*WORKERS)
def test_out_of_order_delivers_each_batch_once(kind):
    with loading(Squares(200), 3, in_order=False, shuffle=True, **kind) as loader:
        for _ in range(3):
            assert sorted(flat(numbers(loader))) == list(range(200))


def test_in_order_waits_for_the_slow_batch(tmp_path):
    gate = tmp_path / "gate"
    with Loader(Waiting(gate, at=0, n=8), num_workers=2, prefetch_factor=2) as loader:
        iterator = iter(loader)
        threading.Timer(0.05, gate.touch).start()
        assert numbers(iterator) == [[k] for k in range(8)]


def test_no_more_is_read_ahead_than_prefetch_factor_says(tmp_path):
    path = tmp_path / "read"
    with Loader(Counting(path, 100), 2, num_workers=2, prefetch_factor=2) as loader:
        iterator = iter(loader)
        kept = []
        for received in range(1, 8):
            kept.append(next(iterator))
            assert len(path.read_text().split()) <= 2 * (received + 2 * 2)
        del iterator


@pytest.mark.parametrize("start_method", ["fork", "thread", "spawn"])
def test_workers_know_who_they_are(start_method):
    with Loader(Informed(12), 2, num_workers=2, workers=Workers(start_method=start_method), rng="worker") as loader:
        seeds = []
        for _ in range(2):
            batches = [batch.tolist() for batch in loader]
            assert [row[:2] for batch in batches for row in batch] == [[k // 2 % 2, 2] for k in range(12)]
            assert {row[3] for batch in batches for row in batch} == {12}
            seeds.append([batches[0][0][2], batches[1][0][2]])
            assert seeds[-1][1] == seeds[-1][0] + 1
        assert seeds[0] != seeds[1], "every epoch has a seed of its own"
        assert slipring.get_worker_info() is None


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_only_a_worker_process_has_an_info_of_its_process(start_method):
    def told(samples):
        return slipring.get_worker_info().id, process_worker_info() is not None

    assert process_worker_info() is None
    with Loader(Squares(4), 4, collate_fn=told, num_workers=1, workers=Workers(start_method=start_method)) as loader:
        assert list(loader) == [(0, start_method == "fork")]


class Wrapped:
    """A dataset with other samples than those of `inner`, whose attributes it has."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return -index

    def __getattr__(self, name):
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Whole:
    """A dataset that makes and collates whole batches."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def fetch_into(self, indices, empty):
        out = empty(len(indices), np.int64)
        out[:] = indices
        return out

    def collate_samples(self, samples):
        return np.array(samples) + 100

    def finish_batch(self, batch, seed):
        return batch + 1000


class Negative(Whole):
    def __getitem__(self, index):
        return -index


class OfTheObject:
    """A dataset whose object has a method that its class does not have."""

    def __init__(self):
        self.fetch_into = Whole().fetch_into

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return -index


@pytest.mark.parametrize("frontend", ["slipring", "slipring.torch"])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (Whole(), [1000, 1001]),
        (Wrapped(Whole()), [0, -1]),  # none of the inner dataset's methods
        (Negative(), [1100, 1099]),  # its own samples, and its class's other methods
    ],
    ids=["whole", "wrapped", "subclass"],
)
def test_methods_for_whole_batches_are_those_of_the_class_that_makes_the_samples(data, wanted, num_workers, frontend):
    if frontend == "slipring":
        loader = Loader(data, 2, num_workers=num_workers)
    else:
        pytest.importorskip("torch")
        from slipring.torch import DataLoader

        loader = DataLoader(data, 2, num_workers=num_workers)
        if not num_workers and type(data) is Whole:
            wanted = [1100, 1101]  # without workers, this loader reads by sample
    with loader:
        assert next(iter(loader)).tolist() == wanted


def test_a_method_of_the_object_itself_makes_whole_batches():
    with Loader(OfTheObject(), 2) as loader:
        assert next(iter(loader)).tolist() == [0, 1]
