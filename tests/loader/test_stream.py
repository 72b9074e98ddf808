"""Iterable datasets: each worker iterates its own copy, and batches come from the workers in turn."""

import pytest

from slipring import Loader
from tests.support.datasets import Shard, Stream, Yields, as_list, fail_to_begin, flat, outcomes
from tests.support.kinds import kinds, loaded, loading
from tests.support.stateful import OwnIterator


def pairs(batches):
    """Return batches of `Stream` as lists of (worker, number)."""
    return [list(zip(workers.tolist(), numbers.tolist(), strict=True)) for workers, numbers in batches]


def of(worker, *numbers):
    return [(worker, i) for i in numbers]


@kinds("inline", "one fork", "fork", "thread", "spawn")
def test_workers_share_the_samples_by_their_number(kind):
    with loading(Shard(50), 4, **kind) as loader:
        for _ in range(2):
            batches = [batch.tolist() for batch in loader]
            assert sorted(flat(batches)) == list(range(50))
            if kind["num_workers"] < 2:
                assert flat(batches) == list(range(50))


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_workers_take_turns(start_method):
    got = pairs(loaded(Stream(4, 4, 4), 2, num_workers=3, start_method=start_method))
    assert got == [of(0, 0, 1), of(1, 0, 1), of(2, 0, 1), of(0, 2, 3), of(1, 2, 3), of(2, 2, 3)]


@pytest.mark.parametrize("prefetch_factor", [1, 5])
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


@kinds("inline", "three forks", "thread")
def test_the_tail_is_kept_or_dropped_per_worker(kind):
    lengths = [5, 4, 3][: max(1, kind["num_workers"])]
    kept = pairs(loaded(Stream(*lengths), 3, **kind))
    assert sorted(flat(kept)) == [(w, i) for w, n in enumerate(lengths) for i in range(n)]
    assert sorted(len(b) for b in kept) == sorted(k for n in lengths for k in (3, n - 3) if k)
    dropped = pairs(loaded(Stream(*lengths), 3, drop_last=True, **kind))
    assert dropped == [of(w, 0, 1, 2) for w in range(len(lengths))]


@kinds("inline", "one fork")
def test_falsy_samples_are_kept(kind):
    values = [0, None, False, "", (), [], {}, 0.0, b"", 1]
    assert loaded(Yields(*values), None, **kind) == values
    assert loaded(Yields(*values), 4, collate_fn=as_list, **kind) == [values[:4], values[4:8], values[8:]]
    assert loaded(Yields(), 4, **kind) == []


def test_without_batching_samples_come_in_turn():
    assert loaded(Stream(2, 3), None, num_workers=2) == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]
    assert loaded(Yields(1, 2, 3), None, collate_fn=str, num_workers=1) == ["1", "2", "3"]


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


class Again(OwnIterator):
    """Its own iterator, which iter() restarts."""

    def items(self):
        return range(3)


def test_an_object_that_is_its_own_iterator_is_one_if_it_can_begin_again():
    loader = Loader(Again(), 2)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2]]


def test_a_length_of_the_dataset_is_that_of_the_loader():
    class Sized(Stream):
        def __len__(self):
            return 7

    assert len(Loader(Sized(7), 2)) == 4
    assert len(Loader(Sized(7), 2, drop_last=True)) == 3
    assert len(Loader(Sized(7), None)) == 7
    with pytest.raises(TypeError):
        len(Loader(Stream(7), 2))


def said(loader):
    """Return the batches of a loader, and the texts of exceptions."""
    return [
        f"{type(value).__name__}: {value}" if isinstance(value, Exception) else value
        for value in outcomes(iter(loader))
    ]


class Dying:
    """Its generator ends with an error."""

    def __iter__(self):
        yield from (1, 2, 3)
        raise KeyError("bad")


@kinds("inline", "one fork", "one spawn")
@pytest.mark.parametrize("ends", [False, True])
def test_an_error_in_next_comes_at_its_turn_and_a_stream_that_has_not_ended_continues(kind, ends):
    dataset = Dying() if ends else Yields(1, 2, 3, KeyError("bad"), 4, 5)
    with loading(dataset, 2, collate_fn=as_list, **kind) as loader:
        for _ in range(2):
            assert said(loader) == [[1, 2], "KeyError: 'bad'", *([] if ends else [[4, 5]])]


@kinds("inline", "fork", "thread")
def test_an_error_in_iter_comes_once_per_worker(kind):
    dataset = Yields(at_start=LookupError("no such file"))
    with loading(dataset, 2, **kind) as loader:
        for _ in range(2):
            assert said(loader) == ["LookupError: no such file"] * max(1, kind["num_workers"])


@pytest.mark.parametrize("start_method", ["fork", "thread"])
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
