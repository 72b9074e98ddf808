"""Chunks of concatenated documents: their sampler, their collation, and loaders that are interrupted."""

import itertools
import random
import re

import numpy as np
import pytest

import slipring
from slipring import tokens
from tests.support.kinds import KINDS, kinds, loaded, loading
from tests.support.parts import slow
from tests.tokens.planned import lengths, saved, steps_of_changing_ranks
from tests.tokens.test_collation import assert_same, assert_written_once

SIZES = lengths(300, mean=2.0)
BOUNDS = np.concatenate([[0], np.cumsum(SIZES, dtype=np.int64)])
TOTAL = int(BOUNDS[-1])
IDS = np.arange(TOTAL, dtype=np.uint16)  # each token is its position


def corpus():
    return tokens.Corpus(IDS, bounds=BOUNDS)


class Text:
    """A user's own dataset over flat memory."""

    def __len__(self):
        return TOTAL

    def __getitem__(self, chunk):
        return IDS[chunk.start : chunk.stop]


class FlatText(Text):
    """The same, through spans."""

    def spans(self, indices):
        at = np.asarray(indices)
        return {"input_ids": (IDS, at[:, 0], at[:, 1])}


def samplers_of(ranks, chunk_tokens=16, batch_size=3, **options):
    options = {"seed": 5, **options}
    return [
        tokens.ChunkSampler(TOTAL, chunk_tokens, batch_size, rank=rank, world_size=ranks, **options)
        for rank in range(ranks)
    ]


# ---- the sampler


@pytest.mark.parametrize("seed", range(40))
def test_chunks_have_each_token_once_besides_the_overlap(seed):
    draw = random.Random(seed)
    total, width = draw.randint(0, 300), draw.randint(1, 40)
    overlap = draw.choice([0, 1, 1, draw.randint(0, width)])
    for remainder in ("keep", "drop"):
        sampler = tokens.ChunkSampler(total, width, draw.randint(1, 5), overlap=overlap, remainder=remainder, seed=0)
        chunks = sorted(set(itertools.chain(*sampler)))
        assert len(chunks) == sampler.num_samples
        starts, stops = zip(*chunks, strict=True) if chunks else ((), ())
        assert starts == tuple(range(0, len(chunks) * width, width))
        assert stops[:-1] == tuple(start + width + overlap for start in starts[:-1])
        covered = stops[-1] if chunks else min(total, overlap)
        assert covered + sampler.left_out == total
        assert remainder == "drop" or not sampler.left_out
        assert remainder == "keep" or all(stop - start == width + overlap for start, stop in chunks)


@pytest.mark.parametrize("seed", range(24))
def test_any_ranks_continue_at_any_step_with_each_chunk_once(seed):
    draw = random.Random(seed)
    drop_last, width = draw.choice([True, False]), draw.choice([7, 16, 50])

    def make():
        return samplers_of(draw.randint(1, 8), width, draw.randint(1, 4), drop_last=drop_last)

    seen = steps_of_changing_ranks(draw, make, [0, 1, 5, 20, 100])
    found = [chunk for step in seen for batch in step for chunk in batch]
    if drop_last:
        assert len(set(found)) == len(found)
    else:
        assert set(found) == set(itertools.chain(*samplers_of(1, width, 1)[0]))
        last = sum(map(len, seen[-1]))
        assert len(set(found[:-last])) == len(found) - last  # only the last step uses chunks again


def test_any_number_of_tokens_begins_and_continues_at_once():
    def ranks(n):
        return [tokens.ChunkSampler(10**15, 4096, 8, rank=rank, world_size=n) for rank in range(n)]

    first, second = map(iter, ranks(2))
    batches = [(next(first), next(second)) for _ in range(100)]
    state = saved(first.state_dict())
    rest = [(next(first), next(second)) for _ in range(3)]
    for sampler in (others := ranks(4)):
        sampler.load_state_dict(state)
    others = [*map(iter, others)]
    found = [chunk for _ in range(2) for each in others for chunk in next(each)]
    assert set(itertools.chain(*itertools.chain(*rest))) < set(found)
    assert not set(itertools.chain(*itertools.chain(*batches))) & set(found)


