"""Other libraries' transforms as users' steps: each gets the class of image that it expects."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring.errors import shown
from slipring.images._render.recipe import WrongResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Classes of images: of Pillow, of torch, and of torchvision's v2.
PIL, TENSOR, IMAGE = "PIL.Image.Image", "torch.Tensor", "torchvision.tv_tensors._image.Image"


class KeptStep:
    """A function of images of class `kind`, as a function of an image's array."""

    def __init__(self, function: Callable[[Any], Any], kind: str) -> None:
        self._function, self._kind = function, kind

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self._of_pil(image) if self._kind == PIL else self._of_tensor(image)

    def _of_pil(self, image):
        from PIL import Image

        result = self._function(Image.fromarray(image))
        if not isinstance(result, Image.Image) or result.mode != "RGB" or result.size != image.shape[1::-1]:
            raise self._wrong(result, f"a PIL image of mode RGB and size {image.shape[1]} x {image.shape[0]}")
        return np.asarray(result)

    def _of_tensor(self, image):
        import torch

        given = torch.from_numpy(image).permute(2, 0, 1)
        if self._kind == IMAGE:
            given = importlib.import_module("torchvision.tv_tensors").Image(given)
        result = self._function(given)
        if not isinstance(result, torch.Tensor) or result.dtype != torch.uint8 or result.shape != given.shape:
            raise self._wrong(result, f"a tensor of uint8 and shape {tuple(given.shape)}")
        return np.ascontiguousarray(result.detach().as_subclass(torch.Tensor).permute(1, 2, 0).numpy())

    def _wrong(self, result, wanted):
        return WrongResult(f"the step {shown(self._function)} returned {_described(result)}: it must return {wanted}")

    def __repr__(self) -> str:
        return repr(self._function)


def _described(result):
    if hasattr(result, "dtype") and hasattr(result, "shape"):
        return f"an object of class {type(result).__name__}, {result.dtype} and shape {tuple(result.shape)}"
    if hasattr(result, "mode") and hasattr(result, "size"):
        return f"a PIL image of mode {result.mode} and size {result.size[0]} x {result.size[1]}"
    return shown(result)
