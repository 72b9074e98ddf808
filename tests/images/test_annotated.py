"""Samples with several parts: what a dataset accepts, refuses and removes, and its batches."""

import io

import numpy as np
import pytest
from PIL import Image

from slipring import Loader, images
from slipring.errors import ImageError
from tests.images.scenes import PARTS, scene
from tests.support.pictures import encoded, pixels

IMAGE = np.zeros((20, 30, 3), np.uint8)
BOXES = {"boxes": "boxes", "rows": "labels"}


def palette(numbers):
    image = Image.fromarray(numbers, "P")
    image.putpalette([7 * n % 256 for n in range(768)])
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def png16(numbers):
    return encoded(numbers, "PNG")


@pytest.mark.parametrize(
    ("write", "dtype", "how"),
    [
        (palette, "uint8", "bytearray"), (png16, "uint16", "array of bytes"),
        (palette, "uint8", "path"), (png16, "uint16", "text"),
    ],
)  # fmt: skip
def test_encoded_masks_keep_their_numbers(write, dtype, how, tmp_path):
    numbers = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (20, 30), dtype)
    data, image = write(numbers), encoded(pixels(20, 30), "PNG")
    (tmp_path / "mask.png").write_bytes(data)
    (tmp_path / "image.png").write_bytes(image)
    stored = {
        "bytearray": (bytearray(image), bytearray(data)),
        "array of bytes": (np.frombuffer(image, np.uint8), np.frombuffer(data, np.uint8)),
        "path": (tmp_path / "image.png", tmp_path / "mask.png"),
        "text": (str(tmp_path / "image.png"), str(tmp_path / "mask.png")),
    }[how]
    made = images.Annotated([dict(zip(("image", "mask"), stored))], images.RandomHorizontalFlip(1), masks="mask")[0]
    assert made["mask"].dtype == dtype and np.array_equal(made["mask"], numbers[:, ::-1])
    assert np.array_equal(made["image"], pixels(20, 30)[:, ::-1])


@pytest.mark.parametrize(
    ("box", "text"),
    [
        ([float("nan"), 1, 5, 5], "finite"),
        ([1, 1, float("inf"), 5], "finite"),
        ([5, 5, 5, 9], "have an area"),
        ([30, 1, 35, 5], "overlap"),
    ],
)
def test_an_invalid_box_is_an_error_with_its_row_index_and_path_or_is_dropped(box, text, tmp_path):
    path = tmp_path / "one.png"
    path.write_bytes(encoded(IMAGE, "PNG"))
    sample = {
        **{"image": path, "boxes": [[1, 1, 9, 9], box, [-5, -5, 99, 99]], "labels": [4, 5, 6]},
        **{"objects": np.arange(3)[:, None, None] * np.ones((1, 20, 30), int), "points": np.zeros((3, 1, 2))},
    }
    parts = {**BOXES, "masks": "objects", "keypoints": "points"}
    for image, where in ((path, r"one\.png \(index 1\)"), (IMAGE, "index 1")):
        samples = [{**sample, "boxes": [[1, 1, 2, 2]] * 3}, {**sample, "image": image}]
        with pytest.raises(ValueError, match=rf"{where}: box 1, from .*must.*{text}.*20 x 30 pixels.*'drop'"):
            images.Annotated(samples, **parts)[1]
    made = images.Annotated(samples, **parts, invalid_boxes="drop")[1]
    assert made["boxes"].tolist() == [[1, 1, 9, 9], [0, 0, 30, 20]] and made["labels"].tolist() == [4, 6]
    assert made["objects"][:, 0, 0].tolist() == [0, 2] and made["points"].shape == (2, 1, 2)


@pytest.mark.parametrize(("form", "empty"), [("xyxy", []), ("xywh", np.zeros((0, 4), np.float32)), ("cxcywh", ())])
def test_a_sample_without_objects_has_empty_parts(form, empty):
    sample = {"image": IMAGE, "boxes": empty, "labels": [], "points": [], "objects": np.zeros((0, 20, 30), bool)}
    steps = [images.RandomHorizontalFlip(1), images.RandomRotation(10), images.Pad(2), images.RandomCrop(12)]
    data = images.Annotated(
        [sample, sample], steps, **BOXES, box_format=form, masks="objects", keypoints="points", flip_order=[1, 0]
    )
    made = data[0]
    assert made["boxes"].shape == (0, 4) and made["boxes"].dtype == np.float32
    assert made["labels"].shape == (0,) and made["labels"].dtype == np.int64
    assert made["points"].shape == (0, 2, 3) and made["objects"].shape == (0, 12, 12)
    with Loader(data, 2) as loader:
        (batch,) = loader
        assert [boxes.shape for boxes in batch["boxes"]] == [(0, 4)] * 2 and batch["image"].shape == (2, 12, 12, 3)


