"""torch's attention over the documents of a batch: `make test-cuda`."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
varlen = pytest.importorskip("torch.nn.attention.varlen")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]

from slipring import tokens  # noqa: E402

LENGTHS = (5, 1, 9, 3)


@pytest.mark.parametrize("shapes", [{}, {"max_tokens": 32, "max_documents": 8}], ids=["any shape", "one shape"])
def test_attention_over_a_batch_is_that_over_each_document(shapes):
    batch = tokens.Flat(tensors=True, **shapes)([np.arange(n) for n in LENGTHS])
    torch.manual_seed(0)
    shape = len(batch["input_ids"]), 2, 16
    query, key, value = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    ends = batch["cu_seqlens_q"].cuda(), batch["cu_seqlens_k"].cuda()
    longest = batch["max_seqlen_q"], batch["max_seqlen_k"]
    found = varlen.varlen_attn(query, key, value, *ends, *longest, window_size=(-1, 0))
    assert found.isfinite().all(), "the padding is a document, too"
    start = 0
    for n in LENGTHS:
        part = [each[start : start + n].transpose(0, 1)[None] for each in (query, key, value)]
        expected = torch.nn.functional.scaled_dot_product_attention(*part, is_causal=True)[0].transpose(0, 1)
        torch.testing.assert_close(found[start : start + n], expected, atol=2e-2, rtol=2e-2)
        start += n
