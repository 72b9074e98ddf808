"""Several crops of one image: each is the crop of the whole image, and all workers give the same bytes."""

import numpy as np
import pytest
from PIL import Image

import slipring
from slipring import images
from slipring.errors import ImageError
from tests.images.exact import error
from tests.support.inside import EncodedImage
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels

LARGE, SMALL = (16, 20), 8
CROPS = images.MultiCrop(
    [
        (2, [images.RandomResizedCrop(LARGE, scale=(0.4, 1))]),
        (3, [images.RandomResizedCrop(SMALL, scale=(0.05, 0.4)), images.RandomHorizontalFlip()]),
    ]
)


def photos(transform, format="PNG", **options):
    return images.Bytes([(encoded(pixels(40 + n, 60, n), format), n) for n in range(8)], transform, **options)


def batches(data, **options):
    with slipring.Loader(data, 4, seed=3, **grouped(**options)) as loader:
        return [([group.copy() for group in groups], labels.copy()) for groups, labels in loader]


@pytest.mark.parametrize(("layout", "format"), [("NHWC", "PNG"), ("NCHW", "JPEG")])
def test_all_workers_and_samples_by_index_give_the_same_bytes(layout, format):
    data = photos(CROPS, format, layout=layout)
    want = batches(data)
    for groups, _ in want:
        shapes = [(4, 2, *LARGE, 3), (4, 3, SMALL, SMALL, 3)]
        if layout == "NCHW":
            shapes = [(4, 2, 3, *LARGE), (4, 3, 3, SMALL, SMALL)]
        assert [group.shape for group in groups] == shapes
    for way in ({"num_workers": 2}, {"num_workers": 2, "chunk_size": 1}, {"num_workers": 2, "start_method": "thread"}):
        for (groups, labels), (theirs, its) in zip(want, batches(data, **way)):
            assert np.array_equal(labels, its) and all(map(np.array_equal, groups, theirs)), way


@pytest.mark.parametrize("options", [{}, {"side": 30}])
def test_each_crop_is_that_of_the_whole_image(options):
    """The views of one seed are drawn one after another."""
    crop = images.RandomResizedCrop(LARGE, scale=(0.1, 1))
    data = photos(images.MultiCrop([(1, crop), (4, crop)]), **options)
    one = photos(crop, **options)
    whole = Image.fromarray(photos(None, **options)[0][0])
    for seed in range(10):
        (first, others), _ = data.try_sample(0, seed)
        assert first.shape == (1, *LARGE, 3) and others.shape == (4, *LARGE, 3)
        assert np.array_equal(first[0], one.try_sample(0, seed)[0])
        top, left, height, width = (spec := data.crop_spec(0, seed)).box
        part = whole.crop((left, top, left + width, top + height)).resize(LARGE[::-1], Image.Resampling.BILINEAR)
        assert error(first[0], np.asarray(part)[:, :: -1 if spec.flip else 1]) <= 1


def test_a_jpeg_is_decoded_once(monkeypatch):
    decoded = []
    write = EncodedImage.write
    monkeypatch.setattr(
        EncodedImage, "write", lambda image, *rest: decoded.append(len(image.data)) or write(image, *rest)
    )
    data = photos(CROPS, "JPEG")
    data[3]
    assert decoded == [len(data.dataset[3][0])]


def test_an_image_that_cannot_be_read_is_named():
    with pytest.raises(ImageError, match="index 1: no format that can be read"):
        images.Bytes([(encoded(pixels(40, 60)), 0), (b"no image", 1)], CROPS)[1]


def test_crops_of_a_kept_image_are_those_of_the_file():
    data, kept = photos(CROPS), photos(CROPS, cache=1 << 20)
    for seed in (1, 1, 2):
        for want, got in zip(data.try_sample(2, seed)[0], kept.try_sample(2, seed)[0]):
            assert error(want, got) <= 1


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: images.MultiCrop([]), TypeError, "groups must be a list of"),
        (lambda: images.MultiCrop([(0, images.CenterCrop(3))]), ValueError, "the number of crops"),
        (lambda: images.MultiCrop([(2, images.Resize(9))]), ValueError, "different sizes"),
        (lambda: photos(CROPS, batch_transform=images.MixUp(num_classes=2)), ValueError, "does not make"),
        (lambda: photos(CROPS).map(print), ValueError, "add it to those of MultiCrop"),
        (lambda: photos([CROPS, images.CenterCrop(4)]), TypeError, "transform must be"),
    ],
)
def test_wrong_groups_are_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make()
