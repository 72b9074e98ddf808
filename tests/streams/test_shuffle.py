"""The shuffle buffer: the possible positions of rows; no row is lost."""

import numpy as np
import pytest

import slipring
from slipring.streams import Stream


def blocks(n=1000, size=7):
    return [{"x": np.arange(at, min(n, at + size)), "y": np.arange(at, min(n, at + size)) * 2.0}
            for at in range(0, n, size)]  # fmt: skip


def numbers(batches):
    return np.concatenate([batch["x"] for batch in batches]).tolist()


@pytest.mark.parametrize("buffer", [10, 64, 5000])
def test_every_row_comes_once_and_whole(buffer):
    with slipring.stream(blocks(), 10, shuffle_buffer=buffer, seed=3) as loader:
        batches = list(loader)
    assert [len(batch["x"]) for batch in batches] == [10] * 100
    assert sorted(numbers(batches)) == list(range(1000)) != numbers(batches)
    assert all(np.array_equal(batch["y"], batch["x"] * 2.0) for batch in batches)


def test_a_row_comes_no_sooner_than_the_buffer_lets_it_in():
    with slipring.stream(blocks(), 10, shuffle_buffer=50, seed=3) as loader:
        for number, batch in enumerate(loader):
            assert batch["x"].max() < 50 + 10 * number


def test_places_are_drawn_evenly():
    # A buffer that holds all: each row is as likely in the first batch as any. 2000 draws of 10 from 100.
    data = [{"x": np.arange(100)}]
    counts = np.zeros(100)
    with slipring.stream(data, 10, shuffle_buffer=100, seed=0) as loader:
        for _ in range(400):
            counts[next(iter(loader))["x"]] += 1
    # 40 expected in each, variance 36: chi-square with 99 degrees of freedom, beyond 170 once in 10,000.
    assert ((counts - 40) ** 2 / 40).sum() < 170


def test_the_order_is_the_seeds_and_each_epochs_own():
    def order(seed, **way):
        with slipring.stream(blocks(), 10, shuffle_buffer=100, seed=seed, **way) as loader:
            return [numbers(loader) for _ in range(2)]

    first, second = order(5)
    assert first != second
    assert order(5) == order(5, num_workers=1) == [first, second] != order(6)


def test_text_stays_with_its_numbers():
    pa = pytest.importorskip("pyarrow")

    def words(x):
        dictionary = pa.array([f"w{i % 5}" for i in x]).dictionary_encode()
        return pa.record_batch({"x": x, "t": [f"t{i}" for i in x], "w": dictionary})

    seen = []
    for batch in Stream([words(block["x"]) for block in blocks()], 16, shuffle_buffer=40):
        assert batch["t"].to_pylist() == [f"t{i}" for i in batch["x"]]
        assert batch["w"].to_pylist() == [f"w{i % 5}" for i in batch["x"]]
        seen += batch["x"].tolist()
    assert sorted(seen) == list(range(1000)) != seen
