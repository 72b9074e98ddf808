"""Boxes, masks, keypoints and further images agree with each other after any list of geometric steps."""

import random

import numpy as np
import pytest

import slipring
from slipring import images
from slipring.images._draws import Draws
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels

HEIGHT, WIDTH = 120, 160
MEAN = (124, 116, 104)
KEYS = {"masks": "mask", "boxes": "boxes", "rows": "labels", "keypoints": "points"}


def upright(draw):
    """Return a random step that leaves boxes upright."""
    size = draw.randint(60, 200), draw.randint(60, 200)
    return draw.choice(
        [
            lambda: images.RandomHorizontalFlip(1),
            lambda: images.RandomVerticalFlip(1),
            lambda: images.Resize(size),
            lambda: images.Resize(min(size), max_size=max(size) + 1),
            lambda: images.RandomResize(60, 200),
            lambda: images.RandomShortestSize((60, 90, 150), 180),
            lambda: images.ScaleJitter(size, (0.7, 1.3)),
            lambda: images.LetterBox(size),
            lambda: images.FixedSizeCrop(size, MEAN),
            lambda: images.RandomZoomOut(MEAN, (1, 1.5), p=1),
            lambda: images.RandomIoUCrop(min_scale=0.6),
            lambda: images.RandomCrop(size, pad_if_needed=True),
            lambda: images.Pad((3, 5, 7, 2), 9),
            lambda: images.CenterCrop(size),
            lambda: images.RandomResizedCrop(size, scale=(0.6, 1.0)),
            lambda: images.RandomAffine(0, translate=(0.1, 0.1)),
        ]
    )()


def turned(draw):
    """Return a random step that turns or distorts."""
    return draw.choice(
        [
            lambda: images.RandomAffine(15, (0.05, 0.05), (0.9, 1.1), 5, "bilinear"),
            lambda: images.RandomRotation((90, 90), expand=True),
            lambda: images.RandomRotation(25, "bilinear", expand=draw.random() < 0.5),
            lambda: images.RandomPerspective(0.2, p=1),
        ]
    )()


def scene(draw):
    """Return a sample whose mask shows exactly its box."""
    top, left = draw.randint(10, 50), draw.randint(10, 70)
    bottom, right = top + draw.randint(30, 60), left + draw.randint(30, 80)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[top:bottom, left:right] = 200
    return {
        "image": np.zeros((HEIGHT, WIDTH, 3), np.uint8),
        "mask": mask,
        "boxes": np.array([[left, top, right, bottom]], float),
        "labels": np.array([4]),
        "points": np.array([[[(left + right) / 2, (top + bottom) / 2, 1]]]),
    }


