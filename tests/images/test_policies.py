"""Policies and the other transforms: the same operations as torchvision and timm apply, on whole samples."""

import math
import pickle

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from slipring import images
from tests.images.recorded import recorded
from tests.support.inside import Draws, Recipe, apply, augmented
from tests.support.pictures import encoded, error, pixels


def drawn(step, array, seed):
    recipe = Recipe(*array.shape[:2])
    step.apply(recipe, Draws(seed))
    return apply(array, recipe)


def affine(matrix):
    return lambda image: image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=(0, 0, 0)
    )


# What RandAugment with magnitude 30 of 31 does to an image of 40 x 60, by torchvision's table; both signs of each.
MOVED = 150 / 331
FULL = {
    "ShearX": [affine((1, s, 0, 0, 1, 0)) for s in (0.3, -0.3)],
    "ShearY": [affine((1, 0, 0, s, 1, 0)) for s in (0.3, -0.3)],
    "TranslateX": [affine((1, 0, s * int(60 * MOVED), 0, 1, 0)) for s in (1, -1)],
    "TranslateY": [affine((1, 0, 0, 0, 1, s * int(40 * MOVED))) for s in (1, -1)],
    "Rotate": [lambda i: i.rotate(30), lambda i: i.rotate(-30)],
    "Brightness": [lambda i, f=f: ImageEnhance.Brightness(i).enhance(f) for f in (1.9, 0.1)],
    "Color": [lambda i, f=f: ImageEnhance.Color(i).enhance(f) for f in (1.9, 0.1)],
    "Contrast": [lambda i, f=f: ImageEnhance.Contrast(i).enhance(f) for f in (1.9, 0.1)],
    "Sharpness": [lambda i, f=f: ImageEnhance.Sharpness(i).enhance(f) for f in (1.9, 0.1)],
    "Posterize": [lambda i: ImageOps.posterize(i, 4)],
    "Solarize": [lambda i: ImageOps.solarize(i, 0)],
    "AutoContrast": [ImageOps.autocontrast],
    "Equalize": [ImageOps.equalize],
    "Identity": [lambda i: i],
}


def test_rand_augment_makes_one_of_the_images_of_torchvisions_table():
    array = np.ascontiguousarray(pixels(40, 60))
    image = Image.fromarray(array)
    known = {(name, sign): np.asarray(f(image)) for name, made in FULL.items() for sign, f in enumerate(made)}
    step, seen = images.RandAugment(num_ops=1, magnitude=30), set()
    for seed in range(600):
        ours = drawn(step, array, seed)
        near = [key for key, expected in known.items() if error(ours, expected) <= 1]
        assert near, seed
        seen.update(near)
    assert seen == set(known)


def shares(step, size=(331, 662)):
    """Return the largest moves that a policy draws, as numbers of pixels: (down, right)."""
    boxes = [ops[0][1] for ops in recorded(step, 10_000, size) if len(ops) == 1 and ops[0][0] == "box"]
    return max(abs(top) for top, _, _, _ in boxes), max(abs(left) for _, left, _, _ in boxes)


@pytest.mark.parametrize(
    ("step", "most"),
    [
        (images.TrivialAugmentWide(), (32, 32)),
        (images.RandAugment(1, magnitude=15), (75, 150)),
    ],
    ids=repr,
)
def test_moves_have_the_largest_size_of_the_policy(step, most):
    assert shares(step) == most
    if most == (32, 32):  # 32 * 15 / 30 is a little less than 16 in torch's float32, so that the move has 15 pixels
        lefts = [abs(ops[0][1][1]) for ops in recorded(step, 10_000) if len(ops) == 1 and ops[0][0] == "box"]
        assert 15 in lefts and 16 not in lefts and 17 in lefts


def test_augmix_is_between_the_image_and_its_chains(monkeypatch):
    array = np.ascontiguousarray(pixels(40, 60))
    monkeypatch.setattr(Draws, "dirichlet", lambda self, alpha, n: [0.25, 0.75] if n == 2 else [1.0])
    step = images.AugMix(mixture_width=1, chain_depth=1, severity=10)
    for seed in range(20):
        chain = [(name, n, v) for name, n, v in recorded(step, 1, (40, 60), seed)[0][2:-2] if name != "box"]
        if chain:
            expected = np.round(0.25 * array + 0.75 * augmented(array, *chain))
            assert len(chain) == 1 and error(drawn(step, array, seed), expected) <= 1


