"""Resumes with a loader, or a dataset, that has changed since the state was saved."""

import pytest

torch = pytest.importorskip("torch")

from tests.support.torch_datasets import Counting, PlainRange  # noqa: E402


def numbers(loader):
    return torch.cat([torch.as_tensor(batch).reshape(-1) for batch in loader]).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_with_another_batch_size_is_refused_where_batches_are_counted(make, num_workers):
    first = make(range(20), batch_size=2, num_workers=num_workers)
    iterator = iter(first)
    other = [make(range(20), batch_size=size, shuffle=False, num_workers=num_workers) for size in (4, None, 2)]
    begun = first.state_dict()
    next(iterator)
    state = first.state_dict()
    list(iterator)
    for loader in other[:2]:
        with pytest.raises(ValueError, match="the state counts batches of batch_size=2, the loader has batch"):
            loader.load_state_dict(state)
        for fits in (begun, first.state_dict()):
            loader.load_state_dict(fits)
            assert numbers(loader) == list(range(20))
    del state["batch_size"]  # as saved by an earlier release
    other[2].load_state_dict(state)
    assert numbers(other[2]) == list(range(2, 20))


@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
def test_a_stream_that_says_where_it_is_may_continue_in_batches_of_another_size(make):
    for dataset, exact in ((Counting, True), (PlainRange, False)):
        first, second = make(dataset(), batch_size=3), make(dataset(), batch_size=2)
        whole = numbers(first)
        next(iter(first))
        if exact:
            second.load_state_dict(first.state_dict())
            assert numbers(second) == whole[3:]
        else:
            with pytest.raises(ValueError, match="Use the same batch_size"):
                second.load_state_dict(first.state_dict())
