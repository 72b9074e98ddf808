"""Transforms: the same boxes as torchvision draws, and one pass over the pixels."""

import enum
import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from slipring import images
from slipring.images import functional
from tests.support.inside import Draws, Recipe
from tests.support.pictures import encoded, error, pixels


def one(data, transform, **options):
    return images.Bytes([(data, 7)], transform, **options)


def sample(data, transform, **options):
    image, target = one(data, transform, **options)[0]
    assert target == 7
    return image


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: images.RandomResizedCrop(4, scale=(1, 0.5)), "the smaller first"),
        (lambda: one(b"", None, mean=(0, 0, 0)), "uint8"),
        (lambda: one(b"", None, dtype="float32", std=(0, 1, 1)), "above 0"),
        (
            lambda: one(b"", None, dtype="float32", mean=(123.675, 116.28, 103.53), std=(58.4, 57.1, 57.4)),
            r"mean must be at most 1.*divide it by 255, mean=\(0.485, 0.456, 0.406\)",
        ),
        (lambda: one(b"", None, dtype="float32", std=58.4 * np.ones(3)), r"std=\(0.229, 0.229, 0.229\)"),
        (lambda: images.Resize(4, interpolation="BILINEAR"), "Did you mean 'bilinear'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_when_they_are_given(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def validated(data, resize, crop, how):
    """torchvision's usual validation recipe with Pillow: Resize, then CenterCrop with a black border."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = image.size
    longer = int(resize * max(width, height) / min(width, height))
    size = (resize, longer) if height > width else (longer, resize)
    image = image.resize(size, Image.Resampling[how.upper()])
    if image.width < crop or image.height < crop:
        left, top = max(0, (crop - image.width) // 2), max(0, (crop - image.height) // 2)
        room = Image.new("RGB", (max(crop, image.width), max(crop, image.height)))
        room.paste(image, (left, top))
        image = room
    top, left = round((image.height - crop) / 2.0), round((image.width - crop) / 2.0)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))


@pytest.mark.parametrize("size", [(375, 500), (333, 500), (256, 256), (100, 1000), (30, 40), (1, 1)])
@pytest.mark.parametrize(
    ("resize", "crop", "how"), [(256, 224, "bilinear"), (232, 224, "nearest"), (50, 64, "bilinear")]
)
def test_resize_then_center_crop_is_the_validation_recipe(size, resize, crop, how):
    data = encoded(pixels(*size), quality=90)
    ours = sample(data, [images.Resize(resize, how), images.CenterCrop(crop), images.RandomHorizontalFlip(1)])
    assert ours.shape == (crop, crop, 3)
    assert error(ours, validated(data, resize, crop, how)[:, ::-1]) <= (how != "nearest")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("flips", ["", "h", "v", "hv"])
def test_the_nearest_pixels_of_a_mirrored_image_are_pillows(orientation, flips):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(pixels(34, 26), "PNG", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    for flip, mirror in (("h", ImageOps.mirror), ("v", ImageOps.flip)):
        upright = mirror(upright) if flip in flips else upright
    steps = [images.RandomHorizontalFlip(int("h" in flips)), images.RandomVerticalFlip(int("v" in flips))]
    for size in ((17, 13), (11, 40), (51, 39)):  # some of these pixels lie in the middle between two others
        wanted = np.asarray(upright.resize(size[::-1], Image.Resampling.NEAREST))
        assert np.array_equal(sample(data, [*steps, images.Resize(size, "nearest")], exif=True), wanted)


@pytest.mark.parametrize(("size", "box"), [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))])
def test_if_no_box_fits_the_middle_is_taken(size, box):
    recipe = Recipe(*size)
    images.RandomResizedCrop(8, scale=(1, 1)).apply(recipe, Draws(1))
    spec = recipe.crop_spec
    assert spec.box == box


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_normalised_values_are_torchvisions_to_the_bit(dtype):
    torch = pytest.importorskip("torch")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    data = encoded(pixels(60, 80))
    steps = [images.Resize((24, 30)), images.CenterCrop(40)]  # with a border
    plain = sample(data, steps)
    tensor = torch.from_numpy(plain).permute(2, 0, 1).to(torch.float32).div(255)
    tensor = tensor.sub(torch.tensor(mean).view(3, 1, 1)).div(torch.tensor(std).view(3, 1, 1))
    ours = sample(data, steps, layout="NCHW", dtype=dtype, mean=mean, std=std)
    ours = ours if dtype == "bfloat16" else torch.from_numpy(ours)
    assert ours.dtype == getattr(torch, dtype)
    assert torch.equal(ours, tensor.to(ours.dtype))


def test_members_of_other_libraries_enumerations_count_as_their_names():
    mode = enum.Enum("InterpolationMode", {"NEAREST_EXACT": "nearest-exact", "LANCZOS": "lanczos"})
    assert images.Resize(4, interpolation=mode.NEAREST_EXACT).interpolation == "nearest"
    assert images.RandomResizedCrop(4, interpolation=Image.Resampling.BICUBIC).interpolation == "bicubic"
    with pytest.raises(ValueError, match="'bilinear', 'bicubic', 'nearest', not 'lanczos'"):
        images.Resize(4, interpolation=mode.LANCZOS)


def test_a_crop_larger_than_an_earlier_one_has_a_black_border():
    """Pixels that the earlier crop has removed must not appear again."""
    data = encoded(pixels(20, 20), "PNG")
    for first, second in ((10, 20), ((5, 22), (15, 7))):
        once = sample(data, images.CenterCrop(first))
        want = sample(encoded(once, "PNG"), images.CenterCrop(second))
        assert np.array_equal(sample(data, [images.CenterCrop(first), images.CenterCrop(second)]), want)
    padded = sample(data, [images.CenterCrop(30), images.CenterCrop(40)])
    assert (padded == sample(data, images.CenterCrop(40))).all()


def test_an_image_is_resized_as_often_as_the_list_says():
    data = encoded(pixels(40, 50), "PNG")
    once = sample(data, images.Resize((20, 30)))
    want = sample(encoded(once, "PNG"), [images.RandomHorizontalFlip(1), images.Resize((9, 7), "bicubic")])
    steps = [images.Resize((20, 30)), images.RandomHorizontalFlip(1), images.Resize((9, 7), "bicubic")]
    assert np.array_equal(sample(data, steps), want)


def test_a_function_in_the_list_changes_the_array_or_returns_one():
    data = encoded(pixels(40, 50), "PNG")
    plain = sample(data, images.CenterCrop(20))

    def blacken(image):
        assert image.flags.writeable and image.flags.c_contiguous and image.shape == (20, 20, 3)
        image[:5] = 0

    want = plain.copy()
    want[:5] = 0
    assert np.array_equal(sample(data, [images.CenterCrop(20), blacken]), want)
    steps = [images.CenterCrop(20), blacken, images.CenterCrop(10), lambda image: image[::-1]]
    assert np.array_equal(sample(data, steps), want[5:15, 5:15][::-1])
    for given in (np.broadcast_to(np.uint8(7), (20, 20, 3)), np.asfortranarray(np.full((20, 20, 3), 7, np.uint8))):
        made = sample(data, [images.CenterCrop(20), lambda image, given=given: given, blacken])
        assert (made[5:] == 7).all() and not made[:5].any()  # it may be read-only, and have any strides
    for wrong in (lambda image: image[1:], lambda image: image / 2, lambda image: 3):
        with pytest.raises(ValueError, match=r"returned .*: it must return None, or an array of uint8"):
            sample(data, [images.CenterCrop(20), wrong])


def data(*steps, **options):
    return images.Bytes([(encoded(pixels(40, 50, noise=True)), 0)], list(steps), **options)


def changes(image):
    image[0] = 0


BLACK = (0.0, 0.0, 0.0)
# Steps without random numbers -> their operations.
CASES = {
    "none": ([images.Resize(20), images.RandomVerticalFlip(1)], ()),
    "tables": (
        [images.RandomPosterize(3, 1), images.RandomSolarize(9, 1), images.RandomInvert(1)],
        (("posterize", (3,)), ("solarize", (9.0,)), ("invert", ())),
    ),
    "a blur": ([images.GaussianBlur((3, 5), 0.5)], (("gaussian_blur", (3, 5, 0.5, 0.5)),)),
    "a resize after an operation": (
        [images.Grayscale(3), images.Resize((8, 9))], (("grayscale", ()), ("resize", (8, 9, 0))),
    ),
    "functions, among operations": (
        [changes, images.RandomEqualize(1), changes, images.RandomHorizontalFlip(1)],
        (("changes", ()), ("equalize", ()), ("changes", ()), ("horizontal_flip", ())),
    ),
    "a border": ([images.Grayscale(3), images.Pad(2)], (("grayscale", ()), ("crop", (-2, -2, 44, 54, *BLACK)))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_view_has_the_operations_in_order_with_their_numbers(case):
    steps, wanted = CASES[case]
    assert data(*steps).crop_spec(0, seed=1).operations == wanted


def test_the_numbers_of_a_view_make_the_sample():
    dataset = data(images.Resize((30, 40)), images.ColorJitter(0.5, 0.5, 0.5, 0.2))
    image = data(images.Resize((30, 40)))[0][0]
    for seed in range(8):
        made = image
        operations = dataset.crop_spec(0, seed).operations
        assert len(operations) == 4
        for name, (factor,) in operations:
            made = getattr(functional, f"adjust_{name}")(made, factor)
        assert np.array_equal(made, dataset.try_sample(0, seed)[0])
    for seed in (-1, 1 << 64):
        with pytest.raises(ValueError, match="seed must be from 0 to"):
            dataset.crop_spec(0, seed)


@pytest.mark.parametrize("side", [None, 30])
def test_a_view_has_the_box_the_mirroring_and_the_size_of_the_sample_of_the_same_seed(side):
    dataset = data(images.RandomHorizontalFlip(), images.RandomResizedCrop((20, 30)), side=side)
    picture = Image.fromarray(data(side=side)[0][0])
    specs = [dataset.crop_spec(0, seed) for seed in range(8)]
    for seed, spec in enumerate(specs):
        top, left, height, width = spec.box
        part = picture.crop((left, top, left + width, top + height)).resize((30, 20), Image.Resampling.BILINEAR)
        want = np.asarray(part)[:, ::-1] if spec.flip else np.asarray(part)
        assert error(dataset.try_sample(0, seed)[0], want) <= 1
        assert spec.to == (20, 30) and spec.window == (0, 0, 20, 30)
    assert {spec.flip for spec in specs} == {True, False} and len({spec.box for spec in specs}) == 8


def test_the_last_operation_is_the_box_that_is_erased():
    dataset = data(images.Resize((30, 40)), images.RandomErasing(1.0, value=7))
    ((name, (top, left, height, width)),) = dataset.crop_spec(0, 5).operations
    sample, _ = dataset.try_sample(0, 5)
    assert name == "erase"
    assert (sample[top : top + height, left : left + width] == 7).all()


EVERY = [
    images.ColorJitter(0.4, 0.4, 0.4, 0.1), images.AugMix(), images.ElasticTransform(20.0), images.AutoAugment(),
    images.RandomPerspective(p=1), images.PILGaussianBlur(p=1), images.RandomAutocontrast(1), images.RandAugment(4),
    images.Pad(2, padding_mode="reflect"), images.rand_augment_transform("rand-n9-p1", transforms=["SolarizeAdd"]),
    images.RandomPhotometricDistort(p=1),
]  # fmt: skip


def test_every_transform_has_operations_with_names():
    dataset = data(images.RandomResizedCrop(48), *EVERY)
    for seed in range(20):
        names = {name for name, _ in dataset.crop_spec(0, seed).operations}
        assert {"keep", "take_sum", "elastic", "perspective", "pil_gaussian_blur", "pad", "solarize_add"} <= names
        assert "permute_channels" in names
