"""torchvision's transforms for detection and segmentation become steps, and options of masks and boxes."""

import enum

import numpy as np
import pytest

from slipring import images
from tests.support.torchvision_classes import TRANSFORMS, Mode, compose, install, like, torchvision

Mask = type("Mask", (), {"__module__": "torchvision.tv_tensors._mask"})
SCALED = {"interpolation": Mode.BICUBIC, "antialias": True}
WARP = {"degrees": [-9.0, 9.0], "interpolation": Mode.NEAREST, "expand": False, "center": None}


class Format(enum.Enum):  # as torchvision's
    XYXY = "XYXY"
    CXCYWH = "CXCYWH"
    XYXYXYXY = "XYXYXYXY"


@pytest.fixture
def standin(monkeypatch):
    install(monkeypatch)


@pytest.fixture
def real():
    return torchvision() or pytest.skip("torchvision does not load here")


def sanitize(min_size=1.0, min_area=1.0):
    return like("SanitizeBoundingBoxes", min_size=min_size, min_area=min_area, labels_getter="default")


def zoom(fill, p=0.5):
    return like("RandomZoomOut", fill=fill, side_range=[1.0, 3.0], p=p)


def crop(fill=0, padding=None, **more):
    return like("RandomCrop", size=(8, 9), padding=padding, fill=fill, **{"padding_mode": "constant"} | more)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            like(
                "RandomIoUCrop",
                **{"min_scale": 0.2, "max_scale": 0.9, "min_aspect_ratio": 0.4, "max_aspect_ratio": 3.0},
                **{"options": [0.5, 1.0], "trials": 7},
            ),
            images.RandomIoUCrop(0.2, 0.9, 0.4, 3.0, [0.5, 1.0], 7),
        ),
        (zoom([1.0, 2.0, 3.0]), images.RandomZoomOut((1.0, 2.0, 3.0), (1, 3))),
        (
            like(
                "RandomPhotometricDistort",
                **{"brightness": (0.8, 1.2), "contrast": (0.5, 1), "saturation": (0, 2), "hue": (-0.1, 0.1), "p": 0.3},
            ),
            images.RandomPhotometricDistort((0.8, 1.2), (0.5, 1), (0, 2), (-0.1, 0.1), 0.3),
        ),
        (
            like("ScaleJitter", target_size=(64, 48), scale_range=[0.2, 1.5], **SCALED),
            images.ScaleJitter((64, 48), (0.2, 1.5), "bicubic"),
        ),
        (
            like("RandomShortestSize", min_size=[20, 30], max_size=50, **SCALED),
            images.RandomShortestSize((20, 30), 50, "bicubic"),
        ),
        (like("RandomResize", min_size=20, max_size=30, **SCALED), images.RandomResize(20, 30, "bicubic")),
        (like("Resize", size=[20], max_size=30, **SCALED), images.Resize(20, "bicubic", 30)),
        (like("Resize", size=None, max_size=30, **SCALED), images.Resize(None, "bicubic", 30)),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_transform_becomes_the_step_with_its_arguments(standin, theirs, ours):
    options = images.options_from_torchvision(compose(theirs))
    assert repr(options.pop("transform")) == repr([ours]) and options == {}


@pytest.mark.parametrize(
    ("transforms", "options"),
    [
        ([sanitize()], {}),
        ([sanitize(3)], {"min_box_size": 3}),
        ([like("ClampBoundingBoxes", clamping_mode="auto")], {}),
        ([like("ConvertBoundingBoxFormat", format="xywh")], {"box_format": "xywh"}),
        ([like("ConvertBoundingBoxFormat", format=Format.CXCYWH)], {"box_format": "cxcywh"}),
        (
            [like("ConvertBoundingBoxFormat", format=Format.XYXY), sanitize(2)],
            {"box_format": "xyxy", "min_box_size": 2},
        ),
        ([zoom(7)], {}),
        ([zoom({Mask: 255, "others": 0})], {"mask_fill": 255}),
        ([zoom({Mask: [255.0], "others": [1.0, 2.0, 3.0]})], {"mask_fill": 255}),
        ([zoom({Mask: None, "others": 9})], {"mask_fill": 0}),
        ([zoom({Mask: 9, "others": 0}), like("RandomRotation", fill=9, **WARP)], {"mask_fill": 9}),
        # Steps without a border, and colours, say nothing about masks.
        ([zoom({Mask: 9, "others": 0}), crop(pad_if_needed=False), zoom([1.0, 2.0, 3.0])], {"mask_fill": 9}),
        ([crop({Mask: 255, "others": 0}, pad_if_needed=True)], {"mask_fill": 255}),
        ([like("Pad", padding=2, fill={Mask: 255, "others": 0}, padding_mode="constant")], {"mask_fill": 255}),
    ],
    ids=range(14),
)
def test_arguments_for_masks_and_boxes_become_options(standin, transforms, options):
    made = images.options_from_torchvision(compose(*transforms))
    assert {name: value for name, value in made.items() if name != "transform"} == options
    assert len(made["transform"]) == sum(type(one).__name__ not in UNSEEN for one in transforms)
    images.Annotated([{"image": np.zeros((8, 8, 3), np.uint8), "boxes": []}], **made, boxes="boxes")


