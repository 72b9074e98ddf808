"""Crops and flips that are done before colour operations give the same bytes as after them."""

import io
import random

import numpy as np
import pytest
from PIL import Image

from slipring import images
from slipring.images import _decode
from slipring.images._recipe import Recipe
from slipring.images._transform import Transform


class Added(Transform):
    """A step that calls a function with the recipe."""

    def __init__(self, add):
        self.add = add

    def apply(self, recipe, draws):
        self.add(recipe, random.Random(self.add.seed))

    def result_size(self, size):
        return None


def colours(recipe, draw):
    code, numbers, factors = draw.choice(
        (
            (_decode.OP_BRIGHTNESS, (), (1.2,)),
            (_decode.OP_SATURATION, (), (0.6,)),
            (_decode.OP_HUE, (), (0.1,)),
            (_decode.OP_GRAYSCALE, (), ()),
            (_decode.OP_POSTERIZE, (3,), ()),
            (_decode.OP_SOLARIZE, (), (100.0,)),
            (_decode.OP_SOLARIZE_ADD, (40, 128), ()),
            (_decode.OP_INVERT, (), ()),
            (_decode.OP_PERMUTE, (2, 0, 1), ()),
            (_decode.OP_CONTRAST, (), (1.4,)),
            (_decode.OP_EQUALIZE, (), ()),
            (_decode.OP_SHARPNESS, (), (1.5,)),
        )
    )
    recipe.op(code, numbers, factors)


def crop(recipe, draw):
    height, width = (max(1, int(side * draw.uniform(0.4, 1.0))) for side in (recipe.height, recipe.width))
    recipe.crop(draw.randint(0, recipe.height - height), draw.randint(0, recipe.width - width), height, width)


def border(recipe, draw):
    top, left = draw.randint(-30, 5), draw.randint(-30, 5)
    recipe.crop(top, left, recipe.height + 20, recipe.width + 25, (10.0, 20.0, 30.0))


def distant(recipe, draw):
    recipe.crop(recipe.height + 3, 2, 8, 9, (1.0, 2.0, 3.0))  # it shows nothing of the image


def flip(recipe, draw):
    recipe.flip()


def turn(recipe, draw):
    recipe.flip_vertically()


def called(recipe, draw):
    recipe.call(lambda image: np.subtract(image, 1, out=image))


KINDS = colours, colours, colours, crop, crop, border, flip, turn, called, distant


def steps_of(seed):
    draw = random.Random(seed)
    steps = []
    for place in range(draw.randint(2, 7)):
        chosen = draw.choice(KINDS[: None if place > 3 else -1])

        def add(recipe, numbers, chosen=chosen):
            chosen(recipe, numbers)

        add.seed = draw.random()
        steps.append(Added(add))
    return steps


@pytest.fixture(scope="module")
def photo():
    """A JPEG of 90 × 120 with much detail."""
    levels = np.random.default_rng(0).integers(0, 256, (23, 30, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).resize((120, 90)).save(file, "JPEG", quality=90)
    return file.getvalue()


def made(image, steps):
    return images.Annotated([{"image": image}], steps, batch="list")[0]["image"]


@pytest.mark.parametrize("group", range(4))
def test_lists_of_steps_give_the_same_as_their_steps_one_by_one(group, photo):
    for seed in range(100 * group, 100 * group + 100):
        steps = steps_of(seed)
        expected = images.decode(photo)
        for step in steps:
            expected = made(expected, [step])
        result = made(photo, steps)
        assert result.shape == expected.shape, seed
        assert (result == expected).all(), seed


@pytest.mark.parametrize(
    ("code", "is_exchanged"),
    ((_decode.OP_HUE, True), (_decode.OP_PERMUTE, True), (_decode.OP_CONTRAST, False), (_decode.OP_EQUALIZE, False)),
    ids=("hue", "channels", "contrast", "equalize"),
)
def test_only_the_part_that_remains_is_decoded_unless_colours_depend_on_the_whole_image(code, is_exchanged):
    recipe = Recipe(50, 60)
    recipe.op(code, (0, 1, 2), (0.1,))
    recipe.crop(-20, -10, 90, 90, (1.0, 2.0, 3.0))
    recipe.crop(30, 30, 25, 20)
    recipe.flip()
    assert recipe.view.window == ((10, 20, 25, 20) if is_exchanged else (0, 0, 50, 60))
    assert recipe.view.flip is is_exchanged
    assert (recipe.height, recipe.width) == (25, 20)
