"""The draws of the random transforms have the distributions of torchvision and timm.

Each test compares draws from a fixed seed with the expected distribution: by Kolmogorov and Smirnov's test for
continuous numbers, by chi-square for counts, both at p = 0.001.
"""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from slipring import images
from tests.images.recorded import recorded
from tests.support.inside import Draws, Recipe


def follows(values, distribution):
    values = np.sort(np.asarray(values, float))
    n = len(values)
    expected = distribution(values)
    steps = np.arange(n + 1) / n
    distance = max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max())
    assert n >= 200 and distance < 1.95 / math.sqrt(n)


def uniform(low, high):
    return lambda values: np.clip((values - low) / (high - low), 0, 1)


def normal(mean, deviation):
    return lambda values: np.array([(1 + math.erf((v - mean) / deviation / math.sqrt(2))) / 2 for v in values])


def counted(values, expected):
    """Assert that values occur in proportion to the weights of `expected`: value -> weight."""
    counts, n, total = Counter(values), len(values), sum(expected.values())
    assert set(counts) <= set(expected)
    rates = {value: n * weight / total for value, weight in expected.items()}
    assert min(rates.values()) >= 5
    square = sum((counts[value] - rate) ** 2 / rate for value, rate in rates.items())
    k = len(expected) - 1
    assert square < k * (1 - 2 / (9 * k) + 3.09 * math.sqrt(2 / (9 * k))) ** 3


def numbers(added, position=0):
    return [ops[0][2][position] for ops in added]


def names(added):
    return [ops[0][0] if ops else None for ops in added]