def rectangle(mask):
    """Return left, top, right and bottom of what a mask shows."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@pytest.mark.parametrize("seed", range(100))
def test_a_mask_that_shows_its_box_does_so_after_upright_steps(seed):
    draw = random.Random(seed)
    steps = [upright(draw) for _ in range(draw.randint(1, 5))]
    result = images.Annotated([scene(draw)], steps, **KEYS).try_sample(0, seed)
    assert result["mask"].shape == result["image"].shape[:2]
    if not len(result["boxes"]):
        assert len(result["labels"]) == len(result["points"]) == 0
        return
    assert np.abs(result["boxes"][0] - rectangle(result["mask"])).max() <= 1.5


def green_spot(image):
    """Return the place (x, y) of a green spot; None: it is too small or too close to the border to be measured."""
    image = image.astype(float)
    green = (image[..., 1] - image[..., [0, 2]].max(-1)).clip(0)
    rows, columns = np.mgrid[: green.shape[0], : green.shape[1]] + 0.5
    if green.max() < 40 or max(green[[0, 1, -2, -1]].max(), green[:, [0, 1, -2, -1]].max()) > 0:
        return None
    return (green * columns).sum() / green.sum(), (green * rows).sum() / green.sum()


def test_a_keypoint_lies_at_the_spot_that_the_image_shows():
    measured = 0
    for seed in range(60):
        draw = random.Random(seed)
        steps = [draw.choice([upright, turned])(draw) for _ in range(draw.randint(1, 3))]
        sample = scene(draw)
        x, y = int(sample["points"][0, 0, 0]), int(sample["points"][0, 0, 1])
        sample["image"][y - 1 : y + 2, x - 1 : x + 2] = (0, 255, 0)
        sample["points"] = np.array([[[x + 0.5, y + 0.5, 1]]])
        result = images.Annotated([sample], steps, **KEYS).try_sample(0, seed)
        if not len(result["points"]):
            continue
        x, y, visible = result["points"][0, 0]
        assert visible == (0 <= x < result["image"].shape[1] and 0 <= y < result["image"].shape[0])
        if (spot := green_spot(result["image"])) is not None:
            assert np.hypot(spot[0] - x, spot[1] - y) < 1, (seed, steps)
            measured += 1
    assert measured > 35


@pytest.mark.parametrize("seed", range(20))
def test_further_images_and_masks_of_any_type_move_alike(seed):
    draw = random.Random(seed)
    steps = [step for step in (upright(draw) for _ in range(4)) if not getattr(step, "resizes", False)]
    sample = scene(draw)
    values = np.random.default_rng(seed).integers(1, 60000, (HEIGHT, WIDTH)).astype(np.uint16)
    sample["image"][..., 0] = sample["image"][..., 1] = values & 255
    sample |= {"mask": values, "right": sample["image"], "small": (values & 255).astype(np.uint8)}
    keys = {**KEYS, "masks": ("mask", "small"), "images": ("image", "right")}
    result = images.Annotated([sample], steps, **keys).try_sample(0, seed)
    assert np.array_equal(result["image"], result["right"])
    assert np.array_equal(result["mask"] & 255, result["small"])
    shown = result["mask"] > 0  # elsewhere is a border, which has a colour of its own in images
    assert np.array_equal(result["image"][..., 0][shown], result["small"][shown])


# ---- workers

LISTS = {
    "ssd": [
        images.RandomPhotometricDistort(), images.RandomZoomOut(MEAN), images.RandomIoUCrop(),
        images.RandomHorizontalFlip(), images.Resize((48, 48)),
    ],
    "jitter": [images.ScaleJitter((64, 64)), images.FixedSizeCrop(64, MEAN), images.TrivialAugmentWide()],
    "shortest": [images.RandomHorizontalFlip(), images.RandomShortestSize((30, 40, 50), 60)],
    "letter box": [images.LetterBox(48), images.RandomPhotometricDistort(p=1)],
    "segmentation": [images.RandomResize(20, 60), images.RandomCrop(32, pad_if_needed=True)],
}  # fmt: skip


class Scenes:
    """Encoded images with all parts."""

    def __init__(self):
        self.data = [encoded(pixels(HEIGHT, WIDTH, n)) for n in range(4)]

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {**scene(random.Random(index)), "image": self.data[index % 4], "index": index}


def flat(batch):
    """Return everything in a batch as bytes."""
    values = [one for value in batch.values() for one in (value if isinstance(value, list) else [value])]
    return [(str(value.dtype), value.shape, value.tobytes()) for value in map(np.asarray, values)]


def loader(steps, **options):
    data = images.Annotated(Scenes(), steps, **KEYS, mask_fill=255)
    return slipring.Loader(data, 3, seed=5, shuffle=True, **grouped(**options))


def batches(steps, **options):
    with loader(steps, **options) as made:
        return [flat(batch) for batch in made]


@pytest.mark.parametrize("name", LISTS)
def test_every_number_and_kind_of_workers_gives_the_same_bytes(name):
    want = batches(LISTS[name])
    assert len({str(batch) for batch in want}) == 7
    for way in (
        {"num_workers": 1}, {"num_workers": 3}, {"num_workers": 3, "chunk_size": 1},
        {"num_workers": 2, "start_method": "thread"}, {"num_workers": 2, "start_method": "thread", "chunk_size": 2},
    ):  # fmt: skip
        assert batches(LISTS[name], **way) == want, way


@pytest.mark.parametrize("name", LISTS)
def test_a_resumed_loader_continues_with_the_same_bytes(name):
    want = batches(LISTS[name])
    with loader(LISTS[name], num_workers=2) as first:
        iterator = iter(first)
        assert [flat(next(iterator)) for _ in range(3)] == want[:3]
        state = first.state_dict()
        iterator.close()
    with loader(LISTS[name], num_workers=1) as second:
        second.load_state_dict(state)
        assert [flat(batch) for batch in second] == want[3:]


def test_a_later_step_changes_nothing_that_earlier_steps_draw():
    sample = scene(random.Random(3))
    sample["image"] = np.ascontiguousarray(pixels(HEIGHT, WIDTH))
    for steps in (LISTS["ssd"][:3], LISTS["shortest"], LISTS["letter box"], LISTS["jitter"][:2]):
        for seed in range(5):
            one, two = (
                images.Annotated([sample], made, **KEYS).try_sample(0, seed)
                for made in (steps, [*steps, images.RandomHorizontalFlip(0), images.RandomSolarize(256, p=0.5)])
            )
            assert np.array_equal(one["boxes"], two["boxes"]) and np.array_equal(one["mask"], two["mask"])
            assert one["image"].shape == two["image"].shape


@pytest.mark.parametrize(
    "between", [[], [lambda image: None], [images.RandomHorizontalFlip(1)]], ids=["nothing", "a function", "a flip"]
)
def test_a_crop_of_a_larger_canvas_shows_its_part(between):
    image = np.ascontiguousarray(pixels(40, 50))
    steps = [images.Pad(30, 7), *between, images.RandomCrop((33, 44)), images.RandomCrop((30, 20))]
    canvas = np.pad(image, ((30, 30), (30, 30), (0, 0)), constant_values=7)
    flips = [step for step in between if isinstance(step, images.RandomHorizontalFlip)]
    canvas = canvas[:, ::-1] if flips else canvas
    for seed in range(20):
        draws = Draws(seed)
        for _ in flips:
            draws.uniform(0, 1)
        top, left = draws.below(101 - 33), draws.below(111 - 44)
        y, x = draws.below(4), draws.below(25)
        result = images.Annotated([{"image": image}], steps).try_sample(0, seed)["image"]
        assert np.array_equal(result, canvas[top + y :][:30, left + x :][:, :20])
