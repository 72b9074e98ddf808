"""Convert torchvision's ImageFolder, with its transforms, to a `Folder` that draws crops from the same distribution.

A class is torchvision's if torchvision's own module, of v1 or v2, has this class under its name. A program that
has such objects has imported these modules, so slipring does not import them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slipring.errors import shown
from slipring.images._view import INTERPOLATIONS
from slipring.images.folder import Folder
from slipring.images.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from slipring.images.options import ImageOptions

_KNOWN = (
    "Compose, Resize, CenterCrop, RandomResizedCrop, RandomHorizontalFlip, ToTensor, PILToTensor, ToImage, ToDtype, "
    "ConvertImageDtype, Normalize, Identity"
)
_TRANSFORMS = "torchvision.transforms", "torchvision.transforms.v2", "torch.nn"
_FOLDERS = ("torchvision.datasets.folder",)
_MAY_DIFFER = {"__init__", "__repr__", "extra_repr"}  # methods of a subclass that change no sample


def from_torchvision(dataset: Any, **options: Unpack[ImageOptions]) -> Folder:
    """Return a `Folder` with the samples of a torchvision ``ImageFolder``, decoded by slipring.

    Crops have the same distribution, not the same random numbers. The images are arrays of the shape, dtype and
    normalisation that the transforms produce.

    Parameters
    ----------
    dataset : torchvision.datasets.ImageFolder
        Its transform is one of torchvision's, or a ``Compose`` of several: Resize, CenterCrop, RandomResizedCrop,
        RandomHorizontalFlip, then ToTensor, PILToTensor, ToImage or ToDtype, then Normalize.
    **options
        Options of `ImageDataset` that the transforms do not determine: ``on_error="skip"``, for example.

    Returns
    -------
    Folder

    Raises
    ------
    TypeError
        The dataset, its loader or a transform is not torchvision's; the message names it.
    ValueError
        A transform has an argument that slipring lacks, or the order of the transforms is not supported.

    Examples
    --------
    >>> from slipring import images
    >>> import torchvision  # doctest: +SKIP
    >>> theirs = torchvision.datasets.ImageFolder("train/", transform)  # doctest: +SKIP
    >>> data = images.from_torchvision(theirs)  # doctest: +SKIP
    """
    kind = type(dataset)
    if not any(c.__name__ == "ImageFolder" and _is_known(c, _FOLDERS) for c in kind.__mro__):
        raise TypeError(f"dataset must be a torchvision.datasets.ImageFolder, not {kind.__name__}")
    reads = next(c for c in kind.__mro__ if "__getitem__" in vars(c))
    if not _is_known(reads, _FOLDERS):
        raise TypeError(f"{reads.__name__} has a __getitem__ of its own, which slipring would not call")
    loader = dataset.loader
    if not _is_known(loader, _FOLDERS):
        raise TypeError(f"the dataset has a loader of its own, {shown(loader)}, which slipring would not call")
    chain = _Chain()
    if dataset.transform is not None:
        chain.add(dataset.transform)
    return Folder.of(
        dataset.root,
        list(dataset.classes),
        dict(dataset.class_to_idx),
        dataset.samples,
        chain.steps,
        **{"target_transform": dataset.target_transform, **chain.options(), **options},
    )


def _is_known(thing, modules):
    """Return whether one of torchvision's modules has this class or function under its name."""
    name = getattr(thing, "__name__", None)
    return any(getattr(sys.modules.get(module), name or "", None) is thing for module in modules)


def _class_of(step):
    """Return torchvision's class of a transform, or None; raise TypeError if a subclass overrides its methods."""
    kinds = type(step).__mro__
    known = next((kind for kind in kinds if _is_known(kind, _TRANSFORMS)), None)
    for kind in kinds[: kinds.index(known)] if known is not None else ():
        for name, value in vars(kind).items():
            if callable(value) and hasattr(known, name) and name not in _MAY_DIFFER:
                raise TypeError(
                    f"{kind.__name__} is a {known.__name__} with a {name} of its own, which slipring would not call"
                )
    return known


