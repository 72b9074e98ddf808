"""webdataset's MultiLoader: processes that pickle their batches into ZeroMQ sockets.

Its sockets would let each worker run a thousand batches ahead, which fills the memory when batches are big;
they are limited to two here, as in torch. Batches come in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

from bench.collate import Stream
from bench.workload import Dataset, Workload

AHEAD = 2


class Shard(Stream):
    """A stream that learns its worker from MultiLoader's environment variables."""

    def __iter__(self) -> Iterator[Any]:
        self.worker = int(os.environ["WORKER"])
        return super().__iter__()


class _BoundedShard(Shard):
    def __setstate__(self, state: dict[str, Any]) -> None:
        _stay_close()  # in workers that are not forks
        self.__dict__.update(state)


def _stay_close() -> None:
    import zmq

    context = zmq.Context.instance()
    context.sndhwm = context.rcvhwm = AHEAD


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from webdataset.multi import MultiLoader

    _stay_close()
    os.register_at_fork(after_in_child=_stay_close)
    with TemporaryDirectory() as sockets:
        # It pickles a batch before it requests the next one, so the batch's arrays can be reused.
        shard = _BoundedShard(dataset, workload.batch_size, 0, workers, reuse=True)
        loader = MultiLoader(shard, workers=workers, prefix=f"{sockets}/")
        try:
            yield from loader
        finally:
            loader.kill()
