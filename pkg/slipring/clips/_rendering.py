"""The seam to slipring.images: the recipe of images, applied to decoded frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import integer
from slipring._core.ring.sample_marks import failed_at
from slipring.errors import RemoteError, VideoError, shown
from slipring.images._render.decode import DecodedImage
from slipring.images._render.draws import Draws as Draws
from slipring.images._render.recipe import WrongResult
from slipring.images._sources.renderer import Renderer
from slipring.images._steps.base import final_size
from slipring.images._steps.batch import as_batch_transform as as_batch_transform
from slipring.images._steps.outputs import MultiCrop

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    import numpy as np
    from numpy.typing import NDArray


class FrameRenderer:
    """Makes the arrays of clips; see `Videos` for the parameters.

    Attributes
    ----------
    storages : tuple of str
        The dtype of each array's memory: numpy itself has no bfloat16.
    is_single : bool
        A clip has one array, neither a tuple (`MultiCrop`) nor a dict (`Patches`) of them.
    is_random : bool
        Whether a transform draws random numbers.
    """

    def __init__(self, transform: Any, *, layout: str, dtype: Any, mean: Any, std: Any, max_pixels: int) -> None:
        if isinstance(transform, Mapping):
            raise TypeError(f"transform must be for one size, and a dict of sizes is for images: {shown(transform)}")
        self._images = Renderer(
            transform, layout=layout, dtype=dtype, mean=mean, std=std, max_pixels=max_pixels, reducing_gap=None,
            exif=False, truncated="raise", grey16="clip",
        )  # fmt: skip
        self._axis = 1 if isinstance(transform, MultiCrop) else 0  # of the frames: each crop is a clip
        self.storages: tuple[str, ...] = self._images.storages
        self.is_single: bool = self._images.is_single
        self.dtype: str = self._images.dtype
        self.is_random: bool = any(step.is_random for step in self._images.steps)

    def shapes_of(self, size: tuple[int, int] | None, frames: int) -> tuple[tuple[int, ...], ...] | None:
        """Return the shapes of a clip's arrays for upright frames of (height, width); None: they differ.

        Without a size: the shapes for frames of any size.
        """
        shapes = self._images.shapes
        if shapes is None:
            made = final_size(self._images.steps, size)
            if made is None:
                return None
            shapes = ((*made, 3) if self._images.layout == "NHWC" else (3, *made),)
        return tuple((*shape[: self._axis], frames, *shape[self._axis :]) for shape in shapes)

    def render(self, pixels: NDArray[np.uint8], orientation: int, seed: int, out: Any = None) -> Any:
        """Return a frame after the transforms, in `out` if those are arrays.

        Parameters
        ----------
        pixels : numpy.ndarray of uint8, height × width × 3
        orientation : int
            EXIF's.
        seed : int
            64 bits. Frames of one size with one seed have the same crop and the same operations.
        out : list of numpy.ndarray, optional
            See `parts`.
        """
        return self._images.render(DecodedImage(pixels, orientation), out, Draws(seed))

    def parts(self, arrays: Sequence[NDArray[Any]], row: int, at: int) -> list[NDArray[Any]]:
        """Return the parts of a batch's arrays for a frame of the clip in a row."""
        return [array[row, :, at] if self._axis else array[row, at] for array in arrays]

    def sample_of(self, arrays: Any) -> Any:
        """Return the arrays of a clip or of a batch in the form, and with the dtypes, that users see."""
        return self._images.shown(self._images.sample_of(arrays))

    def mix(self, transform: Any, pixels: Any, targets: Any, seed: int) -> Any:
        """Mix the clips of a batch in place, all frames of a clip alike; return the mixed targets."""
        return self._images.mixed(transform, pixels, targets, seed, "clips")


def checked_index(index: Any, count: int, what: str) -> int:
    """Return an index from 0 on; raise TypeError or IndexError for those that a dataset of `count` does not have."""
    number = integer("index", index)
    if not -count <= number < count:
        raise IndexError(f"index {number} is out of range: the dataset has {count} {what}")
    return int(number % count)


def raise_of_sample(error: Exception, path: str, row: int, index: int) -> NoReturn:
    """Raise the error of a clip so that it names the sample; `row` is that in the batch."""
    failed_at(row, error)
    if isinstance(error, (VideoError, RemoteError)) and error.index is None:
        raise type(error)(f"{error} (index {index})", **{**vars(error), "index": index}) from error.__cause__
    if isinstance(error, WrongResult):
        raise ValueError(f"{path} (index {index}): {error}") from error
    raise error
