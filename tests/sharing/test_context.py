"""The parts of sequences that context-parallel ranks get."""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from slipring.torch import context_slice  # noqa: E402
from tests.sharing.jobs import Job  # noqa: E402

ROWS = [[*range(12)], [*range(100, 112)]]
DOCUMENTS = [0, 4, 4, 16]  # the second one is empty
PACKED = {"input_ids": [*range(16)], "cu_seqlens_q": DOCUMENTS, "max_seqlen_q": 12}
PADDED = {"cu_seqlens_q": [0, 3], "cu_seqlens_q_padded": [0, 4], "max_seqlen_q": 4}


def parts(folder, *cases, ranks=2):
    """Return for each case what each rank has got: ({name: value}, {name: whether it is a view}), or an error."""
    with Job(folder, "sliced", ranks=ranks, cases=cases) as job:
        return [*zip(*(result["found"] for result in job.results()), strict=True)]


def zigzag(tokens, rank, ranks):
    size = len(tokens) // (2 * ranks)
    return [tokens[i * size : (i + 1) * size] for i in (rank, 2 * ranks - 1 - rank)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_get_views_of_their_parts(tmp_path, ranks):
    batch = {"input_ids": ROWS, "labels": ROWS, "weights": [1.5, 2.5], "name": "both"}
    for_all = {"input_ids": ROWS[0]}
    cases = (batch, {}), (batch, {"order": "contiguous"}), (for_all, {"dim": 0}), (for_all, {"dim": 0})
    two, one, flat, _ = parts(tmp_path, *cases, ranks=ranks)
    size = 12 // ranks
    for rank in range(ranks):
        expected = [zigzag(row, rank, ranks) for row in ROWS]
        assert two[rank][0] == {"input_ids": expected, "labels": expected, "weights": [1.5, 2.5]}
        assert one[rank][0]["labels"] == [row[rank * size : (rank + 1) * size] for row in ROWS]
        assert flat[rank][0] == {"input_ids": zigzag(ROWS[0], rank, ranks)}
        assert all(all(case[rank][1].values()) for case in (two, one, flat))


def test_documents_of_a_packed_batch_are_divided_one_by_one(tmp_path):
    rows = {**PACKED, "input_ids": [PACKED["input_ids"]], "seq_idx": [PACKED["input_ids"]]}
    megatron = {"tokens": [[*range(8)]], "packed_seq_params": PADDED}
    of_fla = {"input_ids": [PACKED["input_ids"]], "cu_seqlens": DOCUMENTS}
    flat, row, whole, padded, fla = parts(
        *(tmp_path, (PACKED, {"dim": 0}), (rows, {}), (PACKED, {"dim": 0, "order": "contiguous"}), (megatron, {})),
        (of_fla, {}),
    )
    first, second = [0, 3, 4, 5, 6, 13, 14, 15], [1, 2, 7, 8, 9, 10, 11, 12]
    assert [each[0]["input_ids"] for each in flat] == [first, second]
    assert [each[0] for each in fla] == [{"input_ids": [ids], "cu_seqlens": DOCUMENTS} for ids in (first, second)]
    assert [each[0]["seq_idx"] for each in row] == [[first], [second]]
    assert [each[0]["input_ids"] for each in whole] == [[*range(8)], [*range(8, 16)]]
    assert all(each[0]["cu_seqlens_q"] == DOCUMENTS and each[1]["cu_seqlens_q"] for each in (*flat, *row, *whole))
    # The rows after the last document are divided like one.
    assert [each[0]["tokens"] for each in padded] == [[[0, 3, 4, 7]], [[1, 2, 5, 6]]]


def test_batches_that_cannot_be_divided_are_refused(tmp_path):
    cases = [
        ({"input_ids": [ROWS[0][:10]]}, {}),
        ({"input_ids": [ROWS[0][:9]]}, {"order": "contiguous"}),
        ({**PACKED, "cu_seqlens_q": [0, 6, 16]}, {"dim": 0}),
        ({"input_ids": ROWS, "pixels": [[1, 2, 3]]}, {}),
        ({"input_ids": ROWS}, {"dim": 2}),
        ({"input_ids": ROWS, "cu_seq_lens_q": [0, 24]}, {}),
        ({"input_ids": ROWS}, {"order": "other"}),
        ({**PACKED, "cu_seqlens_q": [4, 16]}, {"dim": 0}),
        ({**PACKED, "cu_seqlens_q": [0, 16, 0]}, {"dim": 0}),
    ]
    texts = [
        "10 tokens (dim=1) cannot be divided into 4 equal chunks",
        "9 tokens (dim=1) cannot be divided into 2 equal chunks",
        "document 0 of the batch has 6 tokens, which cannot be divided into 4 equal chunks",
        "tensors of 3 and of 12 along dim=1",
        "no tensor with a dimension 2",
        "count 24 tokens, and dim=1 has 12",
        "order must be 'zigzag' or 'contiguous', not 'other'",
        "cu_seqlens_q=[4, 16]: cumulative lengths must begin with 0",
        "cu_seqlens_q=[0, 16, 0]: cumulative lengths must begin with 0 and never decrease",
    ]
    for both, text in zip(parts(tmp_path, *cases), texts, strict=True):
        assert both[0] == both[1] and text in both[0]


def test_a_mesh_is_needed():
    with pytest.raises(TypeError, match="must be a DeviceMesh or a ProcessGroup, not 'cp'"):
        context_slice(torch.arange(8), "cp", dim=0)


def test_context_parallel_ranks_share_a_stream_and_get_views_of_its_slots(tmp_path):
    with Job(tmp_path, "context_streams", ranks=2) as job:
        first, second = (result["seen"] for result in job.results())
    assert len(first) == len(second) == 25
    for ours, theirs in zip(first, second, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert [*a[:10], *b, *a[10:]] == [*range(a[0], a[0] + 40)]
