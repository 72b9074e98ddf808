"""torchvision's transforms for detection and segmentation become steps, and options of masks and boxes."""

import enum

import numpy as np
import pytest

from slipring import images
from tests.support.torchvision_classes import TRANSFORMS, Mode, compose, install, like

Mask = type("Mask", (), {"__module__": "torchvision.tv_tensors._mask"})
SCALED = {"interpolation": Mode.BICUBIC, "antialias": True}
WARP = {"degrees": [-9.0, 9.0], "interpolation": Mode.NEAREST, "expand": False, "center": None}


class Format(enum.Enum):  # as torchvision's
    CXCYWH = "CXCYWH"
    XYXYXYXY = "XYXYXYXY"


@pytest.fixture
def standin(monkeypatch):
    install(monkeypatch)


def sanitize(min_size=1.0, min_area=1.0):
    return like("SanitizeBoundingBoxes", min_size=min_size, min_area=min_area, labels_getter="default")


def zoom(fill, p=0.5):
    return like("RandomZoomOut", fill=fill, side_range=[1.0, 3.0], p=p)


def crop(fill=0, padding=None, **more):
    return like("RandomCrop", size=(8, 9), padding=padding, fill=fill, **{"padding_mode": "constant"} | more)


@pytest.mark.parametrize(
    ("transforms", "options"),
    [
        ([sanitize()], {}),
        ([like("ConvertBoundingBoxFormat", format=Format.CXCYWH)], {"box_format": "cxcywh"}),
        ([like("ConvertBoundingBoxFormat", format="xywh"), sanitize(2)], {"box_format": "xywh", "min_box_size": 2}),
        ([zoom({Mask: [255.0], "others": [1.0, 2.0, 3.0]})], {"mask_fill": 255}),
        ([zoom({Mask: 9, "others": 0}), like("RandomRotation", fill=9, **WARP)], {"mask_fill": 9}),
        # Steps without a border, and colours, say nothing about masks.
        ([zoom({Mask: 9, "others": 0}), crop(pad_if_needed=False), zoom([1.0, 2.0, 3.0])], {"mask_fill": 9}),
        ([zoom({Mask: 255, "others": 0}), like("ClampBoundingBoxes", clamping_mode="auto")], {"mask_fill": 255}),
        ([crop({Mask: 255, "others": 0}, pad_if_needed=True)], {"mask_fill": 255}),
        ([like("Pad", padding=2, fill={Mask: 255, "others": 0}, padding_mode="constant")], {"mask_fill": 255}),
    ],
    ids=range(9),
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
        (
            [zoom({Mask: 255, "others": 0}), like("RandomRotation", fill=3, **WARP)],
            "RandomRotation fills masks with 3, and another transform with 255",
        ),
        ([zoom({Mask: 255})], "RandomZoomOut has no fill for images"),
        ([like("ScaleJitter", target_size=(8, 8), scale_range=(1, 2), **SCALED | {"antialias": False})], "antialias"),
    ],
    ids=range(7),
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
