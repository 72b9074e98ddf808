"""Crops and flips that are done before colour operations give the same bytes as after them."""

import random

import numpy as np
import pytest

from slipring import images
from tests.support.inside import Draws, Recipe, ops
from tests.support.pictures import encoded, pixels


def one_less(image):
    np.subtract(image, 1, out=image)


STEPS = [
    images.ColorJitter(brightness=(1.2, 1.2)), images.ColorJitter(saturation=(0.6, 0.6)), images.Grayscale(3),
    images.ColorJitter(hue=(0.1, 0.1)), images.ColorJitter(contrast=(1.4, 1.4)), images.RandomPosterize(3, 1),
    images.RandomSolarize(100, 1), images.RandomEqualize(1), images.RandomAdjustSharpness(1.5, 1),
    images.RandomHorizontalFlip(1), images.RandomVerticalFlip(1), images.CenterCrop((60, 70)), images.CenterCrop(33),
    images.CenterCrop((110, 20)), images.Pad((0, 30, 40, 5), (10, 20, 30)), images.Pad((9, 0, 0, 25), (1, 2, 3)),
    [images.Pad((0, 300, 0, 0), (4, 5, 6)), images.CenterCrop(50)],  # it shows nothing of the image
    one_less,
]  # fmt: skip


def steps_of(seed):
    draw = random.Random(seed)
    steps = [draw.choice(STEPS) for _ in range(draw.randint(2, 7))]
    return [step for one in steps for step in (one if isinstance(one, list) else [one])]


@pytest.fixture(scope="module")
def photo():
    return encoded(pixels(90, 120, noise=True), quality=90)


def made(sample, steps, seed=0):
    data = images.Annotated([sample], steps, batch="list", masks="mask", mask_fill=7)
    return data.try_sample(0, seed)


@pytest.mark.parametrize("first", (0, 150))
def test_lists_of_steps_give_the_same_as_their_steps_one_by_one(first, photo):
    mask = np.arange(90 * 120, dtype=np.uint16).reshape(90, 120)
    for seed in range(first, first + 150):
        steps = steps_of(seed)
        expected = {"image": images.decode(photo), "mask": mask}
        for step in steps:
            expected = made(expected, [step])
        result = made({"image": photo, "mask": mask}, steps)
        for key in expected:
            assert result[key].shape == expected[key].shape and (result[key] == expected[key]).all(), (seed, key)


@pytest.mark.parametrize(
    ("operation", "is_exchanged"),
    (
        (ops.HueOp(0.1), True),
        (ops.PermuteChannelsOp((0, 1, 2)), True),
        (ops.ContrastOp(0.1), False),
        (ops.EqualizeOp(), False),
    ),
    ids=("hue", "channels", "contrast", "equalize"),
)
def test_only_the_part_that_remains_is_decoded_unless_colours_depend_on_the_whole_image(operation, is_exchanged):
    recipe = Recipe(50, 60)
    recipe.op(operation)
    recipe.crop(-20, -10, 90, 90, (1.0, 2.0, 3.0))
    recipe.crop(30, 30, 25, 20)
    recipe.flip()
    assert recipe.crop_spec.window == ((10, 20, 25, 20) if is_exchanged else (0, 0, 50, 60))
    assert recipe.crop_spec.flip is is_exchanged
    assert (recipe.height, recipe.width) == (25, 20)


@pytest.mark.parametrize(
    "between", [[], [lambda image: None], [images.RandomHorizontalFlip(1)]], ids=["nothing", "a function", "a flip"]
)
def test_a_crop_of_a_larger_canvas_shows_its_part(between):
    image = np.ascontiguousarray(pixels(40, 50))
    steps = [images.Pad(30, 7), *between, images.RandomCrop((33, 44)), images.RandomCrop((30, 20))]
    canvas = np.pad(image, ((30, 30), (30, 30), (0, 0)), constant_values=7)
    flips = [step for step in between if isinstance(step, images.RandomHorizontalFlip)]
    canvas = canvas[:, ::-1] if flips else canvas
    for seed in range(20):
        draws = Draws(seed)
        for _ in flips:
            draws.uniform(0, 1)
        top, left = draws.below(101 - 33), draws.below(111 - 44)
        y, x = draws.below(4), draws.below(25)
        result = made({"image": image, "mask": image[..., 0]}, steps, seed)["image"]
        assert np.array_equal(result, canvas[top + y :][:30, left + x :][:, :20])
