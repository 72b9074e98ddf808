"""Arguments of transforms that are refused when the transform is made, with torchvision's or timm's rules."""

import enum
import pickle

import numpy as np
import pytest
from PIL import Image

from slipring import images

NAN, INF = float("nan"), float("inf")
FLIP = images.RandomVerticalFlip()
PROBABILITIES = [-0.1, 1.1, NAN, "0.5", None, True]
FILLS = [-1, 256, NAN, "red", (1, 2), (0, 0, 300), {"image": 1}, True]
INTERPOLATIONS = ["lanczos", None, Image.Resampling.LANCZOS]
LISTS = "RandomApply", "RandomChoice", "RandomOrder"
WITH_P = (
    "RandomVerticalFlip", "RandomGrayscale", "RandomEqualize", "RandomAutocontrast", "RandomInvert",
    "RandomPerspective", "RandomErasing", "PILGaussianBlur",
)  # fmt: skip
POLICIES = "TrivialAugmentWide", "RandAugment", "AutoAugment", "AugMix"

# (transform, arguments that suffice, argument, values that it must not have)
REFUSED = [
    *[(name, {}, "p", PROBABILITIES) for name in WITH_P],
    ("RandomSolarize", {"threshold": 128}, "p", PROBABILITIES),
    ("RandomSolarize", {}, "threshold", [-1, 257, NAN, "128"]),
    ("RandomPosterize", {"bits": 4}, "p", PROBABILITIES),
    ("RandomPosterize", {}, "bits", [-1, 9, 1.5, None]),
    ("RandomAdjustSharpness", {"sharpness_factor": 2}, "p", PROBABILITIES),
    ("RandomAdjustSharpness", {}, "sharpness_factor", [-0.1, INF, "2"]),
    ("Grayscale", {}, "num_output_channels", [1, 4, 1.0]),
    *[
        ("ColorJitter", {}, name, [-0.1, NAN, "1", (0.5,), (2, 1), (-1, 1), (0, INF), True])
        for name in ("brightness", "contrast", "saturation")
    ],
    ("ColorJitter", {}, "hue", [-0.1, 0.6, (-0.6, 0), (0, 0.6), (0.2, 0.1)]),
    ("RandomCrop", {}, "size", [0, 1.5, (1, 2, 3), None]),
    ("RandomCrop", {"size": 8}, "padding", [-1, 1.5, (1, 2, 3), (1, -1), "4"]),
    ("RandomCrop", {"size": 8}, "padding_mode", ["reflection", None]),
    ("RandomCrop", {"size": 8}, "pad_if_needed", ["yes"]),
    ("Pad", {}, "padding", [-1, (1, 2, 3), None, ()]),
    ("Pad", {"padding": 1}, "padding_mode", ["wrap"]),
    *[(name, {"degrees": 10}, "fill", FILLS) for name in ("RandomAffine", "RandomRotation")],
    *[(name, {}, "fill", FILLS) for name in ("RandomPerspective", "ElasticTransform", *POLICIES)],
    ("Pad", {"padding": 1}, "fill", FILLS),
    ("RandomCrop", {"size": 8}, "fill", FILLS),
    *[(name, {"degrees": 10}, "interpolation", INTERPOLATIONS) for name in ("RandomAffine", "RandomRotation")],
    *[(name, {}, "interpolation", INTERPOLATIONS) for name in ("RandomPerspective", "ElasticTransform", *POLICIES)],
    *[(name, {"degrees": 10}, "center", [3, (1,), ("a", 1), (NAN, 1)]) for name in ("RandomAffine", "RandomRotation")],
    *[(name, {}, "degrees", [-1, NAN, (1, 2, 3), (2, 1), None]) for name in ("RandomAffine", "RandomRotation")],
    ("RandomRotation", {"degrees": 10}, "expand", [1]),
    ("RandomAffine", {"degrees": 10}, "translate", [0.1, (0.1,), (0.1, 1.1), (-0.1, 0)]),
    ("RandomAffine", {"degrees": 10}, "scale", [1, (0, 1), (1, 0.5), (1, INF)]),
    ("RandomAffine", {"degrees": 10}, "shear", [-1, (1, 0), (1, 2, 3), (0, 1, 1, 0), "x"]),
    ("RandomPerspective", {}, "distortion_scale", [-0.1, 1.1, NAN, None]),
    ("ElasticTransform", {}, "alpha", [NAN, "x", (1, 2, 3), ()]),
    ("ElasticTransform", {}, "sigma", [-1, NAN, (1, 2, 3), (1, -1)]),
    ("GaussianBlur", {}, "kernel_size", [0, 2, (3, 4), (3, 3, 3), 1.5]),
    ("GaussianBlur", {"kernel_size": 3}, "sigma", [0, (0, 1), (2, 1), (1, 2, 3), NAN]),
    ("PILGaussianBlur", {}, "radius", [0, (0, 1), (2, 1), NAN]),
    ("RandomErasing", {}, "scale", [0.1, (0.5, 0.1), (-0.1, 0.1), (0.1, 1.1)]),
    ("RandomErasing", {}, "ratio", [0.1, (2, 1), (0, 1)]),
    ("RandomErasing", {}, "value", ["noise", None, (1, 2), NAN, ("a", 1, 2)]),
    ("RandomErasing", {"mode": "rand"}, "value", [1, "random"]),
    ("RandomErasing", {"mode": "pixel"}, "value", [1]),
    ("RandomErasing", {}, "mode", ["constant", None]),
    ("RandomErasing", {}, "min_count", [0, 1.5]),
    ("RandomErasing", {"min_count": 3}, "max_count", [2, 3.5]),
    ("RandomApply", {"transforms": [FLIP]}, "p", PROBABILITIES),
    *[(name, {}, "transforms", [[], FLIP, [3], [images.Resize]]) for name in LISTS],
    *[(name, {}, "transforms", [[[FLIP]], [None]]) for name in LISTS[1:]],
    ("RandomChoice", {"transforms": [FLIP, FLIP]}, "p", [0.5, [1], [1, -1], [0, 0], [NAN, 1], ["a", 1]]),
    *[(name, {}, "num_magnitude_bins", [1, 1.5]) for name in ("TrivialAugmentWide", "RandAugment")],
    ("RandAugment", {}, "num_ops", [-1, 1.5]),
    ("RandAugment", {}, "magnitude", [-1, 31, 1.5]),
    ("AutoAugment", {}, "policy", ["image_net", None, enum.Enum("Other", {"A": "cifar100"}).A]),
    ("AugMix", {}, "severity", [0, 11]),
    ("AugMix", {}, "mixture_width", [0]),
    ("AugMix", {}, "chain_depth", [-2]),
    ("AugMix", {}, "alpha", [0, NAN, "x"]),
    ("AugMix", {}, "all_ops", [1]),
    ("Resize", {"size": 9}, "max_size", [0, "9", 8]),
    ("Resize", {}, "size", [None]),
    ("Resize", {"size": (8, 9)}, "max_size", [20]),
    *[("RandomIoUCrop", {}, f"{end}_scale", [0, 1.1, NAN, None]) for end in ("min", "max")],
    ("RandomIoUCrop", {"max_scale": 0.5}, "min_scale", [0.6]),
    ("RandomIoUCrop", {}, "min_aspect_ratio", [0, NAN, 2.5]),
    ("RandomIoUCrop", {}, "max_aspect_ratio", [-1, INF]),
    ("RandomIoUCrop", {}, "sampler_options", [[], 0.5, [-0.1], [NAN], {0.1}]),
    ("RandomIoUCrop", {}, "trials", [0, 1.5]),
    ("RandomZoomOut", {}, "fill", FILLS),
    *[(name, {"size": 8}, "fill", FILLS) for name in ("FixedSizeCrop", "LetterBox")],
    ("RandomZoomOut", {}, "side_range", [2, (0.9, 2), (3, 2), (1, INF)]),
    *[(name, {}, "p", PROBABILITIES) for name in ("RandomZoomOut", "RandomPhotometricDistort")],
    *[
        ("RandomPhotometricDistort", {}, name, [0.5, (-0.1, 1), (2, 1), (0, INF)])
        for name in ("brightness", "contrast", "saturation")
    ],
    ("RandomPhotometricDistort", {}, "hue", [0.1, (-0.6, 0), (0, 0.6), (0.2, 0.1)]),
    ("ScaleJitter", {}, "target_size", [8, (8,), (8, 0)]),
    ("ScaleJitter", {"target_size": (8, 9)}, "scale_range", [1, (0, 1), (2, 1), (1, INF)]),
    ("ScaleJitter", {"target_size": (8, 9)}, "interpolation", INTERPOLATIONS),
    ("RandomShortestSize", {}, "min_size", [0, (), (8, 0), 1.5]),
    ("RandomShortestSize", {"min_size": 8}, "max_size", [0, 1.5]),
    ("RandomResize", {"max_size": 8}, "min_size", [0, 1.5]),
    ("RandomResize", {"min_size": 8}, "max_size", [0, 7]),
    *[(name, {}, "size", [0, 1.5, (1, 2, 3)]) for name in ("FixedSizeCrop", "LetterBox")],
    ("FixedSizeCrop", {"size": 8}, "padding_mode", ["wrap"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "argument", "values"), REFUSED, ids=lambda part: str(part)[:40])
def test_wrong_arguments_are_refused_by_errors_with_their_names_and_the_rule(name, given, argument, values):
    for value in values:
        with pytest.raises((TypeError, ValueError), match=rf"^{argument} must .*not "):
            getattr(images, name)(**given, **{argument: value})


class Interpolation(enum.Enum):  # as torchvision's
    BICUBIC = "bicubic"


class Policy(enum.Enum):  # as torchvision's
    SVHN = "svhn"


@pytest.mark.parametrize(
    ("made", "attribute", "value"),
    [
        (images.ColorJitter(0.4), "brightness", (0.6, 1.4)),
        (images.RandomRotation(30), "degrees", (-30, 30)),
        (images.RandomAffine(0, interpolation=Interpolation.BICUBIC), "interpolation", "bicubic"),
        (images.Pad((1, 2)), "padding", (1, 2, 1, 2)),
        (images.GaussianBlur(3, 0.5), "sigma", (0.5, 0.5)),
        (images.AutoAugment(Policy.SVHN), "policy", "svhn"),
        (images.RandomErasing(value="random"), "mode", "pixel"),
        (images.RandomErasing(min_count=2), "max_count", 2),
        (images.RandomChoice([FLIP, FLIP], p=[3, 1]), "p", (0.75, 0.25)),
        (images.RandomPosterize(np.int64(3)), "bits", 3),
    ],
    ids=lambda part: repr(part)[:60],
)
def test_arguments_mean_what_they_mean_in_torchvision(made, attribute, value):
    assert getattr(made, attribute) == pytest.approx(value)


DEFAULTS = {
    **{name: {"p": 0.5} for name in ("RandomVerticalFlip", "RandomEqualize", "RandomAutocontrast", "RandomInvert")},
    "RandomGrayscale": {"p": 0.1},
    "RandomChannelPermutation": {},
    "RandomPerspective": {"distortion_scale": 0.5, "p": 0.5, "interpolation": "bilinear", "fill": 0},
    "ElasticTransform": {"alpha": (50, 50), "sigma": (5, 5), "interpolation": "bilinear", "fill": 0},
    "RandomErasing": {"p": 0.5, "scale": (0.02, 0.33), "ratio": (0.3, 3.3), "value": 0},
    "TrivialAugmentWide": {"num_magnitude_bins": 31, "interpolation": "nearest", "fill": None},
    "RandAugment": {"num_ops": 2, "magnitude": 9, "num_magnitude_bins": 31, "interpolation": "nearest", "fill": None},
    "AutoAugment": {"policy": "imagenet", "interpolation": "nearest", "fill": None},
    "AugMix": {
        "severity": 3, "mixture_width": 3, "chain_depth": -1, "alpha": 1, "all_ops": True,
        "interpolation": "bilinear", "fill": None,
    },
    "RandomIoUCrop": {
        "min_scale": 0.3, "max_scale": 1, "min_aspect_ratio": 0.5, "max_aspect_ratio": 2, "trials": 40,
        "sampler_options": (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1),
    },
    "RandomZoomOut": {"fill": 0, "side_range": (1, 4), "p": 0.5},
    "RandomPhotometricDistort": {
        "brightness": (0.875, 1.125), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5), "hue": (-0.05, 0.05), "p": 0.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_torchvisions(name):
    made = getattr(images, name)()
    assert {key: getattr(made, key) for key in DEFAULTS[name]} == DEFAULTS[name]


MADE = [
    images.Pad(2), images.RandomCrop(8), images.ColorJitter(0.1), images.Grayscale(3), images.RandomSolarize(9),
    images.RandomPosterize(3), images.RandomAdjustSharpness(2), images.RandomAffine(3), images.RandomRotation(3),
    images.GaussianBlur(3), images.PILGaussianBlur(), images.RandomApply([FLIP]), images.RandomChoice([FLIP]),
    images.RandomOrder([FLIP]), images.ScaleJitter((8, 9)), images.RandomShortestSize((8, 9), 20),
    images.RandomResize(8, 9), images.FixedSizeCrop(8), images.LetterBox(8), images.Resize(None, max_size=9),
    images.Mosaic(8), images.SampleMixUp(), images.CopyPaste(), images.MultiCrop([(2, images.RandomResizedCrop(8))]),
    images.auto_augment_transform("3a"), *(getattr(images, name)() for name in DEFAULTS),
]  # fmt: skip


@pytest.mark.parametrize("step", MADE, ids=lambda step: type(step).__name__)
def test_a_transform_can_be_sent_to_workers_and_shows_its_arguments(step):
    again = pickle.loads(pickle.dumps(step))
    assert type(again) is type(step) and repr(again) == repr(step)
    assert repr(step).endswith(")") and "object at" not in repr(step)


@pytest.mark.parametrize(
    ("step", "size", "result"),
    [
        (images.Pad((1, 2, 3, 4)), (10, 20), (16, 24)),
        (images.RandomCrop(8), None, (8, 8)),
        (images.RandomRotation(10, expand=True), (10, 20), None),
        (images.Resize(5, max_size=8), (10, 20), (4, 8)),
        (images.Resize(5, max_size=12), (10, 20), (5, 10)),
        (images.Resize(None, max_size=8), (10, 20), (4, 8)),
        (images.Resize(None, max_size=8), None, None),
        (images.RandomIoUCrop(), (10, 20), None),
        (images.RandomZoomOut(p=0), (10, 20), (10, 20)),
        (images.ScaleJitter((40, 30)), (10, 20), None),
        (images.ScaleJitter((40, 30), (1, 1)), (10, 20), (20, 40)),
        (images.RandomShortestSize((5, 5), 8), (10, 20), (4, 8)),
        (images.RandomResize(5, 6), (10, 20), (5, 10)),
        (images.FixedSizeCrop((8, 9)), None, (8, 9)),
        (images.LetterBox((8, 9)), None, (8, 9)),
        (images.RandomApply([images.Pad(1)]), (10, 20), None),
        (images.RandomApply([images.Pad(1)], p=1), (10, 20), (12, 22)),
        (images.RandomChoice([images.RandomCrop(8), images.RandomResizedCrop(8)]), None, (8, 8)),
        (images.RandomOrder([images.RandomResizedCrop(8), FLIP]), (10, 20), (8, 8)),
        (images.RandomOrder([images.Pad(1), images.Pad(2)]), (10, 20), (16, 26)),
    ],
    ids=lambda part: repr(part)[:60],
)
def test_the_size_of_results_is_known_where_it_is_the_same_for_all(step, size, result):
    assert step.result_size(size) == result


@pytest.mark.parametrize(
    "steps",
    [
        [images.RandomErasing(), FLIP],
        [images.RandomErasing(), lambda image: None],
        [images.RandomChoice([images.RandomErasing(), FLIP]), images.Resize(8)],
    ],
    ids=["flip", "function", "choice"],
)
def test_no_other_step_follows_one_that_changes_the_normalised_result(steps, tmp_path):
    with pytest.raises(
        ValueError, match=r"transforms? must have Random.* at its end, because it changes the normalised"
    ):
        images.Bytes([(b"", 0)], steps)
    with pytest.raises(ValueError, match="at its end"):
        images.RandomApply(steps)


def test_two_erasing_steps_may_follow_each_other():
    images.Bytes([(b"", 0)], [FLIP, images.RandomErasing(), images.RandomErasing(mode="rand")], dtype="float32")
    with pytest.raises(ValueError, match="in a random order"):
        images.RandomOrder([images.RandomErasing(), FLIP])


@pytest.mark.parametrize(
    ("make", "text", "part"),
    [
        *((images.rand_augment_transform, f"rand-{part}", part) for part in ("m9.5", "q3", "mstd0.5.1")),
        (images.rand_augment_transform, "Rand-m9", "Rand"),
        (images.rand_augment_transform, "rand-n16-tweights", "n of at most 15"),
        *((images.auto_augment_transform, f"augmix-{part}", part) for part in ("n2", "m3.5")),
        (images.auto_augment_transform, "v1", "v1"),
        (images.auto_augment_transform, "original-m9", "m9"),
        (images.auto_augment_transform, "augmix-w0", "w from 1"),
        (images.auto_augment_transform, "augmix-a0", "a above 0"),
    ],
)
def test_a_string_that_timm_refuses_is_refused(make, text, part):
    with pytest.raises(ValueError, match=rf"^config_str must .*{part}"):
        make(text)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"config_str": None}, "config_str must be a string"),
        ({"hparams": {"img_std": 1}}, "hparams must have names of translate_const"),
        ({"hparams": {"magnitude_std": -1}}, "magnitude_std.* must be"),
        ({"transforms": ["Rotation"]}, "transforms must be names of operations .*'Rotation'"),
        ({"transforms": {"Rotate": -1}}, "transforms must have weights of at least 0"),
        ({"fill": 300}, "fill must be"),
    ],
    ids=str,
)
def test_wrong_arguments_of_rand_augment_transform_are_refused(given, match):
    with pytest.raises((TypeError, ValueError), match=match):
        images.rand_augment_transform(**{"config_str": "rand-m9", **given})