def timm_operations(name, level):
    """Return the operation that timm's level adds, for a positive sign, and an image of 200 x 300."""
    step = images.rand_augment_transform(f"rand-n1-p1-m{level}", transforms=[name], interpolation="bilinear")
    return {ops[0] if ops else None for ops in recorded(step, 40)}


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("Brightness", 9, {1.72}),
        ("BrightnessIncreasing", 9, {1.81, 0.19}),
        ("ContrastIncreasing", 10, {1.9, 0.1}),
        ("Solarize", 9, {230}),
        ("SolarizeIncreasing", 9, {26}),
        ("Desaturate", 0, {0.5}),
        ("GaussianBlur", 5, {1.05}),
        ("Posterize", 9, {3}),
        ("PosterizeIncreasing", 9, {1}),
        ("PosterizeOriginal", 9, {7}),
        ("PosterizeOriginal", 10, {None}),  # eight bits: nothing changes
        ("SolarizeAdd", 9, {99}),
    ],
)
def test_timms_levels_mean_factors_bits_and_addends(name, level, expected):
    found = {operation and (*operation[1], *operation[2])[0] for operation in timm_operations(name, level)}
    assert {operation and round(operation, 9) for operation in found} == expected


@pytest.mark.parametrize(
    ("name", "level", "position", "expected"),
    [
        ("ShearX", 9, 1, 0.27),
        ("ShearY", 9, 3, 0.27),
        ("TranslateXRel", 9, 2, 0.45 * 0.9 * 300),
        ("TranslateYRel", 7, 5, 0.45 * 0.7 * 200),
        ("TranslateX", 9, 2, 225),
        ("Rotate", 9, 3, math.sin(math.radians(27))),
    ],
)
def test_timms_levels_mean_maps_with_both_signs(name, level, position, expected):
    seen = set()
    for kind, n, v in timm_operations(name, level):
        value = v[position] if kind == "affine" else n[1 if position == 2 else 0]  # a move by whole pixels is a box
        assert tuple(v[6:9] if kind == "affine" else v) == (128, 128, 128)
        seen.add(round(value, 6))
    assert seen == {round(expected, 6), round(-expected, 6)}


def test_hparams_replace_the_string_and_the_arguments():
    hparams = {"translate_const": 100, "img_mean": (1, 2, 3), "magnitude_std": 0}
    step = images.rand_augment_transform("rand-n1-p1-m10-mstd5", hparams, ["TranslateX"], interpolation="nearest")
    assert {ops[0][1:] for ops in recorded(step, 40)} == {((0, left, 200, 300), (1, 2, 3)) for left in (100, -100)}


def one(data, transform, **options):
    return images.Bytes([(data, 7)], transform, **options)


def sample(transform, seed=0, size=(60, 80), **options):
    return one(encoded(pixels(*size), "PNG"), transform, **options).try_sample(0, seed=seed)[0]


@pytest.mark.parametrize(("kind", "layout"), [("JPEG", "NHWC"), ("PNG", "NCHW")])
def test_flips_crops_and_borders_in_the_view_are_those_of_operations(kind, layout):
    data = encoded(pixels(60, 80), kind)
    flips = [images.RandomVerticalFlip(1), images.RandomHorizontalFlip(1)]
    for steps in (
        [*flips, images.CenterCrop((70, 50)), images.RandomCrop((64, 45))],
        [images.CenterCrop((70, 90)), *flips, images.RandomCrop((50, 85)), flips[0]],
        [flips[0], images.Pad((1, 2, 3, 4)), flips[1], images.RandomCrop((55, 60)), images.Resize((20, 30))],
    ):
        ours = one(data, steps, layout=layout).try_sample(0, seed=5)[0]
        apart = one(data, [lambda image: None, *steps], layout=layout).try_sample(0, seed=5)[0]
        assert error(np.asarray(ours, np.uint8), np.asarray(apart, np.uint8)) == 0


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_a_random_crop_is_a_part_of_the_padded_image(mode):
    array = np.ascontiguousarray(pixels(20, 30))
    steps = images.RandomCrop((18, 25), (4, 3, 2, 1), padding_mode=mode, fill=(9, 8, 7))
    border = [(3, 1), (4, 2), (0, 0)]
    padded = np.pad(array, border, mode) if mode != "constant" else None
    if padded is None:
        padded = np.stack([np.pad(array[..., c], border[:2], constant_values=9 - c) for c in range(3)], 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (18, 25, 3))[:, :, 0]
    positions = {window.tobytes() for row in windows for window in row}
    seen = {drawn(steps, array, seed).tobytes() for seed in range(100)}
    assert seen <= positions and len(seen) > 20


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match="size must be at most that of the image with its border, 62 x 82 pixels"):
        sample(images.RandomCrop(90, padding=1))
    assert sample(images.RandomCrop(90, padding=1, pad_if_needed=True)).shape == (90, 90, 3)


