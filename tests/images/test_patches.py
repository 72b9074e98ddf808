"""NaFlex: patches of images that keep their aspect, as many as the batch says."""

import itertools
import math
import re

import numpy as np
import pytest

import slipring
from slipring import images
from slipring.images import Sized
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.pictures import encoded, pixels

SIDE = 4
LENGTHS = [12, 20, 48]
SHAPES = [(20 + 7 * n % 31, 20 + 11 * n % 29) for n in range(30)] + [(1, 1), (2, 90), (90, 3), (3, 2)]
ROWS = [(encoded(pixels(*shape, n), ["JPEG", "PNG"][n % 2]), n) for n, shape in enumerate(SHAPES)]
N = len(ROWS)
FLOATS = {"dtype": "float32", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.5)}


def recipes(*steps, **options):
    return {length: images.Patches(length, steps, patch_size=SIDE, **options) for length in LENGTHS}


def invert(image):
    image[:] = 255 - image


def largest_grid(height, width, most):
    """Return the grid of the largest scale, among all scales at which a side becomes a whole number of patches."""
    scales = {k / side for side in (height, width) for k in range(1, most + 1)}
    grids = [(math.ceil(height * s - 1e-9), math.ceil(width * s - 1e-9)) for s in sorted(scales)]
    return [(max(1, rows), max(1, columns)) for rows, columns in grids if rows * columns <= most][-1]


def image_of(sample):
    """Return the image that a sample's patches show."""
    count = int(sample["patch_valid"].sum())
    rows, columns = sample["patch_coord"].max(0) + 1
    assert rows * columns == count and sample["patch_valid"][:count].all()
    assert not sample["patches"][count:].any() and not sample["patch_coord"][count:].any()
    image = np.zeros((rows * SIDE, columns * SIDE, 3), sample["patches"].dtype)
    for values, (row, column) in zip(sample["patches"][:count], sample["patch_coord"].tolist()):
        image[SIDE * row : SIDE * (row + 1), SIDE * column : SIDE * (column + 1)] = values.reshape(SIDE, SIDE, 3)
    return image


@pytest.mark.parametrize("most", [1, 2, 7, 64, 256])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (1, 1000), (1000, 1), (480, 640), (641, 479), (17, 16), (512, 512)])
def test_the_grid_is_the_largest_that_the_number_of_patches_allows(shape, most):
    data = images.Bytes([(encoded(np.zeros((*shape, 3), np.uint8), "PNG"), 0)], images.Patches(most, patch_size=SIDE))
    rows, columns = largest_grid(*shape, most)
    assert data.crop_spec(0, 0).to == (SIDE * rows, SIDE * columns)


@pytest.mark.parametrize("options", [{}, FLOATS, {"side": 18}, {"dtype": "float16"}], ids=str)
@pytest.mark.parametrize("random", [False, True])
def test_patches_are_those_of_the_image_that_plain_steps_make(options, random):
    steps = [images.ColorJitter(0.4, 0.4, 0.4), images.RandomHorizontalFlip(), images.RandomErasing(0.5)]
    data = images.Bytes(ROWS, recipes(*steps if random else (), interpolation="bicubic"), **options)
    for length, index in itertools.product(LENGTHS, range(N)):
        sample, target = data.try_sample(Sized(index, length), 5)
        assert {name: (array.shape, array.dtype) for name, array in sample.items()} == {
            "patches": ((length, SIDE * SIDE * 3), np.dtype(options.get("dtype", "uint8"))),
            "patch_coord": ((length, 2), np.dtype("int64")),
            "patch_valid": ((length,), np.dtype("bool")),
        }
        resize = images.Resize(data.crop_spec(Sized(index, length), 5).to, "bicubic")
        plain = images.Bytes(ROWS, [resize, *steps] if random else resize, **options)
        assert target == index and np.array_equal(image_of(sample), plain.try_sample(index, 5)[0])


def test_crops_have_the_drawn_share_and_an_aspect_near_that_of_the_image():
    row = [(encoded(pixels(200, 600), "PNG"), 0)]
    data = images.Bytes(row, images.Patches(48, patch_size=SIDE, scale=(0.25, 0.5), ratio=(0.5, 1.5)))
    boxes = [data.crop_spec(0, seed).box[2:] for seed in range(300)]
    shares = [height * width / 120_000 for height, width in boxes]
    assert 0.24 < min(shares) < 0.27 and 0.48 < max(shares) < 0.51 and data.is_random
    aspects = [width / height / 3 for height, width in boxes]
    assert 0.49 < min(aspects) < 0.55 and 1.3 < max(aspects) < 1.52
    assert all(0 < np.prod(data.crop_spec(0, seed).to) <= 48 * SIDE**2 for seed in range(300))


def sampler(**options):
    return images.SizedBatchSampler(N, LENGTHS, **{"max_tokens": 96, "seed": 3, **options})


def flat(sample):
    return [np.asarray(sample[name]).tobytes() for name in ("patches", "patch_coord", "patch_valid")]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2, slow(1), slow(3), slow(4)])
