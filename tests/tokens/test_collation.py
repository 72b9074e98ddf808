"""Collation of documents: the values of each format, in the slot of every kind of loader."""

from itertools import pairwise

import numpy as np
import pytest

import slipring
from slipring import tokens
from tests.support.kinds import KINDS, kinds, loaded, loading

LENGTHS = np.random.default_rng(0).integers(0, 12, 40)
ENDS = np.concatenate([[0], np.cumsum(LENGTHS)])


class Texts:
    """Documents as views of flat memory: ids, labels, and patches of another number."""

    def __init__(self, dtype=np.int32):
        draw = np.random.default_rng(1)
        self.ids = draw.integers(0, 30_000, ENDS[-1]).astype(dtype)
        self.labels = draw.integers(0, 30_000, ENDS[-1]).astype(dtype)
        self.patches = draw.random((ENDS[-1] * 2, 3), np.float32)

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, i):
        start, stop = ENDS[i], ENDS[i + 1]
        return {
            "input_ids": self.ids[start:stop],
            "labels": self.labels[start:stop],
            "patches": self.patches[2 * start : 2 * stop],
        }


class FlatTexts(Texts):
    """The same documents through spans; nothing may read them one by one."""

    def __getitem__(self, i):
        raise AssertionError("a document was read by itself")

    def spans(self, indices):
        at = np.asarray(indices)
        start, stop = ENDS[at], ENDS[at + 1]
        return {
            "input_ids": (self.ids, start, stop),
            "labels": (self.labels, start, stop),
            "patches": ([self.patches[: 2 * ENDS[7]], self.patches[2 * ENDS[7] :]], 2 * start, 2 * stop),
        }


PATCHES = {"patches": "patches"}
COLLATORS = {
    **{f: tokens.Flat(f, length_names=PATCHES) for f in ("flash", "transformers", "torchtitan", "megatron", "nested")},
    "static": tokens.Flat("transformers", length_names=PATCHES, max_tokens=128, max_documents=9),
    "padded": tokens.Padded(length_names=PATCHES, pad_values={"input_ids": 7}, pad_to_multiple_of=8),
    "jagged": tokens.Jagged(),
}


