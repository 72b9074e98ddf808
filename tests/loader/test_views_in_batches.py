"""Views of one array within a batch arrive with equal values and apart: a write to one changes no other."""

import itertools

import numpy as np
import pytest

from tests.support.kinds import kinds, loaded


def arrays(samples):
    ids = np.arange(8)
    return {"t": ids[2:], "a": ids, "head": ids[:4], "column": ids.reshape(2, 4)[:, 1], "backwards": ids[::-1]}


def tensors(samples):
    torch = pytest.importorskip("torch")
    ids = torch.arange(8)
    return {"t": ids[2:], "a": ids, "head": ids[:4], "column": ids.view(2, 4)[:, 1], "floats": ids.view(torch.float64)}


def as_lists(batch):
    return {name: value.tolist() for name, value in batch.items()}


def changed_by(batch):
    """Return the pairs (written, changed) of values in a batch; each write is undone."""
    found = set()
    for one, other in itertools.permutations(batch, 2):
        sent, before = batch[one] + 0, batch[other].tolist()
        batch[one][...] = 99
        if batch[other].tolist() != before:
            found.add((one, other))
        batch[one][...] = sent
    return found


@kinds("inline", "fork", "thread")
@pytest.mark.parametrize("make", [arrays, tensors])
def test_views_of_one_array_arrive_as_copies(kind, make):
    for batch in loaded(range(4), 2, collate_fn=make, **kind):
        assert as_lists(batch) == as_lists(make(None))
        assert changed_by(batch) == set()
        assert as_lists(batch) == as_lists(make(None))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_face_shares_as_torch_does_without_workers_and_copies_with_workers(num_workers):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    (ours,) = DataLoader(range(2), 2, collate_fn=tensors, num_workers=num_workers)
    (theirs,) = torch.utils.data.DataLoader(range(2), 2, collate_fn=tensors, num_workers=num_workers)
    assert as_lists(ours) == as_lists(theirs) == as_lists(tensors(None))
    pairs = {("a", "t"), ("t", "a"), ("a", "head"), ("head", "a"), ("a", "column"), ("column", "a")}
    assert pairs <= changed_by(theirs)
    assert changed_by(ours) == (set() if num_workers else changed_by(theirs))
