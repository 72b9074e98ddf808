"""Images: from encoded bytes to the training crop, written straight into the batch."""

from slipring.images import functional as functional  # a public module of its own
from slipring.images._backend import Backend, backend
from slipring.images._batch import CutMix, MixUp
from slipring.images._color import (
    ColorJitter,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from slipring.images._combine import RandomApply, RandomChoice, RandomOrder
from slipring.images._copy_paste import CopyPaste
from slipring.images._crops import Pad, RandomCrop, RandomVerticalFlip
from slipring.images._detection import RandomIoUCrop, RandomPhotometricDistort, RandomZoomOut
from slipring.images._erasing import RandomErasing
from slipring.images._mosaic import Mosaic
from slipring.images._multicrop import MultiCrop
from slipring.images._policies import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from slipring.images._render import MAX_PIXELS, decode, decode_into, size
from slipring.images._sample_mixup import SampleMixUp
from slipring.images._sizes import FixedSizeCrop, LetterBox, RandomResize, RandomShortestSize, ScaleJitter
from slipring.images._timm import auto_augment_transform, rand_augment_transform
from slipring.images._view import View
from slipring.images._warps import (
    ElasticTransform,
    GaussianBlur,
    PILGaussianBlur,
    RandomAffine,
    RandomPerspective,
    RandomRotation,
)
from slipring.images.annotated import Annotated
from slipring.images.dataset import ImageDataset
from slipring.images.folder import Folder
from slipring.images.parquet import Parquet
from slipring.images.tar import Tar
from slipring.images.tar_stream import TarStream
from slipring.images.torchvision import from_torchvision, options_from_torchvision
from slipring.images.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from slipring.images.wrapped import Bytes

__all__ = [
    "MAX_PIXELS",
    "Annotated",
    "AugMix",
    "AutoAugment",
    "Backend",
    "Bytes",
    "CenterCrop",
    "ColorJitter",
    "CopyPaste",
    "CutMix",
    "ElasticTransform",
    "FixedSizeCrop",
    "Folder",
    "GaussianBlur",
    "Grayscale",
    "ImageDataset",
    "LetterBox",
    "MixUp",
    "Mosaic",
    "MultiCrop",
    "PILGaussianBlur",
    "Pad",
    "Parquet",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "SampleMixUp",
    "ScaleJitter",
    "Tar",
    "TarStream",
    "TrivialAugmentWide",
    "View",
    "auto_augment_transform",
    "backend",
    "decode",
    "decode_into",
    "from_torchvision",
    "options_from_torchvision",
    "rand_augment_transform",
    "size",
]

for _name in __all__:  # pickled and documented by their public names
    _public = globals()[_name]
    if getattr(_public, "__module__", "").startswith("slipring.images._"):
        _public.__module__ = __name__
