"""Errors: in the dataset, in collate_fn, in worker_init_fn, in a sampler; timeouts."""

import threading
import traceback
from functools import partial

import pytest

import slipring
from slipring import Loader, Memory, WorkerError, Workers
from slipring.errors import BatchTooLarge, Closed
from tests.support.datasets import (
    Awkward,
    Failing,
    Made,
    NoPickle,
    NoUnpickle,
    Squares,
    Unreadable,
    Unsendable,
    Values,
    Yields,
    as_list,
    fail_to_begin,
    numbers,
    outcomes,
    raise_stop,
)
from tests.support.kinds import KINDS, kinds, loading
from tests.support.processes import from_a_daemon


def sorts(found):
    return [type(x).__name__ if isinstance(x, Exception) else "batch" for x in found]


@kinds("inline", "fork", "thread", "one spawn")
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


@kinds("inline", "fork", "thread")
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


@kinds("inline", "one fork")
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
@pytest.mark.parametrize("error", [partial(Awkward, 5, "five"), partial(Unreadable, "a.jpg")])
def test_an_error_whose_constructor_takes_something_else_comes_as_it_was(kind, error):
    with loading(Failing({0}, error, n=2), **kind) as loader:
        first, second = outcomes(iter(loader))
    expected = error()
    assert type(first) is type(expected) and str(first) == str(expected)
    assert vars(first) == vars(expected) and first.args == expected.args
    assert getattr(first, "errno", None) == getattr(expected, "errno", None)
    assert "in __getitem__" in first.__cause__.traceback
    assert numbers([second]) == [[1]]


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@kinds("one fork", "thread")
@pytest.mark.parametrize(("error", "kind_of_error"), [(Unsendable, WorkerError), (BadText, BadText)])
def test_an_error_that_cannot_be_pickled_or_has_no_text_still_comes(kind, error, kind_of_error):
    with loading(Failing({0}, error, n=2), **kind) as loader:
        first, second = outcomes(iter(loader))
    assert type(first) is kind_of_error
    assert error is BadText or ("Unsendable" in str(first) and "in __getitem__" in first.traceback)
    assert numbers([second]) == [[1]]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        *((kind, error) for kind in ("inline", "one fork") for error in (StopIteration, StopAsyncIteration)),
        *(("one thread", error) for error in (SystemExit, GeneratorExit, KeyboardInterrupt)),
    ],
)
def test_an_exception_with_a_meaning_ends_neither_the_loop_silently_nor_a_thread(kind, error):
    with loading(Failing({1}, error, n=3), **KINDS[kind]) as loader:
        found = outcomes(iter(loader))
        assert sorts(found) == ["batch", "WorkerError", "batch"]
        assert error.__name__ in str(found[1]) and found[1].indices == [1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_stop_iteration_in_collate_fn_does_not_end_the_loop_silently(num_workers):
    with Loader(Squares(4), 2, collate_fn=raise_stop, num_workers=num_workers) as loader:
        assert sorts(outcomes(iter(loader))) == ["WorkerError"] * 2
        assert sorts(outcomes(iter(Loader({1, 2}, 2, collate_fn=raise_stop)))) == ["WorkerError"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_cause_of_an_error_is_shown(num_workers):
    def sample(i):
        try:
            {}["inner"]
        except KeyError as error:
            raise ValueError("outer") from error

    with loading(Made(sample, 1), num_workers=num_workers, start_method="fork") as loader:
        (found,) = outcomes(iter(loader))
    shown = "".join(traceback.format_exception(found))
    assert "KeyError: 'inner'" in shown and "ValueError: outer" in shown


def test_an_error_with_endless_text_still_comes():
    error, small = partial(ValueError, "é" * 100_000), Memory(slot_bytes=1 << 12)
    with Loader(Failing({0, 1}, error, n=3), num_workers=1, memory=small) as loader:
        found = outcomes(iter(loader))
    assert sorts(found) == ["WorkerError", "WorkerError", "batch"] and "ValueError: é" in str(found[0])


def test_a_debugger_sees_the_frames_of_an_error_in_this_process():
    with Loader(Failing({0}, n=1)) as loader, pytest.raises(ValueError) as caught:
        next(iter(loader))
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert frames[-1].f_code.co_name == "__getitem__" and frames[-1].f_locals["i"] == 0


@kinds("inline", "one fork", "thread")
@pytest.mark.parametrize(
    ("value", "error", "said"),
    [(NoPickle(), TypeError, "stays at home"), (NoUnpickle(), slipring.errors.CorruptBatch, "does not come back")],
    ids=["pickled", "unpickled"],
)
def test_a_batch_that_cannot_be_pickled_or_unpickled_is_an_error_at_its_turn(kind, value, error, said):
    with loading(Values([1, value, 3]), 1, collate_fn=as_list, **kind) as loader:
        for _ in range(2):
            first, second, third = outcomes(iter(loader))
            assert (first, third) == ([1], [3])
            assert type(second) is error and said in str(second)


def test_a_batch_that_is_too_large_says_how_large_and_what_to_raise():
    small = Memory(slot_bytes=1 << 16)
    with Loader(Values([b"", bytes(1 << 20)]), None, num_workers=1, memory=small) as loader:
        first, second = outcomes(iter(loader))
    assert first == b"" and type(second) is BatchTooLarge
    assert second.limit == 1 << 16 and second.needed >= 1 << 20 and "slot_bytes" in str(second)


@pytest.mark.parametrize("start_method", ["fork", "spawn", "thread"])
def test_an_error_in_worker_init_fn_is_raised_for_each_batch(start_method):
    with loading(Squares(6), 2, num_workers=2, start_method=start_method, worker_init_fn=fail_to_begin) as loader:
        for _ in range(2):
            found = outcomes(iter(loader))
            assert sorts(found) == ["LookupError"] * 3
            assert all("in fail_to_begin" in e.__cause__.traceback for e in found)
    with Loader(Squares(4), 2, worker_init_fn=fail_to_begin) as loader:
        assert numbers(loader) == [[0, 1], [2, 3]], "without workers the function is not called"


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


def test_an_error_in_the_samplers_iter_is_raised_and_the_loader_still_works():
    sampler = Yields(0, 1, at_start=ZeroDivisionError("iter"))
    with Loader(Squares(), 2, sampler=sampler, num_workers=1) as loader:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                iter(loader)
        sampler.at_start = None
        assert numbers(loader) == [[0, 1]]


class Holder(Values):
    def __init__(self, held):
        super().__init__([1])
        self.held = held


def cycle():
    """Return a dataset that refers to itself, and to an object that cannot be pickled."""
    made = Holder(None)
    made.held, made.lock = made, NoPickle()
    return made


@pytest.mark.parametrize(
    ("dataset", "options", "named"),
    [
        (Holder([1, {"a": NoPickle()}]), {}, r"dataset\.held\[1\]\['a'\] \(NoPickle\)"),
        (Holder(Holder(Holder(lambda: 0))), {}, r"dataset\.held\.held\.held"),
        (Holder(threading.Lock()), {}, r"dataset\.held \(lock\).*open files, connections and locks in"),
        (cycle(), {}, r"dataset\.lock \(NoPickle\)"),
        (range(1), {"collate_fn": lambda samples: samples}, "collate_fn"),
    ],
    ids=["in a list", "in objects", "lock", "cycle", "function"],
)
def test_an_object_that_cannot_be_pickled_is_named_with_the_attribute(dataset, options, named):
    with Loader(dataset, num_workers=1, workers=Workers(start_method="spawn"), **options) as loader:
        for _ in range(2):
            with pytest.raises(Exception, match=named) as caught:
                iter(loader)
            assert "cannot be pickled" in str(caught.value) and "Workers(start_method='fork')" in str(caught.value)


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


def load_in_a_daemon(sender, options):
    with loading(list(range(4)), 2, **options) as loader:
        try:
            sender.send([batch.tolist() for batch in loader])
        except AssertionError as error:
            sender.send(str(error))


@kinds("fork", "spawn", "forkserver")
def test_a_daemonic_process_is_told_to_use_worker_threads(kind):
    said = from_a_daemon(load_in_a_daemon, kind)
    assert "daemonic" in said and "num_workers=0" in said and "daemon=False" in said
    assert "Workers(start_method='thread')" in said


@kinds("thread", "inline")
def test_worker_threads_and_no_workers_load_in_a_daemonic_process(kind):
    assert from_a_daemon(load_in_a_daemon, kind) == [[0, 1], [2, 3]]
