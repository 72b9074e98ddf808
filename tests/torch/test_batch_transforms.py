"""MixUp of slipring's images in torch's loader, and in torch's Subset."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import slipring  # noqa: E402
from slipring import images  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.pictures import encoded, pixels  # noqa: E402

CLASSES = 4
MIXUP = images.MixUp(alpha=0.7, num_classes=CLASSES)


def photos(**options):
    samples = [(encoded(pixels(20, 30, n % 5), "PNG"), n % CLASSES) for n in range(24)]
    return images.Bytes(samples, images.Resize((10, 12)), **options)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_the_batches_are_the_same_tensors_with_and_without_workers(dtype):
    form = {"dtype": dtype, "layout": "NCHW"}
    epochs = []
    for data, num_workers in ((photos(**form), 0), *((photos(batch_transform=MIXUP, **form), n) for n in (0, 2))):
        torch.manual_seed(3)
        with DataLoader(data, 6, num_workers=num_workers, rng="batch") as loader:
            epochs.append([(image.clone(), label.clone()) for image, label in loader])
    for (plain, _), (image, label), (its, its_label) in zip(*epochs, strict=True):
        assert image.dtype is plain.dtype and label.dtype is torch.float32 and label.shape == (6, CLASSES)
        assert torch.equal(image, its) and torch.equal(label, its_label)
        assert not torch.equal(image, plain)


def test_a_subset_mixes_its_batches():
    def batches(data, **options):
        with slipring.Loader(data, 3, rng="batch", seed=1, **options) as loader:
            return [(image.copy(), label.copy()) for image, label in loader]

    data, order = photos(batch_transform=MIXUP), [5, 3, 9, 11, 2, 20]
    subset = torch.utils.data.Subset(torch.utils.data.Subset(data, range(1, 24)), [n - 1 for n in order])
    for (image, label), (its, its_label) in zip(batches(data, sampler=order), batches(subset), strict=True):
        assert np.array_equal(image, its) and np.array_equal(label, its_label) and label.shape == (3, CLASSES)
