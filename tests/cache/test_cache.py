"""A cache in one process: the values that it keeps, returns and refuses."""

import collections
import copy
import dataclasses
import gc
import logging
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import slipring
from slipring.errors import Closed
from tests.support.processes import LONG_S

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Box:
    low: int
    high: list


@pytest.fixture
def cache():
    with slipring.Cache("64MiB") as made:
        yield made


def never():
    raise AssertionError("made again")


VALUES = [
    None, True, 7, -(1 << 62), 2.5, "naïve \U0001f600", b"\0bytes", [1, 2, 3], [1.5, 2.5], ["a", "bc"], [b"", b"x"],
    (1, "two", None), {"a": 1, 2: [3], ("t", 1): None}, [], {}, (), Point(1, 2), Box(1, [2]), 1 << 80, {1, 2},
    collections.OrderedDict(b=1, a=2), slice(1, 2),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_it_was(cache, value):
    assert cache.get_or_make(5, lambda: value) == value
    found = cache.get_or_make(5, never)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("uint8", (3,)), ("float32", (4, 5, 6)), ("<U3", (2, 0, 3)), (">i4", (3,)), ("complex64", ())]
)
def test_an_array_comes_back_as_a_view_for_reading_alone(cache, dtype, shape):
    array = np.arange(int(np.prod(shape)), dtype="i8").reshape(shape).astype(dtype)
    made = cache.get_or_make(0, lambda: array)
    found = cache.get(0)
    assert not shape or np.shares_memory(found, cache.get(0)) or not found.size
    for value in (made, found):
        value = np.asarray(value)
        assert value.dtype == array.dtype and value.shape == shape and value.tobytes() == array.tobytes()
        if value.size and shape:
            assert not value.flags.writeable and value.base is not None
            with pytest.raises(ValueError, match="read-only"):
                value[...] = 0


def test_a_made_value_is_read_only_also_if_it_is_not_kept():
    with slipring.Cache(4096) as small:
        big = small.get_or_make(0, lambda: np.zeros(10_000))
        assert 0 not in small and not big.flags.writeable and big.shape == (10_000,)
        assert small.stats().refused_budget == 1