def assert_same(found, expected):
    """Compare batches: containers, types, dtypes, shapes and bytes."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, tuple):
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert np.array_equal(found, expected)
    else:
        assert found == expected


def batches_of(collate, size=8):
    data = Texts()
    return [collate([data[i] for i in range(at, at + size)]) for at in range(0, len(data), size)]


# ---- values


def documents(*lengths, **fields):
    """Samples of these lengths, with ids 1, 2, ... over all of them."""
    ends = np.cumsum([0, *lengths])
    ids = np.arange(1, ends[-1] + 1)
    return [{"input_ids": ids[a:b], **{k: v[i] for k, v in fields.items()}} for i, (a, b) in enumerate(pairwise(ends))]


def test_documents_are_joined_with_their_cumulative_lengths_for_varlen_attention():
    batch = tokens.Flat()(documents(3, 0, 2))
    assert batch["input_ids"].tolist() == [1, 2, 3, 4, 5]
    assert batch["cu_seqlens_q"].tolist() == batch["cu_seqlens_k"].tolist() == [0, 3, 3, 5]
    assert batch["cu_seqlens_q"].dtype == np.int32
    assert batch["max_seqlen_q"] == batch["max_seqlen_k"] == 3 and type(batch["max_seqlen_q"]) is int


def test_the_labels_of_torchtitan_are_the_next_tokens_and_end_with_each_document():
    inputs, labels = tokens.Flat("torchtitan")(documents(3, 2))
    assert inputs["input"].tolist() == [[1, 2, 3, 4, 5]] and inputs["positions"].tolist() == [[0, 1, 2, 0, 1]]
    assert labels.tolist() == [[2, 3, -100, 5, -100]]


@pytest.mark.parametrize("form", ["flash", "transformers", "torchtitan", "megatron"])
def test_a_field_does_not_take_the_place_of_what_the_format_makes(form):
    own = ["input", "positions", "position_ids", "tokens", "seq_idx", "cu_seqlens_q", "max_seqlen_q"]
    plain = tokens.Flat(form)(documents(3, 2))
    batch = tokens.Flat(form)(documents(3, 2, **{name: [[7] * 3, [8] * 2] for name in own}))
    if form == "torchtitan":
        (plain, _), (batch, _) = plain, batch
    assert_same({name: batch[name] for name in plain}, plain)
    assert set(batch) == {*plain, *own}


def test_given_labels_are_shifted_where_the_format_has_the_labels_of_next_tokens():
    _, labels = tokens.Flat("torchtitan")(documents(3, 2, labels=[[-100, 20, 30], [-100, 50]]))
    assert labels.tolist() == [[20, 30, -100, 50, -100]]


@pytest.mark.parametrize("form", ["transformers", "torchtitan", "megatron"])
def test_tokens_may_have_several_codebooks(form):
    docs = [np.arange(6).reshape(3, 2), np.zeros((0, 2), int), np.arange(10, 14).reshape(2, 2)]
    batch = tokens.Flat(form)([{"input_ids": ids} for ids in docs])
    labels = batch[1] if form == "torchtitan" else batch["labels"]
    assert labels.shape == (1, 5, 2)
    nothing, given = [-100, -100], [[2, 3], [4, 5]]
    if form == "transformers":
        assert labels[0].tolist() == [nothing, *given, nothing, [12, 13]]
    else:
        assert labels[0].tolist() == [*given, nothing, [12, 13], nothing]


def test_megatron_gets_the_lengths_with_and_without_the_padding_of_each_document():
    batch = tokens.Flat("megatron", document_multiple_of=4, max_tokens=12, max_documents=3)(documents(3, 2))
    assert batch["tokens"].tolist() == [[1, 2, 3, 0, 4, 5, 0, 0, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[2, 3, -100, -100, 5, -100, -100, -100, -100, -100, -100, -100]]
    assert batch["loss_mask"].tolist() == [[1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]]
    packed = batch["packed_seq_params"]
    assert packed["qkv_format"] == "thd"
    assert packed["cu_seqlens_q"].tolist() == packed["cu_seqlens_kv"].tolist() == [0, 3, 5, 5]
    assert packed["cu_seqlens_q_padded"].tolist() == packed["cu_seqlens_kv_padded"].tolist() == [0, 4, 8, 8]
    assert packed["max_seqlen_q"] == packed["max_seqlen_kv"] == 12


def test_padding_to_a_static_size_is_a_document_of_its_own():
    batch = tokens.Flat("transformers", max_tokens=8)(documents(3, 2))
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, 5, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 2, 2, 2]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 8]


@pytest.mark.parametrize("lengths", [(3, 2), (8,), (4, 4), (1, 1, 1, 1)])
def test_static_batches_have_one_shape_for_any_documents(lengths):
    batch = tokens.Flat(max_tokens=8, max_documents=4)(documents(*lengths))
    assert batch["input_ids"].shape == (8,) and batch["cu_seqlens_q"].shape == (6,)
    assert batch["cu_seqlens_q"][-1] == 8 and (np.diff(batch["cu_seqlens_q"]) >= 0).all()
    assert batch["max_seqlen_q"] == 8


@pytest.mark.parametrize("lengths", [(3, 2), (8,), (1, 7), (2, 2, 2, 2)])
def test_static_batches_of_nested_tensors_have_the_same_shortest_and_longest_length(lengths):
    batch = tokens.Flat("nested", max_tokens=8, max_documents=4)(documents(*lengths))["input_ids"]
    assert batch["values"].shape == (8,) and batch["offsets"].shape == (6,)
    assert (batch["min_seqlen"], batch["max_seqlen"]) == (0, 8)


def test_fields_of_rows_that_are_no_tokens_have_cumulative_lengths_of_their_own():
    patches = [np.full((n, 3), n, np.float32) for n in (2, 0, 1)]
    collate = tokens.Flat(length_names={"pixel_values": "patches", "grid": "images"})
    batch = collate(documents(3, 1, 2, pixel_values=patches, grid=[[[1, 2]], [], [[1, 1]]]))
    assert batch["pixel_values"].tolist() == [[2] * 3, [2] * 3, [1] * 3]
    assert batch["cu_seqlens_patches"].tolist() == [0, 2, 2, 3] and batch["max_seqlen_patches"] == 2
    assert batch["grid"].tolist() == [[1, 2], [1, 1]] and batch["cu_seqlens_images"].tolist() == [0, 1, 1, 2]
    assert batch["cu_seqlens_q"].tolist() == [0, 3, 4, 6]


def test_documents_are_padded_to_the_longest_with_a_value_for_each_field_and_a_mask():
    spectra = [np.ones((n, 2), np.float32) for n in (1, 2)]
    collate = tokens.Padded(pad_values={"input_ids": 9}, pad_to_multiple_of=4, length_names={"spectra": "frames"})
    batch = collate(documents(5, 2, labels=[[1, 2, 3, 4, 5], [6, 7]], spectra=spectra))
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 9, 9, 9], [6, 7, 9, 9, 9, 9, 9, 9]]
    assert batch["labels"].tolist() == [[1, 2, 3, 4, 5, -100, -100, -100], [6, 7] + [-100] * 6]
    assert batch["attention_mask"].tolist() == [[1] * 5 + [0] * 3, [1] * 2 + [0] * 6]
    assert batch["spectra"].shape == (2, 4, 2) and batch["spectra"].sum((1, 2)).tolist() == [2, 4]
    assert batch["frames_mask"].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]


def test_each_jagged_field_has_its_own_lengths():
    batch = tokens.Jagged()([{"a": [1, 2, 3], "b": np.ones((1, 2))}, {"a": [4], "b": np.zeros((0, 2))}])
    assert batch["a"]["values"].tolist() == [1, 2, 3, 4] and batch["a"]["offsets"].tolist() == [0, 3, 4]
    assert (batch["a"]["min_seqlen"], batch["a"]["max_seqlen"]) == (1, 3)
    assert batch["b"]["values"].shape == (1, 2) and batch["b"]["offsets"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", ">i4", "longlong"])
def test_ids_of_every_integer_type_become_int64_for_models(dtype):
    samples = [{"input_ids": np.array([1, 2, 120], dtype)}, {"input_ids": np.array([3], dtype)}]
    batch = tokens.Flat("transformers")(samples)
    assert batch["input_ids"].dtype == np.int64 and batch["input_ids"].tolist() == [[1, 2, 120, 3]]
    assert tokens.Flat()(samples)["input_ids"].dtype == np.dtype(dtype).newbyteorder("=")


def test_samples_may_be_arrays_lists_strided_and_of_several_types():
    strided = np.arange(10)[::3]
    assert tokens.Flat()([strided, [7], np.array([], np.int32)])["input_ids"].tolist() == [0, 3, 6, 9, 7]
    mixed = tokens.Flat()([np.array([1], np.int32), np.array([1 << 40])])
    assert mixed["input_ids"].tolist() == [1, 1 << 40]


@pytest.mark.parametrize("order", [1, -1])
def test_an_empty_document_does_not_make_floats_of_the_ids_of_others(order):
    samples = [np.array([], np.float64), np.array([1, 2], np.uint16)][::order]
    assert tokens.Flat()(samples)["input_ids"].dtype == np.uint16
    assert tokens.Flat("transformers")(samples)["input_ids"].tolist() == [[1, 2]]


def test_the_fields_to_collate_can_be_named_and_a_given_mask_is_left_out():
    samples = documents(3, 2, attention_mask=[[1] * 3, [1] * 2], text=["a", "b"])
    assert list(tokens.Jagged(fields=["input_ids"])(samples)) == ["input_ids"]
    with pytest.raises(ValueError, match="field 'text' of document 0 is a str"):
        tokens.Flat()(samples)
    for sample in samples:
        del sample["text"]
    assert "attention_mask" not in tokens.Flat()(samples)


# ---- loaders


@pytest.mark.parametrize("name", COLLATORS)
@pytest.mark.parametrize("data", [Texts, FlatTexts])
@kinds("inline", "fork", "thread", "one spawn")
def test_every_kind_of_worker_delivers_the_batches_that_the_collator_makes(kind, data, name):
    collate = COLLATORS[name]
    for found, expected in zip(loaded(data(), 8, collate_fn=collate, **kind), batches_of(collate), strict=True):
        assert_same(found, expected)


class Long:
    """Two documents of which a batch takes more than a few pages."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return np.full(50_000 + i, i, np.int32)


