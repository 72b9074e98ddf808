"""Tar shards read one after the other: divided among ranks and workers."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, Literal

from slipring._core._ring import from_handler, mix
from slipring._core.arguments import flag, integer
from slipring._core.shards import Sharded, ShardedPass, here
from slipring.errors import ImageError, RemoteError
from slipring.images.options import suggests_options
from slipring.images.tar import Tar, paths_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self, Unpack

    from slipring._files.storage import Storage
    from slipring.images.options import ImageOptions
    from slipring.images.transforms import Transform


@suggests_options
class TarStream(Sharded):
    """An iterable dataset of tar shards' samples, (image, target): one shard after the other, each in one worker.

    For shards that `Tar` would have to look through all at once, or that come from slow storage: a worker reads the
    headers of one shard when it comes to it. Ranks take the shards in turn, and so do the workers of a rank; who has
    fewer ends earlier.

    Parameters
    ----------
    shards, transform, image, target, index, storage
        As `Tar` has them.
    shuffle : bool
        Take a rank's shards in another order in each pass, and the samples within each shard. What is drawn depends
        on the loader's seed alone, not on the workers. Outside of slipring's (torch's loader without workers, a
        plain loop) Python's ``random`` gives the seed.
    rank, world_size : int
        Whose shards these are.
    layout, dtype, mean, std, reducing_gap, exif, truncated, max_pixels, on_error, side, target_transform
        As `ImageDataset` has them; with ``on_error="skip"`` nothing comes in a bad image's place.

    Attributes
    ----------
    paths : list of str
        This rank's shards.
    rank, world_size : int
        As given.

    Raises
    ------
    ValueError
        There are fewer shards than ranks, or as `Tar` does for the first of them. For another shard its iterator
        raises what `Tar` would, when it comes to it; who asks again gets the next shard.

    Notes
    -----
    Its iterators have ``state_dict`` and ``load_state_dict``: `slipring.torch.DataLoader` resumes at the sample,
    without reading what came before. For torch's kind of loader it is an
    ``IterableDataset`` once `slipring.torch` has been imported. torch's own workers divide shards, too. With a list of
    all ranks' states other ranks and workers go on: see `rest_of`.

    Examples
    --------
    >>> import slipring
    >>> from slipring import images
    >>> data = images.TarStream("train.tar", images.CenterCrop(24))
    >>> with slipring.Loader(data, batch_size=2, num_workers=1) as loader:
    ...     [labels.tolist() for pictures, labels in loader]
    [[0, 0], [1, 1]]
    """

    paths: list[str]

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Transform | Sequence[Transform] | None = None,
        *,
        shuffle: bool = False,
        rank: int = 0,
        world_size: int = 1,
        image: str = "jpg;jpeg;png;webp",
        target: str | None = "cls",
        index: Literal["memory", "beside"] | str | os.PathLike[str] = "memory",
        storage: Storage | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        every, storage = paths_of(shards, storage)
        flag("shuffle", shuffle)
        world_size = integer("world_size", world_size, 1)
        rank = integer("rank", rank, 0, world_size - 1)
        if len(every) < world_size:
            raise ValueError(f"{len(every)} shards are too few for {world_size} ranks: each needs one at least")
        self.paths = every[rank::world_size]
        self._divide(len(every), shuffle, rank, world_size)
        self._every = every
        self._numbers = range(len(every))[rank::world_size]
        self._passes = 0  # of this process
        # The first now: what is wrong with the shards is wrong with it.
        if options.get("cache") is not None:
            raise ValueError(
                "cache is for datasets with numbered samples: a stream has none. images.Tar reads shards so"
            )
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
            at, sample = self._place
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
                self._place = at, sample + 1  # who asks again gets the next
                raise
            except RemoteError as error:
                if error.missing and not from_handler(error):
                    self._pass_on()  # the shard has gone: who asks again gets the next one
                raise
            self._place = at, sample + 1
            if made is not None:
                return made

    def _pass_on(self):
        """To the next piece."""
        at = self._place[0] + 1
        self._place = at, self._pieces[at][1] if at < len(self._pieces) else 0
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
