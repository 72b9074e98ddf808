"""Transforms of whole batches: MixUp and CutMix, mixed in the slot."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.codec._codec import AsTensor
from slipring._core.options.checks import integer
from slipring.errors import shown
from slipring.images import _decode
from slipring.images._steps.base import BatchTransform
from slipring.images._steps.checks import number
from slipring.images._steps.combine import RandomChoice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slipring.images._render.draws import Draws


class Images:
    """The images of a batch, for a transform that changes them in place.

    Parameters
    ----------
    memory : numpy.ndarray
        Images, or clips, × the axes of `layout`, C-contiguous; bfloat16 as uint16. Clips have their frames first.
    layout : {'NHWC', 'NCHW'}
    dtype : {'uint8', 'float32', 'float16', 'bfloat16'}

    Attributes
    ----------
    pixels : numpy.ndarray
        A view: images × height × width × the values of a pixel, which are those of all frames of a clip.
    """

    memory: NDArray[Any]
    _type: int

    def __init__(self, memory: NDArray[Any], layout: str, dtype: str) -> None:
        self.memory, self._type = memory, _decode.TYPES[dtype]
        height = memory.ndim - (3 if layout == "NHWC" else 2)
        self.pixels: NDArray[Any] = np.moveaxis(memory, (height, height + 1), (1, 2))

    def mix_with_previous(self, share: float) -> None:
        """Replace each image by ``share`` of it and the rest of the previous one; the last one precedes the first."""
        rows = self.memory
        last = rows[-1].copy()
        for n in range(len(rows) - 1, -1, -1):
            _decode.mix(rows[n], rows[n - 1] if n else last, self._type, share, 1.0 - share)

    def paste_from_previous(self, top: int, left: int, bottom: int, right: int) -> None:
        """Replace a box in each image by that of the previous one; the last one precedes the first."""
        box = self.pixels[:, top:bottom, left:right]
        last = box[-1].copy()
        for n in range(len(box) - 1, 0, -1):
            box[n] = box[n - 1]
        box[0] = last


class _Mixing(BatchTransform):
    """What MixUp and CutMix share: the share of an image, from a beta distribution, and soft labels."""

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        self.alpha: float = number("alpha", alpha, math.nextafter(0, 1), math.inf, "a number above 0")
        self.num_classes: int | None = integer("num_classes", num_classes, 1, 1 << 30, optional=True)

    def _share(self, draws):
        return random.Random(draws.bits()).betavariate(self.alpha, self.alpha)

    def _mixed(self, targets, share):
        """Return the targets as soft labels, mixed as the images are."""
        soft = self._one_hot(targets) if targets.ndim == 1 else targets
        if soft.ndim != 2 or soft.dtype.kind not in "fiu":
            raise ValueError(
                f"targets must be class numbers, or numbers of batch x classes, not {targets.dtype} of shape "
                f"{targets.shape}"
            )
        if self.num_classes not in (None, soft.shape[1]):
            raise ValueError(
                f"targets have the shape {targets.shape}, and num_classes={self.num_classes} needs as many columns: "
                "leave num_classes out, or correct it"
            )
        soft = soft.astype(np.float32, copy=False)
        return soft * np.float32(share) + np.roll(soft, 1, axis=0) * np.float32(1.0 - share)

    def _one_hot(self, targets):
        if targets.dtype.kind not in "iu":
            raise ValueError(f"targets must be class numbers, not {targets.dtype}: leave out target_transform")
        if self.num_classes is None:
            raise ValueError(f"{type(self).__name__} needs num_classes= for targets that are class numbers")
        if len(targets) and not 0 <= targets.min() <= targets.max() < self.num_classes:
            raise ValueError(
                f"a target is {targets.max() if targets.min() >= 0 else targets.min()}: with "
                f"num_classes={self.num_classes} class numbers are from 0 to {self.num_classes - 1}"
            )
        soft = np.zeros((len(targets), self.num_classes), np.float32)
        soft[np.arange(len(targets)), targets] = 1
        return soft

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha}, num_classes={self.num_classes})"


class MixUp(_Mixing):
    """Mix each image and its label with those of the previous image of the batch.

    One share per batch is drawn from Beta(alpha, alpha), as in torchvision's ``MixUp`` (Zhang et al., 2018,
    "mixup: Beyond Empirical Risk Minimization").

    Parameters
    ----------
    alpha : float
        Above 0.
    num_classes : int, optional
        Needed if targets are class numbers.

    Examples
    --------
    >>> from slipring import Loader, images
    >>> mixed = images.MixUp(alpha=0.2, num_classes=2)
    >>> data = images.Folder("train/", images.RandomResizedCrop(24), batch_transform=mixed)
    >>> with Loader(data, batch_size=2) as loader:
    ...     pixels, labels = next(iter(loader))
    ...     print(pixels.shape, labels.shape, labels.dtype)
    (2, 24, 24, 3) (2, 2) float32
    """

    def mix(self, images: Images, targets: NDArray[Any], draws: Draws) -> NDArray[np.float32]:
        share = self._share(draws)
        soft = self._mixed(targets, share)
        images.mix_with_previous(share)
        return soft


class CutMix(_Mixing):
    """Replace a box in each image by that of the previous image of the batch, and mix the labels by the area.

    The box of one batch is drawn as in torchvision's ``CutMix`` (Yun et al., 2019, "CutMix: Regularization Strategy to
    Train Strong Classifiers with Localizable Features").

    Parameters
    ----------
    alpha, num_classes
        As in `MixUp`.

    Examples
    --------
    >>> from slipring import images
    >>> mixed = images.CutMix(alpha=1.0, num_classes=2)
    >>> data = images.Folder("train/", images.RandomResizedCrop(24), batch_transform=mixed)
    """

    def mix(self, images: Images, targets: NDArray[Any], draws: Draws) -> NDArray[np.float32]:
        height, width = images.pixels.shape[1:3]
        radius = 0.5 * math.sqrt(1.0 - self._share(draws))
        across, down = draws.below(width), draws.below(height)
        half_width, half_height = int(radius * width), int(radius * height)
        left, right = max(across - half_width, 0), min(across + half_width, width)
        top, bottom = max(down - half_height, 0), min(down + half_height, height)
        soft = self._mixed(targets, 1.0 - (right - left) * (bottom - top) / (width * height))
        images.paste_from_previous(top, left, bottom, right)
        return soft


def labels_of(targets: Any, images: int) -> NDArray[Any]:
    """Return the targets of a batch of so many images as an array; they may be torch tensors, or lists of numbers."""
    if isinstance(targets, AsTensor):
        targets = targets.array
    elif hasattr(targets, "detach"):
        targets = targets.detach().float() if targets.is_floating_point() else targets
    labels = np.asarray(targets)
    if labels.ndim == 0 or len(labels) != images or (labels.ndim > 1 and isinstance(targets, (list, tuple))):
        raise ValueError(
            f"targets must be one array or tensor with a row for each of {images} images, not {shown(targets)}: make "
            "each label a number, an array or a tensor"
        )
    return labels


def as_batch_transform(transform: Any) -> BatchTransform | RandomChoice | None:
    """Return the argument ``batch_transform=``; raise TypeError if it cannot be one."""
    if transform is None or isinstance(transform, BatchTransform):
        return transform
    if isinstance(transform, RandomChoice) and transform.mixes_batch:
        return transform
    raise TypeError(
        f"batch_transform must be MixUp, CutMix or RandomChoice of them, not {shown(transform)}: do other things "
        "with a whole batch in collate_fn"
    )
