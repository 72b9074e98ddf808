"""Images: from encoded bytes to the training crop, written straight into the batch."""

from slipring._public import publish
from slipring.images import functional as functional  # a public module of its own
from slipring.images._render.backend import Backend, backend
from slipring.images._render.decode import MAX_PIXELS, decode, decode_into, size
from slipring.images._render.view import CropSpec
from slipring.images._sources.annotated import Annotated
from slipring.images._sources.dataset import ImageDataset
from slipring.images._sources.folder import Folder
from slipring.images._sources.rows import Bytes, Parquet
from slipring.images._sources.sized import Sized, SizedBatchSampler
from slipring.images._sources.tar import Tar
from slipring.images._sources.tar_stream import TarStream
from slipring.images._steps.batch import CutMix, MixUp
from slipring.images._steps.color import (
    ColorJitter,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from slipring.images._steps.combine import RandomApply, RandomChoice, RandomOrder
from slipring.images._steps.crops import (
    CenterCrop,
    CoverCrop,
    FixedSizeCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
)
from slipring.images._steps.detection import RandomIoUCrop, RandomPhotometricDistort, RandomZoomOut
from slipring.images._steps.mixes import CopyPaste, Mosaic, SampleMixUp
from slipring.images._steps.outputs import MultiCrop, Patches
from slipring.images._steps.policies import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from slipring.images._steps.sizes import LetterBox, RandomResize, RandomShortestSize, Resize, ScaleJitter
from slipring.images._steps.timm import auto_augment_transform, rand_augment_transform
from slipring.images._steps.warps import (
    ElasticTransform,
    GaussianBlur,
    PILGaussianBlur,
    RandomAffine,
    RandomPerspective,
    RandomRotation,
)
from slipring.images._translate.from_torchvision import from_torchvision, options_from_torchvision

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
    "CoverCrop",
    "CropSpec",
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
    "Patches",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
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
    "Sized",
    "SizedBatchSampler",
    "Tar",
    "TarStream",
    "TrivialAugmentWide",
    "auto_augment_transform",
    "backend",
    "decode",
    "decode_into",
    "from_torchvision",
    "options_from_torchvision",
    "rand_augment_transform",
    "size",
]

publish(__name__)
