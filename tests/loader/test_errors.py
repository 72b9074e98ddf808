"""Errors: in the dataset, in collate_fn, in worker_init_fn, in a sampler; timeouts."""

import threading
import traceback
from functools import partial

import numpy as np
import pytest

import slipring
from slipring import Loader, LoaderTimeout, Memory, WorkerError, Workers
from slipring.errors import Closed
from tests.support.datasets import (
    Awkward,
    Failing,
    NoPickle,
    NoUnpickle,
    Spoilt,
    Squares,
    Unreadable,
    Unsendable,
    Values,
    Waiting,
    as_list,
    fail_to_begin,
    numbers,
    outcomes,
    patiently,
    raise_stop,
)
from tests.support.kinds import kinds, loading
from tests.support.options import grouped

WORKERS = ["inline", "one fork", "fork", "thread"]
EVERY_KIND = [*WORKERS, "spawn"]


def sorts(found):
    return [type(x).__name__ if isinstance(x, Exception) else "batch" for x in found]


@kinds(*EVERY_KIND)
@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_in_the_dataset_comes_at_its_turn_and_iteration_continues(kind, in_order):
    with loading(Failing({3, 10}), 4, **kind, in_order=in_order) as loader:
        for _ in range(2):
            found = outcomes(iter(loader))
            errors = [x for x in found if isinstance(x, Exception)]
            assert sorted(str(e) for e in errors) == ["no sample 10", "no sample 3"]
            assert {type(e) for e in errors} == {ValueError}
            batches = numbers(x for x in found if not isinstance(x, Exception))
            assert sorted(batches) == [[4, 5, 6, 7], [12, 13, 14, 15], [16, 17, 18, 19]]
            if in_order:
                assert sorts(found) == ["ValueError", "batch", "ValueError", "batch", "batch"]


@kinds(*WORKERS)
def test_the_cause_says_which_worker_batch_and_indices_and_shows_the_traceback(kind):
    with loading(Failing({3}), 3, **kind, sampler=[1, 2, 9, 3, 4, 5]) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match=r"^no sample 3$") as caught:
            next(iterator)
    cause = caught.value.__cause__
    assert type(cause) is WorkerError
    assert (cause.seq, cause.indices) == (1, [3, 4, 5])
    assert cause.worker in range(max(1, kind["num_workers"]))
    assert "batch 1, indices [3, 4, 5]" in str(cause)
    assert "in __getitem__" in cause.traceback and "no sample 3" in cause.traceback
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("raise ValueError(f") == 1, "the traceback is shown, and only once"


@kinds(*WORKERS)
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (partial(KeyError, "name"), "'name'"),
        (partial(OSError, 2, "No such file", "x.jpg"), "[Errno 2] No such file: 'x.jpg'"),
        (partial(UnicodeEncodeError, "ascii", "é", 0, 1, "bad"), "'ascii' codec can't encode character"),
        (AssertionError, ""),
    ],
)  # fmt: skip
def test_errors_keep_type_text_and_attributes(kind, error, text):
    with loading(Failing({0}, error, n=1), **kind) as loader, pytest.raises(type(error())) as caught:
        next(iter(loader))
    assert str(caught.value).startswith(text) and caught.value.args == error().args
    assert getattr(caught.value, "filename", None) == getattr(error(), "filename", None)


@kinds("one fork", "one thread")
@pytest.mark.parametrize(
    "error", [partial(Awkward, 5, "five"), partial(Unreadable, "a.jpg"), partial(Spoilt, "b.png", line=3)]
)
def test_an_error_whose_constructor_takes_something_else_comes_as_it_was(kind, error):
    with loading(Failing({0}, error, n=2), **kind) as loader:
        first, second = outcomes(iter(loader))
    expected = error()
    assert type(first) is type(expected) and str(first) == str(expected)
    assert vars(first) == vars(expected) and first.args == expected.args
    assert getattr(first, "errno", None) == getattr(expected, "errno", None)
    assert "in __getitem__" in first.__cause__.traceback
    assert numbers([second]) == [[1]]


@kinds("one fork", "thread")
@pytest.mark.parametrize("error", [partial(Unsendable, "secret")])
def test_an_error_that_cannot_be_rebuilt_becomes_a_worker_error(kind, error):
    with loading(Failing({0}, error, n=2), **kind) as loader:
        first, second = outcomes(iter(loader))
    assert type(first) is WorkerError and first.indices == [0]
    assert f"{type(error()).__name__}: {error()}" in str(first) and "in __getitem__" in first.traceback
    assert numbers([second]) == [[1]]


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_without_text_still_comes(num_workers):
    with Loader(Failing({0}, BadText, n=1), num_workers=num_workers) as loader:
        [found] = outcomes(iter(loader))
    assert type(found) is BadText


