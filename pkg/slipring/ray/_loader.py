"""The ingest of Ray Data: batches of an exact size, made outside the training process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import MAX_COUNT, flag, function, instance, integer
from slipring._core.options.rule import refuse
from slipring._core.passes.frontend import MASK_62
from slipring._core.passes.state import unpickled
from slipring._core.ring._ring import MAX_WORKERS, mix
from slipring.loader import Loader as CoreLoader
from slipring.options import OF_WORKERS, RayOptions, Workers, declares
from slipring.ray import _cluster as cluster
from slipring.ray._blocks import BlockStream, BlockWorker, join
from slipring.streams._loader import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import ray.data
    from typing_extensions import Unpack

    from slipring._core.options.values import Options
    from slipring.images._sources.dataset import ImageOptions
    from slipring.images._steps.base import Transform

# The times in a worker's state, under their names in `Dataset.stats()`.
WAITS = ("In get RefBundles", "In ray.get()")  # waits for other Ray processes
TIMES = (*WAITS, "In batch creation", "In collate_fn")


# Options that this loader refuses, and why.
REFUSED_WITH_RAY = {
    **REFUSED,
    "worker_init_fn": "a worker joins the cluster when it starts. Give collate_fn what it needs",
    "workers.start_method": "workers are spawned, because Ray does not survive a fork",
    "persistent_workers": "workers persist, because each has to join the cluster",
}


@declares(
    RayOptions, defaults={"num_workers": 1}, refused=REFUSED_WITH_RAY,
    prefetch_batches="prefetch_blocks", local_shuffle_buffer_size="local_shuffle",
)  # fmt: skip
class Loader(CoreLoader[Any]):
    """Batches of an exact size from a ``ray.data.DataIterator``, made in separate processes.

    A worker joins the cluster and takes one block after another. It copies each row once, from Ray's object store to
    the slot that the training process reads, and releases a block when its rows are copied.

    Parameters
    ----------
    iterator : ray.data.DataIterator or ray.data.Dataset
        The result of ``ray.train.get_dataset_shard`` or ``Dataset.streaming_split``, for example. All ranks of a split
        begin each epoch together.
    batch_size : int
        Rows per batch. Each of several workers fills batches from its own blocks, and its last batch may have fewer
        rows.
    columns : sequence of str, optional
        The columns to read, in this order. Default: all columns of the first block, which every block must then have.
    collate_fn : callable, optional
        Called in the worker with each batch, a dict of column to values; it returns the value to deliver.
    images : dict of str to Transform, or list of Transform; optional
        Columns of encoded images, and their transforms. The worker decodes each image into the batch. See
        `slipring.images`.
    image_options : dict, optional
        Options for all of these columns: layout, dtype, mean, std, reducing_gap, exif, truncated, grey16, max_pixels,
        on_error, side; see `slipring.images.ImageDataset`.
    local_shuffle : int
        Draw the rows of a batch at random from a buffer of so many rows, at least `batch_size`, in each worker's own
        memory. 0: rows keep the order of the blocks.
    fill_null, null_mask
        As in `slipring.stream`; not for columns of images or of Ray's tensor types.
    prefetch_blocks : int
        Blocks that each worker requests in advance, so that Ray brings them to this node.
    {options}

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.
    RuntimeError
        This process is not connected to a cluster.

    Examples
    --------
    >>> import ray
    >>> import slipring.ray
    >>> data = ray.data.range(1000)  # doctest: +SKIP
    >>> with slipring.ray.Loader(data, batch_size=256) as loader:  # doctest: +SKIP
    ...     print([len(batch["id"]) for batch in loader])
    [256, 256, 256, 232]

    Notes
    -----
    Workers are spawned, persist, and join the cluster when they start. With ``in_order=True`` their batches come in
    turn, and block i belongs to worker ``i % num_workers``. Otherwise a worker takes the next block
    when it needs one. With ``Workers(on_death='respawn')``, the default without `local_shuffle`, no row is lost or
    delivered twice: a block is kept until the batch with its last row is published. A shuffle buffer is lost with its
    worker. The `timeout` of the first batch includes the time until Ray's tasks have started. The same `seed` draws the
    same rows and crops, provided that Ray delivers the same blocks.
    """

    options: Options
    _worker_class = BlockWorker

    def __init__(
        self,
        iterator: ray.data.DataIterator | ray.data.Dataset,
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        images: Mapping[str, Transform | Sequence[Transform]] | None = None,
        image_options: ImageOptions | None = None,
        local_shuffle: int = 0,
        fill_null: Mapping[str, Any] | None = None,
        null_mask: Sequence[str] | None = None,
        prefetch_blocks: int = 2,
        **options: Unpack[RayOptions],
    ) -> None:
        self._ingest = None
        self._past = [0] * len(TIMES)  # ns, of finished passes
        given = cluster.iterator_of(iterator)
        refuse(options, REFUSED_WITH_RAY, "slipring.ray.Loader")
        num_workers = integer("num_workers", options.pop("num_workers", 1), 1, MAX_WORKERS)
        prefetch_blocks = integer("prefetch_blocks", prefetch_blocks, 0, MAX_COUNT)
        local_shuffle = integer("local_shuffle", local_shuffle, 0, MAX_COUNT)
        in_order = options.get("in_order", True)
        flag("in_order", in_order)
        if (device := options.pop("device", None)) is not None:
            from slipring.torch.device.to_device import one_device

            device = one_device(device)
        function("collate_fn", collate_fn)
        workers = options.pop("workers", Workers())
        instance("workers", workers, Workers, OF_WORKERS)
        on_death = workers.on_death or ("raise" if local_shuffle else "respawn")
        if on_death == "respawn" and local_shuffle:
            raise ValueError(
                f"Workers(on_death='respawn') with local_shuffle={local_shuffle}: a dead worker's buffer holds rows of "
                "blocks that Ray has let go of. Give Workers(on_death='raise'), or shuffle in Ray Data"
            )
        if images is not None or image_options is not None:
            from slipring.ray._images import image_columns_of

            images = image_columns_of(images, image_options)
        keep = on_death == "respawn"
        turns = num_workers if in_order else 0
        address, namespace = cluster.address_and_namespace()
        data = BlockStream(
            address, b"", cluster.split_of(given), batch_size, columns=columns, shuffle_buffer=local_shuffle,
            drop_last=options.pop("drop_last", False), fill_null=fill_null, null_mask=null_mask, collate_fn=collate_fn,
            image_columns=images, prefetch=prefetch_blocks, keep=keep,
        )  # fmt: skip
        super().__init__(
            data,
            None,
            num_workers=num_workers,
            workers=dataclasses.replace(workers, on_death=on_death, start_method="spawn"),
            **options,
            worker_init_fn=partial(join, address, namespace),
        )
        self._device = device
        if device is not None and device.preload:
            self.options = dataclasses.replace(self.options, preload_depth=device.preload)
        self._ingest = cluster.Ingest(given, keep, turns, threads=num_workers * (prefetch_blocks + 2) + 2)
        data.coordinator = self._ingest.pickled

    # ---- iteration

    def _numbers(self, iterator, loaded):
        if (self.seed, self.epoch) in self._ingest.begun:
            self._reset()
        return super()._numbers(iterator, loaded)

    def _pci_addresses(self):
        from slipring.torch.device.to_device import pci_address

        return () if self._device is None else (pci_address(self._device),)

    def _begin_in(self, iterator, arguments, hooks):
        times = self._times()
        begun = super()._begin_in(iterator, arguments, hooks)
        self._past = times
        return begun

    def __iter__(self) -> Iterator[Any]:
        iterator = super().__iter__()
        if self._device is None:
            return iterator
        from slipring.torch.device.to_device import on_device

        return on_device(iterator, self._device)

    def _on_end(self, on_end):
        run = self.seed, self.epoch
        over = self._ingest.begin(run, (self.dataset.generation, pass_seed(*run)))

        def ended(engine):
            try:
                on_end(engine)
            finally:
                over()

        return ended

    def _reset(self):
        self._ingest.reset(self.options.timeout)
        self.dataset.generation = self._ingest.generation
        self._end_all()  # the workers still have the previous generation

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iteration: see `slipring.Loader.state_dict`.

        Raises
        ------
        ValueError
            Another pass would give other rows: Ray's order is not kept, one of Ray's shuffles has no seed, or the
            first free worker takes the next block.
        LoaderTimeout
            A split's coordinator does not answer how its data is shuffled.
        """
        self._check_repeats()
        return super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next iteration continue from a state: see `slipring.Loader.load_state_dict`.

        Blocks are read from the data's beginning, and rows that were delivered are skipped without being copied. A
        loader without `local_shuffle` may have another `batch_size` than the state's.

        Raises
        ------
        AssertionError, TypeError, ValueError
            The argument is not a state, or its number of workers, shuffle or rank of a split differs; or, as for
            `state_dict`, this loader's data and options do not allow a state.
        LoaderTimeout
            As for `state_dict`.
        """
        self._check_repeats()
        times = self._times()
        super().load_state_dict(state_dict)
        self._past = times

    def _check_repeats(self):
        """Raise ValueError if another pass over the data may give other rows."""
        if not self.options.in_order and self.options.num_workers > 1:
            raise ValueError(
                "a state would be of no use: with in_order=False the first worker that is ready takes the next block. "
                "Give in_order=True, or num_workers=1"
            )
        self._ingest.check_repeats(self.options.timeout or None)

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to copy or pickle the loader.

        Raises
        ------
        TypeError
            Two loaders cannot draw from one ``ray.data.DataIterator``.
        """
        raise TypeError(
            "a slipring.ray.Loader cannot be copied or pickled: its blocks are handed out by an actor that ends with "
            "it. Make a loader where it is read, of an iterator or Dataset of Ray's, which can be pickled"
        )

    # ---- figures, end

    def _waits(self, snapshot):
        """Return the times of ``Dataset.stats()``, under their names there."""
        times = dict(zip(TIMES, self._times()))
        waits = {name: ns / 1e9 for name, ns in times.items()}
        waits["Total time user thread is blocked"] = snapshot.stages["waited"].total_s
        return waits, {"block_wait_ns": sum(times[name] for name in WAITS), "block_ns": sum(times.values())}

    def data_stats(self) -> str:
        """Return the text of ``Dataset.stats()`` for the latest execution, which runs outside this process.

        Raises
        ------
        ray.exceptions.RayError
            The cluster does not answer.
        """
        return self._ingest.stats(self.options.timeout or None)

    def _times(self):
        """Return the ns of each of `TIMES`, as of each worker's newest state."""
        newest = self._newest
        workers = () if newest is None else newest.position.workers
        states = [unpickled(worker.state) for worker in workers if worker.at >= 0]
        waits = [state["iterator"]["waits"] for state in states if state]
        return [sum(ns) for ns in zip(self._past, *waits)]

    def close(self) -> None:
        """End workers, iterations and the executions begun in the cluster. Batches that are held stay valid."""
        super().close()
        if self._ingest is not None:
            self._ingest.close()


def pass_seed(seed, epoch):
    """Return a pass's seed, as a worker computes it: see `slipring._core.workers.worker.Worker`."""
    return mix(mix(seed, epoch) & MASK_62, epoch)
