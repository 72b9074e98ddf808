"""Collated documents, equal to the batches of transformers' and TRL's own collators."""

import numpy as np
import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="pip install -r requirements-clients.txt")

from slipring import tokens  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.tokens.test_torch_collation import LENGTHS, assert_same  # noqa: E402


@pytest.fixture(params=[True, False], ids=["labels", "no labels"])
def samples(request):
    """Documents of text."""
    draw = np.random.default_rng(0)
    made = [{"input_ids": draw.integers(0, 999, n)} for n in LENGTHS]
    return (
        [{**one, "labels": draw.integers(-100, 999, len(one["input_ids"]))} for one in made] if request.param else made
    )


def test_batches_equal_those_of_transformers_own_collator(samples):
    theirs = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    assert_same(tokens.Flat("transformers", tensors=True)(samples), theirs(samples, return_tensors="pt"))
    as_lists = [{key: value.tolist() for key, value in sample.items()} for sample in samples]
    assert_same(tokens.Flat("transformers", tensors=True)(as_lists), theirs(as_lists, return_tensors="pt"))


def test_batches_equal_those_of_the_collator_of_trl(samples):
    trainer = pytest.importorskip("trl.trainer.sft_trainer", reason="pip install -r requirements-clients.txt")
    theirs = trainer.DataCollatorForLanguageModeling(pad_token_id=7, padding_free=True)(samples)
    found = tokens.Flat("transformers", tensors=True)(samples)
    assert_same({key: found[key] for key in theirs}, theirs)
    if "labels" in samples[0]:  # TRL makes them of the ids otherwise
        theirs = trainer.DataCollatorForLanguageModeling(pad_token_id=7, pad_to_multiple_of=4)(samples)
        found = tokens.Padded(pad_values={"input_ids": 7}, pad_to_multiple_of=4, tensors=True)(samples)
        assert_same({key: found[key] for key in theirs}, theirs)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_delivers_the_batches_of_transformers_own_collator(samples, num_workers):
    theirs = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    loader = DataLoader(samples, 2, collate_fn=tokens.Flat("transformers"), num_workers=num_workers)
    for found, at in zip(loader, range(0, len(samples), 2), strict=True):
        assert_same(found, theirs(samples[at : at + 2], return_tensors="pt"))