@kinds(*WORKERS)
@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
def test_an_exception_with_a_meaning_does_not_end_the_loop_silently(kind, error):
    with loading(Failing({1}, error, n=3), **kind) as loader:
        found = outcomes(iter(loader))
        assert sorts(found) == ["batch", "WorkerError", "batch"]
        assert error.__name__ in str(found[1]) and found[1].indices == [1]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_thread_worker_survives_exceptions_that_would_end_it(error):
    with Loader(Failing({1}, error, n=3), num_workers=1, workers=Workers(start_method="thread")) as loader:
        found = outcomes(iter(loader))
        assert sorts(found) == ["batch", "WorkerError", "batch"] and error.__name__ in str(found[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_stop_iteration_in_collate_fn_does_not_end_the_loop_silently(num_workers):
    with Loader(Squares(4), 2, collate_fn=raise_stop, num_workers=num_workers) as loader:
        assert sorts(outcomes(iter(loader))) == ["WorkerError"] * 2
        assert sorts(outcomes(iter(Loader({1, 2}, 2, collate_fn=raise_stop)))) == ["WorkerError"]


class Chained(Squares):
    def __getitem__(self, i):
        try:
            {}["inner"]
        except KeyError as error:
            if i == 0:
                raise ValueError("outer") from error
            raise ValueError("outer")  # noqa: B904


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_cause_of_an_error_is_shown(num_workers):
    with Loader(Chained(2), num_workers=num_workers) as loader:
        for error in outcomes(iter(loader)):
            shown = "".join(traceback.format_exception(error))
            assert "KeyError: 'inner'" in shown and "ValueError: outer" in shown


def test_a_debugger_sees_the_frames_of_an_error_in_this_process():
    with Loader(Failing({0}, n=1)) as loader, pytest.raises(ValueError) as caught:
        next(iter(loader))
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert frames[-1].f_code.co_name == "__getitem__" and frames[-1].f_locals["i"] == 0


# ---- collate_fn, batches ----


@kinds(*WORKERS)
def test_a_batch_that_cannot_be_pickled_is_an_error_at_its_turn(kind):
    kwargs = {**kind, "collate_fn": as_list}
    with loading(Values([1, NoPickle(), 3]), 1, **kwargs) as loader:
        for _ in range(2):
            first, second, third = outcomes(iter(loader))
            assert (first, third) == ([1], [3])
            assert type(second) is TypeError and "stays at home" in str(second)


@kinds(*WORKERS)
def test_a_batch_that_cannot_be_unpickled_here_does_not_end_the_iteration(kind):
    kwargs = {**kind, "collate_fn": as_list}
    with loading(Values([1, NoUnpickle(), 3]), 1, **kwargs) as loader:
        for _ in range(2):
            first, second, third = outcomes(iter(loader))
            assert (first, third) == ([1], [3])
            assert type(second) is slipring.errors.CorruptBatch and "does not come back" in str(second)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_is_too_large_says_how_large_and_what_to_raise(num_workers):
    dataset = Values([np.zeros(10, np.uint8), np.zeros(1 << 20, np.uint8), np.zeros(10, np.uint8)])
    with Loader(dataset, None, num_workers=num_workers, memory=Memory(slot_bytes=1 << 16)) as loader:
        for _ in range(2):
            first, second, third = outcomes(iter(loader))
            assert first.nbytes == third.nbytes == 10
            assert type(second) is slipring.errors.BatchTooLarge and isinstance(second, ValueError)
            assert second.limit == 1 << 16 and second.needed >= 1 << 20
            assert "slot_bytes" in str(second)


@pytest.mark.parametrize(
    ("options", "remedies"),
    [({}, ["batch_size (at most 8388608 "]), ({"slot_bytes": 1 << 16}, ["batch_size (at most 8192 ", "slot_bytes"])],
    ids=str,
)
def test_more_indices_than_a_slot_has_room_for_name_the_remedy(options, remedies):
    n = (64 << 20 if not options else 1 << 16) // 8 + 1
    with Loader(range(n), n, num_workers=1, **grouped(**options)) as loader:
        (error,) = outcomes(iter(loader))
    assert type(error) is slipring.errors.BatchTooLarge and error.needed == 8 * n
    assert all(remedy in str(error) for remedy in remedies)
    assert ("slot_bytes" in str(error)) == ("slot_bytes" in options)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_with_endless_text_still_comes(num_workers):
    names = ["é" * 1000 + str(i) for i in range(8)]
    error = partial(ValueError, "💥" * 100_000)
    with Loader(
        Failing(set(names), error), 2, sampler=names, num_workers=num_workers, memory=Memory(slot_bytes=1 << 12)
    ) as loader:
        found = outcomes(iter(loader))
        assert len(found) == 4
        assert all(isinstance(e, ValueError if num_workers == 0 else WorkerError) for e in found)
        assert all("💥" in str(e) for e in found)


# ---- worker_init_fn ----


@pytest.mark.parametrize("start_method", ["fork", "spawn", "thread"])
def test_an_error_in_worker_init_fn_is_raised_for_each_batch(start_method):
    with loading(Squares(6), 2, num_workers=2, start_method=start_method, worker_init_fn=fail_to_begin) as loader:
        for _ in range(2):
            found = outcomes(iter(loader))
            assert sorts(found) == ["LookupError"] * 3
            assert all("in fail_to_begin" in e.__cause__.traceback for e in found)


def test_worker_init_fn_is_for_workers():
    with Loader(Squares(4), 2, worker_init_fn=fail_to_begin) as loader:
        assert numbers(loader) == [[0, 1], [2, 3]]


# ---- samplers ----


class BrokenSampler:
    def __iter__(self):
        yield from range(5)
        raise ZeroDivisionError("sampler")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_the_sampler_comes_after_the_batches_before_it_and_ends_the_epoch(num_workers):
    with Loader(Squares(), 2, sampler=BrokenSampler(), num_workers=num_workers) as loader:
        for _ in range(2):
            found = outcomes(iter(loader))
            assert sorts(found) == ["batch", "batch", "ZeroDivisionError"]
            assert numbers(found[:2]) == [[0, 1], [2, 3]]


class BrokenAtStart:
    def __iter__(self):
        raise ZeroDivisionError("iter")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_the_samplers_iter_is_raised_and_the_loader_still_works(num_workers):
    sampler = BrokenAtStart()
    with Loader(Squares(), 2, sampler=sampler, num_workers=num_workers) as loader:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                iter(loader)
        sampler.__class__ = BrokenSampler
        assert sorts(outcomes(iter(loader)))[:2] == ["batch", "batch"]


# ---- objects that cannot be sent to a new process ----


class Holder:
    def __init__(self, held):
        self.held = held


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"dataset": Holder(NoPickle())}, r"dataset\.held \(NoPickle\)"),
        ({"dataset": Holder(Holder(Holder(lambda: 0)))}, r"dataset\.held\.held\.held"),
        ({"dataset": Holder([1, {"a": NoPickle()}])}, r"dataset\.held\[1\]\['a'\] \(NoPickle\)"),
        ({"collate_fn": lambda samples: samples}, "collate_fn"),
        ({"worker_init_fn": lambda worker: None}, "worker_init_fn"),
        ({"dataset": Holder(threading.Lock())}, r"dataset\.held \(lock\).*open files, connections and locks in"),
    ],
)
def test_an_object_that_cannot_be_pickled_is_named_with_the_attribute(start_method, arguments, named):
    dataset = Values([1])
    held = arguments.get("dataset")
    if held is not None:
        dataset.held = held.held
    kwargs = {k: v for k, v in arguments.items() if k != "dataset"}
    with Loader(dataset, num_workers=1, **grouped(start_method=start_method, **kwargs)) as loader:
        for _ in range(2):
            with pytest.raises(Exception, match=named) as caught:
                iter(loader)
            assert "cannot be pickled" in str(caught.value) and "Workers(start_method='fork')" in str(caught.value)


