"""Each transform of torchvision and timm becomes a step of slipring with its arguments, or is refused by name."""

import logging
import math
import sys
import types

import numpy as np
import pytest
from PIL import Image

from slipring import images
from tests.support.pictures import encoded, pixels
from tests.support.torchvision_classes import PRESETS, TIMM, TRANSFORMS, Attributes, Mode, compose, install, like

TO_TENSOR, PIL_TO_TENSOR, TO_IMAGE = like("ToTensor"), like("PILToTensor"), like("ToImage")
TO_FLOAT = like("ToDtype", dtype="torch.float32", scale=True)
FLIP, INVERT = like("RandomHorizontalFlip", p=0.5), like("RandomInvert", p=0.5)
ALWAYS_INVERT = like("RandomInvert", p=1)
SOLARIZE = like("RandomSolarize", threshold=128, p=1)
NORMALIZE = like("Normalize", mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])
POLICY = {"interpolation": Mode.BILINEAR, "fill": [1.0, 2.0, 3.0]}


@pytest.fixture(autouse=True)
def standin(monkeypatch):
    install(monkeypatch)


def erasing(value=0, p=0.5):
    return like("RandomErasing", p=p, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=value, inplace=False)


def crop(padding, **more):
    own = {"pad_if_needed": True, "fill": 0, "padding_mode": "constant"} | more
    return like("RandomCrop", size=(8, 9), padding=padding, **own)


def timm(kind, **attributes):
    found = next(members[kind] for members in TIMM.values() if kind in members)
    return found(**attributes)


def box(interpolation, **more):
    own = {"size": (24, 24), "scale": (0.1, 1), "ratio": (0.75, 1.5)} | more
    return timm("RandomResizedCropAndInterpolation", interpolation=interpolation, **own)


def timms_erasing(**more):
    own = {"probability": 0.25, "min_area": 0.02, "max_area": 0.3, "log_aspect_ratio": (math.log(0.5), math.log(2))}
    own |= {"min_count": 1, "max_count": 3, "num_splits": 0, "mode": "pixel", "device": "cuda"} | more
    return TIMM["random_erasing"]["RandomErasing"](**own)


def op(name, p=0.5, m=9, std=0.5, most=None, resample=(Mode.BILINEAR, Mode.BICUBIC), **hparams):
    kwargs = {"fillcolor": (124, 116, 104), "resample": resample}
    own = {"kwargs": kwargs, "hparams": hparams, "magnitude_std": std, "magnitude_max": most}
    return timm("AugmentOp", name=name, prob=p, magnitude=m, **own)


def steps_of(*transforms, **options):
    return images.options_from_torchvision(compose(*transforms), **options)["transform"]


