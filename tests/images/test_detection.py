"""Transforms for detection and segmentation: their results, and their draws, are torchvision's."""

import itertools
import math

import numpy as np
import pytest
from PIL import Image

from slipring import images
from slipring.images import _decode
from slipring.images._draws import Draws
from slipring.images._parts import Boxes
from slipring.images._recipe import Recipe, apply
from tests.images.recorded import recorded
from tests.images.test_color import by_pillow
from tests.images.test_distributions import counted, follows, names, uniform
from tests.support.pictures import error, pixels
from tests.support.torchvision_classes import torchvision

GRID = np.array([(x, y, x + 1, y + 1) for y in range(0, 200, 20) for x in range(0, 300, 20)], float)


@pytest.fixture
def real():
    return torchvision() or pytest.skip("torchvision does not load here")


def some_boxes(draw, height, width, count):
    """Return random boxes of an image, with whole numbers as corners."""
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
    """Return a sample after steps whose random numbers come from `seed`."""
    return images.Annotated([sample], step, **KEYS, **options).try_sample(0, seed)


def drawn(step, sample, seed):
    """Return what the step draws for a sample in `made`."""
    return recorded(step, 1, sample["image"].shape[:2], seed, boxes=sample["boxes"])[0]


# ---- RandomIoUCrop


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
            assert recipe.boxes.rows.tolist() == kept and recipe.view.window == crop
            found += 1
    assert found > 30


def test_an_iou_crop_keeps_boxes_by_their_centres_with_their_labels_and_clamps_them():
    seen = set()
    for seed in range(60):
        sample = sample_of(seed=seed)
        added = drawn(images.RandomIoUCrop(), sample, seed)
        result = made(images.RandomIoUCrop(), sample, seed, min_box_size=0)
        if not added:
            assert np.array_equal(result["image"], sample["image"]) and len(result["labels"]) == len(sample["boxes"])
            continue
        ((_, (top, left, height, width), _),) = added
        centers = (sample["boxes"][:, :2] + sample["boxes"][:, 2:]) / 2 - (left, top)
        kept = ((centers > 0) & (centers < (width, height))).all(1)
        boxes = (sample["boxes"] - [left, top, left, top]).clip(0, [width, height] * 2)[kept]
        assert np.array_equal(result["labels"], np.flatnonzero(kept)) and np.allclose(result["boxes"], boxes)
        for key in ("image", "mask"):
            assert np.array_equal(result[key], sample[key][top : top + height, left : left + width])
        seen.add(kept.all())
    assert seen == {False, True}


def test_an_iou_crop_leaves_an_image_without_boxes_and_ends_where_no_crop_is_possible():
    for boxes, options in (([], None), ([[0, 0, 1, 1]], [0.9])):
        sample = sample_of(boxes=np.reshape(np.asarray(boxes, float), (-1, 4)))
        result = made(images.RandomIoUCrop(sampler_options=options, trials=3), sample, 1)
        assert np.array_equal(result["image"], sample["image"]) and len(result["boxes"]) == len(boxes)


def test_an_iou_crop_needs_boxes():
    with pytest.raises(TypeError, match=r"images\.Annotated has"):
        images.Bytes([(b"", 0)], images.RandomIoUCrop())
    sample = {"image": np.zeros((9, 9, 3), np.uint8)}
    with pytest.raises(ValueError, match="RandomIoUCrop needs boxes: give boxes="):
        images.Annotated([sample], images.RandomIoUCrop())[0]


# ---- sizes, borders and colours, in plain numpy and Pillow


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


