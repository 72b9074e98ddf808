"""Map datasets: their samples, their batches, and the calls of the dataset."""

import threading

import numpy as np
import pytest

import slipring
from slipring import Loader, Workers
from tests.support.datasets import (
    Echo,
    Fetched,
    Informed,
    Into,
    Made,
    NoPickle,
    Opaque,
    Squares,
    Values,
    Waiting,
    flat,
    numbers,
)
from tests.support.kinds import KINDS, kinds, loaded, loading
from tests.support.options import grouped


@pytest.mark.parametrize(
    ("kind", "dataset"),
    [
        *((kind, Squares) for kind in ("inline", "one fork", "three forks", "thread", "forkserver", "spawn")),
        *((kind, dataset) for kind in ("inline", "fork") for dataset in (Fetched, Into)),
    ],
)
def test_every_sample_comes_once_and_in_order(kind, dataset):
    with loading(dataset(103), 10, **KINDS[kind]) as loader:
        assert len(loader) == 11
        for _ in range(2):
            assert flat(numbers(loader)) == list(range(103))


@kinds("inline", "fork")
def test_a_last_batch_that_is_not_full_is_dropped_on_demand(kind):
    assert [len(b) for b in numbers(loaded(Squares(23), 5, **kind))] == [5, 5, 5, 5, 3]
    with loading(Squares(23), 5, drop_last=True, **kind) as loader:
        assert len(loader) == 4
        assert numbers(loader) == [list(range(k, k + 5)) for k in range(0, 20, 5)]
    with loading(Squares(4), 5, drop_last=True, **kind) as loader:
        assert len(loader) == 0 and list(loader) == []
    with loading([], 4, shuffle=True, **kind) as loader:
        assert len(loader) == 0 and list(loader) == [] and list(loader) == []


@kinds("inline", "fork", "thread")
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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("indices", "pickled"),
    [
        ([3, 1, 2, -5], 0),
        ([True, "a"], 1),
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
        assert loader.stats().pickled_tasks == (pickled if num_workers else 0)


def test_a_sampler_may_be_anything_iterable():
    expected = [[4, 2], [0]]
    for sampler in ([4, 2, 0], (4, 2, 0), range(4, -1, -2), np.array([4, 2, 0]), iter([4, 2, 0]), {4: 1, 2: 1, 0: 1}):
        assert numbers(loaded(Squares(), 2, sampler=sampler)) == expected, sampler


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


def test_lists_of_indices_may_be_huge():
    n = 100_000
    for indices in (range(n), [f"{i:06d}" for i in range(n)]):
        with Loader(Made(int, n), n, sampler=indices, num_workers=1) as loader:
            (batch,) = loader
            assert np.array_equal(batch, np.arange(n))
            assert loader.stats().pickled_tasks == (type(indices) is list)


def test_an_index_that_cannot_be_pickled_is_an_error_at_its_turn():
    with Loader(Squares(), sampler=[0, 1, NoPickle(), 3], num_workers=2) as loader:
        for _ in range(2):
            iterator = iter(loader)
            assert numbers([next(iterator), next(iterator)]) == [[0], [1]]
            with pytest.raises(TypeError, match="stays at home"):
                next(iterator)
            assert list(iterator) == []


# ---- which worker makes which batch


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


def test_in_order_waits_for_the_slow_batch(tmp_path):
    gate = tmp_path / "gate"
    with Loader(Waiting(gate, at=0, n=8), num_workers=2, prefetch_factor=2) as loader:
        iterator = iter(loader)
        threading.Timer(0.05, gate.touch).start()
        assert numbers(iterator) == [[k] for k in range(8)]


@pytest.mark.parametrize("start_method", ["fork", "thread"])
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


# ---- datasets that make whole batches


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
def test_methods_for_whole_batches_are_those_of_the_class_that_makes_the_samples(data, wanted, num_workers):
    with Loader(data, 2, num_workers=num_workers) as loader:
        assert next(iter(loader)).tolist() == wanted


class Collating(Squares):
    """A dataset that collates its samples and finishes its batches."""

    def collate_samples(self, samples):
        return {"sum": np.stack([row for row, _ in samples]).sum(axis=1)}

    def finish_batch(self, batch, seed):
        return {**batch, "n": len(batch["sum"])}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "data",
    [Whole(), Wrapped(Whole()), Negative(), Into(4), Collating(4)],
    ids=["whole", "wrapped", "subclass", "only fetch_into", "only collate_samples"],
)
def test_torchs_face_makes_the_same_batches_of_tensors(data, num_workers):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    with DataLoader(data, 2, num_workers=num_workers) as loader:
        assert plain(list(loader), torch.Tensor) == plain(loaded(data, 2, num_workers=1), np.ndarray)


def plain(batch, kind):
    """Return nested batches as lists, with each array, which must be of that kind, as (its dtype, its values)."""
    if isinstance(batch, dict):
        return {key: plain(part, kind) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(part, kind) for part in batch]
    if isinstance(batch, int):
        return batch
    assert type(batch) is kind
    return str(batch.dtype).removeprefix("torch."), batch.tolist()


class Lending:
    """Its batches are views of its array, which may be read-only, or always the same buffer."""

    def __init__(self, kind):
        self.kind, self.rows = kind, np.arange(12.0).reshape(6, 2)
        self.rows.flags.writeable = kind != "read-only"
        self.buffer = np.empty((2, 2))

    def __len__(self):
        return len(self.rows)

    def fetch_into(self, indices, empty):
        if self.kind != "buffer":
            return self.rows[indices[0] : indices[-1] + 1]
        self.buffer[:] = self.rows[indices]
        return self.buffer


@pytest.mark.parametrize("kind", ["view", "read-only", "buffer"])
@pytest.mark.parametrize("face", ["slipring", "torch"])
def test_without_workers_a_batch_is_not_the_datasets_memory(face, kind):
    loader = Loader
    if face == "torch":
        pytest.importorskip("torch")
        from slipring.torch import DataLoader as loader
    dataset = Lending(kind)
    batches = list(loader(dataset, 2))
    assert [batch.tolist() for batch in batches] == [dataset.rows[i : i + 2].tolist() for i in (0, 2, 4)]
    for batch in batches:
        batch += 100
    assert dataset.rows.tolist() == np.arange(12.0).reshape(6, 2).tolist()


class Both(Into):
    """Makes whole batches, and single samples for loaders that need them."""

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("options", [{"chunk_size": 2}, {"collate_fn": sum}, {"chunk_size": 2, "collate_fn": sum}])
def test_with_chunks_or_a_collate_fn_a_dataset_of_whole_batches_is_asked_for_samples(options):
    (batch,) = loaded(Both(4), 4, num_workers=1, **options)
    assert batch == 6 if "collate_fn" in options else batch.tolist() == [0, 1, 2, 3]
