"""`step_times` names each step of a dataset's transforms, with its share of the time."""

import time

import numpy as np
import pytest

from slipring import images
from slipring.errors import ImageError
from tests.support.pictures import encoded, pixels

SLEEP_S = 0.004
CROP, CONVERT = "decode + crop", "convert"


def data(transform, broken=(), **options):
    samples = [(b"no image" if n in broken else encoded(pixels(60, 80, n)), n) for n in range(4)]
    return images.Bytes(samples, transform, **options)


def computes(image):
    end = time.thread_time() + SLEEP_S
    while time.thread_time() < end:
        pass


CROPS = [images.RandomResizedCrop(24), images.RandomVerticalFlip()]
CASES = {
    "nothing": (None, {}, [CROP]),
    "operations": ([*CROPS, images.RandomGrayscale(1)], {}, [CROP, "RandomGrayscale"]),
    "a crop after an operation": (
        [images.Grayscale(3), images.RandomResizedCrop(24)], {}, [CROP, "Grayscale", "RandomResizedCrop"],
    ),
    "a function": ([*CROPS, computes], {}, [CROP, "computes"]),
    "channels first": (CROPS, {"layout": "NCHW"}, [CROP, CONVERT]),
    "a step after the conversion": (
        [*CROPS, images.RandomErasing(1)], {"dtype": "float16"}, [CROP, CONVERT, "RandomErasing"],
    ),
    "decoded images in a cache": ([*CROPS, images.RandomInvert(1)], {"cache": "1MiB"}, ["crop", "RandomInvert"]),
    "shrunk images": ([*CROPS, images.RandomInvert(1)], {"side": 30}, [CROP, "RandomInvert"]),
    "several crops": (
        images.MultiCrop(
            [(2, [*CROPS, images.RandomInvert(1)]), (3, [images.CenterCrop(8), images.RandomSolarize(9, 1)])]
        ),
        {},
        [CROP, "RandomInvert", "RandomSolarize"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_step_has_a_time_in_the_order_of_the_list(case):
    transform, options, names = CASES[case]
    times = data(transform, **options).step_times(seed=3)
    assert list(times) == names
    assert times[names[0]] > 0 and min(times.values()) >= 0


def test_a_steps_time_is_that_of_the_step():
    times = data([*CROPS, computes, images.RandomInvert(1)]).step_times()
    assert times["computes"] >= SLEEP_S / 2
    assert times["computes"] > times["RandomInvert"]


def test_each_of_several_crops_is_measured():
    called = []
    crops = images.MultiCrop([(3, [images.CenterCrop(8), called.append])])
    assert list(data(crops).step_times(samples=1)) == [CROP, "append"]
    assert len(called) % 3 == 0 and called


def test_images_that_cannot_be_read_are_skipped_or_raise():
    assert list(data(CROPS, broken=[1], on_error="skip").step_times()) == [CROP]
    assert data(CROPS, broken=range(4), on_error="skip").step_times() == {}
    with pytest.raises(ImageError, match=r"index 1: no format") as caught:
        data(CROPS, broken=[1]).step_times()
    assert caught.value.index == 1
    for options in ({"samples": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            data(CROPS).step_times(**options)


def test_the_dataset_makes_the_same_samples_afterwards():
    dataset = data([*CROPS, images.RandAugment()], dtype="float32", layout="NCHW")
    before = dataset.try_sample(2, 11)[0]
    dataset.step_times(samples=2)
    assert np.array_equal(before, dataset.try_sample(2, 11)[0])