@pytest.mark.parametrize("size", [(60, 90), (90, 60), (7, 90), (50, 50)], ids=str)
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


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("size", [(40, 50), (80, 100), (40, 100), (80, 50), (60, 90)], ids=str)
def test_a_fixed_size_crop_shows_a_part_and_has_its_border_at_the_bottom_and_the_right(size, mode):
    step, corners = images.FixedSizeCrop(size, (1, 2, 3), mode), set()
    for seed in range(12):
        sample = sample_of(seed=seed)
        place = Draws(seed).uniform(0, 1)
        top, left = int(max(0, 60 - size[0]) * place), int(max(0, 90 - size[1]) * place)
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
    ("size", "to", "scaled", "place"),
    [
        ((60, 90), (64, 64), (43, 64), (10, 0)),  # 21 rows are missing
        ((90, 60), (64, 64), (64, 43), (0, 10)),
        ((60, 90), (120, 200), (120, 180), (0, 10)),
        ((50, 50), (50, 50), (50, 50), (0, 0)),
        ((1, 90), (16, 32), (1, 32), (7, 0)),
    ],
)
def test_a_letter_box_has_equal_borders(size, to, scaled, place):
    sample = sample_of(*size, 3)
    result = made(images.LetterBox(to), sample, 1, mask_fill=255, min_box_size=0)
    assert result["image"].shape[:2] == to
    resized(sample, scaled)(result, *place)
    outside = np.ones(to, bool)
    outside[place[0] : place[0] + scaled[0], place[1] : place[1] + scaled[1]] = False
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


def test_photometric_distortion_has_pillows_bytes_step_by_step():
    image, seen = np.ascontiguousarray(pixels(40, 50)), set()
    for seed in range(80):
        recipe = Recipe(40, 50)
        images.RandomPhotometricDistort().apply(recipe, Draws(seed))
        added = recorded(images.RandomPhotometricDistort(), 1, (40, 50), seed)[0]
        assert np.array_equal(apply(image, recipe), by_pillow(image, *((name.upper(), n, v) for name, n, v in added)))
        seen.add(tuple(name for name, _, _ in added))
    assert len(seen) > 20


def test_a_padded_random_crop_fills_masks_with_their_own_value():
    step = images.RandomCrop((80, 70), pad_if_needed=True)
    for seed in range(8):
        sample = sample_of(seed=seed)
        ((_, (top, left, _, _), _),) = drawn(step, sample, seed)
        result = made(step, sample, seed, mask_fill=255)
        columns = sample["mask"][:, left : left + 70]
        assert np.array_equal(result["mask"], np.pad(columns, ((-top, 20 + top), (0, 0)), constant_values=255))
        assert (result["image"][result["mask"] == 255] == 0).all()


def test_policies_move_all_parts_and_aug_mix_is_refused():
    sample = sample_of(64, 64)
    sample["image"][...] = sample["mask"][..., None]
    step = images.RandomApply([images.RandAugment(num_ops=2, magnitude=20)], p=1)
    moved = 0
    for seed in range(40):
        added = drawn(step, sample, seed)
        result = made(step, sample, seed)
        moved += not np.array_equal(result["mask"], sample["mask"])
        if all(name in ("affine", "box") for name, _, _ in added):
            assert np.array_equal(result["image"][..., 0], result["mask"])
    assert moved > 5
    for policy in (images.TrivialAugmentWide(), images.AutoAugment()):
        assert made(policy, sample, 1)["mask"].shape == (64, 64)
    with pytest.raises(ValueError, match="AugMix mixes several geometries"):
        made(images.AugMix(), sample, 1)


# ---- distributions


def test_an_iou_crop_draws_its_overlaps_and_sides_uniformly():
    step = images.RandomIoUCrop(0.2, 0.9, 1e-3, 1e3, [0.0, 1.0, 1.5])
    found = recorded(step, 3000, boxes=GRID)  # every crop has the centre of a box
    counted([bool(ops) for ops in found], {True: 1, False: 2})
    crops = np.array([ops[0][1] for ops in found if ops], float)
    follows((crops[:, 2] + 0.5) / 200, uniform(0.2, 0.9))
    follows((crops[:, 3] + 0.5) / 300, uniform(0.2, 0.9))
    draw = np.random.default_rng(0)  # whole places are made continuous
    for place, side in ((0, 200), (1, 300)):
        follows((crops[:, place] + draw.uniform(0, 1, len(crops))) / (side - crops[:, place + 2]), uniform(0, 1))