UNSEEN = "SanitizeBoundingBoxes", "ClampBoundingBoxes", "ConvertBoundingBoxFormat"


@pytest.mark.parametrize(
    ("transforms", "text"),
    [
        ([sanitize(1, 9)], "SanitizeBoundingBoxes has min_area=9"),
        ([sanitize(3), zoom(0)], "RandomZoomOut comes after SanitizeBoundingBoxes with a min_size"),
        ([like("ConvertBoundingBoxFormat", format=Format.XYXYXYXY)], "has format 'xyxyxyxy'; slipring has xyxy"),
        ([zoom({Mask: (1, 2, 3), "others": 0})], r"RandomZoomOut fills masks with \(1, 2, 3\)"),
        ([zoom({Mask: 0.5, "others": 0})], "RandomZoomOut fills masks with 0.5"),
        (
            [zoom({Mask: 255, "others": 0}), like("RandomRotation", fill=3, **WARP)],
            "RandomRotation fills masks with 3, and another transform with 255",
        ),
        ([zoom({Mask: 255, "others": 0}), zoom(3)], "a second RandomZoomOut fills masks with 3"),
        ([zoom({Mask: 255})], "RandomZoomOut has no fill for images"),
        ([like("ScaleJitter", target_size=(8, 8), scale_range=(1, 2), **SCALED | {"antialias": False})], "antialias"),
        ([like("RandomResize", min_size=30, max_size=20, **SCALED)], "RandomResize: max_size must be at least"),
    ],
    ids=range(10),
)
def test_transforms_that_slipring_cannot_express_are_refused(standin, transforms, text):
    with pytest.raises(ValueError, match=text):
        images.options_from_torchvision(compose(*transforms))


def test_crops_may_follow_the_conversion_to_floats_and_coloured_borders_may_not(standin):
    floats = like("ToTensor")
    iou = TRANSFORMS["RandomIoUCrop"](
        **{"min_scale": 0.3, "max_scale": 1.0, "min_aspect_ratio": 0.5, "max_aspect_ratio": 2.0},
        **{"options": [0.5], "trials": 40},
    )
    made = images.options_from_torchvision(compose(floats, zoom(0), iou))
    assert [type(step) for step in made["transform"]] == [images.RandomZoomOut, images.RandomIoUCrop]
    with pytest.raises(ValueError, match="RandomZoomOut comes after the image has become float32"):
        images.options_from_torchvision(compose(floats, zoom(1)))


def test_the_reference_lists_of_torchvision_are_translated(real):
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    last = [v2.ToDtype(torch.float32, scale=True), v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes()]
    ssd = [
        v2.PILToTensor(), v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=[123, 117, 104]), v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(), *last, v2.ToPureTensor(),
    ]  # fmt: skip
    fill = {tv_tensors.Mask: 255, "others": 0}
    segmentation = [
        v2.RandomResize(260, 1040), v2.RandomHorizontalFlip(), v2.RandomCrop(480, pad_if_needed=True, fill=fill),
        v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3),
    ]  # fmt: skip
    shortest = [v2.RandomShortestSize(min_size=(480, 512), max_size=1333), v2.ScaleJitter((1024, 1024)), *last[2:]]
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
    made = images.options_from_torchvision(v2.Compose(shortest))["transform"]
    assert repr(made) == repr([images.RandomShortestSize((480, 512), 1333), images.ScaleJitter((1024, 1024))])