def test_a_cycle_does_not_keep_the_culprit_from_being_named():
    dataset = Values([1])
    dataset.myself = dataset
    dataset.lock = NoPickle()
    loader = Loader(dataset, num_workers=1, workers=Workers(start_method="spawn"))
    with pytest.raises(TypeError, match=r"dataset\.lock \(NoPickle\)"):
        iter(loader)


# ---- timeouts ----


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_a_wait_that_takes_too_long_is_an_error_and_can_be_repeated(tmp_path, start_method):
    gate = tmp_path / "gate"
    with loading(Waiting(gate, at=4, n=8), 2, num_workers=2, start_method=start_method, timeout=0.05) as loader:
        iterator = iter(loader)
        got = [patiently(iterator), patiently(iterator)]
        for _ in range(2):
            with pytest.raises(LoaderTimeout, match=r"timeout=0.05 s.*batch 2") as caught:
                next(iterator)
            assert isinstance(caught.value, TimeoutError)
        gate.touch()
        got += [patiently(iterator), patiently(iterator)]
        assert numbers(got) == [[0, 1], [2, 3], [4, 5], [6, 7]]


# ---- the end ----


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_closed_loader_says_so(num_workers):
    loader = Loader(Squares(), 2, num_workers=num_workers)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(Closed, match="closed"):
        iter(loader)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    assert len(loader) == 50
