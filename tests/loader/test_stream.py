"""Iterable datasets: each worker iterates its own copy, and batches come from the workers in turn."""

import os

import pytest

from slipring import Loader, Workers
from tests.support.datasets import Counting, Shard, Stream, Yields, as_list, fail_to_begin, flat, outcomes
from tests.support.kinds import kinds, loaded, loading

WORKERS = ["inline", "one fork", "fork", "three forks", "thread"]
EVERY_KIND = [*WORKERS, "forkserver", "spawn"]


def pairs(batches):
    """Return batches of `Stream` as lists of (worker, number)."""
    return [list(zip(workers.tolist(), numbers.tolist(), strict=True)) for workers, numbers in batches]


def of(worker, *numbers):
    return [(worker, i) for i in numbers]


@kinds(*EVERY_KIND)
def test_workers_share_the_samples_by_their_number(kind):
    with loading(Shard(50), 4, **kind) as loader:
        for _ in range(3):
            batches = [batch.tolist() for batch in loader]
            assert sorted(flat(batches)) == list(range(50))
            if kind["num_workers"] < 2:
                assert flat(batches) == list(range(50))


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_workers_take_turns(start_method):
    got = pairs(loaded(Stream(4, 4, 4), 2, num_workers=3, start_method=start_method))
    assert got == [of(0, 0, 1), of(1, 0, 1), of(2, 0, 1), of(0, 2, 3), of(1, 2, 3), of(2, 2, 3)]


@pytest.mark.parametrize("prefetch_factor", [1, 2, 5])
def test_a_worker_that_has_ended_is_left_out(prefetch_factor):
    with Loader(Stream(2, 7, 0, 5), 2, num_workers=4, prefetch_factor=prefetch_factor) as loader:
        for _ in range(3):
            assert pairs(loader) == [
                of(0, 0, 1),
                of(1, 0, 1),
                of(3, 0, 1),
                of(1, 2, 3),
                of(3, 2, 3),
                of(1, 4, 5),
                of(3, 4),
                of(1, 6),
            ]


@kinds(*WORKERS)
def test_the_tail_is_kept_or_dropped_per_worker(kind):
    lengths = [5, 4, 3][: max(1, kind["num_workers"])]
    kept = pairs(loaded(Stream(*lengths), 3, **kind))
    assert sorted(flat(kept)) == [(w, i) for w, n in enumerate(lengths) for i in range(n)]
    assert sorted(len(b) for b in kept) == sorted(k for n in lengths for k in (3, n - 3) if k)
    dropped = pairs(loaded(Stream(*lengths), 3, drop_last=True, **kind))
    assert dropped == [of(w, 0, 1, 2) for w in range(len(lengths))]


@kinds(*WORKERS)
def test_an_empty_stream_has_no_batches(kind):
    with loading(Stream(0, 0, 0), 2, **kind) as loader:
        assert list(loader) == [] and list(loader) == []


@kinds(*WORKERS)
def test_falsy_samples_are_kept(kind):
    values = [0, None, False, "", (), [], {}, 0.0, b"", 1]
    kwargs = {**kind, "in_order": False}
    if kind["num_workers"] < 2:
        assert loaded(Yields(*values), None, **kwargs) == values
        assert loaded(Yields(*values), 4, collate_fn=as_list, **kwargs) == [values[:4], values[4:8], values[8:]]
    else:
        assert len(loaded(Yields(*values), None, **kwargs)) == kind["num_workers"] * len(values)


def test_without_batching_samples_come_in_turn():
    assert loaded(Stream(2, 3), None, num_workers=2) == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]
    assert loaded(Yields(1, 2, 3), None, collate_fn=str, num_workers=1) == ["1", "2", "3"]


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_out_of_order_delivers_each_batch_once(start_method):
    with Loader(Shard(100), 3, num_workers=3, in_order=False, workers=Workers(start_method=start_method)) as loader:
        for _ in range(3):
            assert sorted(flat(b.tolist() for b in loader)) == list(range(100))


@pytest.mark.parametrize(
    "dataset",
    [(i for i in range(5)), iter([1, 2]), zip("ab", "cd"), map(str, range(3))],
    ids=lambda d: type(d).__name__,
)
def test_an_iterator_is_no_dataset(dataset):
    with pytest.raises(
        TypeError, match=f"iterator \\({type(dataset).__name__}\\), which can be read once.*new iterator"
    ):
        Loader(dataset, 2)


