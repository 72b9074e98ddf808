"""`dataset.view(index, seed)` returns what the transforms draw."""

import io

import numpy as np
import pytest
from PIL import Image

from slipring import images
from slipring.images import functional


def data(*steps, **options):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(2).integers(0, 256, (40, 50, 3), np.uint8)).save(file, "JPEG")
    return images.Bytes([(file.getvalue(), 0)], list(steps), **options)


def changes(image):
    image[0] = 0


BLACK = (0.0, 0.0, 0.0)
# Steps without random numbers -> their operations.
CASES = {
    "none": ([images.Resize(20), images.RandomVerticalFlip(1)], ()),
    "tables": (
        [images.RandomPosterize(3, 1), images.RandomSolarize(9, 1), images.RandomInvert(1)],
        (("posterize", (3,)), ("solarize", (9.0,)), ("invert", ())),
    ),
    "a blur": ([images.GaussianBlur((3, 5), 0.5)], (("gaussian_blur", (3, 5, 0.5, 0.5)),)),
    "a resize after an operation": (
        [images.Grayscale(3), images.Resize((8, 9))], (("grayscale", ()), ("resize", (8, 9, 0))),
    ),
    "functions, among operations": (
        [changes, images.RandomEqualize(1), changes, images.RandomHorizontalFlip(1)],
        (("changes", ()), ("equalize", ()), ("changes", ()), ("horizontal_flip", ())),
    ),
    "a border": ([images.Grayscale(3), images.Pad(2)], (("grayscale", ()), ("crop", (-2, -2, 44, 54, *BLACK)))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_view_has_the_operations_in_order_with_their_numbers(case):
    steps, wanted = CASES[case]
    assert data(*steps).view(0, seed=1).operations == wanted


def test_the_numbers_of_a_view_make_the_sample():
    dataset = data(images.Resize((30, 40)), images.ColorJitter(0.5, 0.5, 0.5, 0.2))
    image = data(images.Resize((30, 40)))[0][0]
    for seed in range(8):
        made = image
        operations = dataset.view(0, seed).operations
        assert len(operations) == 4
        for name, (factor,) in operations:
            made = getattr(functional, f"adjust_{name}")(made, factor)
        assert np.array_equal(made, dataset.try_sample(0, seed)[0])


def test_the_last_operation_is_the_box_that_is_erased():
    dataset = data(images.Resize((30, 40)), images.RandomErasing(1.0, value=7))
    ((name, (top, left, height, width)),) = dataset.view(0, 5).operations
    sample, _ = dataset.try_sample(0, 5)
    assert name == "erase"
    assert (sample[top : top + height, left : left + width] == 7).all()


EVERY = [
    images.ColorJitter(0.4, 0.4, 0.4, 0.1), images.AugMix(), images.ElasticTransform(20.0), images.AutoAugment(),
    images.RandomPerspective(p=1), images.PILGaussianBlur(p=1), images.RandomAutocontrast(1), images.RandAugment(4),
    images.Pad(2, padding_mode="reflect"), images.rand_augment_transform("rand-n9-p1", transforms=["SolarizeAdd"]),
    images.RandomPhotometricDistort(p=1),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_every_transform_has_operations_with_names(seed):
    operations = data(images.RandomResizedCrop(48), *EVERY).view(0, seed).operations
    names = {name for name, _ in operations}
    assert {"keep", "take_sum", "elastic", "perspective", "pil_gaussian_blur", "pad", "solarize_add"} <= names
    assert "permute_channels" in names
