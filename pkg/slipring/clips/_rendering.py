"""The seam to slipring.images: the recipe of images, applied to decoded frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipring.errors import shown
from slipring.images._render.decode import DecodedImage
from slipring.images._render.draws import Draws as Draws
from slipring.images._render.recipe import WrongResult as WrongResult
from slipring.images._sources.renderer import Renderer
from slipring.images._steps.base import final_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class FrameRenderer:
    """Makes the arrays of frames; see `Videos` for the parameters.

    Attributes
    ----------
    storage : str
        The dtype of each array's memory: numpy itself has no bfloat16.
    is_random : bool
        Whether a transform draws random numbers.
    """

    def __init__(self, transform: Any, *, layout: str, dtype: Any, mean: Any, std: Any, max_pixels: int) -> None:
        name = type(transform).__name__
        if name in ("MultiCrop", "Patches"):
            raise TypeError(f"transform must make one array of a frame, which {name} does not: {shown(transform)}")
        self._images = Renderer(
            transform, layout=layout, dtype=dtype, mean=mean, std=std, max_pixels=max_pixels, reducing_gap=None,
            exif=False, truncated="raise", grey16="clip",
        )  # fmt: skip
        self.storage: str = self._images.storage
        self.dtype: str = self._images.dtype
        self.is_random: bool = any(step.is_random for step in self._images.steps)

    def shape_of(self, size: tuple[int, int] | None) -> tuple[int, ...] | None:
        """Return the shape of the results for upright frames of (height, width); None: it differs, or is not known.

        Without a size: the shape for frames of any size.
        """
        made = final_size(self._images.steps, size)
        return made and ((*made, 3) if self._images.layout == "NHWC" else (3, *made))

    def render(self, pixels: NDArray[np.uint8], orientation: int, seed: int, out: Any = None) -> NDArray[Any]:
        """Return a frame after the transforms, in `out` if that is an array.

        Parameters
        ----------
        pixels : numpy.ndarray of uint8, height × width × 3
        orientation : int
            EXIF's.
        seed : int
            64 bits. Frames of one size with one seed have the same crop and the same operations.
        out : numpy.ndarray, optional
        """
        image = DecodedImage(pixels, orientation)
        made: NDArray[Any] = self._images.render(image, None if out is None else [out], Draws(seed))
        return made

    def shown(self, arrays: Any) -> Any:
        """Return an array with the dtype that users see."""
        return self._images.shown(arrays)
