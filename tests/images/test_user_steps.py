"""A user's functions in the list of transforms: their random numbers, and the memory of their images."""

import random

import numpy as np
import pytest

import slipring
from slipring import images
from tests.support.inside import recipe as _recipe
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


def noise_of_slipring(image):
    image[0, 0] = slipring.rng().integers(0, 256, 3)


@pytest.mark.parametrize(
    ("step", "rng", "ways"),
    [
        (noise_of_python, "batch", WAYS),
        (noise_of_numpy, "sample", WAYS),
        (noise_of_slipring, "batch", [*WAYS, THREADS]),
        (noise_of_slipring, "sample", [*WAYS, THREADS]),
    ],
)
def test_generators_are_seeded_for_each_sample(step, rng, ways):
    data = photos(images.RandomResizedCrop(16), step)
    want = batches(data, rng=rng)
    for way in ways:
        for image, its in zip(want, batches(data, rng=rng, **way)):
            assert np.array_equal(image, its), way
    assert len({image[0, 0].tobytes() for batch in want for image in batch}) == N


def test_a_step_can_draw_from_slipring_without_a_loader():
    data = photos(images.RandomResizedCrop(16), noise_of_slipring)
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
    batches(photos(images.RandomResizedCrop(16), noise_of_python))
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


def address(array):
    return array.__array_interface__["data"][0]


def filled(*steps, sizes=((40, 50),) * 12):
    arrays = [np.full((*size, 3), 10 * n, np.uint8) for n, size in enumerate(sizes)]
    return images.Bytes([(encoded(array, "PNG"), n) for n, array in enumerate(arrays)], list(steps))


@pytest.mark.parametrize("between", [[], [images.RandomInvert(1)]], ids=["one array", "two"])
def test_steps_get_the_memory_of_the_image_before_and_each_its_own(between):
    seen = []
    step = lambda image: seen.append(address(image))  # noqa: E731
    dataset = filled(step, *between, *[step] * len(between))
    for n in range(12):
        assert (dataset[n][0] == (255 - 10 * n if between else 10 * n)).all()
    assert len(set(seen)) == 1 + len(between)


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

    dataset = filled(keeps)
    for n in range(12):
        assert (dataset[n][0] == 10 * n).all()
    assert [np.unique(np.asarray(one)).tolist() for one in kept] == [[10 * n] for n in range(12)]


def test_memory_taken_during_a_call_of_scratch_is_not_given_twice(monkeypatch):
    _recipe.scratch(4, 5)  # the next call uses its memory again
    taken = []
    references = _recipe.references_to

    def interrupted(arrays, position):
        monkeypatch.setattr(_recipe, "references_to", references)
        count = references(arrays, position)
        taken.append(_recipe.scratch(4, 5))  # as a signal handler that decodes an image, and keeps it
        return count

    monkeypatch.setattr(_recipe, "references_to", interrupted)
    second = _recipe.scratch(4, 5)
    assert len(taken) == 1 and not np.shares_memory(second, taken[0])


def test_a_thread_does_not_keep_the_memory_of_a_very_large_image():
    side = int((_recipe._LARGEST // 3) ** 0.5) + 1
    array = _recipe.scratch(side, side)
    assert array.shape == (side, side, 3)
    kept = _recipe.per_thread.__dict__.get("kept", [])
    assert all(memory.size <= _recipe._LARGEST for memory in kept)
    assert not any(np.shares_memory(array, memory) for memory in kept)
