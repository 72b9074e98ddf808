"""Corpora: the documents of arrays and of files of every format, in workers, and files that do not fit."""

import itertools
import pickle
import random
import re
import struct

import numpy as np
import pytest

from slipring import tokens
from tests.support.kinds import kinds, loaded
from tests.tokens.planned import lengths
from tests.tokens.test_collation import assert_same

SIZES = lengths(200, seed=1, mean=2.0)
BOUNDS = np.concatenate([[0], np.cumsum(SIZES, dtype=np.int64)])
IDS = np.random.default_rng(1).integers(1, 60_000, BOUNDS[-1]).astype(np.uint16)
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def write_megatron(prefix, sizes, ids, code=None, modes=False):
    """Write the two files of a dataset, as the description of Megatron's index says."""
    ids.tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, code or CODES[ids.dtype.name]))
        file.write(struct.pack("<QQ", len(sizes), len(sizes) + 1))
        file.write(np.asarray(sizes, "<i4").tobytes())
        file.write(((np.cumsum(sizes) - sizes) * ids.itemsize).astype("<i8").tobytes())
        file.write(np.arange(len(sizes) + 1, dtype="<i8").tobytes())
        if modes:
            file.write(np.zeros(len(sizes), np.int8).tobytes())


def write_arrow(path, kind, rows, stream=False, compression=None, per_batch=7):
    """Write lists of tokens as the column "input_ids", next to another one."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"text": pa.array(["x"] * len(rows)), "input_ids": pa.array(rows, kind)})
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as out:
        out.write_table(table, max_chunksize=per_batch)


def arrow_of(folder, wide=False, **options):
    pa = pytest.importorskip("pyarrow")
    rows = [IDS[a:b] for a, b in itertools.pairwise(BOUNDS)]
    write_arrow(folder / "a.arrow", (pa.large_list if wide else pa.list_)(pa.uint16()), rows, **options)
    return tokens.Corpus(folder / "a.arrow")


def npy_of(folder, **options):
    np.save(folder / "a.npy", IDS)
    return tokens.Corpus(folder / "a.npy", **options)


def bounds_of(folder):
    np.save(folder / "bounds.npy", BOUNDS)
    return npy_of(folder, bounds=folder / "bounds.npy")


def bin_of(folder, **options):
    IDS.tofile(folder / "a.bin")
    return tokens.Corpus(str(folder / "a.bin"), dtype="uint16", **options)


def megatron_of(folder, name="m", **options):
    write_megatron(folder / "m", SIZES, IDS, **options)
    return tokens.Corpus(folder / name)


MADE = {
    "an array with bounds": lambda folder: tokens.Corpus(IDS, bounds=BOUNDS),
    "an array with lengths": lambda folder: tokens.Corpus(IDS, lengths=SIZES),
    "npy with lengths": lambda folder: npy_of(folder, lengths=SIZES),
    "npy with bounds in a file": bounds_of,
    "bin with small bounds": lambda folder: bin_of(folder, bounds=BOUNDS.astype(np.int32)),
    "megatron": megatron_of,
    "megatron's bin": lambda folder: megatron_of(folder, "m.bin"),
    "megatron's idx with modes": lambda folder: megatron_of(folder, "m.idx", modes=True),
    "arrow": arrow_of,
    "arrow stream of large lists": lambda folder: arrow_of(folder, wide=True, stream=True),
    "one record batch": lambda folder: arrow_of(folder, per_batch=None),
    "several": lambda folder: tokens.Corpus([npy_of(folder, lengths=SIZES), folder / "a.npy", megatron_of(folder)]),
}


def expected_of(name):
    """Return the tokens and the bounds that a corpus of `MADE` has."""
    if name != "several":
        return IDS, BOUNDS
    n = len(IDS)
    return np.tile(IDS, 3), np.concatenate([BOUNDS, [2 * n], BOUNDS[1:] + 2 * n])


every = pytest.mark.parametrize("name", MADE)


@every
def test_a_corpus_has_the_documents_pieces_and_chunks_of_every_format(name, tmp_path):
    corpus, (ids, bounds) = MADE[name](tmp_path), expected_of(name)
    assert len(corpus) == len(bounds) - 1 and corpus.num_tokens == len(ids) and corpus.dtype == np.uint16
    assert np.array_equal(corpus.bounds, bounds) and np.array_equal(corpus.lengths, np.diff(bounds))
    for i in range(-len(corpus), len(corpus)):
        assert np.array_equal(corpus[i], ids[bounds[i % len(corpus)] : bounds[i % len(corpus) + 1]])
    draw = random.Random(0)
    for _ in range(300):
        i = draw.randrange(len(corpus))
        start, stop = sorted(draw.randint(0, bounds[i + 1] - bounds[i]) for _ in range(2))
        assert np.array_equal(corpus[tokens.Piece(i, start, stop)], ids[bounds[i] :][start:stop])
        start, stop = sorted(draw.randint(0, len(ids)) for _ in range(2))
        assert np.array_equal(corpus[tokens.Chunk(start, stop)], ids[start:stop])


@every
def test_spans_are_the_documents_and_chunks_and_lie_in_mapped_memory(name, tmp_path):
    corpus, (ids, bounds) = MADE[name](tmp_path), expected_of(name)
    at = [*np.random.default_rng(0).permutation(len(corpus)).tolist()[:30], -1]
    documents = [ids[bounds[i] : bounds[i + 1]] for i in np.array(at) % len(corpus)]
    assert_same(tokens.Flat().gather_spans(corpus.spans, at), tokens.Flat()(documents))
    chunks = [tokens.Chunk(a, a + 100) for a in range(0, len(ids) - 100, 100)]
    found = tokens.Flat().gather_spans(corpus.spans, chunks)
    assert np.array_equal(found["input_ids"], ids[: 100 * len(chunks)])
    flat, *_ = corpus.spans(at[:1])["input_ids"]
    assert np.shares_memory(flat[0], corpus[at[0]])


@every
def test_a_pickle_has_paths_and_opens_the_files_again(name, tmp_path):
    corpus, (ids, bounds) = MADE[name](tmp_path), expected_of(name)
    written = pickle.dumps(corpus)
    again = pickle.loads(written)
    assert np.array_equal(again.bounds, bounds)
    assert np.array_equal(again[tokens.Chunk(0, len(ids))], ids)
    if not name.startswith("an array"):
        assert IDS[:100].tobytes() not in written


@every
def test_lengths_feed_the_sampler_of_packs_and_pieces_are_read(name, tmp_path):
    corpus, (ids, _) = MADE[name](tmp_path), expected_of(name)
    sampler = tokens.PackedSampler(corpus.lengths, 64, overflow="split", seed=0)
    batches = loaded(corpus, batch_sampler=sampler, collate_fn=tokens.Flat())
    assert max(len(batch["input_ids"]) for batch in batches) <= 64
    found = np.sort(np.concatenate([batch["input_ids"] for batch in batches]))
    assert np.array_equal(found, np.sort(ids))


@every
@kinds("fork", "thread", "one spawn")
def test_workers_read_chunks_of_every_format(kind, name, tmp_path):
    corpus = MADE[name](tmp_path)
    ids, _ = expected_of(name)
    sampler = tokens.ChunkSampler(corpus.num_tokens, 50, 4, shuffle=False)
    found = loaded(corpus, batch_sampler=sampler, collate_fn=tokens.Chunks(50, "torchtitan"), **kind)
    labels = np.concatenate([labels.reshape(-1) for _, labels in found])
    assert np.array_equal(labels[: len(ids) - 1], ids[1:])


# ---- division into documents


@pytest.mark.parametrize("made_of", [lambda folder, **o: tokens.Corpus(IDS, **o), npy_of, bin_of])
def test_without_bounds_all_tokens_are_one_document_and_an_end_token_divides_them(made_of, tmp_path):
    one = made_of(tmp_path)
    assert len(one) == 1 and np.array_equal(one[0], IDS)
    end = int(IDS[100])
    corpus = made_of(tmp_path, end_token=end)
    assert len(corpus) == (IDS[:-1] == end).sum() + 1
    assert all(
        document[-1] == end and (document[:-1] != end).all()
        for document in map(corpus.__getitem__, range(len(corpus) - 1))
    )
    assert np.array_equal(np.concatenate([corpus[i] for i in range(len(corpus))]), IDS)


def test_an_end_token_at_the_end_makes_no_empty_document():
    corpus = tokens.Corpus(np.array([3, 0, 0, 4, 0]), end_token=0)
    assert [corpus[i].tolist() for i in range(len(corpus))] == [[3, 0], [0], [4, 0]]


def test_fixed_size_lists_of_arrow_are_documents(tmp_path):
    pa = pytest.importorskip("pyarrow")
    write_arrow(tmp_path / "a.arrow", pa.list_(pa.int32(), 4), np.arange(40).reshape(10, 4).tolist())
    corpus = tokens.Corpus(tmp_path / "a.arrow")
    assert np.array_equal(corpus.bounds, np.arange(0, 41, 4)) and corpus[8].tolist() == [32, 33, 34, 35]


def test_empty_documents_and_files_are_allowed(tmp_path):
    (tmp_path / "empty.bin").touch()
    corpus = tokens.Corpus(
        [tokens.Corpus(IDS[:9], lengths=[0, 4, 0, 5, 0]), tokens.Corpus(tmp_path / "empty.bin", dtype=np.uint16)]
    )
    assert [corpus[i].tolist() for i in range(6)] == [[], IDS[:4].tolist(), [], IDS[4:9].tolist(), [], []]
    assert tokens.Jagged().gather_spans(corpus.spans, [*range(6)])["input_ids"]["offsets"].tolist() == [
        0,
        0,
        4,
        4,
        9,
        9,
        9,
    ]
    assert corpus[tokens.Chunk(9, 9)].tolist() == []


@pytest.mark.parametrize(
    "index", [5, -6, tokens.Chunk(0, 10), tokens.Chunk(-1, 3), tokens.Chunk(4, 3), tokens.Piece(1, 0, 5)]
)
def test_an_index_outside_is_an_index_error(index):
    corpus = tokens.Corpus(IDS[:9], lengths=[0, 4, 0, 5, 0])
    with pytest.raises(IndexError, match=r"of a (Corpus of [59]|document of 4)"):
        corpus[index]
    if not isinstance(index, tokens.Piece):
        with pytest.raises(IndexError, match=r"of a Corpus of [59]"):
            corpus.spans([index])


def test_the_chunk_outside_is_named_among_the_chunks_of_a_batch():
    corpus = tokens.Corpus([IDS[:5], IDS[:4]])
    with pytest.raises(IndexError, match=r"^Chunk\(start=4, stop=10\) of a Corpus of 9 tokens: give the sam"):
        corpus.spans([tokens.Chunk(0, 3), tokens.Chunk(4, 10), tokens.Chunk(3, 6)])


@pytest.mark.parametrize("index", [1.0, "a", None, tokens.Chunk(0.5, 2), tokens.Piece("a", 0, 1)])
def test_an_index_of_another_type_is_named(index):
    with pytest.raises(TypeError, match=r"of a Corpus must be (an int, a Chunk or a Piece|ints, or all)"):
        tokens.Corpus(IDS[:9])[index]


def test_ints_and_chunks_in_one_batch_are_refused():
    with pytest.raises(TypeError, match=r"must be ints, or all of them a Chunk, not \[0, Chunk"):
        tokens.Corpus(IDS[:9]).spans([0, tokens.Chunk(0, 2)])


# ---- what does not fit


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"bounds": [0, 4, 8]},
            "bounds must go from 0 to the number of tokens, which is 9 in the array, and they go from 0 to 8",
        ),
        ({"bounds": [1, 9]}, "they go from 1 to 9"),
        ({"bounds": np.empty(0, int)}, "they are none"),
        ({"bounds": [0, 5, 4, 9]}, "bounds must not decrease: 5 and 4 at document 1 of the array"),
        ({"bounds": [0.0, 9.0]}, "bounds must be integers"),
        ({"lengths": [4, -1, 6]}, "document 1 has -1 tokens in lengths="),
        ({"lengths": [4, 4]}, "they go from 0 to 8"),
        ({"lengths": [4, 5], "end_token": 3}, "lengths and end_token exclude each other"),
        ({"end_token": 60_001}, "the array has 9 tokens, and end_token=60001 is none of them"),
        ({"dtype": "float32"}, "dtype must be one of 'uint8'"),
        ({"dtype": "uint16"}, "dtype='uint16' is of .bin files without an index, and there is none in sources"),
    ],
)
def test_a_bad_argument_is_named(options, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        tokens.Corpus(IDS[:9], **options)


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ([], "sources are empty"),
        (3, "sources must be an array, a path, a Corpus, or a list of these, not 3"),
        ([1, 2], "or a list of these, not 1"),
        (IDS[:8].reshape(2, 4), "tokens must be a contiguous row of native integers (uint8, int8, "),
        (np.ones(3), "and the array has float64 of shape (3,)"),
        (IDS[:8].astype(">u2"), "and the array has >u2 of shape (8,)"),
        (IDS[:8:2], "and the array has uint16 of shape (4,), with gaps"),
        ([IDS[:3], IDS[:3].astype(np.int32)], "the tokens of the array are int32, those of the array uint16"),
    ],
)
def test_bad_sources_are_named(sources, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        tokens.Corpus(sources)


def test_bounds_belong_to_one_source_and_not_to_one_that_has_documents(tmp_path):
    with pytest.raises(ValueError, match=r"bounds= is of one source, and there are 2: make a Corpus of each"):
        tokens.Corpus([IDS, IDS], bounds=BOUNDS)
    megatron_of(tmp_path)
    with pytest.raises(ValueError, match=r"lengths= divides .*m.bin, which has an index, has documents already"):
        tokens.Corpus(tmp_path / "m.bin", lengths=SIZES)
    with pytest.raises(ValueError, match=r"end_token= divides .*a Corpus has documents already"):
        tokens.Corpus(tokens.Corpus(IDS), end_token=3)


def cut(path, n):
    """Remove the last n bytes of a file."""
    data = path.read_bytes()
    path.write_bytes(data[:-n])


def test_a_truncated_or_foreign_npy_is_named(tmp_path):
    npy_of(tmp_path)
    size = (tmp_path / "a.npy").stat().st_size
    cut(tmp_path / "a.npy", 100)
    with pytest.raises(ValueError, match=rf"a.npy \({size - 100} bytes\) cannot be read as a .npy file"):
        tokens.Corpus(tmp_path / "a.npy")
    (tmp_path / "b.npy").write_bytes(b"nonsense" * 40)
    with pytest.raises(ValueError, match=r"b.npy \(320 bytes\) cannot be read as a .npy file"):
        tokens.Corpus(tmp_path / "b.npy")


def test_a_plain_file_needs_its_dtype_and_whole_tokens(tmp_path):
    bin_of(tmp_path)
    with pytest.raises(ValueError, match=r"a.bin has no index .*a.idx, .* give dtype='uint16'"):
        tokens.Corpus(tmp_path / "a.bin")
    cut(tmp_path / "a.bin", 1)
    with pytest.raises(ValueError, match=rf"a.bin has {2 * len(IDS) - 1} bytes, and uint16 tokens have 2 bytes each"):
        tokens.Corpus(tmp_path / "a.bin", dtype="uint16")
    np.array([20240520, 1] + [0] * 300, np.int32).tofile(tmp_path / "c.bin")
    with pytest.raises(
        ValueError, match=r"c.bin is a file of llm.c, .* give numpy.memmap\(path, 'uint16', 'r', 1024\)"
    ):
        tokens.Corpus(tmp_path / "c.bin", dtype="uint16")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda m: cut(m["idx"], 5), r"m.idx has \d+ bytes, and \d+ or \d+ are expected for the 200 sequences and 201"),
        (lambda m: m["idx"].write_bytes(b"MMIDIDX"), r"m.idx \(7 bytes\) is no index .* begins with b'MMIDIDX'"),
        (lambda m: m["idx"].write_bytes(b"TNTIDX\0\0" * 9), r"is no index of Megatron: .* begins with b'TNTIDX"),
        (lambda m: cut(m["bin"], 40), r"m.bin has \d+ bytes, and \d+ are expected by .*m.idx"),
        (lambda m: cut(m["bin"], 1), r"m.bin has \d+ bytes, and uint16 tokens have 2 bytes each"),
        (lambda m: patch(m["idx"], 9, 2), "m.idx has version 2 and dtype uint16: version 1 is expected"),
        (lambda m: patch(m["idx"], 17, 6), "m.idx has version 1 and dtype float64: .* tokens of uint8"),
        (lambda m: patch(m["idx"], 17, 99), "m.idx has version 1 and dtype 99"),
        (lambda m: patch(m["idx"], 34, SIZES[0] + 1), "the sequences of .*m.idx do not lie one after the other"),
    ],
)
def test_damaged_files_of_megatron_are_named_with_what_is_expected_and_found(damage, text, tmp_path):
    megatron_of(tmp_path)
    damage({"idx": tmp_path / "m.idx", "bin": tmp_path / "m.bin"})
    with pytest.raises(ValueError, match=text):
        tokens.Corpus(tmp_path / "m")


def test_a_document_whose_length_is_damaged_is_an_error_when_it_is_read(tmp_path):
    write_megatron(tmp_path / "m", np.ones(5000, int), np.arange(5000, dtype=np.int32))
    patch(tmp_path / "m.idx", 34 + 4 + 3, 0x80)  # of document 1: not all of so many are checked when it is opened
    corpus = tokens.Corpus(tmp_path / "m")
    with pytest.raises(ValueError, match=r"document 1 of .*m.bin has tokens 1:-\d+ of 5000"):
        corpus[1]
    with pytest.raises(ValueError, match=r"1:-\d+ is not a part of 5000 rows"):
        tokens.Flat().gather_spans(corpus.spans, [0, 1])


def patch(path, at, value):
    """Replace one byte."""
    data = bytearray(path.read_bytes())
    data[at] = value
    path.write_bytes(data)


def test_arrow_files_without_flat_tokens_are_named_with_the_remedy(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path, rows = tmp_path / "a.arrow", [[1, 2], [3]]
    pq.write_table(pa.table({"input_ids": rows}), path)
    with pytest.raises(ValueError, match=r"a.arrow is compressed, or a Parquet file, .* slipring.arrow.TableDataset"):
        tokens.Corpus(path)
    write_arrow(path, pa.list_(pa.int64()), [[7] * 500] * 100, compression="zstd")
    with pytest.raises(ValueError, match=r"a.arrow is compressed, or a Parquet file"):
        tokens.Corpus(path)
    write_arrow(path, pa.list_(pa.float32()), rows)
    with pytest.raises(ValueError, match=r"column 'input_ids' of .*a.arrow must have lists of tokens, .* not list<"):
        tokens.Corpus(path)
    with pytest.raises(ValueError, match=r"column 'text' of .* must have lists of tokens, .* not string"):
        tokens.Corpus(path, column="text")
    with pytest.raises(ValueError, match=r"0 columns named 'ids', one is needed"):
        tokens.Corpus(path, column="ids")
    write_arrow(path, pa.list_(pa.int32()), [[1, 2], None])
    with pytest.raises(ValueError, match=r"column 'input_ids' has nulls"):
        tokens.Corpus(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"is neither Parquet nor Arrow IPC: it begins with b'nonsense'"):
        tokens.Corpus(path)


def test_arrow_files_with_nulls_or_tokens_above_63_bits_are_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    for rows in ([[1, 2], None], [[1, None]]):
        write_arrow(tmp_path / "a.arrow", pa.list_(pa.int32()), rows)
        with pytest.raises(ValueError, match=r"a.arrow: column 'input_ids' has nulls"):
            tokens.Corpus([IDS.astype(np.int32), tmp_path / "a.arrow"])
    write_arrow(tmp_path / "a.arrow", pa.list_(pa.uint64()), [[1, 2]])
    with pytest.raises(ValueError, match=r"a.arrow must have lists of tokens, .* not list<item: uint64"):
        tokens.Corpus(tmp_path / "a.arrow")


def test_a_missing_file_is_named(tmp_path):
    for name in ("a.npy", "a.arrow"):
        with pytest.raises(FileNotFoundError, match=name):
            tokens.Corpus(tmp_path / name)


def test_files_that_changed_are_an_error_where_the_corpus_arrives(tmp_path):
    written = pickle.dumps(bin_of(tmp_path))
    IDS[:-1].tofile(tmp_path / "a.bin")
    n = len(IDS)
    with pytest.raises(ValueError, match=rf"have changed: .* were \(1, {n}\), and are \(1, {n - 1}\) in .*a.bin"):
        pickle.loads(written)
