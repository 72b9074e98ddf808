"""images.functional: the results of torchvision's functions on PIL images, which are Pillow's."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from slipring.images import functional as F
from tests.images.test_blur import gaussian
from tests.images.test_color import turned
from tests.support.pictures import FUSED, error, pixels

SIZES = [(1, 1), (1, 7), (2, 3), (61, 33)]
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
PLANE = [1, 0.1, 2, 0.05, 0.9, 1, 1e-3, 2e-3]
ROUNDED = "resize", "resized crop", "rotate bilinear"  # at most one level away
FACTORED = "brightness", "contrast", "saturation", "sharpness"
BY_PILLOW = {
    "horizontal_flip": (F.horizontal_flip, ImageOps.mirror),
    "vertical_flip": (F.vertical_flip, ImageOps.flip),
    "crop": (lambda a: F.crop(a, -2, 3, 9, 5), lambda i: i.crop((3, -2, 8, 7))),
    "center_crop": (lambda a: F.center_crop(a, 1), lambda i: middle(i)),
    "pad": (lambda a: F.pad(a, (1, 2, 3, 4), (5, 6, 7)), lambda i: ImageOps.expand(i, (1, 2, 3, 4), (5, 6, 7))),
    "invert": (F.invert, ImageOps.invert),
    "posterize": (lambda a: F.posterize(a, 3), lambda i: ImageOps.posterize(i, 3)),
    "solarize": (lambda a: F.solarize(a, 100), lambda i: ImageOps.solarize(i, 100)),
    "autocontrast": (F.autocontrast, ImageOps.autocontrast),
    "equalize": (F.equalize, ImageOps.equalize),
    "channels": (
        lambda a: F.permute_channels(a, (2, 0, 1)),
        lambda i: Image.merge("RGB", [i.getchannel(channel) for channel in (2, 0, 1)]),
    ),
    "one grey channel": (F.rgb_to_grayscale, lambda i: np.asarray(i.convert("L"))[..., None]),
    "grey": (lambda a: F.rgb_to_grayscale(a, 3), lambda i: i.convert("L").convert("RGB")),
    "brightness": (lambda a: F.adjust_brightness(a, 1.3), lambda i: ImageEnhance.Brightness(i).enhance(1.3)),
    "contrast": (lambda a: F.adjust_contrast(a, 1.7), lambda i: ImageEnhance.Contrast(i).enhance(1.7)),
    "saturation": (lambda a: F.adjust_saturation(a, 0.4), lambda i: ImageEnhance.Color(i).enhance(0.4)),
    "hue": (lambda a: F.adjust_hue(a, -0.2), lambda i: turned(i, -0.2)),
    "sharpness": (lambda a: F.adjust_sharpness(a, 1.9), lambda i: ImageEnhance.Sharpness(i).enhance(1.9)),
    "blur": (lambda a: F.pil_gaussian_blur(a, 1.5), lambda i: i.filter(ImageFilter.GaussianBlur(1.5))),
    "resize": (lambda a: F.resize(a, (20, 30)), lambda i: i.resize((30, 20), FILTERS["bilinear"])),
    "resized crop": (
        lambda a: F.resized_crop(a, 0, 0, 1, 1, 5, "bicubic"),
        lambda i: i.crop((0, 0, 1, 1)).resize((5, 5), FILTERS["bicubic"]),
    ),
    "rotate 90": (lambda a: F.rotate(a, 90, expand=True), lambda i: i.rotate(90, expand=True)),
    "rotate 270": (lambda a: F.rotate(a, -90, "bicubic", True), lambda i: i.rotate(270, FILTERS["bicubic"], True)),
    "rotate bilinear": (
        lambda a: F.rotate(a, 33, "bilinear", fill=(9, 8, 7), expand=True),
        lambda i: i.rotate(33, FILTERS["bilinear"], True, fillcolor=(9, 8, 7)),
    ),
    "rotate": (lambda a: F.rotate(a, 17, fill=(1, 2, 3)), lambda i: i.rotate(17, fillcolor=(1, 2, 3))),
    "rotate at": (
        lambda a: F.rotate(a, 30, center=(3, 2), expand=True),
        lambda i: i.rotate(30, expand=True, center=(3, 2)),
    ),
    "move": (
        lambda a: F.affine(a, 0, (3, -2), 1, 0, "bilinear", fill=9),
        lambda i: i.transform(
            i.size, Image.Transform.AFFINE, (1, 0, -3, 0, 1, 2), FILTERS["bilinear"], fillcolor=(9, 9, 9)
        ),
    ),
    "shear": (
        lambda a: F.affine(a, 0, (0, 0), 1, 45, center=(0, 0)),
        lambda i: i.transform(i.size, Image.Transform.AFFINE, (1, 0.9999999999999999, 0, 0, 1, 0)),
    ),
    "perspective of points": (
        lambda a: F.perspective(a, corners(a), corners(a, (1, 0, 3, 2)), "nearest"),
        ImageOps.mirror,
    ),
    "perspective": (
        lambda a: F.perspective(a, None, None, "nearest", 7, coefficients=PLANE),
        lambda i: i.transform(i.size, Image.Transform.PERSPECTIVE, PLANE, fillcolor=(7, 7, 7)),
    ),
}  # fmt: skip


def corners(array, order=range(4)):
    height, width = array.shape[:2]
    found = (0, 0), (width, 0), (width, height), (0, height)
    return [found[position] for position in order]


def middle(image):
    """Crop the middle pixel as torchvision does: its place is half of the difference, rounded to even."""
    top, left = round((image.height - 1) / 2.0), round((image.width - 1) / 2.0)
    return image.crop((left, top, left + 1, top + 1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BY_PILLOW)
def test_the_results_are_pillows(name, size):
    ours, pillows = BY_PILLOW[name]
    array = pixels(*size)
    before = array.copy()
    made, wanted = ours(array), np.asarray(pillows(Image.fromarray(array)))
    assert made.shape == wanted.shape and made.dtype == np.uint8 and made.flags.c_contiguous
    assert error(made, wanted) <= (name in ROUNDED or (FUSED and name in FACTORED))
    assert (array == before).all()


@pytest.mark.parametrize(
    ("size", "most", "result"),
    [(20, None, (20, 30)), ([20], None, (20, 30)), (20, 25, (16, 25)), (20, 40, (20, 30)), ((11, 12), None, (11, 12))],
)
def test_resize_scales_the_shorter_side_up_to_a_largest_longer_one(size, most, result):
    assert F.resize(pixels(40, 60), size, max_size=most).shape[:2] == result
    if not isinstance(size, tuple):
        assert F.resize(pixels(60, 40), size, max_size=most).shape[:2] == result[::-1]


@pytest.mark.parametrize("value", [7, [1, 2, 3], np.arange(36).reshape(4, 3, 3)], ids=["one", "three", "all"])
def test_erase_overwrites_a_box(value):
    array = pixels(20, 30)
    ours = F.erase(array, 5, 6, 4, 3, value)
    assert (ours[5:9, 6:9] == np.broadcast_to(np.asarray(value, np.uint8), (4, 3, 3))).all()
    ours[5:9, 6:9] = array[5:9, 6:9]
    assert (ours == array).all()


@pytest.mark.parametrize(("size", "sigma"), [(3, 0.5), (5, None), ((3, 7), (0.8, 2)), ([9, 1], [3.0])])
def test_gaussian_blur_has_torchvisions_kernel(size, sigma):
    array = pixels(40, 60)
    sizes = (size, size) if isinstance(size, int) else tuple(size)
    if sigma is None:
        deviations = [n * 0.15 + 0.35 for n in sizes]
    else:
        deviations = [sigma] * 2 if not isinstance(sigma, (tuple, list)) else (list(sigma) * 2)[:2]
    assert error(F.gaussian_blur(array, size, sigma), gaussian(array, sizes, deviations)) <= 1


WRONG_IMAGES = [
    None, [[1, 2, 3]], np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32),
    np.zeros((0, 4, 3), np.uint8), Image.new("RGB", (3, 3)),
]  # fmt: skip
CALLS = {
    "invert": (), "resize": (3,), "rotate": (90,), "crop": (0, 0, 1, 1), "erase": (0, 0, 1, 1, 0),
    "gaussian_blur": (3,), "elastic": (np.full((1, 20, 15, 2), 0.1),),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_other_arrays_are_refused_and_those_of_any_strides_are_taken(name):
    for image in WRONG_IMAGES:
        with pytest.raises((TypeError, ValueError), match=r"^image must be .* height x width x 3"):
            getattr(F, name)(image, *CALLS[name])
    array = pixels(20, 30)[::-1, ::2]
    ours = getattr(F, name)(array, *CALLS[name])
    assert (ours == getattr(F, name)(np.ascontiguousarray(array), *CALLS[name])).all()
    assert not np.shares_memory(ours, array)


REFUSED = [
    ("adjust_brightness", "brightness_factor", (-0.1,)), ("adjust_contrast", "contrast_factor", ("1",)),
    ("adjust_saturation", "saturation_factor", (float("nan"),)), ("adjust_hue", "hue_factor", (0.6,)),
    ("adjust_sharpness", "sharpness_factor", (-1,)), ("posterize", "bits", (9,)), ("solarize", "threshold", (257,)),
    ("rgb_to_grayscale", "num_output_channels", (2,)), ("crop", "height", (0, 0, 0, 1)),
    ("center_crop", "output_size", ((1, 2, 3),)), ("resize", "size", (0,)), ("resize", "max_size", (5, "bilinear", 5)),
    ("resized_crop", "interpolation", (0, 0, 1, 1, 3, "lanczos")), ("pad", "padding", (-1,)),
    ("pad", "padding_mode", (1, 0, "wrap")), ("pad", "fill", (1, 300)), ("affine", "scale", (0, (0, 0), 0, 0)),
    ("affine", "translate", (0, 1, 1, 0)), ("affine", "angle", ("0", (0, 0), 1, 0)),
    ("affine", "shear", (0, (0, 0), 1, (1, 2, 3))), ("rotate", "angle", (float("nan"),)),
    ("rotate", "center", (1, "nearest", False, 3)), ("rotate", "expand", (1, "nearest", 1)),
    ("perspective", "startpoints", (None, None)), ("perspective", "endpoints", ([(0, 0)] * 4, [(0, 0)] * 3)),
    ("perspective", "coefficients", (None, None, "nearest", 0, [1, 2])), ("gaussian_blur", "kernel_size", (2,)),
    ("gaussian_blur", "sigma", (3, 0)), ("gaussian_blur", "sigma", (3, (1, 2, 3))),
    ("pil_gaussian_blur", "radius", (-1,)), ("permute_channels", "permutation", ((0, 1),)),
    ("permute_channels", "permutation", ((0, 1, 1),)), ("permute_channels", "permutation", ("012",)),
    ("elastic", "displacement", (np.zeros((1, 5, 4, 2)),)),
    ("erase", "h", (3, 3, 3, 1, 0)), ("erase", "v", (0, 0, 1, 1, "x")), ("erase", "v", (0, 0, 2, 2, [1, 2])),
]  # fmt: skip


@pytest.mark.parametrize(("name", "argument", "given"), REFUSED, ids=lambda part: str(part)[:40])
def test_wrong_arguments_are_refused(name, argument, given):
    with pytest.raises((TypeError, ValueError), match=f"^{argument} must "):
        getattr(F, name)(pixels(5, 5), *given)
