"""Masks, boxes, keypoints and further images follow each step that moves pixels."""

import numpy as np
import pytest

from slipring import images
from tests.images.scenes import PARTS, check_objects, check_pixels, scene

EXACT = {
    "flip": images.RandomHorizontalFlip(1),
    "center crop": images.CenterCrop((50, 60)),
    "crop with a border": images.RandomCrop((55, 90), padding=(4, 8, 12, 2)),
    "crop of a small image": images.RandomCrop(90, pad_if_needed=True),
    "pad": images.Pad((3, 5, 7, 9)),
    "nearest resize": images.Resize((30, 100), "nearest"),
    "nearest affine": images.RandomAffine(30, (0.2, 0.2), (0.6, 1.3), (-10, 10, -10, 10)),
    "nearest rotation": images.RandomRotation(60),
    "rotation with expand": images.RandomRotation(60, expand=True),
    "quarter": images.RandomRotation((90, 90), expand=True),
    "three quarters": images.RandomRotation((270, 270), expand=True),
    "half": images.RandomRotation((180, 180)),
    "nearest perspective": images.RandomPerspective(0.4, 1, "nearest"),
    "order": images.RandomOrder([images.RandomHorizontalFlip(1), images.Pad((9, 0, 0, 0))]),
    "apply": images.RandomApply([images.RandomVerticalFlip(1), images.RandomRotation(20)]),
    "overlap crop": images.RandomIoUCrop(),
    "zoom out": [images.RandomZoomOut(p=1), images.FixedSizeCrop((90, 99))],
    "list": [
        images.RandomHorizontalFlip(), images.Pad(4), images.RandomVerticalFlip(), images.RandomCrop(50),
        images.Resize((66, 55), "nearest"), images.RandomAffine(10),
    ],
}  # fmt: skip
SMOOTH = {
    "resize": images.Resize((90, 70)),
    "jitter": [images.ScaleJitter((90, 100), (0.7, 1.3)), images.FixedSizeCrop((80, 90))],
    "letter box": [images.RandomShortestSize((45, 70), 90), images.LetterBox((90, 77), fill=0)],
    "bicubic": images.Resize((77, 111), "bicubic"),
    "resized crop": images.RandomResizedCrop(56, scale=(0.4, 1)),
    "bilinear affine": images.RandomAffine(30, (0.1, 0.1), (0.7, 1.3), 10, "bilinear"),
    "bilinear rotation": images.RandomRotation(45, "bilinear", expand=True),
    "perspective": images.RandomPerspective(0.3, 1),
}
COPIES = {
    mode: [images.Pad((30, 20, 25, 28), padding_mode=mode), images.RandomCrop((80, 100))]
    for mode in ("edge", "reflect", "symmetric")
} | {f"crop, {mode}": images.RandomCrop((70, 90), padding=20, padding_mode=mode) for mode in ("edge", "symmetric")}
POLICIES = {
    "trivial": images.TrivialAugmentWide(),
    "rand": images.RandAugment(3, 15),
    "imagenet": images.AutoAugment("imagenet"),
    "timm": images.rand_augment_transform("rand-m9-mstd0.5-inc1", {"translate_const": 20}),
}


def samples(transform, **options):
    data = images.Annotated([scene()], transform, **PARTS, **options)
    return [data.try_sample(0, seed) for seed in range(12)]


@pytest.mark.parametrize("name", EXACT)
def test_all_parts_follow_steps_that_copy_pixels(name):
    whole = 0
    for sample in samples(EXACT[name]):
        check_pixels(sample, exact=True)
        whole += check_objects(sample)
    assert whole


@pytest.mark.parametrize("name", SMOOTH)
def test_all_parts_follow_steps_that_interpolate(name):
    whole = 0
    for sample in samples(SMOOTH[name]):
        check_pixels(sample, exact=False)
        assert set(np.unique(sample["classes"])) <= {0, 300, 600, 900}
        whole += check_objects(sample)
    assert whole


@pytest.mark.parametrize("name", COPIES)
def test_masks_follow_borders_that_show_the_image_again(name):
    for sample in samples(COPIES[name]):
        check_pixels(sample, exact=True)


