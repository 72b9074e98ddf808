"""Transforms: the same boxes as torchvision draws, and one pass over the pixels."""

import enum
import io

import numpy as np
import pytest
from PIL import Image

from slipring import images
from slipring.images._draws import Draws
from slipring.images._recipe import Recipe
from tests.support.pictures import encoded, error, pixels


class One(images.ImageDataset):
    """A dataset of one image."""

    def __init__(self, data, transform, **options):
        super().__init__(transform, **options)
        self.data = data

    def __len__(self):
        return 1

    def read(self, index):
        return self.data, 7


def sample(data, transform, **options):
    image, target = One(data, transform, **options)[0]
    assert target == 7
    return image


def validated(data, resize, crop):
    """torchvision's usual validation recipe with Pillow: Resize, then CenterCrop with a black border."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = image.size
    longer = int(resize * max(width, height) / min(width, height))
    size = (resize, longer) if height > width else (longer, resize)
    image = image.resize(size, Image.Resampling.BILINEAR)
    if image.width < crop or image.height < crop:
        left, top = max(0, (crop - image.width) // 2), max(0, (crop - image.height) // 2)
        room = Image.new("RGB", (max(crop, image.width), max(crop, image.height)))
        room.paste(image, (left, top))
        image = room
    top, left = round((image.height - crop) / 2.0), round((image.width - crop) / 2.0)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (333, 500), (256, 256), (100, 1000), (64, 64), (1, 1)])
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (232, 224), (64, 64), (50, 64)])
def test_resize_then_center_crop_is_the_validation_recipe(size, resize, crop):
    data = encoded(pixels(*size), quality=90)
    ours = sample(data, [images.Resize(resize), images.CenterCrop(crop)])
    assert ours.shape == (crop, crop, 3)
    assert error(ours, validated(data, resize, crop)) <= 1


def test_a_center_crop_before_a_resize_scales_the_crop_alone():
    data = encoded(pixels(300, 400))
    ours = sample(data, [images.CenterCrop(200), images.Resize((50, 60))])
    image = Image.open(io.BytesIO(data)).convert("RGB").crop((100, 50, 300, 250))
    assert error(ours, np.asarray(image.resize((60, 50), Image.Resampling.BILINEAR))) <= 1


@pytest.mark.parametrize("size", [(30, 40), (20, 100), (100, 20), (21, 33)])
def test_a_crop_larger_than_the_image_has_black_around_it(size):
    data = encoded(pixels(*size))
    ours = sample(data, images.CenterCrop(64))
    image = Image.open(io.BytesIO(data)).convert("RGB")
    assert error(ours, validated(data, min(size), 64)) <= 1 and image.size == size[::-1]


def test_a_padded_image_is_flipped_with_its_border():
    data = encoded(pixels(21, 33), "PNG")
    plain = sample(data, images.CenterCrop(40))
    for steps in (
        [images.CenterCrop(40), images.RandomHorizontalFlip(1)],
        [images.RandomHorizontalFlip(1), images.CenterCrop((40, 41))],
    ):
        flipped = sample(data, steps)
        if flipped.shape == plain.shape:
            assert np.array_equal(flipped, plain[:, ::-1])


def test_a_flip_before_a_crop_crops_the_mirrored_image():
    data = encoded(pixels(40, 51), "PNG")
    mirrored = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[:, ::-1]
    ours = sample(data, [images.RandomHorizontalFlip(1), images.CenterCrop((40, 10))])
    left = round((51 - 10) / 2.0)
    assert np.array_equal(ours, mirrored[:, left : left + 10])


def views(transform, size, n=2000):
    for seed in range(n):
        recipe = Recipe(*size)
        transform.apply(recipe, Draws(seed * 0x1234567 + 99))
        yield recipe.view


def test_random_boxes_have_the_areas_and_aspects_that_were_asked_for():
    scale, ratio, size = (0.2, 0.5), (0.5, 2.0), (400, 600)
    areas, ratios, flips = [], [], 0
    for view in views(images.RandomResizedCrop(32, scale, ratio, flip=0.25), size):
        top, left, height, width = view.box
        assert top >= 0 and top + height <= size[0] and left >= 0 and left + width <= size[1]
        assert view.to == (32, 32) and view.window == (0, 0, 32, 32)
        areas.append(height * width / (size[0] * size[1]))
        ratios.append(width / height)
        flips += view.flip
    assert min(areas) > 0.19 and max(areas) < 0.51
    assert abs(np.mean(areas) - 0.35) < 0.02
    assert min(ratios) > 0.48 and max(ratios) < 2.05
    assert abs(np.mean(np.log(ratios))) < 0.06
    assert 0.2 < flips / 2000 < 0.3


def test_boxes_lie_everywhere():
    crop = images.RandomResizedCrop(32, (0.1, 0.1), (1, 1))
    places = [
        (view.box[0] / (300 - view.box[2]), view.box[1] / (300 - view.box[3])) for view in views(crop, (300, 300))
    ]
    for axis in zip(*places):
        counts, _ = np.histogram(axis, 10, (0, 1))
        assert counts.min() > 120, counts


@pytest.mark.parametrize(("size", "box"), [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))])
def test_if_no_box_fits_the_middle_is_taken(size, box):
    recipe = Recipe(*size)
    images.RandomResizedCrop(8, scale=(1, 1)).apply(recipe, Draws(1))
    view = recipe.view
    assert view.box == box


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("flip", [0, 1])
def test_channels_first_are_the_same_values(layout, flip):
    data = encoded(pixels(60, 80))
    steps = [images.Resize((24, 30)), images.RandomHorizontalFlip(flip)]
    plain, ours = sample(data, steps), sample(data, steps, layout=layout)
    assert np.array_equal(ours if layout == "NHWC" else ours.transpose(1, 2, 0), plain)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_normalised_values_are_torchvisions_to_the_bit(dtype):
    torch = pytest.importorskip("torch")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    data = encoded(pixels(60, 80))
    plain = sample(data, images.Resize((24, 30)))
    tensor = torch.from_numpy(plain).permute(2, 0, 1).to(torch.float32).div(255)
    tensor = tensor.sub(torch.tensor(mean).view(3, 1, 1)).div(torch.tensor(std).view(3, 1, 1))
    ours = sample(data, images.Resize((24, 30)), layout="NCHW", dtype=dtype, mean=mean, std=std)
    ours = ours if dtype == "bfloat16" else torch.from_numpy(ours)
    assert ours.dtype == getattr(torch, dtype)
    assert torch.equal(ours, tensor.to(ours.dtype))


def test_black_around_a_normalised_image_is_the_value_of_black():
    ours = sample(encoded(pixels(4, 4)), images.CenterCrop(8), dtype="float32", mean=(0.5, 0.25, 0), std=(0.5, 0.5, 1))
    assert ours[0, 0].tolist() == [-1.0, -0.5, 0.0]


@pytest.mark.parametrize(
    ("make", "error_type", "text"),
    [
        (lambda: images.Resize(0), ValueError, "size must be"),
        (lambda: images.Resize(True), ValueError, "size must be"),
        (lambda: images.CenterCrop((1, 2, 3)), ValueError, "size must be"),
        (lambda: images.CenterCrop("224"), ValueError, "size must be"),
        (lambda: images.RandomResizedCrop(4, scale=(1, 0.5)), ValueError, "the smaller first"),
        (lambda: images.RandomResizedCrop(4, ratio=3), ValueError, "two numbers"),
        (lambda: images.RandomResizedCrop(4, flip=2), ValueError, "probability"),
        (lambda: images.RandomResizedCrop(4, flip=True), TypeError, "flip must be a probability from 0 to 1, not True"),
        (lambda: One(b"", "resize"), TypeError, "transform must be of slipring.images"),
        (lambda: One(b"", None, layout="CHW"), ValueError, "'NHWC', 'NCHW'"),
        (lambda: One(b"", None, dtype="float64"), ValueError, "float16"),
        (lambda: One(b"", None, mean=(0, 0, 0)), ValueError, "uint8"),
        (lambda: One(b"", None, dtype="float32", std=(0, 1, 1)), ValueError, "above 0"),
        (lambda: One(b"", None, dtype="float32", mean=(0, 1)), ValueError, "three numbers"),
        (
            lambda: One(b"", None, dtype="float32", mean=(123.675, 116.28, 103.53), std=(58.4, 57.1, 57.4)),
            ValueError,
            r"mean must be at most 1.*divide it by 255, mean=\(0.485, 0.456, 0.406\)",
        ),
        (lambda: One(b"", None, dtype="float32", std=58.4 * np.ones(3)), ValueError, r"std=\(0.229, 0.229, 0.229\)"),
        (lambda: One(b"", None, on_error="ignore"), ValueError, "'raise', 'skip'"),
        (lambda: One(b"", images.Resize(4, interpolation="box")), ValueError, "'bilinear', 'bicubic', 'nearest'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_when_they_are_given(make, error_type, text):
    with pytest.raises(error_type, match=text):
        make()


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: images.RandomResizedCrop(4, interpolation="bicubc"), "bicubic"),
        (lambda: images.Resize(4, interpolation="BILINEAR"), "bilinear"),
        (lambda: One(b"", None, layout="nchw"), "NCHW"),
    ],
)
def test_a_misspelt_word_is_refused_when_it_is_given_with_the_nearest_one(make, meant):
    with pytest.raises(ValueError, match=f"Did you mean '{meant}'"):
        make()


def test_members_of_other_libraries_enumerations_count_as_their_names():
    mode = enum.Enum(
        "InterpolationMode", {"BICUBIC": "bicubic", "NEAREST_EXACT": "nearest-exact", "LANCZOS": "lanczos"}
    )
    assert images.Resize(4, interpolation=mode.NEAREST_EXACT).interpolation == "nearest"
    assert images.RandomResizedCrop(4, interpolation=mode.BICUBIC).interpolation == "bicubic"
    assert images.Resize(4, interpolation=Image.Resampling.BILINEAR).interpolation == "bilinear"
    data = encoded(pixels(20, 20))
    ours = sample(data, images.Resize(4, interpolation=mode.BICUBIC))
    assert np.array_equal(ours, sample(data, images.Resize(4, interpolation="bicubic")))
    with pytest.raises(
        ValueError, match="interpolation must be one of 'bilinear', 'bicubic', 'nearest', not 'lanczos'"
    ):
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
    for wrong in (lambda image: image[1:], lambda image: image / 2, lambda image: 3):
        with pytest.raises(ValueError, match=r"returned .*: it must return None, or an array of uint8"):
            sample(data, [images.CenterCrop(20), wrong])


@pytest.mark.parametrize("options", [{}, {"side": 60}, {"exif": True}])
def test_a_view_reports_the_draws_for_the_sample_of_the_same_seed(options):
    steps = [images.RandomHorizontalFlip(0.5), images.RandomResizedCrop((20, 30), flip=0.5)]
    data = One(encoded(pixels(90, 120), "PNG"), steps, **options)
    picture = Image.open(io.BytesIO(data.data)).convert("RGB")
    if "side" in options:
        picture = Image.fromarray(One(data.data, None, **options)[0][0])
    views = [data.view(0, seed) for seed in range(8)]
    for seed, view in enumerate(views):
        top, left, height, width = view.box
        part = picture.crop((left, top, left + width, top + height)).resize((30, 20), Image.Resampling.BILINEAR)
        want = np.asarray(part)[:, ::-1] if view.flip else np.asarray(part)
        assert error(data.try_sample(0, seed)[0], want) <= 1
        assert view.to == (20, 30) and view.window == (0, 0, 20, 30)
    assert {view.flip for view in views} == {True, False} and len({view.box for view in views}) == 8


def test_a_view_needs_a_seed_of_64_bits():
    for seed in (-1, 1 << 64):
        with pytest.raises(ValueError, match="seed must be from 0 to"):
            One(encoded(pixels(9, 9)), None).view(0, seed)
