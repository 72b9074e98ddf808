"""A user's functions in the list of transforms: what they get, and random numbers that do not depend on the workers."""

import random

import numpy as np
import pytest

import slipring
from slipring import images
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels

N = 24
PROCESSES = [{}, {"num_workers": 1}, {"num_workers": 3}, {"num_workers": 2, "chunk_size": 3}]
THREADS = [
    {"num_workers": 2, "start_method": "thread"},
    {"num_workers": 2, "start_method": "thread", "chunk_size": 3},
]


class Photos(images.ImageDataset):
    def __len__(self):
        return N

    def read(self, index):
        return encoded(pixels(20, 30, index % 5), "PNG"), index


def batches(data, **options):
    with slipring.Loader(data, 8, seed=5, **grouped(**options)) as loader:
        return [pixels.copy() for pixels, _ in loader]


def noise_of_python(image):
    image[0, 0] = [random.randrange(256) for _ in range(3)]


def noise_of_numpy(image):
    image[0, 0] = np.random.randint(0, 256, 3)


def noise_of_slipring(image):
    image[0, 0] = slipring.rng().integers(0, 256, 3)


WAYS = {noise_of_python: PROCESSES, noise_of_numpy: PROCESSES, noise_of_slipring: [*PROCESSES, *THREADS]}


@pytest.mark.parametrize("step", WAYS)
@pytest.mark.parametrize("rng", ["batch", "sample"])
def test_generators_are_seeded_for_each_sample(step, rng):
    data = Photos([images.RandomResizedCrop(16), step])
    want = batches(data, rng=rng)
    for way in WAYS[step][1:]:
        for image, its in zip(want, batches(data, rng=rng, **way)):
            assert np.array_equal(image, its), way
    assert len({image[0, 0].tobytes() for batch in want for image in batch}) == N


def test_a_step_can_draw_from_slipring_without_a_loader():
    data = Photos([images.RandomResizedCrop(16), noise_of_slipring])
    first, again = (data.try_sample(3, seed=7)[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, data.try_sample(3, seed=8)[0])
    with pytest.raises(RuntimeError, match="generator of the batch being made"):
        slipring.rng()


def test_the_programs_own_generators_continue_as_if_nothing_had_been_drawn():
    random.seed(1)
    want = random.random(), random.random()
    random.seed(1)
    first = random.random()
    batches(Photos([images.RandomResizedCrop(16), noise_of_python]))
    assert (first, random.random()) == want


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
    data = Photos([images.RandomResizedCrop(16)]).map(OwnGenerator())
    want = batches(data)
    for way in PROCESSES[1:] + THREADS:
        for image, its in zip(want, batches(data, **way)):
            assert np.array_equal(image, its), way
    assert len({image[0, 0].tobytes() for batch in want for image in batch}) == N


def test_albumentations_itself_has_other_numbers_in_each_sample():
    library = pytest.importorskip("albumentations")
    compose = library.Compose([library.CoarseDropout(p=1.0), library.RandomBrightnessContrast(p=1.0)])
    data = Photos([images.Resize((16, 16)), compose])
    want = batches(data)
    assert len({image.tobytes() for batch in want for image in batch}) == N
    for way in PROCESSES[1:]:
        assert all(np.array_equal(image, its) for image, its in zip(want, batches(data, **way))), way


def test_map_adds_a_step_to_a_copy():
    data = Photos(images.Resize((16, 16)))
    inverted = data.map(lambda image: 255 - image)
    assert np.array_equal(255 - data[3][0], inverted[3][0])
    assert repr(data.transform) == repr(images.Resize((16, 16))) and len(inverted.transform) == 2


def test_errors_of_a_step_name_the_step_the_index_and_the_file(tmp_path):
    for name in ("one", "two"):
        (tmp_path / "cat").mkdir(exist_ok=True)
        (tmp_path / "cat" / f"{name}.png").write_bytes(encoded(pixels(20, 30), "PNG"))

    def fail(image):
        raise KeyError("mine")

    def shrink(image):
        return image[1:]

    for step, error, text in (
        (fail, KeyError, "mine"),
        (shrink, ValueError, r"one\.png \(index 0\): .*shrink.* returned"),
    ):
        data = images.Folder(tmp_path, [images.Resize((9, 9)), step])
        with slipring.Loader(data, 2, num_workers=1) as loader, pytest.raises(error, match=text) as caught:
            next(iter(loader))
        assert isinstance(caught.value.__cause__, slipring.WorkerError) and caught.value.__cause__.index == 0
