"""Transforms for detection and segmentation: their results, and their draws, are torchvision's."""

import itertools

import numpy as np
import pytest
from PIL import Image

from slipring import images
from tests.images.recorded import recorded
from tests.images.test_distributions import counted, follows, names, uniform
from tests.support.inside import Boxes, Draws, Recipe
from tests.support.pictures import error, pixels

GRID = np.array([(x, y, x + 1, y + 1) for y in range(0, 200, 20) for x in range(0, 300, 20)], float)


def some_boxes(draw, height, width, count):
    corners = [np.sort(draw.choice(np.arange(side + 1), (2, count), replace=True), axis=0) for side in (width, height)]
    boxes = np.stack([corners[0][0], corners[1][0], corners[0][1], corners[1][1]], 1).astype(float)
    return boxes[(boxes[:, 2:] > boxes[:, :2]).all(1)]


def sample_of(height=60, width=90, seed=0, boxes=None):
    """Return a sample; its mask has a different value almost everywhere."""
    draw = np.random.default_rng(seed)
    boxes = some_boxes(draw, height, width, 12) if boxes is None else np.asarray(boxes, float)
    return {
        "image": np.ascontiguousarray(pixels(height, width, seed)),
        "mask": draw.integers(0, 250, (height, width)).astype(np.uint8),
        "boxes": boxes,
        "labels": np.arange(len(boxes)),
    }


KEYS = {"masks": "mask", "boxes": "boxes", "rows": "labels"}


def made(step, sample, seed, **options):
    return images.Annotated([sample], step, **KEYS, **options).try_sample(0, seed)


def drawn(step, sample, seed):
    return recorded(step, 1, sample["image"].shape[:2], seed, boxes=sample["boxes"])[0]


def first_crop(step, draws, height, width, boxes):
    """Return what torchvision's rules select, one crop after another: (kept boxes, crop), or None."""
    for _ in range(200):
        overlap = step.sampler_options[draws.below(len(step.sampler_options))]
        numbers = Draws(draws.bits())
        if overlap >= 1:
            return None
        for _ in range(step.trials):
            scale = [step.min_scale + (step.max_scale - step.min_scale) * numbers.uniform(0, 1) for _ in range(2)]
            x, y = numbers.uniform(0, 1), numbers.uniform(0, 1)
            w, h = int(width * scale[0]), int(height * scale[1])
            if not w or not h or not step.min_aspect_ratio <= w / h <= step.max_aspect_ratio:
                continue
            left, top = int((width - w) * x), int((height - h) * y)
            kept, overlaps = [], [-1]
            for row, (x1, y1, x2, y2) in enumerate(boxes):
                if left < (x1 + x2) / 2 < left + w and top < (y1 + y2) / 2 < top + h:
                    kept.append(row)
                    common = (min(x2, left + w) - max(x1, left)) * (min(y2, top + h) - max(y1, top))
                    overlaps.append(common / ((x2 - x1) * (y2 - y1) + w * h - common))
            if max(overlaps) >= overlap:
                return kept, (top, left, h, w)
    return None


@pytest.mark.parametrize(
    "step",
    [
        images.RandomIoUCrop(),
        images.RandomIoUCrop(0.1, 0.6, 0.8, 1.2, [0.0, 0.2, 2.0], 10),
        images.RandomIoUCrop(0.01, 1.0, 0.1, 10.0, [0.0]),
    ],
    ids=["defaults", "narrow", "any overlap"],
)
def test_an_iou_crop_is_the_first_that_torchvisions_rules_allow(step):
    found = 0
    for seed in range(150):
        draw = np.random.default_rng(seed)
        height, width = draw.integers(3, 120, 2).tolist()
        boxes = some_boxes(draw, height, width, draw.integers(1, 8))
        if not len(boxes):
            continue
        want = first_crop(step, Draws(seed), height, width, boxes)
        recipe = Recipe(height, width)
        recipe.boxes = Boxes(boxes)
        step.apply(recipe, Draws(seed))
        if want is None:
            assert (recipe.height, recipe.width, len(recipe.boxes.rows)) == (height, width, len(boxes))
        else:
            kept, crop = want
            assert recipe.boxes.rows.tolist() == kept and recipe.crop_spec.window == crop
            found += 1
    assert found > 30


