"""A user's functions in the list of transforms: what they get, and random numbers that do not depend on the workers."""

import random

import numpy as np
import pytest

import slipring
from slipring import images
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels

N = 24
WAYS = [{"num_workers": 3}, {"num_workers": 2, "chunk_size": 3}]
THREADS = {"num_workers": 2, "start_method": "thread", "chunk_size": 3}


def photos(*steps):
    return images.Bytes([(encoded(pixels(20, 30, n % 5), "PNG"), n) for n in range(N)], list(steps))


def batches(data, **options):
    with slipring.Loader(data, 8, seed=5, **grouped(**options)) as loader:
        return [pixels.copy() for pixels, _ in loader]


def noise_of_python(image):
    image[0, 0] = [random.randrange(256) for _ in range(3)]


def noise_of_numpy(image):
    image[0, 0] = np.random.randint(0, 256, 3)


@pytest.mark.parametrize(("step", "rng"), [(noise_of_python, "batch"), (noise_of_numpy, "sample")])
def test_global_generators_are_seeded_for_each_sample(step, rng):
    data = photos(images.RandomResizedCrop(16), step)
    want = batches(data, rng=rng)
    for way in WAYS:
        for image, its in zip(want, batches(data, rng=rng, **way)):
            assert np.array_equal(image, its), way
    assert len({image[0, 0].tobytes() for batch in want for image in batch}) == N


class OwnGenerator:
    """A transform with a generator of its own, as Albumentations' have."""

    __module__ = "albumentations.core.composition"

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def set_random_seed(self, seed):
        self.generator = np.random.default_rng(seed)

    def __call__(self, *, image):
        image[0, 0] = self.generator.integers(0, 256, 3)
        return {"image": image}


def test_transforms_of_albumentations_are_seeded_for_each_sample_even_in_threads():
    data = photos(images.RandomResizedCrop(16)).map(OwnGenerator())
    want = batches(data)
    for way in [*WAYS, THREADS]:
        for image, its in zip(want, batches(data, **way)):
            assert np.array_equal(image, its), way
    assert len({image[0, 0].tobytes() for batch in want for image in batch}) == N


def test_albumentations_itself_has_other_numbers_in_each_sample():
    library = pytest.importorskip("albumentations")
    compose = library.Compose([library.CoarseDropout(p=1.0), library.RandomBrightnessContrast(p=1.0)])
    data = photos(images.Resize((16, 16)), compose)
    want = batches(data)
    assert len({image.tobytes() for batch in want for image in batch}) == N
    for way in WAYS:
        assert all(np.array_equal(image, its) for image, its in zip(want, batches(data, **way))), way


def test_map_adds_a_step_to_a_copy():
    data = photos(images.Resize((16, 16)))
    inverted = data.map(lambda image: 255 - image)
    assert np.array_equal(255 - data[3][0], inverted[3][0])
    assert repr(data.transform) == repr([images.Resize((16, 16))]) and len(inverted.transform) == 2


def test_errors_of_a_step_name_the_step_the_index_and_the_file(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "one.png").write_bytes(encoded(pixels(20, 30), "PNG"))

    def shrink(image):
        return image[1:]

    data = images.Folder(tmp_path, [images.Resize((9, 9)), shrink])
    with (
        slipring.Loader(data, 2, num_workers=1) as loader,
        pytest.raises(ValueError, match=r"one\.png \(index 0\): .*shrink.* returned") as caught,
    ):
        next(iter(loader))
    assert isinstance(caught.value.__cause__, slipring.WorkerError) and caught.value.__cause__.index == 0