class FlatLong(Long):
    """The same, through spans."""

    def spans(self, indices):
        rows = np.concatenate([Long()[0], Long()[1]])
        return {"input_ids": (rows, np.array([0, 50_000]), np.array([50_000, 100_001]))}


def assert_written_once(stats, nbytes):
    """The slot has the bytes of the batch once: what does not lie there is copied to it."""
    assert nbytes < stats.bytes < nbytes + 4096 and stats.kept_batches == 0 and stats.pickled_leaves == 0


@pytest.mark.parametrize("collate", [tokens.Flat("transformers"), tokens.Flat(max_tokens=1 << 17), tokens.Padded()])
@pytest.mark.parametrize("data", [Long, FlatLong])
@kinds("inline", "one fork", "one thread")
def test_a_batch_of_documents_is_made_in_its_slot_and_not_copied(kind, data, collate):
    with loading(data(), 2, collate_fn=collate, **kind) as loader:
        (batch,) = loader
        arrays = {id(value): value.nbytes for value in batch.values() if isinstance(value, np.ndarray)}
        assert_written_once(loader.stats(), sum(arrays.values()))


def test_several_workers_can_read_one_batch():
    found = loaded(Texts(), 8, collate_fn=COLLATORS["flash"], **KINDS["ranges"])
    for batch, expected in zip(found, batches_of(COLLATORS["flash"]), strict=True):
        assert_same(batch, expected)


