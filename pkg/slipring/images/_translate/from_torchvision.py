"""Datasets and options from torchvision's: an ImageFolder with its transforms, or transforms alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from slipring.errors import shown
from slipring.images._sources.folder import Folder
from slipring.images._translate.lists import OPTIONS, is_known, translated

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from slipring.images._sources.dataset import ImageOptions

_FOLDERS = ("torchvision.datasets.folder",)


def from_torchvision(dataset: Any, rest: Literal["raise", "map"] = "raise", **options: Unpack[ImageOptions]) -> Folder:
    """Return a `Folder` with the samples of a torchvision ``ImageFolder``, decoded by slipring.

    The steps have the same distributions, not the same random numbers. The images are arrays of the shape, dtype and
    normalisation that the transforms produce.

    Parameters
    ----------
    dataset : torchvision.datasets.ImageFolder
        Its transform is one that `options_from_torchvision` translates.
    rest : {'raise', 'map'}
        As in `options_from_torchvision`.
    **options
        Options of `ImageDataset` that the transforms do not determine: ``on_error="skip"``, for example.

    Returns
    -------
    Folder

    Raises
    ------
    TypeError
        The dataset or its loader is not torchvision's, or slipring lacks a transform; the message names it.
    ValueError
        A transform has an argument that slipring lacks, or the order of the transforms is not supported.

    See Also
    --------
    options_from_torchvision : The same for other datasets.

    Examples
    --------
    >>> from slipring import images
    >>> import torchvision  # doctest: +SKIP
    >>> theirs = torchvision.datasets.ImageFolder("train/", transform)  # doctest: +SKIP
    >>> data = images.from_torchvision(theirs)  # doctest: +SKIP
    """
    kind = type(dataset)
    if not any(c.__name__ == "ImageFolder" and is_known(c, _FOLDERS) for c in kind.__mro__):
        raise TypeError(f"dataset must be a torchvision.datasets.ImageFolder, not {kind.__name__}")
    reads = next(c for c in kind.__mro__ if "__getitem__" in vars(c))
    if not is_known(reads, _FOLDERS):
        raise TypeError(f"{reads.__name__} has a __getitem__ of its own, which slipring would not call")
    loader = dataset.loader
    if not is_known(loader, _FOLDERS):
        raise TypeError(f"the dataset has a loader of its own, {shown(loader)}, which slipring would not call")
    made = {name: value for name, value in translated(dataset.transform, rest).items() if name not in OPTIONS}
    return Folder.of(
        dataset.root,
        list(dataset.classes),
        dict(dataset.class_to_idx),
        dataset.samples,
        **{"target_transform": dataset.target_transform, **made, **options},
    )


def options_from_torchvision(transform: Any, rest: Literal["raise", "map"] = "raise") -> dict[str, Any]:
    """Return the options of a dataset of images that applies a transform of torchvision or timm.

    These are `transform`, and if the transform converts to tensors, `layout`, `dtype`, `mean` and `std`. Three more are
    for `Annotated` only:

    - `mask_fill`, if a ``fill`` has a value for masks in particular, as ``{Mask: 255, "others": 0}``
    - `box_format`, if the transform has ``ConvertBoundingBoxFormat``: the dataset's boxes must have that format
    - `min_box_size`, if ``SanitizeBoundingBoxes`` has a ``min_size`` other than 1

    Parameters
    ----------
    transform : callable
        One of these:

        - a transform of torchvision (v1 or v2) that `slipring.images` has, too, or a ``Compose`` of several
        - ``weights.transforms()`` of torchvision's models for classification
        - the result of timm's ``create_transform``

        A subclass that overrides a method is not translated, because slipring would not call that method.
    rest : {'raise', 'map'}
        What happens to a transform that slipring lacks. "map" keeps it as a function in the list of steps, and logs
        its name. It gets a PIL image before the conversion to a tensor, and then a tensor of uint8. It must return such
        an image of the same size. It runs under the GIL, with a copy in each direction.

    Returns
    -------
    dict
        For any dataset of `slipring.images`; with the options of masks and boxes, for `Annotated`.

    Raises
    ------
    TypeError
        slipring lacks a transform; the message names it.
    ValueError
        A transform has an argument that slipring lacks, or the order of the transforms is not supported.

    See Also
    --------
    from_torchvision : The same for an ``ImageFolder``.

    Examples
    --------
    >>> from slipring import images
    >>> from torchvision.transforms import v2  # doctest: +SKIP
    >>> transform = v2.Compose([v2.RandomResizedCrop(224), v2.TrivialAugmentWide(), v2.ToImage()])  # doctest: +SKIP
    >>> data = images.Folder("train/", **images.options_from_torchvision(transform))  # doctest: +SKIP
    """
    return translated(transform, rest)