class Flip:
    """Stands for the base class of Albumentations' transforms that also move masks and boxes."""

    def __call__(self, *, image):
        return {"image": image[:, ::-1]}

    def set_random_seed(self, seed):
        pass


DualTransform = type("DualTransform", (Flip,), {"__module__": "albumentations.core.transforms_interface"})
HorizontalFlip = type("HorizontalFlip", (DualTransform,), {"__module__": "albumentations.augmentations"})


class Compose(Flip):
    __module__ = "albumentations.core.composition"

    def __init__(self, transforms):
        self.transforms = transforms


SPATIAL = [
    HorizontalFlip(),
    Compose([Flip(), Compose([HorizontalFlip()])]),
    images.RandomApply([images.RandomInvert(), HorizontalFlip()]),
]


@pytest.mark.parametrize(
    ("step", "part"), list(zip(SPATIAL, ({"masks": "classes"}, {"boxes": "boxes"}, {"keypoints": "points"})))
)
def test_a_spatial_transform_of_albumentations_is_refused_if_parts_would_stay_behind(step, part):
    text = rf"Albumentations' HorizontalFlip, which may move pixels: the dataset's '{next(iter(part.values()))}'"
    with pytest.raises(TypeError, match=text):
        images.Annotated([scene()], step, **part)
    with pytest.raises(TypeError, match=text):
        images.Annotated([scene()], **part).map(step)
    plain = images.Annotated([scene()], step, images=["image", "right"])[0]
    assert np.array_equal(plain["image"], plain["right"])
    images.Annotated([scene()], Compose([Flip()]), **part)


def test_transforms_of_albumentations_itself_are_distinguished():
    library = pytest.importorskip("albumentations")
    images.Annotated([scene()], library.Compose([library.RandomBrightnessContrast(p=1)]), **PARTS)[0]
    with pytest.raises(TypeError, match="HorizontalFlip, which may move pixels"):
        images.Annotated([scene()], library.Compose([library.OneOf([library.HorizontalFlip()])]), **PARTS)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"classes": np.zeros((60, 79), int)}, ValueError, "'classes' has 60 x 79 pixels, and the image 60 x 80"),
        ({"objects": np.zeros((2, 60, 80), bool)}, ValueError, "'objects' has 2 rows, and 'boxes' has 3"),
        ({"labels": [1, 2]}, ValueError, "'labels' has 2 rows, and 'boxes' has 3"),
        ({"labels": None}, ValueError, "index 1: 'labels'"),
        ({"labels": [[1], [2, 3], [4]]}, ValueError, "index 1: 'labels'"),
        ({"points": np.zeros((4, 1, 2))}, ValueError, "'points' has 4 rows, and 'boxes' has 3"),
        ({"points": np.zeros((3, 1, 4))}, ValueError, "keypoints must be numbers of shape"),
        ({"boxes": [1, 2, 3, 4]}, ValueError, r"boxes must be numbers of shape \(boxes, 4\)"),
        ({"classes": np.zeros((60, 80))}, ValueError, "'classes' must be .* integers or bools, not of float64"),
        ({"image": np.zeros((60, 80, 4), np.uint8)}, ValueError, "height x width x 3 array of uint8"),
        ({"right": np.zeros((60, 81, 3), np.uint8)}, ImageError, "'right' has 60 x 81 pixels, and the first image"),
        ({"right": b"no image"}, ImageError, "no format that can be read"),
        ({"classes": b"no image"}, ImageError, "no format that can be read"),
        ({"image": 3}, TypeError, "bytes"),
    ],
)
def test_parts_that_do_not_match_are_errors_with_the_index(change, kind, text):
    data = images.Annotated([scene(), {**scene(), **change}], **PARTS)
    data[0]
    with pytest.raises(kind, match=text) as caught:
        data[1]
    assert "index 1" in str(caught.value) or kind is TypeError


