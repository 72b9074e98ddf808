"""What `Annotated` shares with the datasets of single images: the cache, the times of its steps, mixed batches."""

import numpy as np
import pytest

from slipring import Cache, Loader, images
from tests.support.pictures import encoded, pixels

COUNT = 6
PARTS = {"masks": ("mask", "each"), "boxes": "boxes", "rows": "labels", "keypoints": "points"}
STEPS = [
    images.Mosaic(24, p=0.5), images.RandomIoUCrop(), images.Resize((24, 20)), images.RandomHorizontalFlip(),
    images.ColorJitter(0.4),
]  # fmt: skip


class Samples:
    """Samples with every kind of part; it counts its reads."""

    def __init__(self, folder):
        self.folder, self.reads = folder, []
        for n in range(COUNT):
            (folder / f"{n}.jpg").write_bytes(encoded(pixels(40 + n, 60, n), quality=90))

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.reads.append(index)
        height, width = 40 + index, 60
        mask = np.arange(height * width, dtype=np.uint8).reshape(height, width)
        return {
            "image": self.folder / f"{index}.jpg",
            "mask": encoded(mask, "PNG") if index % 2 else mask.astype(np.uint16) * 9,
            "each": np.stack([mask > 100, mask > 200]),
            "boxes": [[3, 4, 33, 30], [20, 10, 55, 38]],
            "labels": np.array([index, 7]),
            "points": np.full((2, 3, 3), 12.0),
            "extra": np.arange(3),
            "name": str(index),
        }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key in one:
        assert np.array_equal(one[key], other[key]), key


@pytest.mark.parametrize("what", ("pixels", "encoded"))
def test_a_cached_sample_is_that_of_the_dataset_and_is_read_once(what, tmp_path):
    samples = Samples(tmp_path)
    plain = images.Annotated(samples, STEPS, **PARTS)
    kept = images.Annotated(samples, STEPS, cache="8MiB", what=what, **PARTS)
    expected = [plain.try_sample(n % COUNT, n) for n in range(4 * COUNT)]
    samples.reads.clear()
    for n, sample in enumerate(expected):
        assert_same(kept.try_sample(n % COUNT, n), sample)
    assert sorted(samples.reads) == list(range(COUNT))
    for path in tmp_path.iterdir():
        path.unlink()  # the files have been read, too
    assert_same(kept.try_sample(3, 3), expected[3])
    assert kept.cache.stats().entries == COUNT


@pytest.mark.parametrize("orientation", (1, 3, 6, 7))
def test_a_cached_image_is_turned_as_its_file_is(orientation):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    samples = [{"image": encoded(pixels(40, 60), exif=exif), "boxes": [[1, 2, 30, 31]]}]
    steps = [images.RandomCrop(24), images.Resize((17, 19))]
    plain, kept = (images.Annotated(samples, steps, boxes="boxes", exif=True, cache=cache) for cache in (None, "1MiB"))
    for seed in (1, 2):
        one, other = plain.try_sample(0, seed), kept.try_sample(0, seed)
        assert np.abs(one["image"].astype(int) - other["image"]).max() <= 1
        assert np.array_equal(one["boxes"], other["boxes"])


def test_values_of_a_cached_sample_can_be_changed(tmp_path):
    data = images.Annotated(Samples(tmp_path), cache="8MiB", **PARTS)
    for _ in range(2):
        sample = data[1]
        for key in ("image", "mask", "each", "boxes", "labels", "points", "extra"):
            sample[key][...] = 1
    assert data[1]["labels"].tolist() == [1, 7] and data[1]["extra"].tolist() == [0, 1, 2]


def test_two_loaders_with_workers_share_a_cache(tmp_path):
    samples = Samples(tmp_path)
    data = images.Annotated(samples, [images.Resize((20, 24))], cache=Cache("8MiB"), **PARTS)
    plain = images.Annotated(samples, [images.Resize((20, 24))], **PARTS)
    for _ in range(2):
        with Loader(data, batch_size=3, num_workers=2) as kept, Loader(plain, batch_size=3) as loader:
            for one, other in zip(kept, loader, strict=True):
                assert np.array_equal(one["image"], other["image"])
                assert np.array_equal(one["boxes"][2], other["boxes"][2])
    assert data.cache.stats().entries == COUNT