def test_each_epoch_has_another_order_unless_the_chunks_are_not_shuffled():
    (sampler,) = samplers_of(1)
    epochs = [[*itertools.chain(*sampler)] for _ in range(3)]
    assert len({*map(tuple, epochs)}) == 3 and len({tuple(sorted(epoch)) for epoch in epochs}) == 1
    (given,) = samplers_of(1, shuffle=False)
    assert [*itertools.chain(*given)] == sorted(epochs[0])


@pytest.mark.parametrize("options", [{"chunk_tokens": 17}, {"overlap": 0}, {"chunk_tokens": 32}, {"shuffle": False}])
def test_the_state_of_other_chunks_is_refused(options):
    state = iter(samplers_of(1)[0]).state_dict()
    with pytest.raises(ValueError, match="the state is of an epoch with"):
        samplers_of(1, **options)[0].load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((-1, 4), "num_tokens must be from 0 to"),
        ((np.array([3, 4]), 4), "num_tokens must be an int, not "),
        ((10, 0), "chunk_tokens must be from 1 to"),
        ((10, 4, 0), "batch_size must be at least 1"),
        ((10, 4, 1, {"overlap": 5}), "overlap must be from 0 to 4, not 5"),
        ((10, 4, 1, {"remainder": "pad"}), "remainder must be one of 'keep', 'drop', not 'pad'"),
    ],
)
def test_a_bad_argument_of_the_sampler_is_named(arguments, text):
    given, options = [], {}
    for each in arguments:
        (options.update if isinstance(each, dict) else given.append)(each)
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        tokens.ChunkSampler(*given, **options)


# ---- collation


def expected_batch(form, chunks, width, bounds):
    """Return the batch of chunks, token by token."""
    ids, labels, positions, ends = [], [], [], [0]
    starts = set() if bounds is None else set(bounds.tolist())
    shifted = form != "transformers"
    for start, stop in chunks:
        position = -1
        for offset in range(width):
            at, here = start + offset, start + offset < stop
            begins = offset == 0 or at in starts or at == stop
            if begins and bounds is not None and offset:
                ends.append(len(ids))
            position = 0 if offset == 0 or (begins and bounds is not None) else position + 1
            ids.append(at if here else 0)
            label = at + shifted
            known = label < stop and not (bounds is not None and label in starts)
            labels.append(label if known else -100)
            positions.append(position)
        ends.append(len(ids))
    ids, labels, positions = (np.array(x).reshape(-1, width) for x in (ids, labels, positions))
    ends, most = np.array(ends, np.int32), int(np.diff(ends).max())
    if form == "transformers":
        more = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": most, "max_length_k": most}
        return {"input_ids": ids, "labels": labels} | ({} if bounds is None else {"position_ids": positions} | more)
    if form == "torchtitan":
        return {"input": ids} | ({} if bounds is None else {"positions": positions}), labels
    mask = (labels != -100).astype(np.float32)
    made = {"tokens": ids, "labels": labels, "loss_mask": mask, "position_ids": positions}
    if bounds is not None:
        packed = {"qkv_format": "thd", "cu_seqlens_q": ends, "cu_seqlens_kv": ends}
        made["packed_seq_params"] = packed | {"max_seqlen_q": most, "max_seqlen_kv": most}
    return made


FORMATS = ("transformers", "torchtitan", "megatron")


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint64])
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_chunks_are_rows_of_inputs_and_labels_with_the_documents_that_bounds_tell(form, divided, dtype):
    draw = np.random.default_rng(0)
    for width in (1, 2, 5, 16, 100):
        for overlap in (0, 1):
            bounds = np.unique([0, TOTAL, *draw.integers(0, TOTAL, 200)]).astype(dtype) if divided else None
            sampler = tokens.ChunkSampler(TOTAL, width, 4, overlap=overlap, seed=0)
            collate = tokens.Chunks(width, form, bounds=bounds)
            batches = [*itertools.islice(sampler, 12)]
            batches.append([tokens.Chunk(TOTAL - 1, TOTAL), tokens.Chunk(3, 3 + width)])  # a shorter one
            for chunks in batches:
                expected = expected_batch(form, chunks, width, bounds)
                assert_same(collate.gather_spans(FlatText().spans, chunks), expected)
                assert_same(collate([Text()[chunk] for chunk in chunks], chunks), expected)