@pytest.mark.parametrize("face", ["slipring", "torch", "torch's own"])
def test_loaders_deliver_batches_of_equal_tokens(face, workers):
    data = images.Bytes(ROWS, recipes(), **FLOATS)
    if face == "slipring":
        loader = slipring.Loader(data, batch_sampler=sampler(), num_workers=workers)
    elif face == "torch":
        torch = pytest.importorskip("slipring.torch", exc_type=ImportError)
        loader = torch.DataLoader(data, batch_sampler=sampler(), num_workers=workers)
    else:
        torch = pytest.importorskip("torch")
        loader = torch.utils.data.DataLoader(data, batch_sampler=sampler(), num_workers=workers)
    seen = set()
    for (batch, targets), sized in zip(loader, sampler(), strict=True):
        assert targets.tolist() == [index for index, _ in sized]
        n, length, values = batch["patches"].shape
        assert n * length <= 96 and (length, values) == (sized[0].size, SIDE * SIDE * 3)
        for row, index in enumerate(sized):
            assert flat({name: array[row] for name, array in batch.items()}) == flat(data[index][0])
        seen.add(length)
    assert seen == set(LENGTHS)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "chunk_size": 1},
        {"num_workers": 2, "start_method": "thread"},
        {"num_workers": 1, "start_method": "spawn"},
    ],
    ids=str,
)
def test_random_patches_are_the_same_from_every_kind_of_worker(options):
    def batches(**options):
        steps = [images.RandomHorizontalFlip(), images.ColorJitter(0.4), invert, images.RandomPosterize(5)]
        data = images.Bytes(ROWS, recipes(*steps, scale=(0.3, 1)))
        with slipring.Loader(data, batch_sampler=sampler(), seed=1, **grouped(**options)) as loader:
            return [flat(batch) for batch, _ in loader]

    assert batches(**options) == batches()


def test_bfloat16_has_its_dtype_in_the_patches_alone():
    torch = pytest.importorskip("torch")
    data = images.Bytes(ROWS, recipes(), **{**FLOATS, "dtype": "bfloat16"})
    (batch, _), *_ = slipring.Loader(data, batch_sampler=[[Sized(3, 12), Sized(4, 12)]])
    dtypes = [torch.as_tensor(array).dtype for array in batch.values()]
    assert dtypes == [torch.bfloat16, torch.int64, torch.bool]


def test_one_number_of_patches_needs_no_sampler_and_step_times_measure_it():
    data = images.Bytes(ROWS, images.Patches(20, images.RandomGrayscale(1), patch_size=SIDE), **FLOATS)
    batch, _ = next(iter(slipring.Loader(data, 8)))
    assert batch["patches"].shape == (8, 20, SIDE * SIDE * 3)
    assert list(data.step_times(samples=2)) == ["decode + crop", "RandomGrayscale", "convert"]
    assert "Patches(20, [RandomGrayscale(p=1.0)], patch_size=4)" in repr(data)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: images.Patches(0), ValueError, "max_patches must be from 1 to"),
        (lambda: images.Patches(2.5), TypeError, "max_patches must be an int"),
        (lambda: images.Patches(9, patch_size=0), ValueError, "patch_size must be from 1 to"),
        (lambda: images.Patches(9, scale=(0.5, 0.1)), ValueError, "scale must be two numbers above 0"),
        (lambda: images.Patches(9, ratio=(0, 1)), ValueError, "ratio must be two numbers above 0"),
        (lambda: images.Patches(9, "flip"), TypeError, "transform must be of slipring.images"),
        (lambda: images.Patches(9, images.Resize(8)), ValueError, "must keep the image's size, and Resize"),
        (lambda: images.Patches(9, images.RandomResizedCrop(8)), ValueError, "must keep the image's size, and Rand"),
        (lambda: images.Patches(9, images.Pad(2)), ValueError, "must keep the image's size, and Pad"),
        (
            lambda: images.Bytes(ROWS, images.Patches(9), layout="NCHW"),
            ValueError,
            "layout must be 'NHWC' with Patches",
        ),
        (lambda: images.Bytes(ROWS, {8: images.Patches(9)}), ValueError, "transform[8] makes the size 9: it must be"),
        (lambda: images.Bytes(ROWS, {(3, 3): images.Patches(9)}), ValueError, "transform[(3, 3)] makes the size 9"),
        (
            lambda: images.Bytes(ROWS, images.Patches(9), batch_transform=images.MixUp()),
            ValueError,
            "batch_transform mixes one image per sample, which transform=Patches(9, [], patch_size=16) does not make",
        ),
        (lambda: images.Bytes(ROWS, images.Patches(9)).map(np.copy), ValueError, "add it to those of MultiCrop or P"),
        (lambda: images.Annotated([], images.Patches(9)), TypeError, "images.Annotated cannot have Patches"),
        (lambda: images.Bytes(ROWS, [images.Patches(9)]), TypeError, "transform must be of slipring.images"),
    ],
)
def test_what_makes_no_patches_is_refused(make, error, text):
    with pytest.raises(error, match=re.escape(text)):
        make()
