"""MixUp of slipring's images in torch's loader."""

import numpy as np
import torch

import slipring.torch
from slipring import images
from tests.support.pictures import encoded, pixels

CLASSES = 4


class Photos(images.ImageDataset):
    def __init__(self, **options):
        super().__init__(images.Resize((10, 12)), **options)

    def __len__(self):
        return 24

    def read(self, index):
        return encoded(pixels(20, 30, index % 5), "PNG"), index % CLASSES


def test_the_batches_are_the_same_tensors_with_and_without_workers():
    mixup = images.MixUp(alpha=0.7, num_classes=CLASSES)
    for dtype in ("uint8", "float32", "bfloat16"):
        data = Photos(batch_transform=mixup, dtype=dtype, layout="NCHW")
        epochs = []
        for workers in (0, 2):
            torch.manual_seed(3)
            with slipring.torch.DataLoader(data, 6, num_workers=workers, rng="batch") as loader:
                epochs.append([(image.clone(), label.clone()) for image, label in loader])
        plain = [image for image, _ in slipring.torch.DataLoader(Photos(dtype=dtype, layout="NCHW"), 6)]
        for (image, label), (its, its_label), before in zip(*epochs, plain):
            assert image.dtype == before.dtype and label.dtype == torch.float32 and label.shape == (6, CLASSES)
            assert torch.equal(image, its) and torch.equal(label, its_label)
            assert not torch.equal(image, before)
        assert np.allclose(torch.cat([label for _, label in epochs[0]]).sum(1), 1)


def test_a_subset_makes_whole_batches_in_the_slot_and_mixes_them():
    mixup = images.MixUp(alpha=0.7, num_classes=CLASSES)
    data = Photos(batch_transform=mixup)
    calls = []
    make = data.fetch_into
    data.fetch_into = lambda indices, empty: calls.append(indices) or make(indices, empty)
    order = [5, 3, 9, 11, 2, 20]
    parts = torch.utils.data.Subset(torch.utils.data.Subset(data, range(1, 24)), torch.tensor([n - 1 for n in order]))
    with slipring.Loader(parts, 3, rng="batch", seed=1) as loader:
        got = [(image.copy(), label.copy()) for image, label in loader]
    assert calls == [order[:3], order[3:]]
    with slipring.Loader(data, 3, sampler=order, rng="batch", seed=1) as loader:
        want = [(image.copy(), label.copy()) for image, label in loader]
    for (image, label), (its, its_label) in zip(want, got):
        assert np.array_equal(image, its) and np.array_equal(label, its_label) and label.shape == (3, CLASSES)
    with slipring.Loader(
        parts, 3, rng="batch", seed=1, num_workers=2, workers=slipring.Workers(chunk_size=2)
    ) as loader:
        for (image, label), (its, its_label) in zip(want, loader):
            assert np.array_equal(image, its) and np.array_equal(label, its_label)
