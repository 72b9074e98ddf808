"""Tar shards read one after the other: divided among ranks and workers."""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING, Any, Literal

from slipring.errors import ImageError
from slipring.images.tar import Tar, paths_of
from slipring.options import integer
from slipring.ring._check import in_a_handler
from slipring.ring._ring import mix
from slipring.workers import seeding
from slipring.workers.info import get_worker_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self, Unpack

    from slipring.images.dataset import ImageOptions
    from slipring.images.transforms import Transform


class TarStream:
    """An iterable dataset of tar shards' samples, (image, target): one shard after the other, each in one worker.

    For shards that `Tar` would have to look through all at once, or that come from slow storage: a worker reads the
    headers of one shard when it comes to it. Ranks take the shards in turn, and so do the workers of a rank; who has
    fewer ends earlier.

    Parameters
    ----------
    shards, transform, image, target, index
        As `Tar` has them.
    shuffle : bool
        Take a rank's shards in another order in each pass, and the samples within each shard. What is drawn depends
        on the loader's seed alone, not on the workers. Outside of slipring's (torch's loader without workers, a
        plain loop) Python's ``random`` gives the seed.
    rank, world_size : int
        Whose shards these are.
    layout, dtype, mean, std, reducing_gap, exif, truncated, max_pixels, on_error, side
        As `ImageDataset` has them; with ``on_error="skip"`` nothing comes in a bad image's place.

    Attributes
    ----------
    paths : list of str
        This rank's shards.

    Raises
    ------
    ValueError
        There are fewer shards than ranks, or as `Tar` does for the first of them. For another shard its iterator
        raises what `Tar` would, when it comes to it; who asks again gets the next shard.

    Notes
    -----
    Its iterators have ``state_dict`` and ``load_state_dict``: `slipring.torch.DataLoader` resumes at the sample,
    without reading what came before. torch's kind of loader knows an iterable dataset by its class:
    ``class Shards(images.TarStream, torch.utils.data.IterableDataset): pass``. torch's own workers divide shards, too.

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
    shuffle: bool

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
        index: Literal["memory", "beside"] = "memory",
        **options: Unpack[ImageOptions],
    ) -> None:
        every = paths_of(shards)
        integer("world_size", world_size, 1)
        integer("rank", rank, 0, world_size - 1)
        if len(every) < world_size:
            raise ValueError(
                f"{len(every)} shards are too few for {world_size} ranks: each needs one at least"
            )
        self.paths = every[rank::world_size]
        self.shuffle = bool(shuffle)
        self._numbers = range(len(every))[rank::world_size]
        self._division = [rank, world_size, len(every)]
        self._passes = 0  # of this process
        # The first now: what is wrong with the shards is wrong with it.
        if options.get("cache") is not None:
            raise ValueError(
                "cache is for datasets with numbered samples: a stream has none. images.Tar reads shards so"
            )
        self._samples = Tar(self.paths[0], transform, image=image, target=target, index=index, **options)

    def __iter__(self) -> Pass:
        self._passes += 1
        return Pass(self)

    def __repr__(self) -> str:
        return f"TarStream({len(self.paths)} shards, {self._samples.transform})"


class Pass:
    """One pass over a worker's shards of a `TarStream`.

    Parameters
    ----------
    stream : TarStream
    """

    def __init__(self, stream: TarStream) -> None:
        self._stream = stream
        self._worker, self._workers, seed = _here(stream._passes)
        self._begin(seed)

    def _begin(self, seed):
        self._seed = seed
        turns = list(range(len(self._stream.paths)))
        if self._stream.shuffle:
            random.Random(seed).shuffle(turns)
        self._turns = turns[self._worker :: self._workers]
        self._at = self._next = 0  # among these, and among the samples of that one
        self._samples = self._order = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Any, Any]:
        while True:
            if self._samples is None:
                if self._at >= len(self._turns):
                    raise StopIteration
                try:
                    self._open(self._turns[self._at])
                except (OSError, ValueError) as error:
                    if not in_a_handler(error):
                        self._at += 1
                    raise
            if self._next >= len(self._order):
                self._at, self._next, self._samples = self._at + 1, 0, None
                continue
            number = self._order[self._next]
            try:
                made = self._samples.try_sample(number, mix(self._of_shard, number))
            except ImageError:
                self._next += 1  # who asks again gets the next
                raise
            self._next += 1
            if made is not None:
                return made

    def _open(self, turn):
        stream = self._stream
        samples = stream._samples if turn == 0 else stream._samples.only(stream.paths[turn])
        self._of_shard = mix(self._seed, stream._numbers[turn])
        self._order = range(len(samples))
        if stream.shuffle:
            self._order = list(self._order)
            random.Random(self._of_shard).shuffle(self._order)
        self._samples = samples

    def state_dict(self) -> dict[str, Any]:
        """Return the place behind the last sample."""
        return {
            "seed": self._seed,
            "shard": self._at,
            "sample": self._next,
            "divided": [self._worker, self._workers, *self._stream._division],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises
        ------
        ValueError
            It is the place of another worker, or of other numbers of workers, ranks or shards.
        """
        divided = self.state_dict()["divided"]
        if state["divided"] != divided:
            words = "worker {} of {}, rank {} of {}, {} shards"
            raise ValueError(
                f"the state is of {words.format(*state['divided'])}; this is {words.format(*divided)}: "
                "resume with as many workers, ranks and shards"
            )
        self._begin(state["seed"])
        self._at, self._next = state["shard"], state["sample"]


def _here(passes):
    """Return (worker, workers, the pass's seed) where this runs."""
    seed, info = seeding.stream_seed(), get_worker_info()
    if seed is None and info is None and (torch := sys.modules.get("torch.utils.data")) is not None:
        info = torch.get_worker_info()
    if seed is None:
        # torch's persistent workers have one seed for all passes, which they begin together.
        seed = random.getrandbits(64) if info is None else mix(info.seed - info.id, passes)
    return (0, 1, seed) if info is None else (info.id, info.num_workers, seed)