def test_a_subclass_with_samples_of_its_own_is_not_read_through_inherited_spans():
    class Doubled(FlatTexts):
        def __getitem__(self, i):
            return {"input_ids": np.array([i, i])}

    assert loaded(Doubled(), 2, collate_fn=tokens.Flat())[0]["input_ids"].tolist() == [0, 0, 1, 1]


# ---- documents that a sampler cuts


class Cut(Texts):
    """Documents that are longer than the budget, as the sampler asks for them."""

    def __getitem__(self, index):
        number, start, stop = index if isinstance(index, tokens.Piece) else (index, None, None)
        return {"input_ids": Texts.__getitem__(self, number)["input_ids"][start:stop]}


class FlatCut(FlatTexts):
    """The same through spans, which know nothing of pieces."""

    def spans(self, indices):
        assert all(isinstance(index, int) for index in indices)
        return {"input_ids": super().spans(indices)["input_ids"]}


@pytest.mark.parametrize("overflow", ["split", "truncate"])
@pytest.mark.parametrize("data", [Cut, FlatCut])
@kinds("inline", "fork")
def test_the_packs_of_a_sampler_have_the_tokens_that_it_plans(kind, data, overflow):
    texts, most = data(), 8
    lengths = np.maximum(LENGTHS, 1)  # the sampler refuses empty documents
    packs = tokens.PackedSampler(lengths, most, overflow=overflow, seed=0)
    batches = loaded(texts, batch_sampler=packs, collate_fn=tokens.Flat(lengths=lengths), **kind)
    assert all(len(batch["input_ids"]) <= most for batch in batches)
    parts = [texts.ids[a : min(b, a + most) if overflow == "truncate" else b] for a, b in pairwise(ENDS)]
    found = np.concatenate([batch["input_ids"] for batch in batches])
    assert sorted(found) == sorted(np.concatenate(parts))


def test_more_tokens_than_a_piece_says_are_an_error_also_without_lengths():
    with pytest.raises(ValueError, match=r"index Piece\(index=9, start=0, stop=2\) has 3 tokens .* the piece says 2"):
        tokens.Flat()([{"input_ids": [1, 2, 3]}], [tokens.Piece(9, 0, 2)])


def test_fields_that_have_no_row_per_token_cannot_be_cut():
    with pytest.raises(ValueError, match="the rows of field 'patches' are not tokens"):
        COLLATORS["flash"].gather_spans(FlatTexts().spans, [tokens.Piece(3, 0, 1)])


# ---- errors