@pytest.mark.parametrize(
    ("step", "name", "p"),
    [
        (images.RandomGrayscale(), "grayscale", 0.1),
        (images.RandomSolarize(128, 0.2), "solarize", 0.2),
        (images.RandomInvert(), "invert", 0.5),
        (images.RandomAdjustSharpness(2), "sharpness", 0.5),
        (images.RandomPerspective(), "perspective", 0.5),
        (images.PILGaussianBlur(p=0.1), "pil_gaussian_blur", 0.1),
        (images.RandomErasing(0.25), "erase", 0.25),
        (images.RandomApply([images.Grayscale(3)], 0.8), "grayscale", 0.8),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_a_step_is_applied_with_its_probability(step, name, p):
    counted(names(recorded(step, 2000)), {name: p, None: 1 - p})


@pytest.mark.parametrize(
    ("step", "low", "high"),
    [
        (images.ColorJitter(brightness=0.4), 0.6, 1.4),
        (images.ColorJitter(contrast=2), 0, 3),
        (images.ColorJitter(hue=0.1), -0.1, 0.1),
        (images.GaussianBlur(5, (1, 3)), 1, 3),
        (images.PILGaussianBlur((0.5, 4), p=1), 0.5, 4),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_factors_and_deviations_are_uniform(step, low, high):
    follows(numbers(recorded(step, 2000)), uniform(low, high))


def test_channels_come_in_every_order():
    orders = [ops[0][1] for ops in recorded(images.RandomChannelPermutation(), 3000)]
    counted(orders, dict.fromkeys(itertools.permutations(range(3)), 1))


def test_a_colour_jitter_applies_its_operations_in_every_order():
    added = recorded(images.ColorJitter(0.1, 0.1, 0.1, 0.1), 3000)
    orders = list(itertools.permutations(["brightness", "contrast", "saturation", "hue"]))
    counted([tuple(name for name, _, _ in ops) for ops in added], dict.fromkeys(orders, 1))


@pytest.mark.parametrize(
    ("step", "of_matrix", "low", "high"),
    [
        (images.RandomAffine(30), lambda m: math.degrees(math.atan2(m[1], m[0])), -30, 30),
        (images.RandomAffine(0, scale=(0.5, 2)), lambda m: 1 / m[0], 0.5, 2),
        (images.RandomAffine(0, shear=20), lambda m: math.degrees(math.atan(m[1])), -20, 20),
        (images.RandomAffine(0, shear=(0, 0, 5, 15)), lambda m: math.degrees(math.atan(m[3])), 5, 15),
        (images.RandomRotation(30), lambda m: math.degrees(math.atan2(m[3], m[0])), -30, 30),
    ],
    ids=["angle", "scale", "shear", "shear in y", "rotation"],
)
def test_angles_and_scales_are_uniform(step, of_matrix, low, high):
    follows([of_matrix(ops[0][2]) for ops in recorded(step, 2000)], uniform(low, high))


def test_moves_are_uniform_numbers_rounded_to_pixels():
    added = recorded(images.RandomAffine(0, translate=(0.02, 0.03)), 4000)  # up to 6 pixels of 300, and 6 of 200
    expected = {n: 0.5 if abs(n) == 6 else 1 for n in range(-6, 7)}
    for position in (0, 1):
        counted([ops[0][1][position] for ops in added], expected)


@pytest.mark.parametrize("padding", [0, 2])
def test_a_random_crop_has_every_place_equally_often(padding):
    added = recorded(images.RandomCrop((196, 297), padding), 4000)
    tops, lefts = range(-padding, 5 + padding), range(-padding, 4 + padding)
    counted([ops[0][1][:2] for ops in added], dict.fromkeys(itertools.product(tops, lefts), 1))


def check_boxes(boxes):
    """Assert that boxes in 1000 x 2000 pixels have uniform areas, from 0.1 to 0.2, aspects and places."""
    follows([h * w / 2_000_000 for _, _, h, w in boxes], uniform(0.1, 0.2))
    follows([math.log(h / w) for _, _, h, w in boxes], uniform(math.log(0.5), math.log(2)))
    follows([top / (1000 - h) for top, _, h, _ in boxes], uniform(0, 1))
    follows([left / (2000 - w) for _, left, _, w in boxes], uniform(0, 1))


def test_erased_boxes_have_uniform_areas_aspects_and_places():
    added = recorded(images.RandomErasing(1, (0.1, 0.2), (0.5, 2)), 2000, (1000, 2000), seed=4)
    check_boxes([ops[0][1] for ops in added])


def recipes(step, size, times):
    """Return the recipes of a step for images of a size."""
    draws, found = Draws(1), [Recipe(*size) for _ in range(times)]
    for recipe in found:
        step.apply(recipe, draws)
    return found


def test_random_resized_crops_have_uniform_areas_aspects_and_places():
    step = images.RandomResizedCrop(32, (0.1, 0.2), (0.5, 2), flip=0.25)
    specs = [recipe.crop_spec for recipe in recipes(step, (1000, 2000), 2000)]
    assert {(spec.to, spec.window) for spec in specs} == {((32, 32), (0, 0, 32, 32))}
    check_boxes([spec.box for spec in specs])
    counted([spec.flip for spec in specs], {True: 1, False: 3})


def test_erased_boxes_reach_every_side_of_the_image_and_stay_inside():
    found = [ops[0][1] for ops in recorded(images.RandomErasing(1, (0.2, 0.5), (0.5, 2)), 400, (8, 10)) if ops]
    assert min(top for top, *_ in found) == min(left for _, left, *_ in found) == 0
    assert (max(top + h for top, _, h, _ in found), max(left + w for _, left, _, w in found)) == (8, 10)


def test_erased_values_are_zero_or_normal_or_drawn_for_each_pixel():
    assert {ops[0][2] for ops in recorded(images.RandomErasing(1), 20)} == {(0, 0, 0)}
    assert {ops[0][2] for ops in recorded(images.RandomErasing(1, value=(1, 2, 3)), 20)} == {(1, 2, 3)}
    assert {ops[0][2] for ops in recorded(images.RandomErasing(1, value="random"), 20)} == {None}
    drawn = [ops[0][2] for ops in recorded(images.RandomErasing(1, mode="rand"), 1000)]
    follows([value for values in drawn for value in values], normal(0, 1))


def test_several_boxes_share_the_area():
    added = recorded(images.RandomErasing(1, (0.2, 0.3), (1, 1), min_count=1, max_count=3), 3000, (1000, 1000))
    counted([len(ops) for ops in added], {1: 1, 2: 1, 3: 1})
    for count in (1, 2, 3):
        areas = [h * w / 1e6 for ops in added if len(ops) == count for _, (_, _, h, w), _ in ops]
        follows(areas, uniform(0.2 / count, 0.3 / count))


def test_the_corners_of_a_perspective_are_uniform_in_their_quarters():
    added = recorded(images.RandomPerspective(0.1, p=1), 3000, (40, 60))  # 3 places in y, 4 in x
    for corner, (x, y), tops, lefts in (
        (0, (0, 0), range(3), range(4)),
        (1, (59, 0), range(3), range(56, 60)),
        (2, (59, 39), range(37, 40), range(56, 60)),
        (3, (0, 39), range(37, 40), range(4)),
    ):
        seen = []
        for ops in added:
            back = np.linalg.inv(np.array([*ops[0][2][:8], 1.0]).reshape(3, 3)) @ (x, y, 1)
            seen.append((round(back[1] / back[2]), round(back[0] / back[2])))
        counted(seen, dict.fromkeys(itertools.product(tops, lefts), 1)), corner


def test_each_elastic_transform_has_its_own_seed():
    seeds = {ops[0][1][1:] for ops in recorded(images.ElasticTransform(), 1000)}
    assert len(seeds) == 1000 and {lower < 0 for lower, _ in seeds} == {True, False}


def test_random_choice_has_its_weights():
    step = images.RandomChoice([images.Grayscale(3), images.RandomInvert(1), images.RandomVerticalFlip(1)], [1, 2, 5])
    counted(names(recorded(step, 2000)), {"grayscale": 1, "invert": 2, "vertical_flip": 5})


def test_random_order_has_every_order():
    step = images.RandomOrder([images.Grayscale(3), images.RandomInvert(1), images.RandomVerticalFlip(1)])
    orders = itertools.permutations(["grayscale", "invert", "vertical_flip"])
    added = recorded(step, 2000)
    counted([tuple(name for name, _, _ in ops) for ops in added], dict.fromkeys(orders, 1))


@pytest.mark.parametrize(
    "step",
    [
        images.RandomAffine(30, interpolation="random"),
        images.RandomRotation(30, interpolation="random"),
        images.RandomPerspective(p=1, interpolation="random"),
        images.ElasticTransform(interpolation="random"),
        images.rand_augment_transform("rand-n1-p1-m9", transforms=["ShearX"], interpolation="random"),
    ],
    ids=lambda step: repr(step)[:24],
)
def test_a_random_interpolation_is_bilinear_or_bicubic(step):
    counted([ops[0][1][0] for ops in recorded(step, 1000)], {0: 1, 1: 1})


def test_a_random_interpolation_of_a_crop_is_bilinear_or_bicubic():
    found = recipes(images.RandomResizedCrop(8, interpolation="random"), (20, 30), 1000)
    counted([recipe.filter for recipe in found], {0: 1, 1: 1})


COLORS = "brightness", "saturation", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize"


def kinds(added):
    """Return the name of each operation, "geometry" for those that move pixels, and None for none."""
    return [None if not ops else ops[0][0] if ops[0][0] in COLORS else "geometry" for ops in added]


def test_trivial_augment_draws_each_operation_equally_often():
    added = recorded(images.TrivialAugmentWide(), 6000)
    # Of Rotate, one strength in 31 is 0 and changes nothing, as Identity does.
    expected = {**dict.fromkeys(COLORS, 1), "geometry": 4 + 30 / 31, None: 1 + 1 / 31}
    counted(kinds(added), expected)


def test_trivial_augment_draws_strengths_from_31_and_a_sign():
    added = recorded(images.TrivialAugmentWide(), 20_000)
    factors = [round((ops[0][2][0] - 1) / 0.99 * 30) for ops in added if ops and ops[0][0] == "brightness"]
    counted(factors, {position: 2 if position == 0 else 1 for position in range(-30, 31)})
    bits = [ops[0][1][0] for ops in added if ops and ops[0][0] == "posterize"]
    counted(bits, Counter(round(8 - position / 5) for position in range(31)))
    thresholds = [round((1 - ops[0][2][0] / 255) * 30) for ops in added if ops and ops[0][0] == "solarize"]
    counted(thresholds, dict.fromkeys(range(31), 1))


def test_rand_augment_draws_operations_with_replacement_and_one_strength():
    added = recorded(images.RandAugment(num_ops=1, magnitude=10), 6000)
    counted(kinds(added), {**dict.fromkeys(COLORS, 1), "geometry": 5, None: 1})
    factors = {round(ops[0][2][0], 6) for ops in added if ops and ops[0][0] == "brightness"}
    assert factors == {0.7, 1.3}
    pairs = [tuple(name for name, _, _ in ops) for ops in recorded(images.RandAugment(2), 6000)]
    seen = [pair for pair in pairs if set(pair) <= {"equalize", "autocontrast"} and len(pair) == 2]
    counted(seen, dict.fromkeys(itertools.product(["equalize", "autocontrast"], repeat=2), 1))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("imagenet", {"invert": 1.8, "equalize": 11.2, "contrast": 2.0, "solarize": 3.6}),
        ("cifar10", {"invert": 0.2, "equalize": 4.7, "contrast": 0.8, "sharpness": 2.8}),
        ("svhn", {"invert": 7.6, "equalize": 3.9, "contrast": 0.3, "autocontrast": 2.3}),
    ],
)
def test_auto_augment_applies_operations_with_the_probabilities_of_its_policy(policy, expected):
    times = 6000
    seen = Counter(name for ops in recorded(images.AutoAugment(policy), times) for name, _, _ in ops)
    for name, probability in expected.items():
        mean = times * probability / 25
        assert abs(seen[name] - mean) < 3.3 * math.sqrt(mean), name


def test_augmix_draws_weights_and_depths():
    added = recorded(images.AugMix(severity=10), 2000)
    first, depths = [], []
    for ops in added:
        weights = [v[0] for name, _, v in ops if name == "add_to_sum"]
        assert len(weights) == 4 and sum(weights) == pytest.approx(1)
        assert ops[0][0] == "keep" and ops[-1][0] == "take_sum"
        first.append(weights[0])
    follows(first, uniform(0, 1))
    for ops in recorded(images.AugMix(mixture_width=1, severity=10), 3000):
        depths.append(max(1, len(ops[2:-2])))
    counted(depths, {1: 1.015, 2: 1, 3: 0.977})  # one strength in 10 of Rotate adds nothing


def test_timms_augmix_has_chains_of_the_given_number_and_length():
    levels = []
    for ops in recorded(images.auto_augment_transform("augmix-m5-w4-d2"), 2000):
        weights = [v[0] for name, _, v in ops if name == "add_to_sum"]
        assert len(weights) == 5 and sum(weights) == pytest.approx(1)
        assert ops[0][0] == "keep" and ops[-1][0] == "take_sum"
        assert len(ops) - 7 <= 4 * 2
        levels += [abs(v[0] - 1) / 0.09 for name, _, v in ops if name in ("brightness", "contrast", "saturation")]
    follows(levels, uniform(0, 5))  # each level is drawn from 0 to m
    fixed = recorded(images.auto_augment_transform("augmix-m5-w1-d1-mstd0"), 500)
    assert {round(abs(v[0] - 1), 6) for ops in fixed for name, _, v in ops if name == "brightness"} == {0.45}


@pytest.mark.parametrize("alpha", [0.3, 4])
def test_the_weights_of_augmix_have_the_variance_of_a_dirichlet_distribution(alpha):
    drawn = np.array([Draws(seed).dirichlet(alpha, 3) for seed in range(4000)])
    assert drawn.sum(1) == pytest.approx(1)
    assert drawn.mean(0) == pytest.approx(1 / 3, abs=0.02)
    assert drawn.var(0) == pytest.approx(2 / 9 / (3 * alpha + 1), rel=0.1)


def of_timm(text, name, **options):
    return recorded(images.rand_augment_transform(text, transforms=[name], **options), 2000)


def test_timms_levels_are_normal_or_uniform_and_limited():
    factors = numbers(of_timm("rand-n1-p1-m5-mstd1", "Brightness"))
    follows(factors, normal(5 * 0.18 + 0.1, 0.18))
    factors = numbers(of_timm("rand-n1-p1-m8-mstd101", "Brightness"))
    follows(factors, uniform(0.1, 8 * 0.18 + 0.1))
    assert {round(v, 9) for v in numbers(of_timm("rand-n1-p1-m10", "ColorIncreasing"))} == {0.1, 1.9}
    factors = numbers(of_timm("rand-n1-p1-m9-mstd9", "Brightness"))
    assert min(factors) == pytest.approx(0.1) and max(factors) == pytest.approx(1.9)
    factors = numbers(of_timm("rand-n1-p1-m9-mstd9-mmax20", "Brightness"))
    assert max(factors) == pytest.approx(3.7)


def test_timms_rand_augment_applies_each_drawn_operation_with_its_probability():
    counted([len(ops) for ops in of_timm("rand-n2", "Invert")], {0: 1, 1: 2, 2: 1})
    counted([len(ops) for ops in of_timm("rand-n1-p0.9", "Invert")], {0: 1, 1: 9})


def test_timms_weights_are_of_draws_without_replacement():
    weights = {"Invert": 3, "Equalize": 2, "AutoContrast": 1}
    step = images.rand_augment_transform("rand-n2-p1", transforms=weights)
    pairs = [tuple(name for name, _, _ in ops) for ops in recorded(step, 3000)]
    total = sum(weights.values())
    expected = {
        (a.lower(), b.lower()): weights[a] / total * weights[b] / (total - weights[a])
        for a, b in itertools.permutations(weights, 2)
    }
    counted(pairs, expected)


def test_three_augment_draws_one_of_three_operations():
    added = recorded(images.auto_augment_transform("3a"), 2000)
    assert {len(ops) for ops in added} == {1}
    counted(names(added), {"solarize": 1, "saturation": 1, "pil_gaussian_blur": 1})
    follows([ops[0][2][0] for ops in added if ops[0][0] == "pil_gaussian_blur"], uniform(0.1, 2))
    assert {ops[0][2][0] for ops in added if ops[0][0] == "solarize"} == {128}