@pytest.mark.parametrize("name", POLICIES)
def test_all_parts_follow_the_geometry_of_policies(name):
    """Each of several maps encloses the box that the one before has left, so boxes may be larger than objects."""
    assert sum(check_objects(sample, fits=False) for sample in samples(POLICIES[name]))


def test_masks_follow_an_elastic_transform_and_boxes_and_keypoints_are_refused():
    step = images.ElasticTransform(40.0, 4.0, "nearest")
    masks = {"images": ("image", "right"), "masks": ("classes", "objects")}
    data = images.Annotated([scene()], step, **masks)
    for seed in range(4):
        sample = data.try_sample(0, seed)
        check_pixels(sample, exact=True)
        assert not np.array_equal(sample["classes"], scene()["classes"])
        assert all(np.array_equal(sample["objects"][n], sample["classes"] == 300 * (n + 1)) for n in range(3))
    for part in ({"boxes": "boxes"}, {"keypoints": "points"}):
        with pytest.raises(ValueError, match=r"index 0: ElasticTransform\(.*boxes and keypoints cannot follow"):
            images.Annotated([scene()], step, **part)[0]


@pytest.mark.parametrize("part", [{"boxes": "boxes"}, {"keypoints": "points"}, {"masks": "classes"}])
def test_augmix_is_refused_for_parts_that_cannot_follow_its_copies(part):
    data = images.Annotated([scene()], images.AugMix(severity=10, mixture_width=1), **part)
    with pytest.raises(ValueError, match=r"index 0: AugMix.*cannot follow"):
        for seed in range(20):
            data.try_sample(0, seed)


@pytest.mark.parametrize("count", [None, 0, 2])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint16", "int32", "uint64"])
def test_masks_of_all_dtypes_keep_their_numbers(dtype, count):
    shape = (21, 34) if count is None else (count, 21, 34)
    info = None if dtype == "bool" else np.iinfo(dtype)
    draw = np.random.default_rng(1)
    values = draw.integers(0, 2, shape) if info is None else draw.integers(info.min, info.max, shape, dtype)
    mask = np.asarray(values).astype(dtype)
    steps = [images.RandomHorizontalFlip(1), images.RandomRotation((90, 90), expand=True), images.Pad((1, 2, 3, 4))]
    sample = {"image": np.zeros((21, 34, 3), np.uint8), "mask": mask, "boxes": [[0, 0, 9, 9]] * (count or 0)}
    result = images.Annotated([sample], steps, masks="mask", boxes="boxes", mask_fill=1)[0]["mask"]
    assert result.dtype == dtype and result.shape == (*shape[:-2], 34 + 6, 21 + 4)
    assert np.array_equal(result[..., 2:-4, 1:-3], np.rot90(mask[..., ::-1], axes=(-2, -1)))
    border = np.ones(result.shape, bool)
    border[..., 2:-4, 1:-3] = False
    assert (result[border] == (count is None)).all()
    assert np.array_equal(sample["mask"], mask), "the stored mask has changed"


def test_flip_order_exchanges_the_keypoints_of_each_object():
    left_eye, right_eye, nose = [10, 5, 2], [20, 5, 1], [15, 9, 2]
    sample = {"image": np.zeros((20, 40, 3), np.uint8), "points": [[left_eye, right_eye, nose]]}
    for steps, wanted in (
        (images.RandomHorizontalFlip(1), [[20, 5, 1], [30, 5, 2], [25, 9, 2]]),
        (images.RandomVerticalFlip(1), [[20, 15, 1], [10, 15, 2], [15, 11, 2]]),
        ([images.RandomHorizontalFlip(1)] * 2, [left_eye, right_eye, nose]),
        (images.RandomRotation((180, 180)), [[30, 15, 2], [20, 15, 1], [25, 11, 2]]),
    ):
        data = images.Annotated([sample], steps, keypoints="points", flip_order=[1, 0, 2])
        assert data[0]["points"].tolist() == [wanted], steps


def test_keypoints_on_the_border_stay_visible_and_those_outside_do_not():
    points = [[0, 0, 2], [40, 20, 1], [40.5, 3, 2], [7, -1, 1]]
    sample = {"image": np.zeros((20, 40, 3), np.uint8), "points": points}
    data = images.Annotated([sample], images.RandomHorizontalFlip(1), keypoints="points")
    assert data[0]["points"].tolist() == [[40, 0, 2], [0, 20, 1], [-0.5, 3, 0], [33, -1, 0]]


