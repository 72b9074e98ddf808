"""Images whose size depends on the batch: a sampler chooses it, and gives it with each index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slipring._core.options.checks import flag, integer
from slipring._core.ring._order import IndexOrder
from slipring._core.ring._ring import mix
from slipring.errors import shown
from slipring.images._steps.base import pair, pixels
from slipring.tokens._pack import grouped
from slipring.tokens._plan import Packs
from slipring.tokens._planned import MOST, Planned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike

    from slipring.images._sources.renderer import Renderer
    from slipring.images._steps.base import Size


class Sized(NamedTuple):
    """The index of an image, and the size to which it is rendered.

    `SizedBatchSampler` yields such indices. The dataset's `transform` is then a dict that has the transforms of each
    size.

    Examples
    --------
    >>> from slipring import images
    >>> buckets = [(24, 32), (32, 24)]
    >>> data = images.Folder("train/", {size: images.CoverCrop(size) for size in buckets})
    >>> pixels, label = data[images.Sized(0, (32, 24))]
    >>> pixels.shape
    (32, 24, 3)
    """

    index: int
    size: int | tuple[int, int]


def size_of(name: str, value: Any) -> Size:
    """Return a size, as a number or as (height, width); raise ValueError if it is none."""
    return pair(name, value) if isinstance(value, (tuple, list)) else pixels(name, value)


def renderers_of(transform: Any, make: Callable[[Any], Renderer]) -> dict[Size | None, Renderer]:
    """Return the renderer of each size; {None: renderer} for transforms that do not depend on it."""
    if not isinstance(transform, Mapping):
        return {None: make(transform)}
    if not transform:
        raise ValueError("transform must have the transforms of at least one size, not an empty dict")
    found: dict[Size | None, Renderer] = {}
    for key, steps in transform.items():
        size = size_of("each size in transform", key)
        renderer = found[size] = make(steps)
        if renderer.shapes is None:
            raise ValueError(
                f"transform[{key!r}] leaves images of different sizes, which fit no batch: end with CoverCrop, "
                "RandomResizedCrop, or another transform that gives one size"
            )
        made = renderer.size
        if made is not None and made not in (size, (size, size)):
            raise ValueError(f"transform[{key!r}] makes the size {made}: it must be the same")
    first = next(iter(found.values()))
    for renderer in found.values():
        renderer.whole = first.whole  # a cache keeps an image once for all sizes
    return found


def renderer_for(renderers: dict[Size | None, Renderer], index: Any, transform: Any) -> tuple[int, Renderer]:
    """Return (plain index, renderer) for an index of a dataset with these renderers."""
    plain, size = index if isinstance(index, Sized) else (index, None)
    renderer = renderers.get(size)
    if renderer is not None:
        return plain, renderer
    if None in renderers:
        raise ValueError(
            f"the index {index} asks for the size {size}, and transform={shown(transform)} does not depend on it: give "
            f"a dict with the transforms of each size, transform={{{size}: ...}}"
        )
    listed = ", ".join(map(str, renderers))
    if size is None:
        raise ValueError(
            f"the index {shown(index)} has no size, and transform has those of {listed}: take the indices from "
            f"images.SizedBatchSampler, or as images.Sized({shown(index)}, {next(iter(renderers))})"
        )
    raise ValueError(f"the index {index} asks for the size {size}, and transform has only {listed}")


_DRAWN = 0x53495A45  # keeps the drawn sizes apart from the order of batches


class SizedBatchSampler(Planned):
    """Batches of `Sized` indices, for ``DataLoader(batch_sampler=...)``: the images of a batch have one size.

    Each image is in one batch of an epoch. There are two ways to choose its size:

    - Aspect buckets, if `images` has the height and width of each image: the size with the nearest aspect, in every
      epoch. Diffusion models are trained in this way, to crop little.
    - Otherwise it is drawn for each image and epoch, such that batches of all sizes are equally frequent. NaFlex models
      are trained with such numbers of patches, and other ones with several resolutions.

    The batches are divided among ranks as those of `slipring.tokens.PackedSampler`: all ranks have the same number, and
    those of one step have costs alike. The cost is the number of pixels or of patches. Another number of ranks can
    finish an epoch.

    Parameters
    ----------
    images : int or array_like of int
        The number of images, such as ``len(dataset)``; or their heights and widths, shape (n, 2).
    sizes : sequence of (int, int) or of int
        Heights and widths; or numbers, for images without known sizes: of patches, or sides of squares.
    batch_size : int, optional
        Images of a batch.
    max_tokens : int, optional
        In place of `batch_size`, if `sizes` are numbers: a batch of size s has ``max_tokens // s`` images.
    drop_last : bool
        Leave out incomplete batches, of all sizes, and an incomplete last step of all ranks. Otherwise the images of
        that step are divided into more batches; if they are fewer than these, some images are repeated.
    batches_per_step, window, shuffle, rank, world_size, seed, check_ranks
        As in `slipring.tokens.PackedSampler`.

    Attributes
    ----------
    sizes : tuple
    batch_sizes : tuple of int
        Images of a batch, for each of `sizes`.
    epoch : int
        The number of the next pass; may be set.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument or the image, its value and the rule.

    Notes
    -----
    Aspect buckets: NovelAI, Improvements on Stable Diffusion, 2022, and SDXL's technical report (Podell et al., 2023).
    Sizes drawn for batches of equal tokens: timm's NaFlex loader; it draws a size for each batch of a worker.

    `plan` returns the number of each image's size, an index in `sizes`, as `starts`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", {size: images.CoverCrop(size) for size in [(24, 32), (32, 24)]})
    >>> shapes = [images.size(data.read(index)[0]) for index in range(len(data))]
    >>> sampler = images.SizedBatchSampler(shapes, [(24, 32), (32, 24)], batch_size=2, seed=0)
    >>> sorted(sampler)[0]
    [Sized(index=0, size=(24, 32)), Sized(index=1, size=(24, 32))]
    """

    _PADDED = True

    def __init__(
        self,
        images: int | ArrayLike,
        sizes: Sequence[tuple[int, int]] | Sequence[int],
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        drop_last: bool = False,
        batches_per_step: int = 1,
        window: int = 10_000,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        check_ranks: bool = False,
    ) -> None:
        flag("drop_last", drop_last)
        self.sizes: tuple[Size, ...] = _sizes(sizes)
        self.batch_sizes: tuple[int, ...] = _batch_sizes(self.sizes, batch_size, max_tokens)
        costs = np.array([size[0] * size[1] if isinstance(size, tuple) else size for size in self.sizes], np.int64)
        numbers = None
        if hasattr(images, "__len__"):
            numbers = _nearest(images, self.sizes)
            lengths = numbers + 1
        else:
            hint = "; or give heights and widths, shape (n, 2)"
            lengths = np.broadcast_to(np.int32(1), integer("images", images, 0, MOST, hint=hint))
        super().__init__(
            lengths, None, None, cumulative=False, overflow="error", limits=None, document_multiple_of=1,
            cost=(1.0, 0.0), mixture=None, batches_per_step=batches_per_step, last="drop" if drop_last else "split",
            window=window, shuffle=shuffle, rank=rank, world_size=world_size, seed=seed, check_ranks=check_ranks,
        )  # fmt: skip
        self._documents = _SizedImages(lengths, numbers, costs, self.batch_sizes, bool(drop_last))

    def _finished(self, indices, packs, members):
        size = self.sizes[packs.starts[members.start]]
        return [Sized(index, size) for index in indices]

    @property
    def _options(self):
        sizes = [list(size) if isinstance(size, tuple) else size for size in self.sizes]
        return {"sizes": sizes, "batch_sizes": [*self.batch_sizes], "last": self.last, "window": self.window}


class _SizedImages:
    """Images, and how they become batches; in place of `TokenLengths`."""

    cumulative, multiple = False, 1

    def __init__(self, lengths, numbers, costs, batch_sizes, drop_last):
        self.lengths, self.numbers, self.costs, self.drop_last = lengths, numbers, costs, drop_last
        self.batch_sizes = np.array(batch_sizes, np.int64)
        self.bounds = np.cumsum(self.batch_sizes / self.batch_sizes.sum())
        self.bounds[-1] = 1.0

    def __len__(self):
        return len(self.lengths)

    def packed(self, documents, key):
        """Return (the batches of these images as `Packs`, how many images were left out, and two zeros).

        The first token of a member is the number of its size.
        """
        numbers, most = self._numbers(documents, key), self.batch_sizes
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(most))
        batches = -(-counts // most)
        first, first_batch = np.cumsum(counts) - counts, np.cumsum(batches) - batches
        ordered = numbers[order]
        pack_of, total = np.empty(len(documents), np.int32), int(batches.sum())
        pack_of[order] = first_batch[ordered] + (np.arange(len(documents)) - first[ordered]) // most[ordered]
        dropped = 0
        if self.drop_last:
            full = np.bincount(pack_of, minlength=total) == np.repeat(most, batches)
            kept = full[pack_of]
            dropped, total = int((~kept).sum()), int(full.sum())
            documents, numbers = documents[kept], numbers[kept]
            pack_of = (np.cumsum(full, dtype=np.int32) - np.int32(1))[pack_of[kept]]
        if total:  # they would be sorted by size
            pack_of = IndexOrder.shuffled(total, key).part(0, total).astype(np.int32)[pack_of]
        costs = self.costs[numbers]
        members, bounds, sums = grouped(pack_of, total, costs.astype(np.float64))
        of = (documents, numbers, numbers + costs, np.zeros(len(numbers), bool), costs.astype(np.float64))
        return Packs(*(array[members] for array in of), bounds, sums), (dropped, 0, 0)

    def _numbers(self, documents, key):
        """Return the number of each image's size."""
        if self.numbers is not None:
            return self.numbers[documents].astype(np.int64)
        drawn = IndexOrder.drawn(len(self.costs), len(documents), mix(key, _DRAWN), self.bounds)
        return drawn.part(0, len(documents))


