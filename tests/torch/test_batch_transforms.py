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