def test_zooming_out_draws_its_factor_and_its_place_uniformly():
    found = recorded(images.RandomZoomOut(side_range=(1.5, 4), p=0.4), 3000, (2000, 3000))
    counted(names(found), {"box": 0.4, None: 0.6})
    boxes = np.array([ops[0][1] for ops in found if ops], float)
    follows(boxes[:, 2] / 2000, uniform(1.5, 4))
    for place, side in ((0, 2000), (1, 3000)):
        follows(-boxes[:, place] / (boxes[:, place + 2] - side), uniform(0, 1))


def test_photometric_distortion_draws_each_operation_and_order_as_often_as_torchvision():
    found = recorded(images.RandomPhotometricDistort(p=0.4), 4000)
    for name, low, high in (
        ("brightness", 0.875, 1.125), ("contrast", 0.5, 1.5), ("saturation", 0.5, 1.5), ("hue", -0.05, 0.05),
    ):  # fmt: skip
        factors = [v[0] for ops in found for added, _, v in ops if added == name]
        counted([any(added == name for added, _, _ in ops) for ops in found], {True: 0.4, False: 0.6})
        follows(factors, uniform(low, high))
    orders = [n for ops in found for added, n, _ in ops if added == "permute"]
    counted([any(added == "permute" for added, _, _ in ops) for ops in found], {True: 0.4, False: 0.6})
    counted(orders, dict.fromkeys(itertools.permutations(range(3)), 1))
    lists = [[name for name in names if name != "permute"] for names in ([op[0] for op in ops] for ops in found)]
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


def two_samples(ours, theirs):
    """Assert that two lists of numbers come from one distribution (Kolmogorov and Smirnov, p = 0.001)."""
    ours, theirs = np.sort(np.asarray(ours, float)), np.sort(np.asarray(theirs, float))
    every = np.concatenate([ours, theirs])
    shares = [np.searchsorted(part, every, "right") / len(part) for part in (ours, theirs)]
    assert len(every) >= 400
    assert np.abs(shares[0] - shares[1]).max() < 1.95 * math.sqrt(1 / len(ours) + 1 / len(theirs))


def test_the_draws_have_the_distributions_of_torchvisions_own(real):
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    torch.manual_seed(5)
    image = tv_tensors.Image(torch.zeros((3, 200, 300), dtype=torch.uint8))
    corners = np.array([(20, 30, 90, 120), (150, 20, 280, 180), (100, 100, 140, 190)], float)
    boxes = tv_tensors.BoundingBoxes(torch.tensor(corners), format="XYXY", canvas_size=(200, 300))

    def theirs(step, times=1200):
        return [step.make_params([image, boxes]) for _ in range(times)]

    ours = [ops[0][1] if ops else (0, 0, 200, 300) for ops in recorded(images.RandomIoUCrop(), 1200, boxes=corners)]
    whole = {"top": 0, "left": 0, "height": 200, "width": 300}
    own = [params or whole for params in theirs(v2.RandomIoUCrop())]
    for place, name in enumerate(whole):
        two_samples([crop[place] for crop in ours], [params[name] for params in own])
    ours = [ops[0][1] for ops in recorded(images.RandomZoomOut(p=1), 1200)]
    own = [params["padding"] for params in theirs(v2.RandomZoomOut(p=1))]
    two_samples([-crop[1] for crop in ours], [padding[0] for padding in own])
    two_samples([-crop[0] for crop in ours], [padding[1] for padding in own])
    two_samples([crop[3] for crop in ours], [padding[0] + 300 + padding[2] for padding in own])
    for name, arguments in (
        ("ScaleJitter", ((500, 400),)), ("RandomShortestSize", ((100, 150, 250), 300)), ("RandomResize", (50, 90)),
    ):  # fmt: skip
        ours = [ops[0][1] for ops in recorded(getattr(images, name)(*arguments), 1200)]
        two_samples([min(size) for size in ours], [min(p["size"]) for p in theirs(getattr(v2, name)(*arguments))])
    own = theirs(v2.RandomPhotometricDistort())
    found = recorded(images.RandomPhotometricDistort(), 1200)
    for name in ("brightness", "contrast", "saturation", "hue"):
        factors = [p[f"{name}_factor"] for p in own if p[f"{name}_factor"] is not None]
        two_samples([v[0] for ops in found for added, _, v in ops if added == name], factors)
        two_samples([any(op[0] == name for op in ops) for ops in found], [p[f"{name}_factor"] is not None for p in own])