# Classes whose attributes have the names of slipring's arguments, and values of these.
SAME = [
    ("RandomVerticalFlip", {"p": 0.3}),
    ("RandomGrayscale", {"p": 0.2}),
    ("Grayscale", {"num_output_channels": 3}),
    ("Pad", {"padding": [2], "fill": 5, "padding_mode": "edge"}),
    ("ColorJitter", {"brightness": [0.6, 1.4], "contrast": None, "saturation": (0, 2.0), "hue": [-0.1, 0.1]}),
    ("GaussianBlur", {"kernel_size": [3, 5], "sigma": [0.1, 2.0]}),
    ("RandomSolarize", {"threshold": 128, "p": 1}),
    ("RandomPosterize", {"bits": 3, "p": 0.4}),
    ("RandomEqualize", {"p": 0.4}),
    ("RandomAutocontrast", {"p": 0.4}),
    ("RandomInvert", {"p": 0.4}),
    ("RandomChannelPermutation", {}),
    ("RandomAdjustSharpness", {"sharpness_factor": 2, "p": 0.4}),
    ("RandomAffine", {
        "degrees": [-10.0, 10.0], "translate": (0.1, 0.2), "scale": (0.9, 1.1), "shear": [-5.0, 5.0], "center": (3, 4),
        **POLICY,
    }),
    ("RandomRotation", {"degrees": [-9.0, 8.0], "expand": True, "center": None, **POLICY}),
    ("RandomPerspective", {"distortion_scale": 0.4, "p": 0.3, **POLICY}),
    ("ElasticTransform", {"alpha": [9.0, 8.0], "sigma": [5.0, 4.0], **POLICY}),
    ("TrivialAugmentWide", {"num_magnitude_bins": 20, **POLICY}),
    ("RandAugment", {"num_ops": 3, "magnitude": 5, "num_magnitude_bins": 11, **POLICY}),
    ("AutoAugment", {"policy": "svhn", **POLICY}),
    ("AugMix", {"severity": 2, "mixture_width": 4, "chain_depth": 1, "alpha": 0.5, "all_ops": False, **POLICY}),
    ("RandomZoomOut", {"fill": [1.0, 2.0, 3.0], "side_range": [1.0, 3.0], "p": 0.4}),
    ("RandomPhotometricDistort", {
        "brightness": (0.8, 1.2), "contrast": (0.5, 1), "saturation": (0, 2), "hue": (-0.1, 0.1), "p": 0.3,
    }),
    ("ScaleJitter", {"target_size": (64, 48), "scale_range": [0.2, 1.5], "interpolation": Mode.BICUBIC}),
    ("RandomShortestSize", {"min_size": [20, 30], "max_size": 50, "interpolation": Mode.BICUBIC}),
    ("RandomResize", {"min_size": 20, "max_size": 30, "interpolation": Mode.BICUBIC}),
    ("Resize", {"size": None, "max_size": 30, "interpolation": Mode.BICUBIC}),
    ("RandomResizedCrop", {"size": (8, 9), "scale": (0.1, 1), "ratio": (0.75, 1.5), "interpolation": Mode.BICUBIC}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments"), SAME, ids=[name for name, _ in SAME])
def test_a_transform_becomes_the_step_with_its_arguments(name, arguments):
    (made,) = steps_of(like(name, antialias=True, **arguments))
    own = {"flip": 0} if name == "RandomResizedCrop" else {}
    own |= {"fill": tuple(arguments["fill"])} if isinstance(arguments.get("fill"), list) else {}
    assert repr(made) == repr(getattr(images, name)(**{**arguments, **own}))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (crop((1, 2, 3, 4)), images.RandomCrop((8, 9), (1, 2, 3, 4), True)),
        # v2 keeps left, right, top and bottom.
        (crop([1, 3, 2, 4], _fill={"others": 0}), images.RandomCrop((8, 9), (1, 2, 3, 4), True)),
        (
            like(
                "RandomIoUCrop",
                **{"min_scale": 0.2, "max_scale": 0.9, "min_aspect_ratio": 0.4, "max_aspect_ratio": 3.0},
                **{"options": [0.5, 1.0], "trials": 7},
            ),
            images.RandomIoUCrop(0.2, 0.9, 0.4, 3.0, [0.5, 1.0], 7),
        ),
        (
            like("RandomPerspective", distortion_scale=0.4, p=0.3, interpolation=3, fill=0),
            images.RandomPerspective(0.4, 0.3, "bicubic", 0),
        ),
        (
            like("RandomApply", transforms=[FLIP, INVERT], p=0.3),
            images.RandomApply([images.RandomHorizontalFlip(0.5), images.RandomInvert()], 0.3),
        ),
        (
            like("RandomChoice", transforms=[INVERT, compose(FLIP, INVERT)], p=[1, 3]),
            images.RandomChoice(
                [
                    images.RandomInvert(),
                    images.RandomApply([images.RandomHorizontalFlip(0.5), images.RandomInvert()], p=1),
                ],
                [1, 3],
            ),
        ),
        (
            like("RandomOrder", transforms=[like("Identity"), INVERT]),
            images.RandomOrder([images.RandomHorizontalFlip(0), images.RandomInvert()]),
        ),
        (
            box((Mode.BILINEAR, Mode.BICUBIC)),
            images.RandomResizedCrop((24, 24), (0.1, 1), (0.75, 1.5), 0, "random"),
        ),
        (timm("CenterCropOrPad", size=(9, 8), fill=0, padding_mode="constant"), images.CenterCrop((9, 8))),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_transform_with_other_attributes_becomes_the_step_that_does_the_same(theirs, ours):
    (made,) = steps_of(theirs)
    assert repr(made) == repr(ours)


@pytest.mark.parametrize(
    "transform",
    [
        like("RGB"),
        like("ToPureTensor"),
        like("ColorJitter", brightness=None, contrast=None, saturation=None, hue=None),
        like("RandomInvert", p=0),
        like("RandomApply", transforms=[like("Identity")], p=0.5),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_transform_without_effect_is_dropped(transform):
    assert steps_of(transform) == []
    made = steps_of(like("RandomApply", transforms=[transform, INVERT, FLIP], p=1))  # the list itself
    assert repr(made) == repr([images.RandomInvert(), images.RandomHorizontalFlip(0.5)])


@pytest.mark.parametrize(
    ("transforms", "value"),
    [
        ((TO_TENSOR, NORMALIZE, erasing(2)), 2),
        ((TO_TENSOR, NORMALIZE, erasing([2.0])), 2.0),  # v2
        ((TO_TENSOR, NORMALIZE, erasing(None)), "random"),  # v2
        ((TO_TENSOR, erasing(1), NORMALIZE), (2.5, 2.0, 1.75)),
        ((PIL_TO_TENSOR, erasing(255), TO_FLOAT, NORMALIZE), (2.5, 2.0, 1.75)),
        ((PIL_TO_TENSOR, erasing(255)), 255),
    ],
)
def test_erased_boxes_have_the_value_that_the_result_has(transforms, value):
    (made,) = steps_of(*transforms)
    assert made.value == pytest.approx(value) if not isinstance(value, str) else made.value == value


def test_timms_erasing_keeps_its_mode_and_counts():
    *_, made = steps_of(timm("MaybeToTensor"), NORMALIZE, timms_erasing())
    assert (made.p, made.scale, made.mode, made.min_count, made.max_count) == (0.25, (0.02, 0.3), "pixel", 1, 3)
    assert made.ratio == pytest.approx((0.5, 2))


@pytest.mark.parametrize(
    ("transforms", "options"),
    [
        ((TO_TENSOR, NORMALIZE), ("float32", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))),
        ((PIL_TO_TENSOR, like("ConvertImageDtype", dtype="torch.float16")), ("float16", None, None)),
        ((TO_IMAGE, TO_FLOAT, like("ToPureTensor"), NORMALIZE), ("float32", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))),
        ((TO_TENSOR, NORMALIZE, like("ToDtype", dtype="torch.float16", scale=True)),
         ("float16", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))),
        ((TO_IMAGE, like("ToDtype", dtype={"others": None}, scale=True)), ("uint8", None, None)),
        ((TO_IMAGE, like("ToDtype", dtype={int: "torch.float32"}, scale=True)), None),
        ((timm("MaybePILToTensor"),), ("uint8", None, None)),
        ((timm("ToNumpy"),), ("uint8", None, None)),
        ((PIL_TO_TENSOR, like("ToPILImage", mode=None), TO_TENSOR), ("float32", None, None)),
        # Values from 0 to 255, with mean and standard deviation of that scale.
        ((TIMM["transforms"]["ToTensor"](dtype="torch.float32"), like("Normalize", mean=[51] * 3, std=[102] * 3)),
         ("float32", (0.2,) * 3, (0.4,) * 3)),
        ((TIMM["transforms"]["ToTensor"](dtype="torch.float32"),), None),
    ],
)  # fmt: skip
def test_conversions_become_options(transforms, options):
    if options is None:
        with pytest.raises(ValueError):
            images.options_from_torchvision(compose(*transforms))
        return
    made = images.options_from_torchvision(compose(*transforms))
    assert made == {"transform": [], "layout": "NCHW", **dict(zip(("dtype", "mean", "std"), options, strict=True))}


def test_the_transforms_of_weights_resize_crop_and_normalise():
    preset = PRESETS["ImageClassification"](
        **{"resize_size": [232], "crop_size": [224], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]},
        **{"interpolation": Mode.BICUBIC, "antialias": True},
    )
    made = images.options_from_torchvision(preset)
    assert repr(made.pop("transform")) == repr([images.Resize(232, "bicubic"), images.CenterCrop(224)])
    assert made == {"layout": "NCHW", "dtype": "float32", "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    with pytest.raises(TypeError, match="slipring has no SemanticSegmentation"):
        images.options_from_torchvision(PRESETS["SemanticSegmentation"]())


def test_timms_policies_have_the_operations_of_its_objects():
    names = "AutoContrast", "Rotate", "TranslateXRel"
    rand = TIMM["auto_augment"]["RandAugment"](ops=[op(name) for name in names], num_layers=2, choice_weights=None)
    augmix = timm("AugMixAugment", ops=[op("Rotate", 1.0, 5, math.inf)], alpha=0.5, width=4, depth=2, blended=False)
    (made,) = steps_of(augmix)
    assert repr(made).startswith("AugMixAugment(width=4, depth=2, ops=[Rotate(p=1.0, m=5)")
    (made,) = steps_of(rand)
    assert repr(made) == (
        "RandAugment(num_layers=2, ops=[AutoContrast(p=0.5, m=9), Rotate(p=0.5, m=9), TranslateXRel(p=0.5, m=9)])"
    )
    auto = TIMM["auto_augment"]["AutoAugment"](policy=[[op("Invert", p=1, resample=Mode.BICUBIC)]])
    (made,) = steps_of(auto)
    image = pixels(20, 30)
    data = images.Bytes([(encoded(image, "PNG"), 0)], made)
    assert np.array_equal(data[0][0], 255 - image)


@pytest.mark.parametrize(
    ("transforms", "error", "text"),
    [
        ([like("JPEG")], TypeError, "slipring has no JPEG.*rest='map'"),
        ([like("Grayscale", num_output_channels=1)], ValueError, "Grayscale: num_output_channels must be 3"),
        ([TO_TENSOR, INVERT], ValueError, "RandomInvert comes after the image has become float32"),
        ([PIL_TO_TENSOR, NORMALIZE], ValueError, "Normalize needs floats"),
        ([TO_IMAGE, like("ToDtype", dtype="torch.float32", scale=False)], ValueError, "scale=True"),
        ([TO_FLOAT], ValueError, "becomes a tensor first"),
        ([erasing(), TO_TENSOR], ValueError, "RandomErasing comes before the conversion"),
        ([PIL_TO_TENSOR, erasing("random")], ValueError, "RandomErasing writes normal random numbers"),
        ([TO_TENSOR, erasing("random"), NORMALIZE], ValueError, "RandomErasing draws values before Normalize"),
        ([PIL_TO_TENSOR, erasing(), INVERT], ValueError, "RandomInvert comes after RandomErasing"),
        ([like("RandomApply", transforms=[TO_TENSOR], p=0.5)], ValueError, "RandomApply converts or normalizes"),
        ([like("ToPILImage", mode="L")], ValueError, "mode='L'"),
        ([TO_IMAGE, like("ToDtype", dtype="torch.int64", scale=True)], ValueError, "dtype int64"),
        ([like("RandomRotation", degrees=[0, 9], interpolation=Mode.BILINEAR, expand=False, center=None,
               fill={int: 3})], ValueError, "RandomRotation has no fill for images"),
        ([box((Mode.BILINEAR, Mode.NEAREST))], ValueError, "draws one of bilinear, nearest"),
        ([timm("TrimBorder", border_size=3)], TypeError, "slipring has no TrimBorder"),
        ([timm("CenterCropOrPad", size=(9, 9), fill=3, padding_mode="constant")], ValueError, "fill=3"),
        ([TO_TENSOR, timms_erasing(num_splits=3)], ValueError, "num_splits=3: timm leaves the first part"),
        ([TO_TENSOR, NORMALIZE, NORMALIZE], ValueError, "Normalize comes after Normalize"),
        ([TO_TENSOR, like("ToPILImage", mode=None)], ValueError, "ToPILImage comes after the image has become"),
        ([TIMM["auto_augment"]["AutoAugment"](policy=[[Attributes()]])], TypeError, "must be timm's AugmentOp"),
        ([TIMM["auto_augment"]["RandAugment"](ops=[op("Cutout")], num_layers=1, choice_weights=None)],
         ValueError, "Cutout"),
    ],
)  # fmt: skip
def test_transforms_that_slipring_lacks_are_refused_by_name(transforms, error, text):
    with pytest.raises(error, match=text):
        steps_of(*transforms)


@pytest.mark.parametrize("antialias", [True, False, None])
@pytest.mark.parametrize("name", ["Resize", "RandomResizedCrop"])
def test_antialias_false_is_refused_because_the_result_would_differ(name, antialias):
    geometry = {"size": (8, 8), "max_size": None, "scale": (0.1, 1), "ratio": (1, 1)}
    step = like(name, **geometry, interpolation=Mode.BILINEAR, antialias=antialias)
    if antialias is not False:  # None has no effect on a PIL image
        assert len(steps_of(step)) == 1
    for transforms in [[step]] * (antialias is False) + [[PIL_TO_TENSOR, step]] * (not antialias):
        with pytest.raises(ValueError, match=f"{name} has antialias={antialias}: .*the result would differ"):
            steps_of(*transforms)
    step.interpolation = Mode.NEAREST  # which has no effect of it
    assert len(steps_of(step)) == 1


def test_the_fill_for_images_is_taken_from_a_dict():
    step = like("RandomRotation", degrees=[0, 9], interpolation=Mode.BILINEAR, expand=False, center=None)
    step.fill = {Image.Image: [1.0, 2.0, 3.0], "others": 4}
    assert steps_of(step)[0].fill == (1.0, 2.0, 3.0)
    assert steps_of(TO_IMAGE, step)[0].fill == 4


def test_steps_that_move_pixels_may_follow_the_conversion_to_floats():
    made = steps_of(TO_TENSOR, FLIP, crop(2), NORMALIZE)
    assert repr(made) == repr([images.RandomHorizontalFlip(0.5), images.RandomCrop((8, 9), 2, True)])
    with pytest.raises(ValueError, match="RandomCrop comes after"):
        steps_of(TO_TENSOR, crop(2, fill=0.5), NORMALIZE)


class Swap:
    def __call__(self, image):
        return Image.merge("RGB", image.split()[::-1])


def halve(tensor):
    return tensor // 2


def kept(*transforms):
    """Return a dataset of equal images, with the options of these transforms."""
    options = images.options_from_torchvision(compose(*transforms), rest="map")
    return images.Bytes([(encoded(pixels(20, 30), "PNG"), 0)] * 24, **options)


def seen(transforms):
    return kept(*transforms)[0][0]


def test_a_step_that_slipring_lacks_is_kept_as_a_function_of_a_pil_image(caplog):
    with caplog.at_level(logging.INFO, "slipring"):
        image = seen([ALWAYS_INVERT, Swap(), like("Lambda"), ALWAYS_INVERT])
    assert np.array_equal(image, pixels(20, 30)[..., ::-1])
    (record,) = caplog.records
    assert "rest='map' keeps Swap, Lambda as Python functions" in record.getMessage()
    assert "GIL" in record.getMessage() and "copy" in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.INFO, "slipring"):
        seen([SOLARIZE, TO_TENSOR])
    assert not caplog.records


