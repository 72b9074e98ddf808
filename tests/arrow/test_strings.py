"""StringList: a sequence of strings whose memory forked workers share."""

import os
import pickle
import sys

import numpy as np
import pytest

from slipring import Workers

pa = pytest.importorskip("pyarrow")

from slipring import Loader, StringList  # noqa: E402

WORDS = ["", "a", "grüße", "日本語", "🙂" * 100, "x" * 10_000, "a", "a\0b"]


@pytest.mark.parametrize("given", [
    list, tuple, iter, pa.array, StringList, lambda s: pa.array(s, pa.large_string()),
    lambda s: pa.chunked_array([s[:3], s[3:]]),
])  # fmt: skip
def test_it_is_the_list_that_it_was_made_of(given):
    strings = StringList(given(WORDS))
    assert len(strings) == len(WORDS) and list(strings) == WORDS and strings == WORDS
    assert list(reversed(strings)) == WORDS[::-1]
    assert "grüße" in strings and "b" not in strings and strings.index("a") == 1 and strings.count("a") == 2
    for i in (0, 3, -1, -len(WORDS), np.int64(4)):
        assert strings[i] == WORDS[i]
    assert strings != WORDS[:-1] and strings != [*WORDS[:-1], "other"] and strings != 3


def test_slices_are_lists_of_strings_too():
    strings = StringList(WORDS)
    cuts = [slice(None), slice(2, 5), slice(5, 2), slice(None, None, -1), slice(1, None, 3), slice(-3, 100)]
    for cut in cuts:
        assert type(strings[cut]) is StringList and strings[cut] == WORDS[cut]
    assert strings[2:][1:] == WORDS[3:]
    assert strings[0:0] == [] == StringList([])


@pytest.mark.parametrize("index", [8, -9, 1 << 70])
def test_an_index_outside_is_an_index_error(index):
    with pytest.raises(IndexError, match="StringList of 8"):
        StringList(WORDS)[index]


def test_a_value_that_is_no_string_is_reported():
    for bad, text in (
        ([1], "element 0 .* of type int"),
        (["a", None], "element 1 .* of type NoneType"),
        (["a", b"b"], "element 1"),
        ([["a"]], "element 0"),
    ):
        with pytest.raises(TypeError, match=text):
            StringList(bad)
    with pytest.raises(TypeError, match="int64"):
        StringList(pa.array([1]))
    with pytest.raises(TypeError, match="cannot hold None"):
        StringList(pa.array(["a", None]))
    with pytest.raises(TypeError):
        StringList(WORDS)["a"]


def test_a_slice_pickles_without_the_rest():
    strings = StringList([str(i) * 50 for i in range(10_000)])
    part = pickle.dumps(strings[5000:5010])
    assert pickle.loads(part) == strings[5000:5010] and len(part) < 20_000


def test_it_shows_its_beginning():
    assert repr(StringList(map(str, range(9)))) == "StringList(['0', '1', '2', ...]: 9 strings)"


class Names:
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return 20_000

    def __getitems__(self, indices):
        lengths = [len(self.names[i]) for i in range(len(self.names))]
        return [(lengths[i], private_kib() if i == indices[0] else 0) for i in indices]


def private_kib():
    """Return the private memory of this process, without files and shared memory."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="the kernel does not tell")
def test_reading_all_strings_in_a_worker_costs_no_memory_per_string():
    def growth(names):
        with Loader(Names(names), 10, sampler=range(20), num_workers=1, workers=Workers(start_method="fork")) as loader:
            return max(batch[1].max() for batch in loader)

    words = [f"{i:0100d}" for i in range(100_000)]  # 15 MB as a list
    few = growth(words[:20])
    in_list, in_array = growth(words) - few, growth(StringList(words)) - few
    assert in_list > 100_000 * sys.getsizeof(words[0]) / 1024 * 0.8
    assert in_array < in_list / 2
