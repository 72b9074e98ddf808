"""Stand-ins with the names and attributes of torchvision's and timm's classes, and the libraries where they load."""

import enum
import functools
import importlib
import sys
import types


class Mode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    LANCZOS = "lanczos"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Attributes:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def _classes(*names):
    return {name: type(name, (Attributes,), {"__call__": lambda self, image: image}) for name in names}


TRANSFORMS = _classes(
    *("Compose", "Resize", "CenterCrop", "RandomResizedCrop", "RandomHorizontalFlip", "RandomVerticalFlip"),
    *("RandomCrop", "Pad", "ColorJitter", "RandomGrayscale", "Grayscale", "GaussianBlur", "RandomSolarize"),
    *("RandomPosterize", "RandomEqualize", "RandomAutocontrast", "RandomInvert", "RandomAdjustSharpness"),
    *("RandomAffine", "RandomRotation", "RandomPerspective", "ElasticTransform", "RandomErasing", "RandomApply"),
    *("RandomChoice", "RandomOrder", "TrivialAugmentWide", "RandAugment", "AutoAugment", "AugMix"),
    *("ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToPILImage", "ToDtype", "ConvertImageDtype", "Normalize"),
    *("RandomIoUCrop", "RandomZoomOut", "RandomPhotometricDistort", "ScaleJitter", "RandomShortestSize"),
    *("RandomResize", "SanitizeBoundingBoxes", "ClampBoundingBoxes", "ConvertBoundingBoxFormat"),
    *("RandomChannelPermutation", "Identity", "RGB", "JPEG", "Lambda"),
)
PRESETS = _classes("ImageClassification", "SemanticSegmentation")
TIMM = {
    "transforms": _classes(
        *("RandomResizedCropAndInterpolation", "CenterCropOrPad", "ToNumpy", "ToTensor", "MaybeToTensor"),
        *("MaybePILToTensor", "TrimBorder"),
    ),
    "auto_augment": _classes("RandAugment", "AutoAugment", "AugMixAugment", "AugmentOp"),
    "random_erasing": _classes("RandomErasing"),
}


def install(monkeypatch):
    """Put modules with these classes where programs import torchvision and timm from."""
    modules = {"torchvision.transforms": TRANSFORMS, "torchvision.transforms._presets": PRESETS}
    modules |= {f"timm.data.{name}": members for name, members in TIMM.items()}
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


def like(name, **attributes):
    return TRANSFORMS[name](**attributes)


def compose(*steps):
    return like("Compose", transforms=list(steps))


@functools.cache
def torchvision():
    """Return torchvision, or None.

    A wheel without its compiled library lacks operators, which the transforms do not use.
    """
    try:
        import torch

        for attempt in range(2):
            try:
                return importlib.import_module("torchvision")
            except RuntimeError:
                if attempt:
                    return None
                for name in [one for one in sys.modules if one.partition(".")[0] == "torchvision"]:
                    del sys.modules[name]
                _define_operators(torch)
    except (ImportError, OSError):
        return None


def _define_operators(torch):
    library = torch.library.Library("torchvision", "DEF")
    _kept.append(library)  # its operators go with it
    boxes = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
    library.define(f"nms{boxes}")
    library.define(f"qnms{boxes}")
    library.define("roi_align(Tensor input, Tensor rois, float scale, int h, int w, int n, bool aligned) -> Tensor")


_kept = []
