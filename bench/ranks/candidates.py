"""The ways in which n ranks get the same batches. Each is a function that yields one rank's batches."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from slipring.torch import DataLoader

SHAPE = (3, 224, 224)
BATCH = 64
KINDS = torch.uint8, torch.int64  # of a batch's tensors


class Files(torch.utils.data.Dataset[Any]):
    """A map dataset of compressed images that counts the bytes that it reads, in a file for each process.

    Parameters
    ----------
    folder : str
        It has `n_files` files of this kind (see `write`).
    n_files, n_samples : int
        Samples repeat the files. Each sample has a name of its own, because a real dataset would.
    n_names : int
        The names in the dataset's Python state, at least `n_samples`.
    """

    def __init__(self, folder: str, n_files: int, n_samples: int, n_names: int) -> None:
        self.folder, self.n_samples = folder, n_samples
        self.names = [f"{i % n_files}.{i}" for i in range(n_names)]
        self.counter: tuple[int, Any] = (0, None)

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data = Path(self.folder, self.names[index].partition(".")[0]).read_bytes()
        self.count(len(data))
        return torch.frombuffer(bytearray(zlib.decompress(data)), dtype=torch.uint8).view(SHAPE), index

    def count(self, n_bytes: int) -> None:
        """Add to the counter of this process."""
        if self.counter[0] != os.getpid():
            path = Path(self.folder, f"read-{os.getpid()}")
            self.counter = os.getpid(), np.memmap(path, np.int64, "w+", shape=(1,))
        self.counter[1][0] += n_bytes


def write(folder: str, n_files: int) -> None:
    """Write the files. Each byte is one of 16 values, so that they can be compressed to about half."""
    draw = np.random.default_rng(0)
    for number in range(n_files):
        pixels = draw.integers(0, 16, SHAPE, np.uint8)
        Path(folder, str(number)).write_bytes(zlib.compress(pixels.tobytes(), 1))


def bytes_read(folder: str) -> int:
    """Return the sum of all counters, and remove them."""
    total = 0
    for path in Path(folder).glob("read-*"):
        total += int(np.fromfile(path, np.int64)[0])
        path.unlink()
    return total


@dataclasses.dataclass(frozen=True)
class Task:
    """The data of a measurement: that of `batches` batches, from `n_files` files in `folder`."""

    folder: str
    n_files: int
    batches: int
    n_names: int

    def data(self) -> Files:
        """Make the dataset. A rank that does not read it does not make it."""
        return Files(self.folder, self.n_files, self.batches * BATCH, self.n_names)


def shared(task: Task, rank: int, ways: Any) -> Iterator[Any]:
    """One loader for the group; the ranks read the same slots."""
    with DataLoader(task.data, BATCH, num_workers=1, share=dist.group.WORLD) as loader:
        yield from loader


def shared_data(task: Task, rank: int, ways: Any) -> Iterator[Any]:
    """As `shared`, but the script of each rank makes the dataset."""
    with DataLoader(task.data(), BATCH, num_workers=1, share=dist.group.WORLD) as loader:
        yield from loader


def loaders(task: Task, rank: int, ways: Any) -> Iterator[Any]:
    """One slipring loader for each rank."""
    with DataLoader(task.data(), BATCH, num_workers=1) as loader:
        yield from loader


def torch_loaders(task: Task, rank: int, ways: Any) -> Iterator[Any]:
    """One loader of torch for each rank."""
    yield from torch.utils.data.DataLoader(task.data(), BATCH, num_workers=1)


def gloo(task: Task, rank: int, ways: Any) -> Iterator[Any]:
    """`torch.distributed.broadcast` from rank 0; the shapes are known."""
    source = iter(torch.utils.data.DataLoader(task.data(), BATCH, num_workers=1)) if rank == 0 else None
    for _ in range(task.batches):
        if source is not None:
            pixels, labels = next(source)
        else:
            pixels, labels = torch.empty((BATCH, *SHAPE), dtype=torch.uint8), torch.empty(BATCH, dtype=torch.int64)
        dist.broadcast(pixels, 0)
        dist.broadcast(labels, 0)
        yield pixels, labels


def zeromq(task: Task, rank: int, ways: Any) -> Iterator[Any]:
    """ZeroMQ's PUB/SUB over a Unix socket; the arrays are frames, sent without a copy in Python."""
    import zmq

    context: Any = zmq.Context.instance()
    address = f"ipc://{task.folder}/zmq"
    if rank:
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 2)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(address)
        dist.barrier()
        socket.recv()  # the subscription has arrived
        dist.barrier()
        for _ in range(task.batches):
            frames = socket.recv_multipart(copy=False)
            pixels, labels = (torch.frombuffer(frame.buffer, dtype=kind) for frame, kind in zip(frames, KINDS))
            yield pixels.view(BATCH, *SHAPE), labels
        return
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.SNDHWM, 2)
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # a message for equal subscriptions, too
    socket.bind(address)
    dist.barrier()
    for _ in range(dist.get_world_size() - 1):
        socket.recv()  # one message for each subscription
    socket.send(b"")
    dist.barrier()
    for pixels, labels in torch.utils.data.DataLoader(task.data(), BATCH, num_workers=1):
        socket.send_multipart((pixels.numpy(), labels.numpy()), copy=False)
        yield pixels, labels


def queues(task: Task, rank: int, ways: Any) -> Iterator[Any]:
    """A queue of `torch.multiprocessing` for each other rank; tensors are sent as descriptors of shared memory."""
    if rank:
        for _ in range(task.batches):
            yield ways[rank - 1].get()
        return
    for batch in torch.utils.data.DataLoader(task.data(), BATCH, num_workers=1):
        for queue in ways:
            queue.put(batch)
        yield batch


CANDIDATES: dict[str, Callable[[Task, int, Any], Iterator[Any]]] = {
    "slipring.torch, share=, one dataset": shared,
    "slipring.torch, a loader per rank": loaders,
    "slipring.torch, share=": shared_data,
    "torch, a loader per rank": torch_loaders,
    "torch, broadcast over gloo": gloo,
    "torch, ZeroMQ PUB/SUB": zeromq,
    "torch, a queue per rank": queues,
}