def test_after_the_conversion_a_kept_step_gets_a_tensor():
    pytest.importorskip("torch")
    image = seen([PIL_TO_TENSOR, halve, TO_FLOAT])
    assert image.shape == (3, 20, 30)
    assert np.array_equal(np.round(image * 255).transpose(1, 2, 0), pixels(20, 30) // 2)


def test_after_to_image_a_kept_step_gets_v2s_class_of_images(monkeypatch):
    torch = pytest.importorskip("torch")
    module = types.ModuleType("torchvision.tv_tensors")
    module.Image = type("Image", (torch.Tensor,), {"__new__": lambda cls, data: data.as_subclass(cls)})
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kinds = []
    seen([TO_IMAGE, lambda image: kinds.append(type(image)) or image])
    assert kinds == [module.Image]


def test_a_subclass_with_methods_of_its_own_is_kept_and_called():
    class Twice(TRANSFORMS["RandomInvert"]):
        def __call__(self, image):
            return Image.fromarray(np.asarray(image) // 2)

    assert np.array_equal(seen([Twice(p=1)]), pixels(20, 30) // 2)


@pytest.mark.parametrize(
    ("transforms", "text"),
    [
        ([lambda image: image.convert("L")], "returned a PIL image of mode L and size 30 x 20"),
        ([lambda image: image.resize((3, 3))], "must return a PIL image of mode RGB and size 30 x 20"),
        ([np.asarray], r"an object of class ndarray, uint8 and shape \(20, 30, 3\): it must return a PIL image"),
        ([PIL_TO_TENSOR, lambda image: image[:1]], "it must return a tensor of uint8"),
    ],
)
def test_a_kept_step_that_returns_another_kind_of_image_is_an_error(transforms, text):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=text):
        seen(transforms)


@pytest.mark.parametrize(
    ("transforms", "error", "text"),
    [
        ([TO_TENSOR, Swap()], TypeError, "Swap.*move it before the conversion to floats"),
        ([PIL_TO_TENSOR, erasing(), Swap()], ValueError, "Swap comes after RandomErasing"),
        ([like("Resize", size=8, interpolation=Mode.LANCZOS)], ValueError, "lanczos"),
        ([TRANSFORMS["ToTensor"]], TypeError, "slipring has no type"),
    ],
)
def test_values_that_cannot_be_kept_are_refused(transforms, error, text):
    with pytest.raises(error, match=text):
        steps_of(*transforms, rest="map")
    with pytest.raises(ValueError, match="rest must be one of"):
        images.options_from_torchvision(compose(), rest="keep")
