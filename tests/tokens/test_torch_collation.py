"""Collated documents as tensors, and equal to the collators of torch's libraries."""

import threading
from multiprocessing.context import ForkContext

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from slipring import tokens  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.tokens.test_collation import (  # noqa: E402
    COLLATORS,
    FlatLong,
    FlatTexts,
    Long,
    Texts,
    assert_written_once,
    batches_of,
)

LENGTHS = (5, 1, 9, 3)


class ThreadContext(ForkContext):
    """A context whose workers are threads."""

    Process = threading.Thread


def assert_same(found, expected):
    """Compare a batch of tensors with one of arrays or tensors, to the bit."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, tuple):
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, (np.ndarray, torch.Tensor)):
        expected = torch.as_tensor(expected)
        assert type(found) is torch.Tensor and found.dtype is expected.dtype and torch.equal(found, expected)
    else:
        assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [Texts, FlatTexts])
@pytest.mark.parametrize("name", COLLATORS)
def test_the_torch_loader_delivers_tensors(name, data, workers):
    loader = DataLoader(data(), 8, collate_fn=COLLATORS[name], num_workers=workers)
    for found, expected in zip(loader, batches_of(COLLATORS[name]), strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("context", ["spawn", "threads"])
def test_other_workers_of_the_torch_loader_deliver_tensors(context):
    how = {"multiprocessing_context": ThreadContext() if context == "threads" else context, "num_workers": 1}
    for data in (Texts(), FlatTexts()):
        loader = DataLoader(data, 8, collate_fn=COLLATORS["flash"], **how)
        for found, expected in zip(loader, batches_of(COLLATORS["flash"]), strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("data", [Long, FlatLong])
def test_a_batch_of_tensors_is_made_in_its_slot_and_not_copied(data):
    loader = DataLoader(data(), 2, collate_fn=tokens.Flat(), num_workers=1)
    (batch,) = loader
    assert_written_once(loader.stats(), batch["input_ids"].nbytes + batch["cu_seqlens_q"].nbytes)
    loader.close()


def test_a_subset_is_read_through_the_spans_of_its_dataset():
    subset = torch.utils.data.Subset(FlatTexts(), [3, 1, 30, 2])
    for workers in (0, 1):
        (found,) = DataLoader(subset, 4, collate_fn=COLLATORS["flash"], num_workers=workers)
        texts = Texts()
        assert_same(found, COLLATORS["flash"]([texts[i] for i in (3, 1, 30, 2)]))


def test_torch_own_loader_gets_tensors_if_it_is_asked_for():
    (found,) = torch.utils.data.DataLoader(Texts(), 40, collate_fn=tokens.Flat(fields=["input_ids"], tensors=True))
    assert_same(found, tokens.Flat(fields=["input_ids"])([Texts()[i] for i in range(40)]))


def test_a_sample_longer_than_the_sampler_knows_is_an_error_without_workers_too():
    for data in (Long(), FlatLong()):
        with pytest.raises(ValueError, match=r"index 1 has 50001 .* lengths says 50000"):
            list(DataLoader(data, 2, collate_fn=tokens.Flat(lengths=[50_000, 50_000])))


def test_nested_tensors_are_made_of_the_batch_without_a_copy():
    rows = [torch.randn(n, 4) for n in LENGTHS]
    for collate in (tokens.Jagged(tensors=True), tokens.Flat("nested", tensors=True)):
        parts = collate([{"x": row} for row in rows])["x"]
        nested = torch.nested.nested_tensor_from_jagged(**parts)
        assert nested.values().data_ptr() == parts["values"].data_ptr()
        assert (nested._min_seqlen, nested._max_seqlen) == (min(LENGTHS), max(LENGTHS))
        assert all(torch.equal(a, b) for a, b in zip(nested.unbind(), rows, strict=True))


def test_a_tensor_of_a_dtype_that_numpy_lacks_is_named():
    samples = [{"input_ids": [1, 2], "sound": torch.ones(2, dtype=torch.bfloat16)}]
    with pytest.raises(TypeError, match=r"field 'sound' of document 0 cannot become a numpy array: .*BFloat16"):
        tokens.Flat(tensors=True)(samples)