def test_an_iou_crop_needs_boxes_and_ends_where_no_crop_is_possible():
    for boxes, options in (([], None), ([[0, 0, 1, 1]], [0.9])):
        sample = sample_of(boxes=np.reshape(np.asarray(boxes, float), (-1, 4)))
        result = made(images.RandomIoUCrop(sampler_options=options, trials=3), sample, 1)
        assert np.array_equal(result["image"], sample["image"]) and len(result["boxes"]) == len(boxes)
    with pytest.raises(TypeError, match=r"images\.Annotated has"):
        images.Bytes([(b"", 0)], images.RandomIoUCrop())
    sample = {"image": np.zeros((9, 9, 3), np.uint8)}
    with pytest.raises(ValueError, match="RandomIoUCrop needs boxes: give boxes="):
        images.Annotated([sample], images.RandomIoUCrop())[0]


def resized(sample, size):
    """Return a check of the parts of a sample that is scaled to (height, width)."""
    height, width = sample["image"].shape[:2]

    def check(result, top=0, left=0):
        image = np.asarray(Image.fromarray(sample["image"]).resize(size[::-1], Image.Resampling.BILINEAR))
        mask = np.asarray(Image.fromarray(sample["mask"]).resize(size[::-1], Image.Resampling.NEAREST))
        rows, columns = slice(top, top + size[0]), slice(left, left + size[1])
        assert error(result["image"][rows, columns], image) <= 1
        assert np.array_equal(result["mask"][rows, columns], mask)
        scale = np.array([size[1] / width, size[0] / height] * 2)
        boxes = sample["boxes"] * scale + [left, top, left, top]
        assert np.abs(result["boxes"] - boxes[result["labels"]]).max(initial=0) < 1e-3

    return check


@pytest.mark.parametrize("size", [(60, 90), (7, 90), (50, 50)], ids=str)
@pytest.mark.parametrize(
    "step",
    [images.ScaleJitter((70, 40), (0.3, 1.4)), images.RandomShortestSize((20, 40, 66), 80), images.RandomResize(9, 50)],
    ids=["ScaleJitter", "RandomShortestSize", "RandomResize"],
)
def test_a_random_size_keeps_the_aspect_and_all_parts_have_it(step, size):
    for seed in range(12):
        sample = sample_of(*size, seed)
        ((_, after, _),) = drawn(step, sample, seed)
        ratio = after[0] / size[0]
        assert abs(after[1] - size[1] * ratio) <= 1 + size[1] / size[0] or min(after) == 1
        result = made(step, sample, seed, min_box_size=0)
        assert result["image"].shape[:2] == after
        resized(sample, after)(result)


@pytest.mark.parametrize(
    ("mode", "size"),
    [("constant", (40, 50)), ("constant", (80, 100)), ("edge", (40, 100)), ("symmetric", (80, 50))],
    ids=str,
)
def test_a_fixed_size_crop_shows_a_part_and_has_its_border_at_the_bottom_and_the_right(size, mode):
    step, corners = images.FixedSizeCrop(size, (1, 2, 3), mode), set()
    for seed in range(12):
        sample = sample_of(seed=seed)
        position = Draws(seed).uniform(0, 1)
        top, left = int(max(0, 60 - size[0]) * position), int(max(0, 90 - size[1]) * position)
        result = made(step, sample, seed, mask_fill=255, min_box_size=0)
        image, mask = (sample[key][top : top + size[0], left : left + size[1]] for key in ("image", "mask"))
        border = ((0, size[0] - len(image)), (0, size[1] - image.shape[1]))
        if mode == "constant":
            mask = np.pad(mask, border, constant_values=255)
            image = np.stack([np.pad(image[..., c], border, constant_values=c + 1) for c in range(3)], -1)
        else:
            mask, image = np.pad(mask, border, mode), np.pad(image, (*border, (0, 0)), mode)
        assert np.array_equal(result["image"], image) and np.array_equal(result["mask"], mask)
        boxes = (sample["boxes"] - [left, top, left, top]).clip(0, [size[1], size[0]] * 2)
        kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
        assert np.array_equal(result["labels"], np.flatnonzero(kept)) and np.array_equal(result["boxes"], boxes[kept])
        corners.add((top, left))
    assert len(corners) > 4 or (size[0] >= 60 and size[1] >= 90)


@pytest.mark.parametrize(
    ("size", "to", "scaled", "position"),
    [
        ((60, 90), (64, 64), (43, 64), (10, 0)),  # 21 rows are missing
        ((60, 90), (120, 200), (120, 180), (0, 10)),
        ((1, 90), (16, 32), (1, 32), (7, 0)),
    ],
)
def test_a_letter_box_has_equal_borders(size, to, scaled, position):
    sample = sample_of(*size, 3)
    result = made(images.LetterBox(to), sample, 1, mask_fill=255, min_box_size=0)
    assert result["image"].shape[:2] == to
    resized(sample, scaled)(result, *position)
    outside = np.ones(to, bool)
    outside[position[0] : position[0] + scaled[0], position[1] : position[1] + scaled[1]] = False
    assert (result["image"][outside] == 114).all() and (result["mask"][outside] == 255).all()


