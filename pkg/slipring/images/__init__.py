"""Images: from encoded bytes to the training crop, written straight into the batch."""

from slipring.images._backend import Backend, backend
from slipring.images._batch import CutMix, MixUp
from slipring.images._multicrop import MultiCrop
from slipring.images._render import MAX_PIXELS, decode, decode_into, size
from slipring.images._view import View
from slipring.images.dataset import ImageDataset
from slipring.images.folder import Folder
from slipring.images.parquet import Parquet
from slipring.images.tar import Tar
from slipring.images.tar_stream import TarStream
from slipring.images.torchvision import from_torchvision
from slipring.images.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from slipring.images.wrapped import Bytes

__all__ = [
    "MAX_PIXELS",
    "Backend",
    "Bytes",
    "CenterCrop",
    "CutMix",
    "Folder",
    "ImageDataset",
    "MixUp",
    "MultiCrop",
    "Parquet",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Tar",
    "TarStream",
    "View",
    "backend",
    "decode",
    "decode_into",
    "from_torchvision",
    "size",
]

for _name in __all__:  # pickled and documented by their public names
    if _name != "MAX_PIXELS":
        globals()[_name].__module__ = __name__