# ---- torchvision's own steps, with the same drawn numbers


def params_of(step, added, sample):
    """Return torchvision's parameters of a step for what slipring has drawn."""
    height, width = sample["image"].shape[:2]
    if isinstance(step, images.RandomPhotometricDistort):
        factors = {name: v[0] for name, _, v in added if v}
        order = [name for name, _, _ in added]
        params = {f"{name}_factor": factors.get(name) for name in ("brightness", "contrast", "saturation", "hue")}
        later = [name for name in order if name in ("saturation", "hue")]
        params["contrast_before"] = "contrast" in order and (
            not later or order.index("contrast") < order.index(later[0])
        )
        permutation = [list(n) for name, n, _ in added if name == "permute"]
        return params | {"channel_permutation": permutation[0] if permutation else None}
    if not added:
        return {}
    ((_, n, _),) = added
    if isinstance(step, images.RandomZoomOut):
        return {"padding": [-n[1], -n[0], n[3] + n[1] - width, n[2] + n[0] - height]}
    if isinstance(step, images.RandomIoUCrop):
        centers = (sample["boxes"][:, :2] + sample["boxes"][:, 2:]) / 2
        inside = ((centers > (n[1], n[0])) & (centers < (n[1] + n[3], n[0] + n[2]))).all(1)
        return {**dict(zip(("top", "left", "height", "width"), n)), "is_within_crop_area": inside}
    return {"size": n}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RandomIoUCrop", {}),
        ("RandomZoomOut", {"fill": (9, 8, 7), "p": 1.0}),
        ("RandomPhotometricDistort", {}),
        ("ScaleJitter", {"target_size": (70, 80)}),
        ("RandomShortestSize", {"min_size": (20, 40), "max_size": 70}),
        ("RandomResize", {"min_size": 20, "max_size": 50, "interpolation": "bicubic"}),
    ],
)
def test_images_boxes_and_masks_are_torchvisions_for_the_same_drawn_numbers(real, monkeypatch, name, arguments):
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    step = getattr(images, name)(**arguments)
    theirs = v2.Compose([getattr(v2, name)(**arguments), v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes()])
    for seed in range(15):
        sample = sample_of(seed=seed)
        params = params_of(step, drawn(step, sample, seed), sample)
        monkeypatch.setattr(theirs.transforms[0], "make_params", lambda flat, params=params: params)
        boxes = tv_tensors.BoundingBoxes(torch.tensor(sample["boxes"]), format="XYXY", canvas_size=(60, 90))
        want = {"image": Image.fromarray(sample["image"]), "boxes": boxes, "labels": torch.tensor(sample["labels"])}
        if name in ("RandomIoUCrop", "RandomPhotometricDistort"):
            # RandomZoomOut's colour is no fill of masks; torchvision scales masks by another rule than Pillow's.
            want["mask"] = tv_tensors.Mask(torch.tensor(sample["mask"]))
        want = theirs(want)
        result = made(step, sample, seed)
        assert error(result["image"], np.asarray(want["image"])) <= (name != "RandomPhotometricDistort")
        assert np.array_equal(result["labels"], want["labels"])
        assert np.abs(result["boxes"] - want["boxes"].numpy()).max(initial=0) < 1e-3
        if "mask" in want:
            assert np.array_equal(result["mask"], want["mask"].numpy())


def test_channels_are_permuted_as_torchvision_permutes_them(real):
    import torch
    from torchvision.transforms.v2 import functional

    image = np.ascontiguousarray(pixels(11, 13))
    for order in itertools.permutations(range(3)):
        recipe = Recipe(11, 13)
        recipe.op(_decode.OP_PERMUTE, order)
        ours = apply(image, recipe)
        assert np.array_equal(ours, np.asarray(functional.permute_channels(Image.fromarray(image), list(order))))
        tensor = functional.permute_channels(torch.from_numpy(image).permute(2, 0, 1), list(order))
        assert np.array_equal(ours, tensor.permute(1, 2, 0).numpy())