class _Chain:
    """The steps and options of a `Folder` for a list of torchvision's transforms."""

    def __init__(self):
        self.steps = []
        self.dtype = None  # None while the image is still Pillow's
        self.scaled = False  # pixel values are 0 to 1
        self.mean = self.std = None

    def options(self):
        if self.dtype is None:
            return {}
        if self.dtype != "uint8" and not self.scaled:
            raise ValueError("ToDtype(scale=False) gives levels from 0 to 255 as floats: use scale=True, or uint8")
        return {"layout": "NCHW", "dtype": self.dtype, "mean": self.mean, "std": self.std}

    def add(self, step):
        kind = _class_of(step)
        name = type(step).__name__
        add = None if kind is None else getattr(self, f"_add_{kind.__name__}", None)
        if add is None:
            raise TypeError(f"slipring has no {name}: of torchvision's transforms it knows {_KNOWN}; got {shown(step)}")
        if self.mean is not None:
            raise ValueError(f"{name} comes after Normalize, which must be the last")
        add(step)

    def _geometry(self, step):
        if self.dtype not in (None, "uint8"):
            raise ValueError(
                f"{type(step).__name__} comes after the picture has become {self.dtype}: crop and resize first"
            )
        self.steps.append(step)

    def _add_Compose(self, step):
        for part in step.transforms:
            self.add(part)

    def _add_Identity(self, step):
        pass

    def _add_Resize(self, step):
        if getattr(step, "max_size", None) is not None:
            raise ValueError(f"Resize has max_size={step.max_size}, which slipring does not have")
        self._geometry(Resize(_size(step.size), _interpolation(step)))

    def _add_CenterCrop(self, step):
        self._geometry(CenterCrop(_size(step.size)))

    def _add_RandomResizedCrop(self, step):
        self._geometry(
            RandomResizedCrop(_size(step.size), step.scale, step.ratio, flip=0, interpolation=_interpolation(step))
        )

    def _add_RandomHorizontalFlip(self, step):
        self._geometry(RandomHorizontalFlip(step.p))

    def _add_ToTensor(self, step):
        self.dtype, self.scaled = "float32", True

    def _add_PILToTensor(self, step):
        self.dtype = "uint8"

    _add_ToImage = _add_PILToTensor

    def _add_ToDtype(self, step):
        if isinstance(step.dtype, dict):
            raise ValueError("ToDtype has a dtype for each kind of value; slipring knows one for images")
        self._convert(step.dtype, bool(step.scale))

    def _add_ConvertImageDtype(self, step):
        self._convert(step.dtype, True)

    def _convert(self, dtype, scale):
        if self.dtype is None:
            raise ValueError("a picture becomes a tensor first: ToImage, PILToTensor or ToTensor before the dtype")
        name = str(dtype).removeprefix("torch.")
        if self.dtype != "uint8" and name == "uint8":
            raise ValueError("floats are not turned back to uint8")
        self.scaled = self.scaled or (scale and name != "uint8")
        self.dtype = name

    def _add_Normalize(self, step):
        if self.dtype in (None, "uint8"):
            raise ValueError("Normalize needs floats: ToTensor, or ToDtype(torch.float32, scale=True), before it")
        self.mean, self.std = tuple(map(float, step.mean)), tuple(map(float, step.std))


def _size(size):
    """Return a size in slipring's form: torchvision may have a single number in a list."""
    if isinstance(size, (tuple, list)):
        size = tuple(size)
        return size[0] if len(size) == 1 else size
    return size


def _interpolation(step):
    name = getattr(step.interpolation, "value", step.interpolation)
    name = "nearest" if name == "nearest-exact" else name
    if name not in INTERPOLATIONS:
        known = ", ".join(map(repr, INTERPOLATIONS))
        raise ValueError(f"{type(step).__name__} has interpolation {name!r}; slipring has {known}")
    return name
