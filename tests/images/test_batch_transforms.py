"""MixUp and CutMix: what they do to a batch, and the same bytes from every kind of worker."""

import numpy as np
import pytest

import slipring
from slipring import images
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels

CLASSES = 5


def photos(*transform, **options):
    samples = [(encoded(pixels(20 + n % 6, 30, n % 6), "PNG"), n % CLASSES) for n in range(24)]
    return images.Bytes(samples, list(transform) or images.Resize((12, 10)), **options)


def batches(data, batch_size=8, **options):
    with slipring.Loader(data, batch_size, seed=5, **grouped(**options)) as loader:
        return [(pixels.copy(), targets.copy()) for pixels, targets in loader]


def unmixed(**options):
    return batches(photos(**options))


def one_hot(targets):
    return np.eye(CLASSES, dtype=np.float32)[targets]


WAYS = [{"num_workers": 3}, {"num_workers": 2, "chunk_size": 1, "start_method": "thread"}]
MIXES = {
    "mixup": images.MixUp(alpha=0.5, num_classes=CLASSES),
    "cutmix": images.CutMix(alpha=1.0, num_classes=CLASSES),
}
FORMS = [
    {"dtype": "uint8"},
    {"dtype": "float32", "layout": "NCHW", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)},
    {"dtype": "float16"},
]


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["dtype"])
def test_all_workers_and_chunks_give_the_same_bytes(name, form):
    want = batches(photos(batch_transform=MIXES[name], **form))
    for way in WAYS:
        for (image, target), (its, label) in zip(want, batches(photos(batch_transform=MIXES[name], **form), **way)):
            assert np.array_equal(image, its) and np.array_equal(target, label), way


@pytest.mark.parametrize("rng", ["batch", "sample"])
def test_the_samples_that_are_mixed_are_those_without_mixing(rng):
    """The batch's numbers do not change the samples' own."""
    crop = images.RandomResizedCrop((12, 10))
    plain = batches(photos(crop), rng=rng, num_workers=2)
    changed = 0
    for (image, _), (mixed, soft) in zip(plain, batches(photos(crop, batch_transform=MIXES["cutmix"]), rng=rng)):
        own = (image == mixed).all(-1)
        assert (own | (np.roll(image, 1, 0) == mixed).all(-1)).all()
        changed += (~own).sum()
        assert np.allclose(soft.sum(1), 1)
    assert changed


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["dtype"])
def test_mixup_is_a_weighted_mean_with_the_previous_image(form):
    shares = []
    for (image, target), (mixed, soft) in zip(unmixed(**form), batches(photos(batch_transform=MIXES["mixup"], **form))):
        share = soft[0][target[0]]  # the previous image has another class
        shares.append(share)
        rolled = np.roll(image, 1, 0).astype(np.float32)
        want = image.astype(np.float32) * share + rolled * (np.float32(1) - share)
        if form["dtype"] == "float32":
            assert np.abs(mixed - want).max() < 1e-6
        else:
            assert np.abs(mixed - want).max() <= (0.5001 if form["dtype"] == "uint8" else 1e-3)
        assert np.allclose(soft, one_hot(target) * share + np.roll(one_hot(target), 1, 0) * (1 - share))
    assert len(set(shares)) == 3


