"""Tar shards read one after the other: divided among ranks and workers."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from slipring._core.options.checks import flag, integer
from slipring._core.ring._check import from_handler
from slipring._core.ring._ring import mix
from slipring._core.workers.shards import Sharded, ShardedPass, here
from slipring.errors import ImageError, RemoteError
from slipring.images._sources.dataset import suggests_options
from slipring.images._sources.tar import Tar, paths_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from typing_extensions import Unpack

    from slipring._files.storage import Storage
    from slipring.images._sources.dataset import ImageOptions
    from slipring.images._steps.outputs import Transforms


@suggests_options
class TarStream(Sharded):
    """An iterable dataset of tar shards' samples, (image, target): one shard after the other, each in one worker.

    This suits shards that are too many for `Tar` to scan at once, or that lie on slow storage: a worker reads the
    headers of a shard when it begins the shard. The ranks take shards in turn, and so do the workers of a rank. A
    worker with fewer shards ends earlier.

    Parameters
    ----------
    shards, transform, image, target, index, storage
        As in `Tar`.
    shuffle : bool
        Shuffle a rank's shards in each pass, and the samples within each shard. The order depends only on the loader's
        seed, not on the workers. Outside of slipring's loaders (torch's loader without workers, a plain loop), the seed
        comes from Python's ``random``.
    rank, world_size : int
        The rank whose shards are read, and the number of ranks.
    layout, dtype, mean, std, reducing_gap, exif, truncated, grey16, max_pixels, on_error, side, target_transform
        As in `ImageDataset`. With ``on_error="skip"``, no other image replaces a bad one.

    Attributes
    ----------
    paths : list of str
        This rank's shards.
    rank, world_size : int
        As given.

    Raises
    ------
    ValueError
        There are fewer shards than ranks, or `Tar` raises it for the first shard. An error of a later shard is raised
        when the iterator begins it; the next call continues with the next shard.

    Notes
    -----
    Its iterators have ``state_dict`` and ``load_state_dict``: `slipring.torch.DataLoader` resumes at the sample,
    without reading the samples before it. After `slipring.torch` has been imported, the class counts as torch's
    ``IterableDataset``, and torch's own workers divide the shards, too. With a list of all ranks' states, other ranks
    and workers continue; see `rest_of`.

    Examples
    --------
    >>> import slipring
    >>> from slipring import images
    >>> data = images.TarStream("train.tar", images.CenterCrop(24))
    >>> with slipring.Loader(data, batch_size=2, num_workers=1) as loader:
    ...     [labels.tolist() for pixels, labels in loader]
    [[0, 0], [1, 1]]
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Transforms = None,
        *,
        shuffle: bool = False,
        rank: int = 0,
        world_size: int = 1,
        image: str = "jpg;jpeg;png;webp",
        target: str | None = "cls",
        index: Literal["memory", "sidecar"] | str | os.PathLike[str] = "memory",
        storage: Storage | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        every, storage = paths_of(shards, storage)
        flag("shuffle", shuffle)
        world_size = integer("world_size", world_size, 1)
        rank = integer("rank", rank, 0, world_size - 1)
        if len(every) < world_size:
            raise ValueError(f"{len(every)} shards are too few for {world_size} ranks: each needs one at least")
        self.paths: list[str] = every[rank::world_size]
        self._divide(len(every), shuffle, rank, world_size)
        self._every = every
        self._numbers = range(len(every))[rank::world_size]
        self._passes = 0  # of this process
        # The first shard is opened now: an error in the shards usually shows in it.
        if options.get("cache") is not None:
            raise ValueError(
                "cache is for datasets with numbered samples: a stream has none. images.Tar reads shards so"
            )
        if isinstance(transform, Mapping):
            raise TypeError("transform must not be a dict of sizes: a stream has no sampler that chooses them. Use Tar")
        self._samples = Tar(
            self.paths[0], transform, image=image, target=target, index=index, storage=storage, **options
        )

    def __iter__(self) -> TarPass:
        self._passes += 1
        return TarPass(self)

    def __repr__(self) -> str:
        return f"TarStream({len(self.paths)} shards, {self._samples.transform})"


class TarPass(ShardedPass):
    """One pass over a worker's shards of a `TarStream`.

    Parameters
    ----------
    stream : TarStream
    """

    def __init__(self, stream: TarStream) -> None:
        self._stream = stream
        self._worker, self._workers, seed = here(stream._passes)
        self._begin(seed)

    def _begin(self, seed, pieces=None):
        super()._begin(seed, pieces)
        self._samples = self._order = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Any, Any]:
        while True:
            at, sample = self._position
            if self._samples is None:
                if at >= len(self._pieces):
                    raise StopIteration
                try:
                    self._open(*self._pieces[at])
                except (OSError, ValueError) as error:
                    if not from_handler(error):
                        self._pass_on()
                    raise
            if sample >= len(self._order):
                self._pass_on()
                continue
            number = self._order[sample]
            try:
                made = self._samples.try_sample(number, mix(self._of_shard, number))
            except ImageError:
                self._position = at, sample + 1  # the next call gets the next sample
                raise
            except RemoteError as error:
                if error.missing and not from_handler(error):
                    self._pass_on()  # the shard was deleted: the next call begins the next one
                raise
            self._position = at, sample + 1
            if made is not None:
                return made

    def _pass_on(self):
        """Move to the next piece."""
        at = self._position[0] + 1
        self._position = at, self._pieces[at][1] if at < len(self._pieces) else 0
        self._samples = None

    def _open(self, number, _, seed):
        stream = self._stream
        first = number == stream._numbers[0]
        samples = stream._samples if first else stream._samples.only(stream._every[number])
        self._of_shard = mix(self._seed if seed is None else seed, number)
        self._order = range(len(samples))
        if stream.shuffle:
            self._order = list(self._order)
            random.Random(self._of_shard).shuffle(self._order)
        self._samples = samples if stream.shuffle else samples.in_order()