def test_tensors_are_copies_that_can_be_written_to(cache):
    torch = pytest.importorskip("torch")
    cache.put(1, {"image": torch.arange(6).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)})
    first = cache.get(1)
    first["image"].fill_(9)
    assert cache.get(1)["image"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert cache.get(1)["half"].dtype == torch.bfloat16
    value = torch.nn.Parameter(torch.zeros(1000))
    for _ in range(2):
        found = cache.get_or_make(2, lambda: {"pickled": value, "class": Unloadable})["pickled"]
        with torch.no_grad():
            found.add_(1)
        assert found.sum() == 1000


def test_changing_a_value_after_its_put_does_not_change_the_entry(cache):
    array = np.zeros(4)
    cache.put(1, [array])
    array[:] = 7
    cache.get(1).append("more")
    assert [part.tolist() for part in cache.get(1)] == [[0, 0, 0, 0]]


def test_a_missing_key_gives_the_default_and_a_second_put_changes_nothing(cache):
    mark = object()
    assert cache.get(1) is None and cache.get(1, mark) is mark and 1 not in cache
    assert cache.put(1, None) and cache.put(1, "second")
    assert cache.get(1, mark) is None and 1 in cache and len(cache) == 1


@pytest.mark.parametrize("key", [0, 8191, 8192, 1 << 20, (1 << 30) - 1, np.int64(3)])
def test_any_key_below_two_to_the_thirtieth_may_be_used(cache, key):
    assert cache.put(key, "here") and cache.get(key) == "here"
    assert cache.stats().committed < 8 << 20


@pytest.mark.parametrize("key", [-1, 1 << 30, 1 << 80])
def test_a_key_that_is_out_of_range_or_no_number_is_refused(cache, key):
    assert key not in cache and "a" not in cache
    for use in (cache.get, lambda k: cache.put(k, 1), lambda k: cache.get_or_make(k, never)):
        with pytest.raises(ValueError, match="key must be from 0"):
            use(key)
        for other in ("1", 1.0, True):
            with pytest.raises(TypeError):
                use(other)


def test_an_exception_of_make_is_raised_and_the_next_one_makes_it(cache):
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make(1, lambda: 1 / 0)
    assert cache.get_or_make(1, lambda: "good") == "good"
    assert cache.get_or_make(1, never) == "good"


def test_make_may_ask_for_other_keys_and_for_its_own(cache):
    def outer():
        return [cache.get_or_make(2, lambda: "inner"), cache.get_or_make(1, lambda: "own")]

    assert cache.get_or_make(1, outer) == ["inner", "own"]
    assert cache.get_or_make(1, never) == ["inner", "own"] and cache.get(2) == "inner"


def test_of_many_threads_one_makes_the_entry(cache):
    made, barrier, out = [], threading.Barrier(8), []

    def make():
        made.append(threading.get_ident())
        return np.full(100, len(made))

    def ask():
        barrier.wait()
        for key in range(50):
            out.append(int(cache.get_or_make(key, make)[0]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 50 and len(out) == 400 and len(cache) == 50


def test_threads_read_entries_of_different_forms_at_once(cache):
    values = [{f"field {key}": [key] * (1 + key % 5), "row": np.full(8, key)} for key in range(40)]
    for key, value in enumerate(values):
        assert cache.put(key, value)
    barrier = threading.Barrier(4)

    def read(first):
        barrier.wait()
        for step in range(8000):
            key = (first + step) % 40
            value = cache.get(key)
            assert value[f"field {key}"] == values[key][f"field {key}"] and (value["row"] == key).all()

    with ThreadPoolExecutor(4) as pool:
        for reader in [pool.submit(read, 11 * number) for number in range(4)]:
            reader.result()
    assert cache.stats().hits == 32_000


def test_a_process_that_waited_a_second_makes_its_own_value(cache):
    begun, end = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert end.wait(LONG_S)
        return "slow"

    thread = threading.Thread(target=cache.get_or_make, args=(1, slow))
    thread.start()
    assert begun.wait(LONG_S)
    assert cache.get_or_make(1, lambda: "own") == "own"  # it returns while the other thread still makes the value
    end.set()
    thread.join()
    assert cache.get(1) == "slow"
    assert (cache.stats().waits, cache.stats().refused_other, cache.stats().misses) == (1, 1, 2)


class Unloadable:
    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize("kind", [threading.Lock, Unloadable])
def test_values_that_cannot_be_pickled_or_unpickled_are_made_each_time_and_reported_once(cache, caplog, kind):
    made = []

    def make():
        made.append(kind())
        return made[-1]

    with caplog.at_level(logging.WARNING, "slipring"):
        assert cache.get_or_make(1, make) is made[0] and cache.get_or_make(1, make) is made[1]
    assert len(caplog.records) == 1 and "cannot be cached" in caplog.text
    assert cache.stats().refused_other == 2 and len(cache) == 0


def test_one_huge_value_does_not_end_the_keeping_of_others(caplog):
    with slipring.Cache("1MiB") as cache, caplog.at_level(logging.WARNING, "slipring"):
        cache.get_or_make(0, lambda: np.zeros(3 << 20, np.uint8))
        for key in range(1, 60):
            cache.get_or_make(key, lambda: np.zeros(1000))
        assert len(cache) == 59
    assert [r.getMessage() for r in caplog.records] == [
        "a value of 3 MiB is larger than the cache, and is made each time"
    ]


IN_LITTLE_SPACE = """
import resource, slipring
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
with slipring.Cache("1GiB") as cache:
    print([cache.get_or_make(key, lambda: "made") for key in (5, (1 << 30) - 1) for _ in range(2)])
    print(cache.stats().entries >= 1, cache.stats().refused_other + cache.stats().entries * 2)
"""


def test_if_the_address_space_has_room_for_few_keys_the_others_are_made_each_time():
    done = subprocess.run([sys.executable, "-c", IN_LITTLE_SPACE], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["['made', 'made', 'made', 'made']", "True 4"], done.stderr
    assert "address space allow no more" in done.stderr


def test_a_budget_beyond_the_machine_is_reported_and_entries_are_kept(caplog):
    with caplog.at_level(logging.WARNING, "slipring"), slipring.Cache("32TiB") as cache:
        assert cache.put(1, "fits") and cache.get(1) == "fits"
    assert "entries are kept as long as there is room" in caplog.text and "32 TiB" in caplog.text


def test_the_budget_is_a_bound_and_smaller_values_still_fit(caplog):
    with slipring.Cache(100_000) as cache, caplog.at_level(logging.WARNING, "slipring"):
        kept = [cache.put(key, np.full(1000, key, np.int64)) for key in range(30)]
        stats = cache.stats()
        assert kept == [True] * len(cache) + [False] * (30 - len(cache)) and 8 < len(cache) < 13
        assert stats.bytes <= stats.budget == 100_000 and stats.refused_budget == 30 - len(cache)
        assert cache.put(99, 1) and cache.get(99) == 1
        for key in range(len(cache) - 1):
            assert (cache.get(key) == key).all()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "its budget is used up" in said[0]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1KiB", 1024), ("1 kb", 1000), ("1.5gib", 3 << 29), ("1M", 10**6), ("7", 7), ("0.5 TiB", 1 << 39)],
)
def test_a_size_is_a_number_or_words(text, nbytes):
    with slipring.Cache(text) as cache:
        assert cache.stats().budget == nbytes


@pytest.mark.parametrize("text", ["", "-1GiB", "1 PiB", "1e3", "GiB", 1 << 47, "0", "nan"])
def test_nonsense_for_a_size_is_refused_by_name(text):
    with pytest.raises(ValueError, match="budget must be"):
        slipring.Cache(text)


def test_shared_memory_of_the_system_can_be_the_backing_and_a_folder_on_a_disk_cannot():
    with slipring.Cache("1MiB", backing="shm") as cache:
        assert cache.put(1, [1, 2]) and cache.get(1) == [1, 2]
    with pytest.raises(ValueError, match="backing must be"):
        slipring.Cache("1MiB", backing="relative/path")
    with pytest.raises((ValueError, FileNotFoundError)):
        slipring.Cache("1MiB", backing="/proc")


def test_statistics_count_events(cache):
    for key in (1, 2, 1, 1):
        cache.get_or_make(key, lambda: np.zeros(100))
    cache.get(3)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.entries, stats.refused) == (2, 3, 2, 0)
    assert stats.bytes % 64 == 0 and 1600 < stats.bytes < 4096 <= stats.committed
    assert stats.bytes_for_all is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.hits = 0


def test_the_report_says_what_budget_all_samples_need():
    with slipring.Cache("1MiB") as cache:
        cache.bind("100 arrays", "them", 100)
        for key in range(100):
            cache.get_or_make(key, lambda: np.zeros(25_000, np.uint8))
        words, stats = cache.report(), cache.stats()
    assert f"{stats.entries} entries" in words and f"{stats.entries}% of 100 samples are kept" in words
    assert "all of them would take about 2.41 MiB" in words and "no room in the budget" in words
    assert repr(cache) == "<Cache closed>"


def test_views_outlive_the_cache():
    cache = slipring.Cache("1MiB")
    cache.put(1, np.arange(1000))
    view = cache.get(1)
    cache.close()
    cache.close()
    del cache
    gc.collect()
    assert view.sum() == 499_500


def test_a_closed_cache_refuses_every_use():
    cache = slipring.Cache("1MiB")
    assert cache
    cache.close()
    assert cache.closed and not cache
    for use in (
        lambda: cache.get(1), lambda: cache.put(1, 1), cache.stats, cache.report, lambda: 1 in cache,
        lambda: len(cache), lambda: cache.bind("a", "b"),
    ):  # fmt: skip
        with pytest.raises(Closed, match="the cache has been closed"):
            use()


def test_a_copy_of_a_dataset_with_a_cache_has_the_same_cache(cache):
    assert copy.copy(cache) is cache and copy.deepcopy([cache])[0] is cache
    with pytest.raises(RuntimeError, match="give it a name"):
        pickle.dumps(cache)