def test_erased_boxes_hold_values_of_the_normalised_result():
    steps = [images.Resize((40, 40)), images.RandomErasing(1, (0.1, 0.3), value=(0, 0.5, -2))]
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.2, 0.2)
    erased = sample(steps, 3, dtype="float32", mean=mean, std=std)
    plain = sample(steps[:1], 3, dtype="float32", mean=mean, std=std)
    changed = (erased != plain).any(2)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    box = erased[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    assert 100 < changed.sum() < 600 and (box == np.array([0, 0.5, -2], np.float32)).all()


def test_noise_has_mean_nought_and_needs_a_normalised_result():
    step = images.RandomErasing(1, (0.5, 0.6), (1, 1), mode="pixel")
    noisy = sample([images.Resize((100, 100)), step], dtype="float32")
    changed = noisy[(noisy != sample(images.Resize((100, 100)), dtype="float32")).all(2)]
    assert len(changed) > 4000 and abs(changed.mean()) < 0.05 and abs(changed.std() - 1) < 0.05
    with pytest.raises(ValueError, match="mode must be 'const' for a dataset of dtype uint8, not 'pixel'"):
        one(b"", [step])


@pytest.mark.parametrize(
    "step",
    [
        images.ColorJitter(0.4, 0.4, 0.4, 0.1), images.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10),
        images.RandomRotation(30, "bilinear"), images.RandomPerspective(p=1), images.ElasticTransform(),
        images.RandAugment(), images.AugMix(), images.rand_augment_transform("rand-m9-mstd0.5-inc1"),
        images.RandomErasing(1, mode="const"), images.RandomOrder([images.RandomInvert(), images.GaussianBlur(3)]),
    ],
    ids=lambda step: repr(step).partition("(")[0],
)  # fmt: skip
def test_a_sample_depends_on_its_seed_alone(step):
    steps = [images.Resize((40, 50)), step]
    first = [sample(steps, seed) for seed in range(12)]
    again = [images.Resize((40, 50)), pickle.loads(pickle.dumps(step))]
    assert all((sample(again, seed) == first[seed]).all() for seed in range(11, -1, -1))
    assert repr(again[1]) == repr(step) and "object at" not in repr(step)
    assert len({image.tobytes() for image in first}) > 2


def test_steps_after_others_do_not_change_what_earlier_ones_drew():
    crop, policy = images.RandomResizedCrop(30), images.TrivialAugmentWide()
    for seed in range(5):
        assert (sample([crop, images.Pad(1)], seed)[1:-1, 1:-1] == sample(crop, seed)).all()
        assert (sample([crop, policy, images.Pad(1)], seed)[1:-1, 1:-1] == sample([crop, policy], seed)).all()


@pytest.mark.parametrize(
    ("step", "is_random"),
    [
        (images.Grayscale(3), False), (images.GaussianBlur(3, 1), False), (images.GaussianBlur(3), True),
        (images.RandomInvert(1), False), (images.RandomInvert(), True), (images.ColorJitter(), False),
        (images.ColorJitter(0.1), True), (images.RandomApply([images.Pad(1)], 1), False),
        (images.RandomApply([images.ColorJitter(0.1)], 1), True), (images.RandomErasing(1), True),
        (images.PILGaussianBlur(2, 1), False), (images.RandomRotation((90, 90)), False),
    ],
    ids=lambda part: repr(part)[:40],
)  # fmt: skip
def test_a_dataset_knows_whether_its_transforms_draw(step, is_random):
    assert one(b"", step).is_random is is_random