def test_samples_without_keys_and_options_that_do_not_suit_the_sample_are_errors():
    with pytest.raises(KeyError, match="sample 0 has no 'boxes'"):
        images.Annotated([{key: value for key, value in scene().items() if key != "boxes"}], **PARTS)[0]
    with pytest.raises(TypeError, match="sample 0 must be a mapping"):
        images.Annotated([(IMAGE, 3)])[0]
    with pytest.raises(ValueError, match="mask_fill=-1 does not fit the mask 'classes', which has uint16"):
        images.Annotated([scene()], **PARTS, mask_fill=-1)[0]
    with pytest.raises(ValueError, match="flip_order has 2 numbers, and an object has 1 keypoints"):
        images.Annotated([scene()], **PARTS, flip_order=[1, 0])[0]


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"images": ()}, ValueError, "images must be the key"),
        ({"box_format": "yxyx"}, ValueError, "box_format must be"),
        ({"invalid_boxes": "clamp"}, ValueError, "invalid_boxes must be"),
        ({"batch": "stack"}, ValueError, "batch must be"),
        ({"multiple_of": 0}, ValueError, "multiple_of must be"),
        ({"mask_fill": 1.5}, TypeError, "mask_fill must be"),
        ({"min_box_size": -1}, ValueError, "min_box_size must be"),
        ({"flip_order": [1, 1]}, ValueError, "flip_order must have each number from 0 to 1 once"),
        ({"transform": images.MultiCrop([(2, images.RandomResizedCrop(8))])}, TypeError, "cannot have MultiCrop"),
    ],
)
def test_wrong_options_are_refused(options, kind, text):
    with pytest.raises(kind, match=text):
        images.Annotated([scene()], **options)


def sized(count=3):
    samples = []
    for n in range(count):
        sample = scene(n)
        height, width = 60 + 7 * n, 80 - 3 * n
        for key in ("image", "right"):
            sample[key] = pixels(height, width, n)
        sample["classes"] = np.full((height, width), n + 1, np.uint16)
        sample["objects"] = np.ones((3, height, width), bool)
        samples.append(sample)
    return samples


def batch_of(samples, **options):
    with Loader(images.Annotated(samples, **PARTS, **options), len(samples)) as loader:
        (batch,) = loader
        return batch


@pytest.mark.parametrize(
    ("multiple_of", "size", "layout", "dtype"),
    [
        (1, (74, 80), "NHWC", "uint8"), (32, (96, 96), "NCHW", "float32"), (50, (100, 100), "NHWC", "float16"),
        (32, (96, 96), "NCHW", "uint8"),
    ],
)  # fmt: skip
def test_images_of_different_sizes_are_padded_to_one_array(multiple_of, size, layout, dtype):
    samples = sized()
    options = {"layout": layout, "dtype": dtype} | ({} if dtype == "uint8" else {"mean": [0.5] * 3, "std": [0.2] * 3})
    single = images.Annotated(samples, **PARTS, **options)
    batch = batch_of(samples, multiple_of=multiple_of, mask_fill=9, **options)
    assert batch["sizes"].tolist() == [[60, 80], [67, 77], [74, 74]] and batch["sizes"].dtype == np.int64
    assert batch["padding"].dtype == bool and batch["padding"].shape == (3, *size)
    assert batch["classes"].dtype == np.uint16 and batch["number"].tolist() == [0, 1, 2]
    for n, (height, width) in enumerate(batch["sizes"]):
        inside = np.zeros(size, bool)
        inside[:height, :width] = True
        assert np.array_equal(batch["padding"][n], ~inside)
        for key in ("image", "right"):
            image = batch[key][n] if layout == "NHWC" else batch[key][n].transpose(1, 2, 0)
            its = single[n][key] if layout == "NHWC" else single[n][key].transpose(1, 2, 0)
            assert image.shape == (*size, 3) and image.dtype == dtype
            assert np.array_equal(image[:height, :width], its) and not image[~inside].any()
        assert np.array_equal(batch["classes"][n], np.where(inside, n + 1, 9))
        assert np.array_equal(batch["objects"][n], [inside] * 3)
        assert np.array_equal(batch["boxes"][n], single[n]["boxes"]) and batch["labels"][n].tolist() == [0, 1, 2]
    samples[1] |= {"boxes": [], "labels": [], "points": [], "objects": np.zeros((0, 67, 77), bool)}
    batch = batch_of(samples, multiple_of=multiple_of, **options)
    assert [len(boxes) for boxes in batch["boxes"]] == [3, 0, 3]
    assert batch["objects"][1].shape == (0, *size) and batch["objects"][1].dtype == bool


