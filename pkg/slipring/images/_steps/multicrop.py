"""Several crops of one image, which is decoded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipring._core.options.checks import integer
from slipring.errors import shown
from slipring.images._steps.base import chain, final_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, TypeAlias

    from slipring.images._steps.base import Step, Transform
    from slipring.images._steps.patches import Patches


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