def _sizes(given):
    """Return the argument `sizes` as a tuple: all of them numbers, or all of them (height, width)."""
    try:
        listed = [tuple(each) if np.ndim(each) else each for each in given]
    except TypeError:
        raise TypeError(f"sizes must be a list of (height, width) or of numbers, not {shown(given)}") from None
    sizes = tuple(size_of("each of sizes", each) for each in listed)
    if not sizes:
        raise ValueError("sizes must have at least one size, not none")
    if len({type(size) for size in sizes}) > 1:
        raise TypeError(f"sizes must be all (height, width), or all numbers, not {shown(given)}")
    if len(set(sizes)) < len(sizes):
        again = next(size for index, size in enumerate(sizes) if size in sizes[:index])
        raise ValueError(f"sizes must be different from each other, and {again} is there twice")
    return sizes


def _batch_sizes(sizes, batch_size, max_tokens):
    """Return the number of images of a batch of each size."""
    if (batch_size is None) == (max_tokens is None):
        raise ValueError("give batch_size or max_tokens, and not both: one of them says how many images a batch has")
    if max_tokens is None:
        return (integer("batch_size", batch_size, 1, MOST),) * len(sizes)
    most = integer("max_tokens", max_tokens, 1, MOST)
    if isinstance(sizes[0], tuple):
        raise ValueError("max_tokens is for sizes that are numbers: with (height, width), give batch_size")
    if most < max(sizes):
        raise ValueError(f"max_tokens={most} must be at least the largest of sizes, {max(sizes)}")
    return tuple(most // size for size in sizes)


def _nearest(images, sizes):
    """Return the number of the size with the nearest aspect, for each image; of the first one, if several have it."""
    if not isinstance(sizes[0], tuple):
        raise ValueError(
            "sizes must be (height, width), with the heights and widths of images; or give the number of images, and "
            "numbers are drawn"
        )
    try:
        shapes = np.asarray(images)
    except ValueError as error:
        raise ValueError(f"images must be heights and widths, not {shown(images)}: {error}") from None
    if shapes.size == 0:
        shapes = np.empty((0, 2), np.int64)
    if shapes.ndim != 2 or shapes.shape[1] != 2 or shapes.dtype.kind not in "iu":
        raise ValueError(
            "images must be a number, or integers of shape (n, 2), height and width, not "
            f"{shapes.dtype} of shape {shapes.shape}"
        )
    wrong = (shapes < 1).any(1)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(f"image {first} has the height and width {shapes[first].tolist()}: both must be above 0")
    aspects = np.log([height / width for height, width in sizes])
    different, first = np.unique(aspects, return_index=True)
    between = (different[1:] + different[:-1]) / 2
    return first[np.searchsorted(between, np.log(shapes[:, 0] / shapes[:, 1]))].astype(np.int32)