def test_a_border_does_not_make_a_keypoint_visible_that_was_cut_off():
    sample = {"image": np.full((40, 40, 3), 255, np.uint8), "points": [[8, 20, 2], [20, 20, 2], [-3, 20, 2]]}
    for steps in (
        [images.CenterCrop(20), images.Pad(10)],
        [
            images.CenterCrop(20),
            images.RandomHorizontalFlip(1),
            images.LetterBox((20, 60)),
            images.CenterCrop((40, 40)),
        ],
        [images.CenterCrop(20), images.Mosaic(20, center=(0.99, 1)), images.RandomZoomOut(p=1)],
    ):
        points = images.Annotated([sample], steps, keypoints="points")[0]["points"]
        assert points[:, 2].tolist()[:3] == [0, 2, 0], steps


def test_boxes_are_cut_at_the_border_and_small_ones_are_removed_with_all_their_rows():
    objects = np.arange(4)[:, None, None] * np.ones((1, 30, 40), np.int64)
    sample = {
        "image": np.zeros((30, 40, 3), np.uint8),
        "boxes": [[0, 0, 8, 8], [5, 5, 30, 20], [12, 12, 20, 13.5], [18, 0, 22, 30]],
        "labels": ["a", "b", "c", "d"],
        "scores": np.arange(8).reshape(4, 2),
        "objects": objects,
        "points": np.arange(16).reshape(4, 2, 2),
        "other": "kept",
    }
    parts = {"boxes": "boxes", "rows": ["labels", "scores"], "masks": "objects", "keypoints": "points"}
    for least, left in ((0, [1, 2, 3]), (1, [1, 2, 3]), (1.5, [1, 2, 3]), (2, [1, 3]), (5, [1])):
        data = images.Annotated([sample], images.CenterCrop((10, 20)), **parts, min_box_size=least)
        made = data[0]  # rows 10 to 20, columns 10 to 30
        boxes = {1: [0, 0, 20, 10], 2: [2, 2, 10, 3.5], 3: [8, 0, 12, 10]}
        assert made["boxes"].tolist() == [boxes[n] for n in left], least
        assert made["labels"].tolist() == ["abcd"[n] for n in left]
        assert np.array_equal(made["scores"], sample["scores"][left])
        assert np.array_equal(made["objects"], objects[left, 10:20, 10:30])
        assert np.array_equal(made["points"], np.float32(sample["points"][left]) - (10, 10))
        assert made["other"] == "kept"


@pytest.mark.parametrize(
    ("box_format", "box", "flipped"),
    [
        ("xyxy", [2, 3, 12, 8], [28, 3, 38, 8]),
        ("xywh", [2, 3, 10, 5], [28, 3, 10, 5]),
        ("cxcywh", [7, 5.5, 10, 5], [33, 5.5, 10, 5]),
    ],
)
def test_boxes_have_the_same_format_before_and_after(box_format, box, flipped):
    sample = {"image": np.zeros((20, 40, 3), np.uint8), "boxes": [box]}
    data = images.Annotated([sample], images.RandomHorizontalFlip(1), boxes="boxes", box_format=box_format)
    assert data[0]["boxes"].tolist() == [flipped] and data[0]["boxes"].dtype == np.float32


def test_a_step_before_and_after_a_users_step_moves_the_parts_too():
    def darken(image):
        image //= 2

    steps = [images.RandomHorizontalFlip(1), darken, images.Pad((4, 0, 0, 0)), darken, images.RandomVerticalFlip(1)]
    plain = [step for step in steps if step is not darken]
    (made, *_), (wanted, *_) = samples(steps), samples(plain)
    assert np.array_equal(made["image"], wanted["image"] // 4)
    assert all(np.array_equal(made[key], wanted[key]) for key in ("classes", "objects", "boxes", "points"))
    mapped = images.Annotated([scene()], plain, **PARTS).map(darken)[0]
    assert np.array_equal(mapped["image"], wanted["image"] // 2)
    assert all(np.array_equal(mapped[key], wanted[key]) for key in ("classes", "objects", "boxes", "points"))
