"""`slipring.cached`: any map dataset whose samples are made once, in loaders of all kinds."""

import logging
import os
import pickle
import random

import numpy as np
import pytest

import slipring
from slipring.errors import CacheMismatch
from tests.support.options import grouped
from tests.support.parts import one_fast


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
    """Return the batches of `n` shuffled epochs as lists."""
    with slipring.Loader(data, 8, shuffle=True, seed=5, **grouped(**options)) as loader:
        return [[part.tolist() for part in batch] for _ in range(n) for batch in loader]


WAYS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "start_method": "thread"},
    {"num_workers": 2, "start_method": "spawn"},
    {"num_workers": 2, "start_method": "forkserver"},
    {"num_workers": 2, "chunk_size": 3},
]


@pytest.mark.parametrize("options", [*WAYS[:3], *one_fast(WAYS[3:5]), WAYS[5]], ids=str)
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
    assert data[-1][1] == 39 and data[39][1] == 39 and data.dataset.made == 1
    for index in (40, -41):
        with pytest.raises(IndexError, match="out of range"):
            data[index]
    assert len(data) == len(data.map(abs)) == 40 and "Cached" in repr(data)


def test_maps_follow_one_another():
    data = slipring.cached([1, 2, 3], "8MiB").map(lambda n: n + 1).map(lambda n: n * 10)
    assert [data[i] for i in range(3)] == [20, 30, 40]


def test_samples_are_for_reading_alone_from_the_first_epoch_on(tmp_path):
    data = slipring.cached(Made(tmp_path / "made"), "8MiB")
    for _ in range(2):
        assert not data[3][0].flags.writeable


def test_one_cache_serves_two_loaders_of_one_dataset(tmp_path):
    data = Made(tmp_path / "made")
    kept = slipring.cached(data, "8MiB")
    first = epochs(kept, 1, num_workers=1)
    assert epochs(kept, 1, num_workers=1) == first and data.made == 40


def test_two_datasets_that_nothing_distinguishes_do_not_share_a_cache(tmp_path):
    cache = slipring.Cache("8MiB")
    slipring.cached(Made(tmp_path / "a"), cache)
    with pytest.raises(CacheMismatch, match=r"holds 40 samples of .*Made; this is .* by the same fingerprint="):
        slipring.cached(Made(tmp_path / "b"), cache)
    cache.close()


def test_a_fingerprint_says_that_two_are_the_same(tmp_path):
    cache = slipring.Cache("8MiB")
    first = slipring.cached(Made(tmp_path / "a"), cache, fingerprint="v1")
    second = slipring.cached(Made(tmp_path / "b"), cache, fingerprint="v1")
    assert first[7][1] == second[7][1] == 7 and not (tmp_path / "b").exists()
    with pytest.raises(CacheMismatch):
        slipring.cached(Made(tmp_path / "c"), cache, fingerprint="v2")
    with pytest.raises(CacheMismatch):
        slipring.cached(Made(tmp_path / "c", 41), cache, fingerprint="v1")


@pytest.mark.parametrize("fingerprint", [np.arange(2000), 1 << 31, b"bytes"], ids=["array", "number", "bytes"])
def test_a_fingerprint_is_a_text(tmp_path, fingerprint):
    with pytest.raises(TypeError, match=r"fingerprint must be a str, not .*digest of its bytes"):
        slipring.cached(Made(tmp_path / "a"), slipring.Cache(1 << 20), fingerprint=fingerprint)


def test_a_cache_is_bound_by_a_text_or_bytes():
    for fingerprint in (np.arange(2000), 1 << 31):
        with pytest.raises(TypeError, match="fingerprint must be a str or bytes"):
            slipring.Cache(1 << 20).bind("samples", fingerprint)
    with pytest.raises(TypeError, match="what must be a str"):
        slipring.Cache(1 << 20).bind(5, "a")


def test_a_name_wants_a_fingerprint(tmp_path):
    cache = slipring.Cache("8MiB", name=f"test-{os.getpid()}-{random.getrandbits(32)}")
    with pytest.raises(ValueError, match="give fingerprint="):
        slipring.cached(Made(tmp_path / "a"), cache)
    assert slipring.cached(Made(tmp_path / "a"), cache, fingerprint="v1")[1][1] == 1


def test_a_dataset_that_has_a_fingerprint_needs_no_other(tmp_path):
    kind = type("Dataset", (Made,), {"__module__": "datasets.arrow_dataset"})
    data = kind(tmp_path / "a")
    data._fingerprint = "as Hugging Face's have it"
    cache = slipring.Cache("8MiB", name=f"test-{os.getpid()}-{random.getrandbits(32)}")
    assert slipring.cached(data, cache)[1][1] == 1


@pytest.mark.parametrize("dataset", [iter([1]), {1, 2}, 5])
def test_a_dataset_without_numbered_samples_is_refused(dataset):
    with pytest.raises(TypeError, match="must have __getitem__ and __len__"):
        slipring.cached(dataset, "8MiB")


@pytest.mark.parametrize("function", [None, 5])
def test_an_object_that_cannot_be_called_is_no_map(function):
    with pytest.raises(TypeError, match="must be callable"):
        slipring.cached([1], "8MiB").map(function)


def test_an_error_of_the_dataset_comes_each_time(tmp_path):
    class Broken(Made):
        def __getitem__(self, i):
            super().__getitem__(i)
            raise OSError("a bad sector")

    data = slipring.cached(Broken(tmp_path / "a"), "8MiB")
    for _ in range(2):
        with pytest.raises(OSError, match="a bad sector"):
            data[0]
    assert data.dataset.made == 2


def test_a_full_cache_continues_and_says_so_once(tmp_path, caplog):
    data = Made(tmp_path / "made")
    kept = slipring.cached(data, 4096)
    with caplog.at_level(logging.WARNING, "slipring"):
        assert epochs(kept, 2, num_workers=0) == epochs(slipring.cached(Made(tmp_path / "x"), "8MiB"), 2, num_workers=0)
    assert len([r for r in caplog.records if "keeps no more" in r.getMessage()]) == 1
    entries = len(kept.cache)
    assert 5 < entries < 20 and data.made == 80 - entries
    assert "all of them would take about" in kept.cache.report()


def test_a_cached_dataset_in_torchs_loader_is_made_once(tmp_path):
    loading = pytest.importorskip("torch.utils.data")
    data = Made(tmp_path / "made")
    kept = slipring.cached(data, "8MiB").map(tuple_of_copies)
    loader = loading.DataLoader(kept, batch_size=8, num_workers=2)
    for _ in range(2):
        assert [n for _, numbers in loader for n in numbers.tolist()] == list(range(40))
    assert data.made == 40


def tuple_of_copies(sample):
    return sample[0].copy(), sample[1]


def test_it_cannot_be_pickled_away_from_its_memory(tmp_path):
    with pytest.raises(RuntimeError, match="give it a name"):
        pickle.dumps(slipring.cached(Made(tmp_path / "made"), "8MiB"))


def test_one_dataset_may_be_cached_twice_in_one_cache(tmp_path):
    data, cache = Made(tmp_path / "a"), slipring.Cache("8MiB")
    first, second = slipring.cached(data, cache), slipring.cached(data, cache)
    assert first[3][1] == second[3][1] == 3 and data.made == 1


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


@pytest.mark.parametrize("index", [True, np.int8(-1), np.uint64(39)])
def test_an_index_may_be_of_any_whole_type(index):
    assert slipring.cached(list(range(300)), "8MiB")[index] == list(range(300))[index]
