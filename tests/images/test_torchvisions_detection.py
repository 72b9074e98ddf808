"""Steps for detection, compared with torchvision's own for the same draws. test_detection.py tests the draws."""

import itertools

import numpy as np
import pytest
from PIL import Image

from slipring import images
from tests.images.test_detection import drawn, made, sample_of
from tests.support.inside import augmented
from tests.support.pictures import error, pixels
from tests.support.torchvision_classes import torchvision

DISTORT = "brightness", "contrast", "saturation", "hue"


@pytest.fixture(autouse=True)
def real():
    return torchvision() or pytest.skip("torchvision does not load here")


def params_of(step, added, sample):
    """Return torchvision's parameters of a step for slipring's draws."""
    height, width = sample["image"].shape[:2]
    if isinstance(step, images.RandomPhotometricDistort):
        factors, order = {name: v[0] for name, _, v in added if v}, [name for name, _, _ in added]
        later = [name for name in order if name in ("saturation", "hue")]
        first = "contrast" in order and (not later or order.index("contrast") < order.index(later[0]))
        permutation = next((list(n) for name, n, _ in added if name == "permute_channels"), None)
        return {f"{name}_factor": factors.get(name) for name in DISTORT} | {
            "contrast_before": first, "channel_permutation": permutation,
        }  # fmt: skip
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
def test_images_boxes_and_masks_are_torchvisions_for_the_same_draws(monkeypatch, name, arguments):
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import InterpolationMode, v2

    step = getattr(images, name)(**arguments)
    if "fill" in arguments:
        arguments = {**arguments, "fill": {tv_tensors.Mask: 255, "others": arguments["fill"]}}
    if "interpolation" in arguments:
        arguments = {**arguments, "interpolation": InterpolationMode.BICUBIC}
    theirs = v2.Compose([getattr(v2, name)(**arguments), v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes()])
    for seed in range(15):
        sample = sample_of(seed=seed)
        params = params_of(step, drawn(step, sample, seed), sample)
        monkeypatch.setattr(theirs.transforms[0], "make_params", lambda flat, params=params: params)
        boxes = tv_tensors.BoundingBoxes(torch.tensor(sample["boxes"]), format="XYXY", canvas_size=(60, 90))
        want = {"image": Image.fromarray(sample["image"]), "boxes": boxes, "labels": torch.tensor(sample["labels"])}
        if not step.resizes:  # torchvision scales masks by another rule than Pillow's
            want["mask"] = tv_tensors.Mask(torch.tensor(sample["mask"]))
        want = theirs(want)
        result = made(step, sample, seed, mask_fill=255)
        assert error(result["image"], np.asarray(want["image"])) <= (name != "RandomPhotometricDistort")
        assert np.array_equal(result["labels"], want["labels"])
        assert np.abs(result["boxes"] - want["boxes"].numpy()).max(initial=0) < 1e-3
        assert "mask" not in want or np.array_equal(result["mask"], want["mask"].numpy())


def test_channels_are_permuted_as_torchvision_permutes_them():
    from torchvision.transforms.v2 import functional

    image = np.ascontiguousarray(pixels(11, 13))
    for order in itertools.permutations(range(3)):
        ours = augmented(image, ("permute_channels", order, ()))
        assert np.array_equal(ours, np.asarray(functional.permute_channels(Image.fromarray(image), list(order))))


def test_torchvisions_reference_lists_are_translated():
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    floats = [v2.ToDtype(torch.float32, scale=True)]
    ssd = [
        v2.PILToTensor(), v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=[123, 117, 104]), v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(), *floats, v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes(),
        v2.ToPureTensor(),
    ]  # fmt: skip
    fill = {tv_tensors.Mask: 255, "others": 0}
    segmentation = [
        v2.RandomResize(260, 1040), v2.RandomHorizontalFlip(), v2.RandomCrop(480, pad_if_needed=True, fill=fill),
        v2.ToImage(), *floats, v2.Normalize([0.5] * 3, [0.2] * 3),
    ]  # fmt: skip
    made = images.options_from_torchvision(v2.Compose(ssd))
    assert repr(made.pop("transform")) == repr(
        [
            images.RandomPhotometricDistort(), images.RandomZoomOut((123, 117, 104)), images.RandomIoUCrop(),
            images.RandomHorizontalFlip(),
        ]
    )  # fmt: skip
    assert made["box_format"] == "xyxy" and made["dtype"] == "float32"
    made = images.options_from_torchvision(v2.Compose(segmentation))
    assert repr(made["transform"][0]) == repr(images.RandomResize(260, 1040)) and made["mask_fill"] == 255
