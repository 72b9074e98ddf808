"""The loaders: each yields (uint8 images, labels) on the device, endlessly, by the recipe *trivial*."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler, default_collate

from bench.baselines.recipes import SIDE
from slipring import images
from slipring.torch import DataLoader

SAMPLES = 1 << 26  # of an epoch, which consists of many passes: its end does not show
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def list_of_slipring(root: str, device: torch.device, workers: int, batch: int) -> Batches:
    return _slipring(_folder(root), device, workers, batch)


def translated(root: str, device: torch.device, workers: int, batch: int) -> Batches:
    return _slipring(images.from_torchvision(_image_folder(root, on_tensors=False)), device, workers, batch)


def on_pil(root: str, device: torch.device, workers: int, batch: int) -> Batches:
    for batch_of_pixels, labels in _torch(_image_folder(root, on_tensors=False), workers, batch):
        yield batch_of_pixels.to(device), labels.to(device)


def on_tensors(root: str, device: torch.device, workers: int, batch: int) -> Batches:
    data = _image_folder(root, on_tensors=True)
    for pixels, labels in _torch(data, workers, batch, pin_memory=device.type != "cpu"):
        yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def decoded_on_gpu(root: str, device: torch.device, workers: int, batch: int) -> Batches:
    """Workers read the files, and the device does everything else, image by image."""
    if device.type != "cuda":
        raise ModuleNotFoundError("it needs a CUDA device")
    from bench.baselines._torchvision import datasets, io, v2

    data = datasets.ImageFolder(root, loader=read)
    try:
        io.decode_jpeg([data[0][0]], io.ImageReadMode.RGB, device=device)
    except RuntimeError as error:
        raise ModuleNotFoundError(f"torchvision.io does not decode here: {error}") from error
    transform = v2.Compose(_steps(v2))
    for encoded, sizes, labels in _torch(data, workers, batch, collate_fn=one_tensor):
        decoded = io.decode_jpeg(list(encoded.split(sizes)), io.ImageReadMode.RGB, device=device)
        yield torch.stack([transform(image) for image in decoded]), labels.to(device)


def same_batch(root: str, device: torch.device, workers: int, batch: int) -> Batches:
    """Yield one batch of the recipe again and again: no loader can be faster."""
    pixels, labels = next(iter(_options(TorchLoader, _folder(root), 0, batch)))
    pixels, labels = pixels.to(device), labels.to(device)
    while True:
        yield pixels, labels


BOUND = "the same batch again"
OURS = "slipring.torch, images.Folder"
TRANSLATED = "slipring.torch, from_torchvision"
ON_PIL = "torch, torchvision on PIL"
ON_TENSORS = "torch, torchvision on tensors, pinned"
ON_GPU = "torch, decoding on the GPU"
LOADERS: dict[str, Callable[[str, torch.device, int, int], Batches]] = {
    BOUND: same_batch,
    OURS: list_of_slipring,
    TRANSLATED: translated,
    ON_PIL: on_pil,
    ON_TENSORS: on_tensors,
    ON_GPU: decoded_on_gpu,
}


def _folder(root: str) -> images.Folder:
    return images.Folder(root, [images.RandomResizedCrop(SIDE), images.TrivialAugmentWide()])


def _image_folder(root: str, on_tensors: bool) -> Any:
    from bench.baselines._torchvision import datasets, v2

    steps = _steps(v2)
    return datasets.ImageFolder(
        root, v2.Compose([v2.PILToTensor(), *steps] if on_tensors else [*steps, v2.PILToTensor()])
    )


def _steps(v2: Any) -> list[Any]:
    return [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide()]


def _slipring(data: Any, device: torch.device, workers: int, batch: int) -> Batches:
    with _options(DataLoader, data, workers, batch, device=device) as loader:
        yield from loader


def _torch(data: Any, workers: int, batch: int, **options: Any) -> Iterator[Any]:
    yield from _options(TorchLoader, data, workers, batch, **options)


def _options(loader: Callable[..., Any], data: Any, workers: int, batch: int, **options: Any) -> Any:
    order = RandomSampler(range(len(data)), num_samples=SAMPLES)
    return loader(data, batch, sampler=order, num_workers=workers, **options)


def read(path: str) -> torch.Tensor:
    """Read a file's bytes."""
    return torch.from_numpy(np.fromfile(path, np.uint8))


def one_tensor(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, list[int], Any]:
    """Join the bytes of a batch: torch sends each tensor with a descriptor of its own."""
    files, labels = zip(*samples, strict=True)
    return torch.cat(files), [len(file) for file in files], default_collate(labels)