def test_zooming_out_places_the_image_in_a_larger_one():
    for seed in range(20):
        sample = sample_of(seed=seed)
        step = images.RandomZoomOut((9, 8, 7), (1, 3), p=1)
        ((_, (top, left, height, width), _),) = drawn(step, sample, seed)
        result = made(step, sample, seed, mask_fill=255)
        border = ((-top, height + top - 60), (-left, width + left - 90))
        assert np.array_equal(result["mask"], np.pad(sample["mask"], border, constant_values=255))
        image = np.stack([np.pad(sample["image"][..., c], border, constant_values=9 - c) for c in range(3)], -1)
        assert np.array_equal(result["image"], image)
        assert np.array_equal(result["boxes"], sample["boxes"] - [left, top, left, top])


def test_an_iou_crop_draws_its_overlaps_and_sides_uniformly():
    step = images.RandomIoUCrop(0.2, 0.9, 1e-3, 1e3, [0.0, 1.0, 1.5])
    found = recorded(step, 3000, boxes=GRID)  # every crop has the centre of a box
    counted([bool(ops) for ops in found], {True: 1, False: 2})
    crops = np.array([ops[0][1] for ops in found if ops], float)
    follows((crops[:, 2] + 0.5) / 200, uniform(0.2, 0.9))
    follows((crops[:, 3] + 0.5) / 300, uniform(0.2, 0.9))
    draw = np.random.default_rng(0)  # whole places are made continuous
    for position, side in ((0, 200), (1, 300)):
        follows((crops[:, position] + draw.uniform(0, 1, len(crops))) / (side - crops[:, position + 2]), uniform(0, 1))


def test_zooming_out_draws_its_factor_and_its_place_uniformly():
    found = recorded(images.RandomZoomOut(side_range=(1.5, 4), p=0.4), 3000, (2000, 3000))
    counted(names(found), {"box": 0.4, None: 0.6})
    boxes = np.array([ops[0][1] for ops in found if ops], float)
    follows(boxes[:, 2] / 2000, uniform(1.5, 4))
    for position, side in ((0, 2000), (1, 3000)):
        follows(-boxes[:, position] / (boxes[:, position + 2] - side), uniform(0, 1))


def test_photometric_distortion_draws_each_operation_and_order_as_often_as_torchvision():
    found = recorded(images.RandomPhotometricDistort(p=0.4), 4000)
    for name, low, high in (
        ("brightness", 0.875, 1.125), ("contrast", 0.5, 1.5), ("saturation", 0.5, 1.5), ("hue", -0.05, 0.05),
    ):  # fmt: skip
        factors = [v[0] for ops in found for added, _, v in ops if added == name]
        counted([any(added == name for added, _, _ in ops) for ops in found], {True: 0.4, False: 0.6})
        follows(factors, uniform(low, high))
    orders = [n for ops in found for added, n, _ in ops if added == "permute_channels"]
    counted([any(added == "permute_channels" for added, _, _ in ops) for ops in found], {True: 0.4, False: 0.6})
    counted(orders, dict.fromkeys(itertools.permutations(range(3)), 1))
    lists = [
        [name for name in names if name != "permute_channels"] for names in ([op[0] for op in ops] for ops in found)
    ]
    both = [ops.index("contrast") < ops.index("hue") for ops in lists if {"contrast", "hue"} <= set(ops)]
    counted(both, {True: 1, False: 1})
    assert all(ops.index("saturation") < ops.index("hue") for ops in lists if {"saturation", "hue"} <= set(ops))


def test_sizes_are_drawn_as_torchvision_draws_them():
    heights = np.array([ops[0][1][0] for ops in recorded(images.ScaleJitter((9000, 9000)), 2000)], float)
    follows((heights + 0.5) / 6000, uniform(0.1, 2))  # 6000 x 9000 is the largest of this aspect
    found = recorded(images.RandomShortestSize((20, 30, 40, 20)), 2000)
    counted([ops[0][1] for ops in found], {(20, 30): 2, (30, 45): 1, (40, 60): 1})
    found = recorded(images.RandomResize(4, 8), 2000)
    counted([ops[0][1] for ops in found], {(4, 6): 1, (5, 7): 1, (6, 9): 1, (7, 10): 1})
    found = recorded(images.FixedSizeCrop((196, 292)), 2000)  # 4 and 8 pixels too many
    counted([ops[0][1][:2] for ops in found], {(n // 2, n): 1 for n in range(8)})
