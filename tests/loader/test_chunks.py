"""chunk_size: several workers fill one batch, each a range of its rows."""

import numpy as np
import pytest

import slipring
from slipring import Loader, Workers
from tests.support.datasets import (
    Echo,
    Failing,
    Fetched,
    NoPickle,
    Point,
    Random,
    Squares,
    Values,
    Waiting,
    Where,
    as_list,
    batches_of,
    fail_on_five,
    numbers,
    outcomes,
)
from tests.support.kinds import KINDS, kinds, loaded, loading


@pytest.mark.parametrize(
    ("kind", "batch_size", "chunk_size", "in_order"),
    [
        ("inline", 8, 3, True),
        ("one fork", 56, 1, True),
        ("three forks", 8, 1, True),
        ("thread", 5, 8, True),
        ("spawn", 4, 4, True),
        ("fork", 8, 3, False),
    ],
)
def test_row_i_is_always_sample_i(kind, batch_size, chunk_size, in_order):
    with loading(Squares(61), batch_size, chunk_size=chunk_size, in_order=in_order, **KINDS[kind]) as loader:
        for _ in range(2):
            found = numbers(loader)
            assert (found if in_order else sorted(found)) == batches_of(61, batch_size)


@pytest.mark.parametrize(
    ("num_workers", "collate_fn"), [(0, None), (3, None), (3, slipring.default_collate), (0, as_list), (3, as_list)]
)
def test_the_batches_are_those_without_chunks(num_workers, collate_fn):
    samples = [
        {"x": np.full((2, 3), i, np.int16), "p": Point(i, float(i)), "flag": i % 2 == 0, "n": [np.float32(i), (i,)]}
        for i in range(20)
    ]
    whole = loaded(Values(samples), 6, collate_fn=collate_fn)
    found = loaded(Values(samples), 6, chunk_size=2, num_workers=num_workers, collate_fn=collate_fn)
    assert repr(found) == repr(whole)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_range_gets_its_indices_as_they_are(num_workers):
    kwargs = {"chunk_size": 2, "num_workers": num_workers}
    assert numbers(loaded(Fetched(12), 5, **kwargs)) == batches_of(12, 5)
    [(_, texts)] = loaded(Echo(), 5, sampler=["a", 1, (2,), None, 1.5], **kwargs)
    assert texts == ["'a'", "1", "(2,)", "None", "1.5"]


def test_several_workers_fill_one_batch(tmp_path):
    """The first range waits until another worker has made all other ranges."""

    class Meeting(Where):
        def __getitem__(self, i):
            if i == 0:
                Waiting(tmp_path / "gate", at=0)[0]
            elif i == 3:
                (tmp_path / "gate").touch()
            return super().__getitem__(i)

    [(which, worker, _)] = loaded(Meeting(4), 4, chunk_size=1, num_workers=2, start_method="fork")
    assert which.tolist() == [0, 1, 2, 3] and len(set(worker.tolist())) == 2


def test_random_numbers_do_not_depend_on_the_workers_of_ranges():
    def draws(chunk_size, num_workers, start_method=None):
        # Thread workers share the global generators, and leave them alone.
        dataset = Random(24, use_globals=start_method != "thread")
        kwargs = {"num_workers": num_workers, "start_method": start_method, "chunk_size": chunk_size, "seed": 4}
        return [tuple(part.tolist() for part in batch) for batch in loaded(dataset, 8, **kwargs)]

    expected = draws(3, 0)
    for num_workers in (1, 2, 3):
        assert draws(3, num_workers) == expected
    assert [batch[:2] for batch in expected] == draws(3, 2, "thread")
    assert draws(4, 0) != expected, "ranges of another size have other seeds"
    drawn = [tuple(numbers) for batch in expected for numbers in batch[1]]
    assert len(set(drawn)) == 24, "each range draws other numbers"