def test_a_cache_with_a_name_needs_the_fingerprint_of_the_samples(tmp_path):
    with Cache("1MiB", name=f"annotated-{tmp_path.name}") as cache:
        with pytest.raises(ValueError, match="give fingerprint="):
            images.Annotated(Samples(tmp_path), cache=cache, **PARTS)
        assert images.Annotated(Samples(tmp_path), cache=cache, fingerprint="a", **PARTS)[0]["name"] == "0"


@pytest.mark.parametrize(
    ("options", "first"),
    (({}, "decode + crop"), ({"cache": "8MiB"}, "crop"), ({"cache": "8MiB", "what": "encoded"}, "decode + crop")),
    ids=("files", "pixels", "encoded"),
)
def test_each_step_of_a_sample_has_a_time(options, first, tmp_path):
    data = images.Annotated(Samples(tmp_path), STEPS, layout="NCHW", **options, **PARTS)
    times = data.step_times(samples=3)
    assert list(times) == [first, *(type(step).__name__ for step in STEPS), "convert"]
    assert times[first] > 0 and min(times.values()) >= 0
    crops = [images.RandomIoUCrop(), images.Resize((9, 8))]
    assert list(images.Annotated(Samples(tmp_path), crops, **PARTS).step_times()) == ["decode + crop"]


def labelled(count=4, size=(30, 40)):
    return [{"image": pixels(*size, n), "right": 255 - pixels(*size, n), "label": n % 3, "id": n} for n in range(count)]


def test_a_batch_transform_mixes_all_images_of_a_sample_and_their_labels():
    mix = images.MixUp(alpha=1.0, num_classes=3)
    resize = images.Resize((30, 40))  # they have this size: it changes nothing
    data = images.Annotated(labelled(), resize, images=("image", "right"), batch_transform=mix, target="label")
    with Loader(data, batch_size=4, num_workers=1, seed=2) as loader:
        batch = {key: np.array(value) for key, value in next(iter(loader)).items()}
    assert batch["label"].shape == (4, 3) and batch["label"].dtype == np.float32
    share = batch["label"][1, 1]
    assert 0 < share < 1 and batch["id"].tolist() == [0, 1, 2, 3]
    for key in ("image", "right"):
        whole = np.stack([sample[key] for sample in labelled()]).astype(np.float32)
        assert np.abs(batch[key] - (whole * share + np.roll(whole, 1, 0) * (1 - share))).max() <= 1


@pytest.mark.parametrize(
    ("options", "text"),
    (
        ({}, "must be given together"),
        ({"target": "label", "masks": "right"}, "followed by 'right'"),
        ({"target": "label", "transform": images.RandomResize(10, 20)}, "of different sizes"),
        ({"target": "label", "transform": images.Resize((9, 9)), "batch": "list"}, "of different sizes"),
    ),
    ids=("no key", "masks", "sizes", "lists"),
)
def test_a_batch_transform_without_labels_or_with_other_parts_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        images.Annotated(labelled(), batch_transform=images.CutMix(num_classes=3), **options)


def test_a_batch_without_the_labels_is_refused():
    data = images.Annotated(
        labelled(), images.Resize((9, 9)), batch_transform=images.CutMix(num_classes=3), target="label"
    )
    with Loader(data, batch_size=2, collate_fn=len) as loader, pytest.raises(ValueError, match="needs batches with"):
        next(iter(loader))
    with pytest.raises(KeyError, match="sample 0 has no 'kind'"):
        images.Annotated(
            labelled(), images.Resize((9, 9)), batch_transform=images.CutMix(num_classes=3), target="kind"
        )[0]  # fmt: skip