def test_a_class_whose_iter_begins_anew_is_one_though_it_is_its_own_iterator():
    class Again:
        def __iter__(self):
            self.i = 0
            return self

        def __next__(self):
            if self.i == 3:
                raise StopIteration
            self.i += 1
            return self.i

    loader = Loader(Again(), 2)
    for _ in range(2):
        assert [b.tolist() for b in loader] == [[1, 2], [3]]


def test_an_endless_stream_is_read_no_further_than_prefetch_factor_says(tmp_path):
    class Endless:
        def __init__(self):
            self.noting = Counting(tmp_path / "read", 1 << 40)

        def __iter__(self):
            for i in range(1 << 40):
                yield self.noting[i][1]

    with Loader(Endless(), 2, num_workers=2, prefetch_factor=2, workers=Workers(start_method="fork")) as loader:
        for received, _ in zip(range(1, 10), loader, strict=False):
            assert len((tmp_path / "read").read_text().split()) <= 2 * (received + 2 * 2)


def test_a_length_of_the_dataset_is_that_of_the_loader():
    class Sized(Stream):
        def __len__(self):
            return 7

    assert len(Loader(Sized(7), 2)) == 4
    assert len(Loader(Sized(7), 2, drop_last=True)) == 3
    assert len(Loader(Sized(7), None)) == 7
    with pytest.raises(TypeError):
        len(Loader(Stream(7), 2))


# ---- errors ----


def said(loader):
    """Return the batches of a loader, and the texts of exceptions."""
    return [
        f"{type(value).__name__}: {value}" if isinstance(value, Exception) else value
        for value in outcomes(iter(loader))
    ]


@kinds("inline", "one fork", "one thread", "one spawn")
def test_an_error_in_next_comes_at_its_turn_and_the_stream_continues(kind):
    dataset = Yields(1, 2, 3, KeyError("bad"), 4, 5)
    with loading(dataset, 2, collate_fn=as_list, **kind) as loader:
        for _ in range(2):
            assert said(loader) == [[1, 2], "KeyError: 'bad'", [4, 5]]


@kinds("inline", "fork", "thread")
def test_an_error_in_iter_comes_once_per_worker(kind):
    dataset = Yields(at_start=LookupError("no such file"))
    with loading(dataset, 2, **kind) as loader:
        for _ in range(2):
            assert said(loader) == ["LookupError: no such file"] * max(1, kind["num_workers"])


class Dying:
    """Its generator ends with an error."""

    def __iter__(self):
        yield from (1, 2, 3)
        raise OSError(5, "disk")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_generator_ends_with_its_error(num_workers):
    with Loader(Dying(), 2, collate_fn=as_list, num_workers=num_workers) as loader:
        assert said(loader) == [[1, 2], "OSError: [Errno 5] disk"]


@pytest.mark.parametrize("start_method", ["fork", "thread", "spawn"])
def test_a_worker_that_could_not_begin_says_so_once(start_method):
    with loading(Stream(3, 3), 2, num_workers=2, start_method=start_method, worker_init_fn=fail_to_begin) as loader:
        for _ in range(2):
            expected = [f"LookupError: worker {w} cannot begin" for w in range(2)]
            assert said(loader) == expected


def test_an_error_of_a_stream_names_worker_and_batch():
    with Loader(Yields(1, ValueError("x")), 1, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="x") as caught:
            next(iterator)
    cause = caught.value.__cause__
    assert (cause.worker, cause.seq, cause.indices) == (0, 1, None)
    assert "a stream" in str(cause) and "YieldsIterator" not in str(cause) and "__next__" in cause.traceback


class DiesOnce:
    """Raises an error at 2; at 6, the first time, the worker dies."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        return DiesOnceIterator(self.path)


class DiesOnceIterator:
    def __init__(self, path):
        self.path, self.n = path, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        if self.n == 2:
            raise ValueError("two")
        if self.n == 6 and not self.path.exists():
            self.path.touch()
            os._exit(3)
        if self.n > 7:
            raise StopIteration
        return self.n


def test_a_replaced_worker_does_not_repeat_errors(tmp_path):
    with loading(
        DiesOnce(tmp_path / "died"), 1, collate_fn=as_list, num_workers=1, on_death="respawn", prefetch_factor=1
    ) as loader:
        assert said(loader) == [[0], [1], "ValueError: two", [3], [4], [5], [6], [7]]
        assert loader.stats().respawns == 1