@kinds("inline", "fork")
@pytest.mark.parametrize("data", [Texts, FlatTexts])
def test_a_sample_longer_than_the_sampler_knows_is_an_error_with_index_and_both_lengths(kind, data):
    said = LENGTHS.copy()
    said[13] -= 1
    collate = tokens.Flat(fields=["input_ids"], lengths=said)
    with pytest.raises(ValueError, match=rf"index 13 has {LENGTHS[13]} tokens .* lengths says {said[13]}"):
        loaded(data(), 8, collate_fn=collate, **kind)


@kinds("inline", "fork")
def test_lengths_are_checked_in_batches_that_several_workers_make(kind):
    said = LENGTHS.copy()
    said[13] -= 1
    collate = tokens.Flat(fields=["input_ids"], lengths=said)
    with pytest.raises(ValueError, match=rf"index 13 has {LENGTHS[13]} tokens"):
        loaded(Texts(), 8, collate_fn=collate, chunk_size=3, **kind)


@pytest.mark.parametrize("index", [2, -3, "a", tokens.Chunk(0, 1)])
def test_an_index_without_an_entry_in_lengths_is_named(index):
    with pytest.raises(ValueError, match=r"lengths= has 2 entries, and none for index (2|-3|'a'|Chunk)"):
        tokens.Padded(lengths=[3, 4])([[1]], [index])


def test_samples_shorter_than_the_sampler_knows_are_counted_in_the_log(caplog):
    said = LENGTHS.copy()
    said[[4, 13, 20]] += 5
    collate = tokens.Flat(fields=["input_ids"], lengths=said)
    assert len(loaded(Texts(), 8, collate_fn=collate)) == 5
    assert collate.shorter == 3
    assert [record.args for record in caplog.records] == [
        (1, "4", LENGTHS[4], said[4]),
        (2, "13", LENGTHS[13], said[13]),
    ]


@pytest.mark.parametrize(
    "collate, samples, message",
    [
        (tokens.Flat(max_tokens=4), documents(3, 2), "2 documents have 5 tokens, more than max_tokens=4"),
        (tokens.Flat(max_tokens=9, max_documents=1), documents(3, 2), "2 documents, more than max_documents=1"),
        (tokens.Flat(), documents(3, 2, labels=[[1] * 3, [1]]), "document 1 has 2 rows in field 'input_ids' and 1 in"),
        (tokens.Flat(), [{"input_ids": [1]}, {"labels": [1]}], "document 1 has no field 'input_ids'; it has 'labels'"),
        (
            tokens.Flat(),
            [{"x": np.ones((1, 2))}, {"x": np.ones((1, 3))}],
            r"have shape \(2,\), those of document 1 \(3",
        ),
        (tokens.Flat("transformers"), [{"x": [1]}], "needs a field 'input_ids'; there are x"),
        (tokens.Flat("transformers"), [{"input_ids": [1.5]}], "field 'input_ids' is float64: token ids and labels"),
        (tokens.Flat(), [{"x": [1]}, None], "document 1 is a NoneType, document 0 a dict: .* skip_none=True"),
        (tokens.Flat(), [{"x": [1]}, [1]], "document 1 is a list, document 0 a dict: all samples must be"),
        (tokens.Flat(), [{"x": [[1, 2], [3]]}], "field 'x' of document 0 cannot become a numpy array: .*inhomogeneous"),
        (tokens.Flat(), [{"x": ["a", "b"]}], r"field 'x' of document 0 is a list of .*<U1: the fields"),
        (tokens.Flat(), [{"x": [1, 2**70]}], r"field 'x' of document 0 is a list of shape \(2,\) and dtype object"),
        (tokens.Flat(), [], "there are no documents"),
        (tokens.Flat(length_names={"input_ids": "x"}), documents(3), "rows of field 'input_ids', and these are the to"),
        (tokens.Flat(), [{"input_ids": 3}], "field 'input_ids' of document 0 is a int"),
    ],
)
def test_documents_that_do_not_fit_together_are_errors_that_name_them(collate, samples, message):
    with pytest.raises((ValueError, TypeError), match=message):
        collate(samples)