def test_cutmix_weighs_labels_by_the_area_of_its_box():
    for (image, target), (mixed, soft) in zip(unmixed(), batches(photos(batch_transform=MIXES["cutmix"]))):
        changed = (mixed != image).any((0, 3))
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        share = 1.0
        if len(rows):
            box = np.s_[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            assert np.array_equal(mixed[box], np.roll(image, 1, 0)[box])
            share = 1 - (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1) / 120
        assert np.allclose(soft, one_hot(target) * share + np.roll(one_hot(target), 1, 0) * (1 - share), atol=1e-6)


LABELS = {
    "a tensor without dimensions": lambda torch, n: torch.tensor(n),
    "a tensor of uint8": lambda torch, n: torch.tensor(n, dtype=torch.uint8),
    "a soft tensor": lambda torch, n: torch.eye(CLASSES)[n],
    "a soft tensor of bfloat16": lambda torch, n: torch.eye(CLASSES)[n].bfloat16(),
    "a soft tensor with a gradient": lambda torch, n: torch.eye(CLASSES)[n].requires_grad_(),
    "a one-hot tensor of integers": lambda torch, n: torch.eye(CLASSES).long()[n],
    "a soft array": lambda torch, n: np.eye(CLASSES)[n],
}


@pytest.mark.parametrize("way", [{}, *WAYS], ids=["none", "processes", "threads"])
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("mix", MIXES)
def test_labels_of_all_kinds_are_mixed_as_class_numbers_are(mix, kind, way):
    torch = pytest.importorskip("torch")
    want = batches(photos(batch_transform=MIXES[mix]))
    data = photos(batch_transform=MIXES[mix], target_transform=lambda n: LABELS[kind](torch, n))
    for (image, target), (its, label) in zip(want, batches(data, **way), strict=True):
        assert np.array_equal(image, its) and label.dtype == np.float32 and np.array_equal(target, label)
    chunked = batches(data, num_workers=2, chunk_size=1)  # the batch's workers share a column of tensors
    assert all(np.array_equal(target, label) for (_, target), (_, label) in zip(want, chunked, strict=True))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_tensors_as_labels_are_mixed_in_torchs_loader(mix, dtype):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    def epoch(rng="batch", chunk_size=None, seed=3, **options):
        torch.manual_seed(seed)
        with DataLoader(data, 8, rng=rng, **options, **grouped(chunk_size=chunk_size)) as loader:
            return [(image.clone(), label.clone()) for image, label in loader]

    data = photos(batch_transform=MIXES[mix], target_transform=torch.tensor, dtype=dtype, layout="NCHW")
    wanted = epoch()
    for options in ({"num_workers": 2}, {"num_workers": 2, "chunk_size": 1}):
        for (image, label), (its, its_label) in zip(wanted, epoch(**options), strict=True):
            assert torch.equal(image, its) and torch.equal(label, its_label), options
    for (_, target), (image, label) in zip(unmixed(), wanted, strict=True):
        assert image.dtype is getattr(torch, dtype)
        assert label.dtype == torch.float32 and label.shape == (8, CLASSES)
        assert torch.allclose(label.sum(1), torch.ones(8)) and ((label.numpy() > 0).sum(1) <= 2).all()
        assert (label.numpy()[0, target[[0, -1]]] >= 0).all()


def test_a_subset_of_torchs_mixes_its_batches():
    subset_of = pytest.importorskip("torch.utils.data").Subset
    data, order = photos(batch_transform=MIXES["mixup"]), [5, 3, 9, 11, 2, 20]
    subset = subset_of(subset_of(data, range(1, 24)), [n - 1 for n in order])
    for (image, label), (its, its_label) in zip(batches(data, 3, sampler=order), batches(subset, 3), strict=True):
        assert np.array_equal(image, its) and np.array_equal(label, its_label) and label.shape == (3, CLASSES)


def test_a_subset_of_images_whose_size_only_the_files_give_mixes_its_batches():
    subset_of = pytest.importorskip("torch.utils.data").Subset
    samples = [(encoded(pixels(12, 10, n), "PNG"), n % CLASSES) for n in range(8)]
    data = images.Bytes(samples, images.RandomHorizontalFlip(0), batch_transform=MIXES["mixup"])
    ((mixed, soft),) = batches(subset_of(data, range(8)))
    ((whole, its),) = batches(data)
    assert np.array_equal(mixed, whole) and np.array_equal(soft, its)


def test_a_warning_says_that_a_concatenation_does_not_mix(caplog):
    concatenation_of = pytest.importorskip("torch.utils.data").ConcatDataset
    both = concatenation_of([photos(batch_transform=MIXES["mixup"])] * 2)
    assert all(labels.ndim == 1 for _, labels in batches(both))
    assert "batch_transform= is not applied, because torch's ConcatDataset reads each sample" in caplog.text
    caplog.clear()
    batches(both, collate_fn=slipring.default_collate)
    assert "batch_transform" not in caplog.text


@pytest.mark.parametrize("alpha", [0.2, 4.0])
def test_shares_have_the_beta_distribution(alpha):
    """Its mean is 1/2 and its variance 1 / (4 (2 alpha + 1))."""
    data = photos(batch_transform=images.MixUp(alpha=alpha, num_classes=2))
    batch = np.zeros((2, 1, 1, 3), np.uint8), np.array([0, 1])
    shares = np.array([data.finish_batch(batch, seed)[1][0, 0] for seed in range(4000)])
    assert shares.min() >= 0 and shares.max() <= 1
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() * 4 * (2 * alpha + 1) - 1) < 0.1


def test_a_last_batch_of_one_image_is_mixed_with_itself():
    (image, target), (mixed, soft) = batches(photos(), 23)[1], batches(photos(batch_transform=MIXES["mixup"]), 23)[1]
    assert np.array_equal(image, mixed) and np.allclose(soft, one_hot(target))
    one, other = photos()[3], photos(batch_transform=MIXES["mixup"])[3]  # an image read by its index is not mixed
    assert np.array_equal(one[0], other[0]) and one[1] == other[1]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: images.MixUp(alpha=0), ValueError, "alpha must be a number above 0"),
        (lambda: photos(batch_transform=images.Resize(3)), TypeError, "batch_transform must be MixUp, CutMix"),
        (lambda: photos(MIXES["mixup"]), TypeError, "which mixes a batch: give batch_transform="),
        (lambda: batches(photos(batch_transform=images.MixUp())), ValueError, "needs num_classes="),
        (lambda: batches(photos(batch_transform=images.MixUp(num_classes=4))), ValueError, "a target is 4: with num"),
        (
            lambda: batches(photos(batch_transform=MIXES["mixup"], target_transform=lambda n: one_hot(n)[:3])),
            ValueError,
            r"shape \(8, 3\), and num_classes=5 needs as many columns",
        ),
        (
            lambda: batches(photos(batch_transform=MIXES["mixup"], target_transform=lambda n: [0.0] * 8)),
            ValueError,
            "a row for each of 8 images.*make each label a number, an array or a tensor",
        ),
        (
            lambda: batches(photos(batch_transform=MIXES["mixup"], target_transform=float)),
            ValueError,
            "leave out target_transform",
        ),
        (
            lambda: batches(photos(batch_transform=MIXES["mixup"]), collate_fn=lambda samples: samples[0][0]),
            ValueError,
            r"needs batches of \(images, targets\)",
        ),
    ],
)
def test_batches_that_cannot_be_mixed_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()
