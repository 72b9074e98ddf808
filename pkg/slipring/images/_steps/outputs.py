"""MultiCrop and Patches, which make several arrays of each image. They replace the list of transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipring._core.options.checks import integer
from slipring.errors import shown
from slipring.images._render.view import interpolation_name
from slipring.images._steps.base import Transform, chain, final_size, positive_range
from slipring.images._steps.crops import random_box

if TYPE_CHECKING:
    import enum
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, TypeAlias

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import Interpolation
    from slipring.images._steps.base import Step


class MultiCrop:
    """Several groups of crops of each image, as self-supervised training needs them; the image is decoded once.

    It takes the place of a dataset's list of transforms. A sample is a tuple with one array per group, of shape
    crops × height × width × 3; a batch has the batch's axis first. With ``layout="NCHW"`` the channels come before
    height and width.

    Parameters
    ----------
    groups : sequence of (int, list of transforms)
        The number of crops of each group, and the transforms of each crop. They must leave one size, such as
        RandomResizedCrop does.

    Raises
    ------
    TypeError, ValueError
        A group is not such a pair, or its transforms leave images of different sizes.

    Examples
    --------
    >>> from slipring import Loader, images
    >>> crops = images.MultiCrop([
    ...     (2, [images.RandomResizedCrop(32, scale=(0.4, 1.0))]),
    ...     (6, [images.RandomResizedCrop(16, scale=(0.05, 0.4))]),
    ... ])
    >>> with Loader(images.Folder("train/", crops), batch_size=4) as loader:
    ...     (large, small), labels = next(iter(loader))
    ...     print(large.shape, small.shape)
    (4, 2, 32, 32, 3) (4, 6, 16, 16, 3)
    """

    groups: tuple[tuple[int, tuple[Transform, ...]], ...]
    sizes: tuple[tuple[int, int], ...]

    def __init__(self, groups: Sequence[tuple[int, Step | Sequence[Step]]]) -> None:
        made, sizes = [], []
        if not isinstance(groups, (list, tuple)) or not groups:
            raise TypeError(f"groups must be a list of (number of crops, transforms), not {shown(groups)}")
        for group in groups:
            if not isinstance(group, (list, tuple)) or len(group) != 2:
                raise TypeError(f"each of groups must be (number of crops, transforms), not {shown(group)}")
            steps = chain(group[1])
            size = final_size(steps)
            if size is None:
                raise ValueError(
                    f"the transforms {list(steps)} leave images of different sizes, which fit no array: use "
                    "RandomResizedCrop, or another transform that gives one size"
                )
            made.append((integer("the number of crops", group[0], 1, 1 << 10), steps))
            sizes.append(size)
        self.groups, self.sizes = tuple(made), tuple(sizes)

    @property
    def steps(self) -> Iterator[Transform]:
        """All transforms of all groups."""
        for _, steps in self.groups:
            yield from steps

    def __repr__(self) -> str:
        return f"MultiCrop({[(count, list(steps)) for count, steps in self.groups]})"


Transforms: TypeAlias = "Step | Sequence[Step] | MultiCrop | Patches | None"  # for images of one size
SizedTransforms: TypeAlias = "Transforms | Mapping[Any, Transforms]"  # what a dataset takes; keys are sizes


_ODD_GRID = 7, 11  # a size that no step gives by chance


class Patches:
    """A sequence of at most `max_patches` patches of each image, which keeps its aspect, as NaFlex models take it.

    It takes the place of a dataset's list of transforms, or of the lists of several sizes, which are then the numbers
    of patches. The image is scaled up or down, as far as its patches are no more than `max_patches`. Its sides become
    multiples of `patch_size`, so its aspect changes a little. Then `transform` follows.

    A sample is a dict in place of the image, with timm's names:

    - "patches": ``max_patches × (patch_size * patch_size * 3)`` values, row by row of patches. The values of a patch
      are its rows of pixels, with red, green and blue of each. Missing patches are 0.
    - "patch_coord": int64, max_patches × 2, the row and column of each patch.
    - "patch_valid": bool, max_patches, whether there is such a patch.

    Parameters
    ----------
    max_patches : int
        The number of patches in a sample.
    transform : Transform or list of Transform, optional
        Steps after the resize. They must keep the size of the image.
    patch_size : int
        The side of a patch, in pixels.
    scale : (float, float), optional
        First crop a box of random area and aspect: the range of its share of the area. None: the whole image.
    ratio : (float, float)
        With `scale`, the range of the box's aspect over that of the image.
    interpolation : {'bilinear', 'bicubic', 'nearest'}

    Raises
    ------
    TypeError, ValueError
        An argument is wrong, or a step changes the size.

    See Also
    --------
    SizedBatchSampler : Draws the number of patches of each batch.

    Notes
    -----
    The size is that of SigLIP 2 (Tschannen et al., 2025), whose processor in transformers finds it by bisection. The
    fields and `scale` are those of timm's NaFlex loader. transformers names the fields ``pixel_values`` and
    ``pixel_attention_mask``; its ``spatial_shapes`` are the numbers of rows and columns.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", images.Patches(64, images.RandomHorizontalFlip(), patch_size=4))
    >>> sample, label = data[0]
    >>> sample["patches"].shape, sample["patch_coord"].shape, int(sample["patch_valid"].sum())
    ((64, 48), (64, 2), 63)
    """

    def __init__(
        self,
        max_patches: int,
        transform: Step | Sequence[Step] | None = None,
        *,
        patch_size: int = 16,
        scale: Sequence[float] | None = None,
        ratio: Sequence[float] = (0.8, 1.25),
        interpolation: Interpolation | enum.Enum = "bilinear",
    ) -> None:
        self.max_patches: int = integer("max_patches", max_patches, 1, 1 << 20)
        self.patch_size: int = integer("patch_size", patch_size, 1, 1 << 10)
        self.scale: tuple[float, float] | None = None if scale is None else positive_range("scale", scale)
        self.ratio: tuple[float, float] = positive_range("ratio", ratio)
        self.interpolation: Interpolation = interpolation_name(interpolation)
        following = chain(transform)
        size = _ODD_GRID[0] * self.patch_size, _ODD_GRID[1] * self.patch_size
        for step in following:
            if final_size((step,), size) != size:
                raise ValueError(f"transform of Patches must keep the image's size, and {shown(step)} changes it")
        self.steps: tuple[Transform, ...] = (_ResizeToPatches(self), *following)

    def __repr__(self) -> str:
        crop = "" if self.scale is None else f", scale={self.scale}, ratio={self.ratio}"
        return f"Patches({self.max_patches}, {list(self.steps[1:])}, patch_size={self.patch_size}{crop})"


class _ResizeToPatches(Transform):
    """The first step of `Patches`."""

    resizes = True

    def __init__(self, patches):
        self._patches = patches
        self.interpolation, self.is_random = patches.interpolation, patches.scale is not None

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        patches = self._patches
        if patches.scale is not None:
            aspect = recipe.width / recipe.height
            ratio = patches.ratio[0] * aspect, patches.ratio[1] * aspect
            recipe.crop(*random_box(recipe.height, recipe.width, patches.scale, ratio, draws))
        rows, columns = _grid(recipe.height, recipe.width, patches.max_patches)
        recipe.resize(rows * patches.patch_size, columns * patches.patch_size, self.interpolation)

    def result_size(self, size: tuple[int, int] | None) -> None:
        return None

    def __repr__(self) -> str:
        return "ResizeToPatches()"


def _grid(height, width, most):
    """Return the rows and columns of patches: those of the largest scale, rounded up, that are at most `most`."""
    rows = columns = 1
    while True:
        # A larger scale needs one more row if it exceeds rows / height, and one more column if columns / width.
        one, other = rows * width, columns * height
        more_rows, more_columns = rows + (one <= other), columns + (other <= one)
        if more_rows * more_columns > most:
            return rows, columns
        rows, columns = more_rows, more_columns