@kinds("inline", "three forks", "thread")
@pytest.mark.parametrize(
    ("bad", "chunk_size", "seen"),
    [({5, 13}, 2, [(5, [4, 5]), (13, [12, 13]), [[16, 17, 18, 19]]]),
     ({2, 3, 6}, 1, [(2, [2]), [[*range(8, 16)]], [[*range(16, 20)]]])],
    ids=["one error in each batch", "the first row's of several errors"],
)  # fmt: skip
def test_an_error_in_a_range_is_the_batchs_error(kind, bad, chunk_size, seen):
    with loading(Failing(bad), 8, chunk_size=chunk_size, **kind) as loader:
        for _ in range(2):
            for found, wanted in zip(outcomes(iter(loader)), seen, strict=True):
                if isinstance(wanted, list):
                    assert numbers([found]) == wanted
                else:
                    assert type(found) is ValueError and found.args == (f"no sample {wanted[0]}",)
                    assert found.__cause__.indices == wanted[1]


@kinds("inline", "fork")
def test_an_error_in_collate_fn_or_in_sending_the_samples_is_the_batchs_error(kind):
    """With a collate_fn, which needs all samples, a range's samples are sent through the slot."""
    with loading(Squares(12), 4, collate_fn=fail_on_five, **kind, chunk_size=2) as loader:
        first, second, third = outcomes(iter(loader))
        assert numbers([first, third]) == [[0, 1, 2, 3], [8, 9, 10, 11]]
        assert type(second) is ArithmeticError and second.__cause__.indices == [4, 5, 6, 7]
    with loading(Values([1, 2, NoPickle(), 3, 4, 5]), 3, collate_fn=as_list, **kind, chunk_size=1) as loader:
        for _ in range(2):
            first, second = outcomes(iter(loader))
            assert type(first) is TypeError and "stays at home" in str(first)
            assert second == [3, 4, 5]


def test_mismatches_among_staged_samples_name_the_right_indices():
    samples = [("text", np.zeros(3 if i < 5 else 4)) for i in range(6)]
    with Loader(Values(samples), 6, num_workers=2, workers=Workers(chunk_size=2)) as loader:
        [error] = outcomes(iter(loader))
        assert "index 0 has shape (3,), index 5 has shape (4,)" in str(error)


class Short:
    """__getitems__ returns a wrong number of samples."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return 12

    def __getitems__(self, indices):
        return [np.float32(i) for i in indices] * 2 if self.n > 0 else [np.float32(i) for i in indices][:-1]


@pytest.mark.parametrize(("num_workers", "n", "collate_fn"), [(0, 1, as_list), (2, 1, None), (2, -1, as_list)])
def test_a_wrong_number_of_samples_is_an_error(num_workers, n, collate_fn):
    with Loader(Short(n), 6, num_workers=num_workers, collate_fn=collate_fn, workers=Workers(chunk_size=2)) as loader:
        for error in outcomes(iter(loader)):
            assert type(error) is ValueError
            assert f"{4 if n > 0 else 1} samples for 2 indices" in str(error)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_of_too_many_ranges_is_an_error_at_its_turn(num_workers):
    batches = [[1, 2], list(range(60)), [3]]
    with Loader(Squares(), batch_sampler=batches, num_workers=num_workers, workers=Workers(chunk_size=1)) as loader:
        iterator = iter(loader)
        assert numbers([next(iterator)]) == [[1, 2]]
        with pytest.raises(ValueError, match=r"chunk_size=1 .*60.* 56 ranges"):
            next(iterator)


def test_batches_that_are_abandoned_half_way_leave_the_next_epoch_whole():
    with Loader(Squares(60), 6, num_workers=3, prefetch_factor=3, workers=Workers(chunk_size=1)) as loader:
        for taken in range(8):
            for _, _ in zip(range(taken), loader, strict=False):
                pass
        assert numbers(loader) == [list(range(k, k + 6)) for k in range(0, 60, 6)]
