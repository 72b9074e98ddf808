"""Memory between steps is used again, but never while a user's array refers to it."""

import io

import numpy as np
import pytest
from PIL import Image

from slipring import images


def encoded(value, size=(40, 50)):
    file = io.BytesIO()
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def address(array):
    return array.__array_interface__["data"][0]


def data(*steps, sizes=((40, 50),) * 12):
    return images.Bytes([(encoded(10 * n, size), n) for n, size in enumerate(sizes)], list(steps))


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


def test_images_of_different_sizes_share_memory():
    sizes = [(40, 50), (10, 10), (60, 70), (1, 1), (60, 71), (33, 2)]
    shapes = []
    dataset = data(lambda image: shapes.append(image.shape), sizes=sizes)
    for n in range(len(sizes)):
        assert dataset[n][0].shape == (*sizes[n], 3) and (dataset[n][0] == 10 * n).all()
    assert set(shapes) == {(*size, 3) for size in sizes}
