"""Memory between steps is used again, but never while a user's array refers to it."""

import numpy as np
import pytest

from slipring import images
from slipring.images import _scratch
from tests.support.pictures import encoded


def address(array):
    return array.__array_interface__["data"][0]


def data(*steps, sizes=((40, 50),) * 12):
    arrays = [np.full((*size, 3), 10 * n, np.uint8) for n, size in enumerate(sizes)]
    return images.Bytes([(encoded(array, "PNG"), n) for n, array in enumerate(arrays)], list(steps))


def test_a_step_gets_the_memory_of_the_image_before():
    seen = []
    dataset = data(lambda image: seen.append(address(image)))
    for n in range(12):
        assert (dataset[n][0] == 10 * n).all()
    assert len(set(seen)) == 1


def test_two_steps_have_memory_of_their_own():
    seen = []
    step = lambda image: seen.append(address(image))  # noqa: E731
    dataset = data(step, images.RandomInvert(1), step)
    for n in range(12):
        assert (dataset[n][0] == 255 - 10 * n).all()
    assert len(set(seen)) == 2


KEEPERS = {
    "the array": lambda image: image,
    "a view": lambda image: image[3:, ::2, 1],
    "a memoryview": memoryview,
    "a tensor": lambda image: pytest.importorskip("torch").from_numpy(image),
}


@pytest.mark.parametrize("kind", KEEPERS)
def test_an_array_that_a_step_keeps_does_not_change(kind):
    kept = []

    def keeps(image):
        kept.append(KEEPERS[kind](image))

    dataset = data(keeps)
    for n in range(12):
        assert (dataset[n][0] == 10 * n).all()
    assert [np.unique(np.asarray(one)).tolist() for one in kept] == [[10 * n] for n in range(12)]


def test_memory_taken_during_a_call_of_scratch_is_not_given_twice(monkeypatch):
    _scratch.scratch(4, 5)  # the next call uses its memory again
    taken = []
    references = _scratch.references_to

    def interrupted(arrays, place):
        monkeypatch.setattr(_scratch, "references_to", references)
        count = references(arrays, place)
        taken.append(_scratch.scratch(4, 5))  # as a signal handler that decodes an image, and keeps it
        return count

    monkeypatch.setattr(_scratch, "references_to", interrupted)
    second = _scratch.scratch(4, 5)
    assert len(taken) == 1 and not np.shares_memory(second, taken[0])


def test_a_thread_does_not_keep_the_memory_of_a_very_large_image():
    side = int((_scratch._LARGEST // 3) ** 0.5) + 1
    array = _scratch.scratch(side, side)
    assert array.shape == (side, side, 3)
    kept = _scratch.per_thread.__dict__.get("kept", [])
    assert all(memory.size <= _scratch._LARGEST for memory in kept)
    assert not any(np.shares_memory(array, memory) for memory in kept)