def test_labels_of_next_tokens_go_to_the_end_of_a_chunk_and_not_beyond_a_document():
    collate = tokens.Chunks(4, "torchtitan", bounds=[0, 2, 9])
    inputs, labels = collate([IDS[:5], IDS[4:9]], [tokens.Chunk(0, 5), tokens.Chunk(4, 9)])
    assert inputs["input"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert inputs["positions"].tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]
    assert labels.tolist() == [[1, -100, 3, 4], [5, 6, 7, 8]]


def test_chunks_of_samples_may_be_dicts_lists_and_need_no_indices():
    collate = tokens.Chunks(3, "torchtitan")
    for samples in ([[1, 2, 3, 4], [5, 6]], [{"input_ids": np.array([1, 2, 3, 4])}, {"input_ids": [5, 6]}]):
        inputs, labels = collate(samples)
        assert inputs["input"].tolist() == [[1, 2, 3], [5, 6, 0]] and labels.tolist() == [[2, 3, 4], [6, -100, -100]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tokens.Chunks(4)([IDS[:6]]), "a chunk has 6 tokens, more than chunk_tokens=4 and one for the last"),
        (lambda: tokens.Chunks(4)([]), "there are no chunks to collate"),
        (lambda: tokens.Chunks(4, bounds=[0, 9])([IDS[:4]]), "bounds= needs the position of each chunk"),
        (lambda: tokens.Chunks(4, bounds=[0, 9])([IDS[:4]], [3]), "bounds= needs the position of each chunk"),
        (
            lambda: tokens.Chunks(4)([IDS[:3]], [tokens.Chunk(0, 4)]),
            "the dataset has 3 tokens for Chunk(start=0, stop=4): it must return as many",
        ),
        (lambda: tokens.Chunks(4)([{"text": IDS[:4]}]), "chunks need the field 'input_ids'; there are 'text'"),
        (lambda: tokens.Chunks(4).gather_spans(lambda _: {"x": 0}, [1]), "chunks need the field 'input_ids'"),
        (lambda: tokens.Chunks(4, bounds=[0, 9, 5]), "bounds must not decrease: 9 and 5 at document 1"),
        (
            lambda: tokens.Chunks(4, bounds=[0, 3])([IDS[:4], IDS[1:5]], [tokens.Chunk(0, 4), tokens.Chunk(1, 5)]),
            "Chunk(start=1, stop=5) ends after the documents, which end at 3: bounds= must be of the same corpus",
        ),
        (lambda: tokens.Chunks(4)([IDS[:3], None]), "chunk 1 is a NoneType: samples must be the token ids of chunks"),
        (lambda: tokens.Chunks(4)([IDS[:4].reshape(2, 2)]), "chunk 0 is a ndarray of shape (2, 2): samples must be"),
        (lambda: tokens.Chunks(4)([[[1, 2], [3, 4]]]), "a token of a chunk must be one number, and field 'input_ids'"),
        (
            lambda: tokens.Chunks(4).gather_spans(lambda _: {"input_ids": (np.ones((9, 2), int), [0], [4])}, [0]),
            "field 'input_ids' has rows of (2,)",
        ),
        (lambda: tokens.Chunks(4, "flash"), "format must be one of 'transformers', 'torchtitan', 'megatron'"),
        (lambda: tokens.Chunks(4, bounds=[0.5]), "bounds must be integers"),
    ],
)
def test_chunks_that_do_not_fit_are_errors(call, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        call()


# ---- loaders


@pytest.mark.parametrize("data", [corpus, Text, FlatText])
@pytest.mark.parametrize("form", FORMATS)
@kinds("inline", "fork", "thread", "one spawn", "ranges")
def test_every_kind_of_worker_delivers_the_chunks_of_the_sampler(kind, form, data):
    (sampler,) = samplers_of(1, batch_size=8)
    collate = tokens.Chunks(16, form, bounds=BOUNDS)
    expected = [expected_batch(form, chunks, 16, BOUNDS) for chunks in samplers_of(1, batch_size=8)[0]]
    for found, batch in zip(loaded(data(), batch_sampler=sampler, collate_fn=collate, **kind), expected, strict=True):
        assert_same(found, batch)


@kinds("inline", "one fork", "one thread")
def test_a_batch_of_chunks_is_made_in_its_slot_and_not_copied(kind):
    big = tokens.Corpus(np.arange(1 << 18, dtype=np.int32))
    sampler = tokens.ChunkSampler(1 << 18, 1 << 14, 16, overlap=0, seed=0)
    with loading(big, batch_sampler=sampler, collate_fn=tokens.Chunks(1 << 14), **kind) as loader:
        (batch,) = loader
        assert_written_once(loader.stats(), sum(array.nbytes for array in batch.values()))


def test_other_collators_take_a_chunk_as_a_document():
    (sampler,) = samplers_of(1, overlap=0, shuffle=False)
    batch = loaded(corpus(), batch_sampler=sampler, collate_fn=tokens.Flat())[1]
    assert batch["input_ids"].tolist() == [*range(48, 96)] and batch["cu_seqlens_q"].tolist() == [0, 16, 32, 48]


def loader_of(face, sampler, workers):
    collate = tokens.Chunks(16, "megatron")
    if face == "slipring":
        return slipring.Loader(corpus(), batch_sampler=sampler, num_workers=workers, collate_fn=collate)
    torch = pytest.importorskip("slipring.torch", exc_type=ImportError)
    return torch.DataLoader(corpus(), batch_sampler=sampler, num_workers=workers, collate_fn=collate)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, slow(1), 2, slow(3), slow(4)])
