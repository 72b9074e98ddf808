"""Failures in a worker raise torch's errors, and the loader continues as torch's does."""

import re

import pytest

torch = pytest.importorskip("torch")


from tests.support.datasets import Numbers, wait_for_ever  # noqa: E402
from tests.support.torch_datasets import (  # noqa: E402
    Dying,
    Failing,
    FailingSampler,
    FailingStream,
    Values,
    bad_begin,
    bad_collate,
    ended,
    fragile_error,
    key_error,
    killed,
    odd_error,
    raises,
    tuple_key_error,
    value_error,
)

WORKERS = [0, 2]


@pytest.mark.parametrize(("error", "batch_size"), [(value_error, 2), (key_error, None), (tuple_key_error, 2)])
def test_an_exception_keeps_its_type_and_names_its_worker(make, error, batch_size):
    with raises(Exception) as theirs:
        error()
    with raises(type(theirs.value)) as ours:
        list(make(Failing(error), batch_size=batch_size, num_workers=2))
    number = 3 // (batch_size or 1) % 2
    text = str(ours.value)
    assert text.startswith(f"Caught {type(theirs.value).__name__} in DataLoader worker process {number}.\n")
    assert "Original Traceback (most recent call last):" in text
    assert f"in {error.__name__}" in text
    assert str(theirs.value) in text


@pytest.mark.parametrize("error", [key_error, fragile_error])
def test_without_workers_an_exception_arrives_as_it_is(make, error):
    with raises(Exception) as theirs:
        error()
    with raises(type(theirs.value)) as ours:
        list(make(Failing(error), batch_size=2))
    assert type(ours.value) is type(theirs.value) and str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("which", [0, 2])
def test_a_worker_cannot_collate_samples_that_require_grad(make, which):
    samples = [torch.zeros(3, requires_grad=i == which) for i in range(4)]
    with raises(RuntimeError, match="one of the arguments requires grad"):
        list(make(Values(samples), batch_size=4, num_workers=1))


@pytest.mark.parametrize("error", [odd_error, fragile_error])
def test_an_exception_that_cannot_be_rebuilt_is_still_told(make, error):
    with raises(Exception) as theirs:
        error()
    kinds = (RuntimeError, type(theirs.value))
    with raises(kinds, match=r"Caught .* in DataLoader worker process 1") as ours:
        list(make(Failing(error), batch_size=2, num_workers=2))
    assert str(theirs.value) in str(ours.value)


def test_the_place_of_an_exception_is_reported(make):
    cases = [
        (FailingStream(), {}, OverflowError),
        (Values([1, 2]), {"collate_fn": bad_collate}, ArithmeticError),
        (Values([1, 2]), {"worker_init_fn": bad_begin}, LookupError),
    ]
    for dataset, options, kind in cases:
        pattern = f"Caught {kind.__name__} in DataLoader worker process 0."
        with raises(kind, match=re.escape(pattern)):
            list(make(dataset, batch_size=3, num_workers=1, **options))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_an_exception_of_a_sampler_arrives_as_it_is(make, num_workers):
    loader = make(Values(list(range(6))), sampler=FailingSampler(), num_workers=num_workers)
    with raises(LookupError, match=r"^'no more indices'$|^no more indices$"):
        list(loader)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_after_an_exception_the_iteration_continues_and_the_loader_can_be_used_again(make, num_workers, persistent):
    loader = make(Failing(value_error), batch_size=2, num_workers=num_workers, persistent_workers=persistent)
    for _ in range(2):
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        with raises(ValueError, match="no such value"):
            next(iterator)
    assert [batch.tolist() for batch in iterator] == [[4, 5], [6, 7]]


def test_a_stream_that_raised_has_ended(make):
    iterator = iter(make(FailingStream(), batch_size=2, num_workers=1))
    assert next(iterator).tolist() == [0, 1]
    with raises(OverflowError):
        next(iterator)
    assert list(iterator) == []


@pytest.mark.parametrize("how", [killed, ended])
def test_the_death_of_a_worker_is_reported_with_its_number(make, how):
    with raises(RuntimeError, match=r"DataLoader worker \(pid(\(s\))? [0-9, ]+\)") as info:
        list(make(Dying(how), batch_size=2, num_workers=2))
    if how is killed:
        assert "killed by signal" in str(info.value) or "exited unexpectedly" in str(info.value)
    else:
        assert "exited unexpectedly" in str(info.value)


def test_a_timeout_is_reported_in_torchs_words(make):
    iterator = iter(make(Numbers(4, {2: wait_for_ever}), batch_size=2, num_workers=1, timeout=2))
    first = None
    while first is None:
        try:
            first = next(iterator)
        except RuntimeError as error:
            assert "timed out" in str(error)  # the machine may be so slow
    assert first.tolist() == [0, 1]
    with raises(RuntimeError, match="DataLoader timed out after 2 seconds"):
        next(iterator)
