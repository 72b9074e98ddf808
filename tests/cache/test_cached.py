"""`slipring.cached`: any map dataset whose samples are made once, in loaders of all kinds."""

import logging
import multiprocessing
import os
import random

import numpy as np
import pytest

import slipring
from slipring.errors import CacheMismatch
from tests.support.options import grouped


class Made:
    """Sample i is (five times i, i); making a sample appends a byte to a file."""

    def __init__(self, path, n=40):
        self.path, self.n = str(path), n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        with open(self.path, "ab", buffering=0) as log:
            log.write(b".")
        return np.full(5, i), i

    @property
    def made(self):
        return os.path.getsize(self.path)


def shifted(sample):
    return sample[0] + slipring.rng().integers(1000), sample[1]


def epochs(data, n=2, **options):
    with slipring.Loader(data, 8, shuffle=True, seed=5, **grouped(**options)) as loader:
        return [[part.tolist() for part in batch] for _ in range(n) for batch in loader]


WAYS = [
    {"num_workers": 0},
    {"num_workers": 2, "start_method": "thread"},
    {"num_workers": 2, "start_method": "spawn"},
    {"num_workers": 2, "chunk_size": 3},
]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_each_sample_is_made_once_and_batches_are_as_without_a_cache(tmp_path, options):
    plain = Made(tmp_path / "plain")
    chunks = {"chunk_size": options.get("chunk_size"), "num_workers": 1}  # each range draws its own numbers
    expected = epochs(slipring.cached(plain, 1).map(shifted), **chunks)  # a cache that is too small for any sample
    data = Made(tmp_path / "made")
    kept = slipring.cached(data, "8MiB").map(shifted)
    assert epochs(kept, **options) == expected
    assert data.made == 40 and plain.made == 80
    stats = kept.dataset.cache.stats()
    assert (stats.misses, stats.hits, stats.samples) == (40, 40, 40)


def test_an_index_may_count_from_the_end_and_not_beyond(tmp_path):
    data = slipring.cached(Made(tmp_path / "made"), "8MiB")
    assert data[-1][1] == data[np.uint64(39)][1] == data[np.int8(-1)][1] == 39 and data.dataset.made == 1
    assert not data[39][0].flags.writeable
    for index in (40, -41):
        with pytest.raises(IndexError, match="out of range"):
            data[index]
    assert len(data) == len(data.map(abs)) == 40 and "Cached" in repr(data)


def test_maps_follow_one_another():
    data = slipring.cached([1, 2, 3], "8MiB").map(lambda n: n + 1).map(lambda n: n * 10)
    assert [data[i] for i in range(3)] == [20, 30, 40]
    with pytest.raises(TypeError, match="must be callable"):
        data.map(5)


def test_two_datasets_that_nothing_distinguishes_do_not_share_a_cache(tmp_path):
    cache, data = slipring.Cache("8MiB"), Made(tmp_path / "a")
    slipring.cached(data, cache)
    with pytest.raises(CacheMismatch, match=r"holds 40 samples of .*Made; this is .* by the same fingerprint="):
        slipring.cached(Made(tmp_path / "b"), cache)
    assert slipring.cached(data, cache)[3][1] == 3  # the refused dataset did not take the place of the first one
    cache.close()


def test_a_fingerprint_says_that_two_are_the_same(tmp_path):
    cache = slipring.Cache("8MiB")
    data = Made(tmp_path / "a")
    first, again = (slipring.cached(data, cache, fingerprint="v1") for _ in range(2))
    assert first[3][1] == again[3][1] == 3 and data.made == 1
    second = slipring.cached(Made(tmp_path / "b"), cache, fingerprint="v1")
    assert first[7][1] == second[7][1] == 7 and not (tmp_path / "b").exists()
    with pytest.raises(CacheMismatch):
        slipring.cached(Made(tmp_path / "c"), cache, fingerprint="v2")
    with pytest.raises(CacheMismatch):
        slipring.cached(Made(tmp_path / "c", 41), cache, fingerprint="v1")


def test_a_name_wants_a_fingerprint(tmp_path):
    cache = slipring.Cache("8MiB", name=f"test-{os.getpid()}-{random.getrandbits(32)}")
    with pytest.raises(ValueError, match="give fingerprint="):
        slipring.cached(Made(tmp_path / "a"), cache)
    assert slipring.cached(Made(tmp_path / "a"), cache, fingerprint="v1")[1][1] == 1
    kind = type("Dataset", (Made,), {"__module__": "datasets.arrow_dataset"})
    data = kind(tmp_path / "b")
    data._fingerprint = "v1"  # as Hugging Face's have it
    with pytest.raises(CacheMismatch):  # the cache holds another dataset
        slipring.cached(data, cache)
    named = slipring.Cache("8MiB", name=f"test-{os.getpid()}-{random.getrandbits(32)}")
    assert slipring.cached(data, named)[1][1] == 1


def test_a_full_cache_continues_and_says_so_once(tmp_path, caplog):
    data = Made(tmp_path / "made")
    kept = slipring.cached(data, 4096)
    with caplog.at_level(logging.WARNING, "slipring"):
        assert epochs(kept, 2, num_workers=0) == epochs(slipring.cached(Made(tmp_path / "x"), "8MiB"), 2, num_workers=0)
    assert len([r for r in caplog.records if "keeps no more" in r.getMessage()]) == 1
    entries = len(kept.cache)
    assert 5 < entries < 20 and data.made == 80 - entries
    assert "all of them would take about" in kept.cache.report()


def test_copies_may_be_changed(tmp_path):
    data = slipring.cached(Made(tmp_path / "a"), "8MiB", copy=True)
    for _ in range(2):
        array = data[3][0]
        array += 1
        assert array.tolist() == [4] * 5


class Several(Made):
    def __getitems__(self, indices):
        with open(self.path, "ab", buffering=0) as log:
            log.write(b"s")
        return [(np.full(5, i), i) for i in indices]


def test_missing_samples_are_read_in_one_call(tmp_path):
    data = Several(tmp_path / "made")
    kept = slipring.cached(data, "8MiB").map(shifted)
    plain = epochs(slipring.cached(Made(tmp_path / "plain"), "8MiB").map(shifted), num_workers=1)
    assert epochs(kept, num_workers=1) == plain and data.made == 5
    assert kept.dataset.cache.stats().hits == 40


def test_processes_that_read_the_same_samples_make_each_once(tmp_path):
    data = slipring.cached(Made(tmp_path / "made", 400), "8MiB")
    reader, writer = os.pipe()

    def work():
        os.read(reader, 1)
        assert all(data[i][1] == i for _ in range(2) for i in range(400))

    processes = [multiprocessing.get_context("fork").Process(target=work) for _ in range(2)]
    for process in processes:
        process.start()
    os.write(writer, b"ab")  # both processes begin
    for process in processes:
        process.join()
        assert process.exitcode == 0
    os.close(reader)
    os.close(writer)
    assert 400 <= data.dataset.made <= 404  # a process does not wait for another one that takes a second