def test_padded_images_may_be_bfloat16():
    torch = pytest.importorskip("torch")
    samples = sized()
    batch, wanted = (batch_of(samples, dtype=dtype, layout="NCHW") for dtype in ("bfloat16", "float32"))
    assert batch["image"].dtype == torch.bfloat16 and tuple(batch["image"].shape) == (3, 3, 96, 96)
    assert torch.equal(batch["image"], torch.from_numpy(wanted["image"].copy()).to(torch.bfloat16))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = batch_of(samples, dtype=ml_dtypes.bfloat16, layout="NCHW")
    assert arrays["image"].dtype == ml_dtypes.bfloat16
    assert np.array_equal(arrays["image"].astype("float32"), batch["image"].float().numpy())


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_a_list_batch_has_the_samples_own_arrays(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("torch")
    samples = sized()
    samples[1] |= {"boxes": [], "labels": [], "points": [], "objects": np.zeros((0, 67, 77), bool)}
    single = images.Annotated(samples, **PARTS, dtype=dtype)
    batch = batch_of(samples, batch="list", dtype=dtype)
    assert set(batch) == set(samples[0])
    for n in range(3):
        for key in ("image", "right", "classes", "objects", "boxes", "points"):
            assert type(batch[key]) is list and bool((batch[key][n] == single[n][key]).all()), key


def test_images_of_one_size_are_one_array_without_padding():
    batch = batch_of([scene(n) for n in range(3)], transform=images.Resize((40, 44)))
    assert set(batch) == set(scene())
    assert batch["image"].shape == (3, 40, 44, 3) and batch["classes"].shape == (3, 40, 44)
    assert [mask.shape for mask in batch["objects"]] == [(3, 40, 44)] * 3


def test_the_keys_of_a_padded_batch_are_reserved():
    samples = [{**sample, "sizes": 3} for sample in sized()]
    with pytest.raises(ValueError, match="has the keys sizes, padding, and a sample has 'sizes', too"):
        batch_of(samples)
    assert batch_of(samples, batch="list")["sizes"].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("labels", "dtype"), [([], "int64"), (np.empty(0, np.float32), "float32"), ("tensor", "int16")]
)
def test_a_sample_without_boxes_may_have_labels_of_any_kind(labels, dtype):
    if isinstance(labels, str):
        torch = pytest.importorskip("torch")
        labels = torch.empty(0, dtype=torch.int16)
    made = images.Annotated([{"image": IMAGE, "boxes": [], "labels": labels}], **BOXES)[0]
    assert made["labels"].dtype == dtype and made["labels"].shape == (0,)


def test_a_batch_of_masks_of_different_dtypes_keeps_their_numbers():
    samples = [{"image": IMAGE, "mask": np.full((20, 30), n, dtype)} for n, dtype in ((200, np.uint8), (4000, "u2"))]
    for transform in (images.Resize((20, 30)), None):
        data = images.Annotated(samples, transform, masks="mask")
        batch = data.collate_samples([data[0], data[1]])
        assert [int(mask.max()) for mask in batch["mask"]] == [200, 4000]


@pytest.mark.parametrize("transform", [images.Resize((20, 30)), None])
def test_an_empty_batch_is_the_loaders_error(transform):
    data = images.Annotated([{"image": IMAGE}], transform)
    with Loader(data, batch_sampler=[[0], []]) as loader, pytest.raises(ValueError, match="empty batch"):
        list(loader)


class Reversed(images.RandomHorizontalFlip):
    def apply(self, recipe, draws):
        recipe.boxes.keep(np.arange(len(recipe.boxes.xyxy))[::-1])


def test_labels_follow_a_step_that_orders_the_boxes():
    boxes = [[n, n, n + 5, n + 5] for n in range(3)]
    made = images.Annotated([{"image": IMAGE, "boxes": boxes, "labels": [0, 1, 2]}], Reversed(), **BOXES)[0]
    assert made["boxes"][:, 0].tolist() == made["labels"].tolist() == [2, 1, 0]