@pytest.mark.parametrize("make", [tokens.Padded, lambda **kw: tokens.Flat(max_tokens=4, **kw)])
@pytest.mark.parametrize(
    "field, pad, message",
    [
        ("labels", None, "field 'labels' is uint16, which does not have the padding -100"),
        ("input_ids", 70_000, "field 'input_ids' is uint16, .* 70000"),
        ("input_ids", 0.5, "0.5: give another one, as pad_values="),
        ("input_ids", float("nan"), "the padding nan"),
    ],
)
def test_a_padding_that_the_integers_of_a_field_do_not_have_is_an_error(make, field, pad, message):
    samples = [{field: np.array(ids, np.uint16)} for ids in ([1, 2], [3])]
    with pytest.raises(ValueError, match=message):
        make(pad_values=None if pad is None else {field: pad})(samples)


def test_unsigned_labels_need_no_padding_value_in_batches_without_padding():
    batch = tokens.Flat()([{"input_ids": [1, 2], "labels": np.array([1, 2], np.uint16)}])
    assert batch["labels"].tolist() == [1, 2] and batch["labels"].dtype == np.uint16


@pytest.mark.parametrize(
    "spans, message",
    [
        ((np.arange(5), [0, 3], [3, 6]), "3:6 is not a part of 5 rows"),
        ((np.arange(5), [0, 3], [3, 2]), "3:2 is not a part"),
        ((np.arange(5), [-1], [3]), "-1:3 is not a part"),
        (([np.arange(2), np.arange(3)], [1], [3]), "1:3 lies in two arrays"),
        ((np.arange(10)[::2], [0], [2]), "C-contiguous"),
        ((np.arange(10).astype(">i4"), [0], [2]), "native byte order"),
        ((np.arange(5), [0, 1], [2]), "2 starts, 1 stops"),
        (([np.arange(2), np.arange(2.0)], [0], [1]), "differ in dtype"),
        (([], [0], [1]), "0 arrays"),
    ],
)
def test_spans_outside_of_their_array_are_refused(spans, message):
    with pytest.raises(ValueError, match=message):
        tokens.Flat().gather_spans(lambda indices: {"input_ids": spans}, list(range(len(spans[1]))))


@pytest.mark.parametrize("name", ["input_ids", "frames"])
def test_more_rows_than_the_cumulative_lengths_can_count_are_an_error(name):
    rows = np.empty((2**31, 0), np.uint8)  # without memory
    collate = tokens.Flat(length_names={"frames": "frames"})
    with pytest.raises(ValueError, match="a batch has 2147483648 rows, and cumulative lengths are int32"):
        collate([{"input_ids": [1], name: rows}])


@pytest.mark.parametrize("collate", [tokens.Flat(), tokens.Padded(), tokens.Jagged(), tokens.Chunks(4)])
@pytest.mark.parametrize("n", [1, 3])
def test_spans_of_another_number_of_documents_are_refused(collate, n):
    bounds = np.arange(n)
    with pytest.raises(ValueError, match=rf"{n} starts, {n} stops, 1 arrays for 2 indices"):
        collate.gather_spans(lambda indices: {"input_ids": (np.arange(9), bounds, bounds + 1)}, [4, 7])


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"format": "flsh"}, ValueError, "Did you mean 'flash'"),
        ({"max_documents": 3}, ValueError, "max_tokens= is needed too"),
        ({"max_tokens": 0}, ValueError, "max_tokens must be at least 1"),
        ({"lengths": [1.5]}, TypeError, "lengths must be a one-dimensional array of ints"),
        ({"pad_values": [1]}, TypeError, "pad_values must be a dict"),
        ({"pad_values": {"labels": "x"}}, TypeError, r"pad_values\['labels'\] must be a number, not 'x'"),
        ({"length_names": {"px": 3}}, TypeError, r"length_names\['px'\] must be a name, such as 'patches', not 3"),
        ({"length_names": {"px": "q"}}, ValueError, r"length_names\['px'\] must not be 'q'"),
        ({"fields": "input_ids"}, TypeError, "fields must be a sequence"),
        ({"tensors": 1}, TypeError, "tensors must be"),
    ],
)
def test_wrong_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        tokens.Flat(**options)


def test_a_collator_can_be_used_outside_of_a_loader():
    assert slipring.empty(3).base is None
    assert tokens.Flat()(documents(1))["input_ids"].tolist() == [1]