@pytest.mark.parametrize("face", ["slipring", "torch"])
def test_a_loader_continues_with_other_ranks_and_workers_with_each_token_once(face, workers):
    seen, repeated, state = [], 0, None
    for ranks, size, count, number in ((3, 2, 11, workers), (2, 5, 6, 4 - workers), (5, 1, None, workers)):
        samplers = samplers_of(ranks, batch_size=size)
        states, steps = [], []
        for sampler in samplers:
            loader = loader_of(face, sampler, number)
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            steps.append([np.asarray(batch["labels"]) for batch in itertools.islice(iterator, count)])
            states.append(saved(loader.state_dict()))
            del iterator
            if hasattr(loader, "close"):
                loader.close()
        assert len({len(each) for each in steps}) == 1
        seen += itertools.chain(*steps)
        repeated = len(steps[0]) * ranks * size  # chunks of the last division
        state = states[ranks // 2]
    labels = np.concatenate([batch.reshape(-1) for batch in seen])
    times = np.bincount(labels[labels >= 0], minlength=TOTAL)
    assert times[0] == 0 and (times[1:] >= 1).all()  # the first token is the label of none
    chunks = sum(len(batch) for batch in seen)
    again = chunks - samplers_of(1)[0].num_samples
    assert 0 <= again < 5 <= repeated  # the last step of five ranks is filled
    assert times.sum() - (TOTAL - 1) <= again * 16
    assert (times == 2).sum() == times.sum() - (TOTAL - 1)


def test_torchs_own_loader_reads_chunks_of_a_corpus():
    torch = pytest.importorskip("torch")
    (sampler,) = samplers_of(1)
    collate = tokens.Chunks(16, "torchtitan", tensors=True)
    batches = [*torch.utils.data.DataLoader(corpus(), batch_sampler=sampler, collate_fn=collate)]
    for (inputs, labels), chunks in zip(batches, samplers_of(1)[0], strict=True):
        expected = expected_batch("torchtitan", chunks, 16, None)
        assert np.array_equal(inputs["input"], expected[0]["input"]) and np.array_equal(labels, expected[1])
        assert labels.dtype is torch.int64


def test_a_collator_with_mapped_bounds_reaches_spawned_workers(tmp_path):
    np.save(tmp_path / "bounds.npy", BOUNDS)
    np.save(tmp_path / "ids.npy", IDS)
    data = tokens.Corpus(tmp_path / "ids.npy", bounds=tmp_path / "bounds.npy")
    collate = tokens.Chunks(16, bounds=data.bounds)
    (sampler,) = samplers_of(1)
    found = loaded(data, batch_sampler=sampler, collate_fn=collate, **KINDS["one spawn"])
    for batch, chunks in zip(found, samplers_of(1)[0], strict=True):
        assert_same(batch, expected_batch("transformers", chunks, 16, BOUNDS))
