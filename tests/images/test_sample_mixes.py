"""Mosaic, SampleMixUp and CopyPaste: images, boxes, masks and keypoints of several samples, in any worker."""

import logging
import random
import signal

import numpy as np
import pytest

from slipring import Loader, images
from slipring.errors import ImageError
from tests.images.scenes import PARTS, check_objects, check_pixels, scene
from tests.support.pictures import encoded, pixels
from tests.support.signals import handling

BOXES = {"boxes": "boxes", "rows": "labels"}


def flat(level, height, width, boxes=(), labels=()):
    return {"image": np.full((height, width, 3), level, np.uint8), "boxes": list(boxes), "labels": list(labels)}


@pytest.mark.parametrize(
    ("center", "shape", "fill"),
    [(0.6, (30, 40), 114), (1.0, (40, 40), (1, 2, 3)), (1.999, (80, 64), 114), (0.001, (30, 40), (1, 2, 3))],
)
def test_four_scaled_images_meet_at_the_center_and_the_rest_is_cut_off(center, shape, fill):
    size = 40
    image = pixels(*shape)
    height, width = (-(-n * size // max(shape)) for n in shape)
    tile = images.functional.resize(image, [height, width])
    middle = min(max(1, int(center * size)), 2 * size - 1)
    wide = np.empty((4 * size, 4 * size, 3), np.uint8)  # a larger canvas, of which the middle is shown
    wide[...] = fill
    mask = np.full(wide.shape[:2], 9, np.uint8)
    for top in (size + middle - height, size + middle):
        for left in (size + middle - width, size + middle):
            wide[top : top + height, left : left + width] = tile
            mask[top : top + height, left : left + width] = 5
    sample = {"image": image, "right": image, "mask": np.full(shape, 5, np.uint8)}
    step = images.Mosaic(size, (center, center), fill)
    made = images.Annotated([sample], step, images=["image", "right"], masks="mask", mask_fill=9)[0]
    inner = slice(size, 3 * size), slice(size, 3 * size)
    assert np.array_equal(made["image"], wide[inner]) and np.array_equal(made["right"], wide[inner])
    assert np.array_equal(made["mask"], mask[inner])


def test_the_parts_of_a_mosaic_belong_to_its_images():
    data = images.Annotated([scene(n) for n in range(3)], images.Mosaic(70, fill=0), **PARTS)
    whole = 0
    for seed in range(20):
        made = data.try_sample(0, seed)
        assert made["image"].shape == (140, 140, 3) and made["number"] == 0
        check_pixels(made, exact=False)
        whole += check_each(made)
        assert len(made["boxes"]) <= 12
    assert whole > 100


def check_each(made):
    """Check each object alone, because those of other images have the same classes; return the number of whole ones."""
    whole = 0
    for n, mask in enumerate(made["objects"]):
        assert set(np.unique(made["classes"][mask])) <= {300 * (made["labels"][n] + 1)}
        alone = {key: made[key][n : n + 1] for key in ("boxes", "objects", "points", "labels")}
        whole += check_objects({**made, **alone, "classes": np.where(mask, made["classes"], 0)})
    return whole


def test_boxes_outside_of_a_mosaic_are_removed():
    sample = flat(10, 40, 40, [[0, 0, 4, 4], [36, 36, 40, 40], [0, 0, 40, 40]], ["first", "last", "all"])
    made = images.Annotated([sample], images.Mosaic(40, (0.5, 0.5)), **BOXES)[0]  # only one image is seen completely
    assert made["labels"].tolist() == ["last", "all"] * 3 + ["first", "last", "all"]
    assert (made["boxes"] >= 0).all() and (made["boxes"] <= 80).all()


def test_the_images_of_a_mosaic_went_through_the_steps_before_it_with_numbers_of_their_own():
    seen = []

    def note(image):
        seen.append(image[0, 0, 0])
        image[...] = 7 * len(seen)

    data = images.Annotated([flat(n, 20, 20) for n in range(50)], [note, images.Mosaic(20, (1, 1))], **BOXES)
    made = data.try_sample(3, 1)["image"]
    assert seen[0] == 3 and len(seen) == 4 and len(set(seen)) == 4
    assert [made[y, x, 0] for y in (0, 39) for x in (0, 39)] == [7, 14, 21, 28]


def test_a_mix_does_not_change_the_numbers_of_other_steps():
    steps = [images.RandomCrop(12), images.RandomHorizontalFlip(), images.RandomRotation(30)]
    plain = images.Annotated([{"image": pixels(30, 40)}], steps)
    for mix in (images.Mosaic(6, p=1e-12), images.SampleMixUp(p=0), images.CopyPaste(p=0)):
        for position in range(4):
            data = images.Annotated([{"image": pixels(30, 40)}], [*steps[:position], mix, *steps[position:]])
            for seed in range(5):
                assert np.array_equal(data.try_sample(0, seed)["image"], plain.try_sample(0, seed)["image"])


@pytest.mark.parametrize(("p", "size"), [(1, (80, 80)), (0.5, None), (0, (30, 30))])
def test_the_size_of_a_batch_is_known_where_a_mosaic_is_certain(p, size):
    data = images.Annotated([flat(9, 20, 20)], [images.Resize((30, 30)), images.Mosaic(40, p=p)], **BOXES)
    assert (data.fetch_into is None) == (size is None)
    sizes = {data.try_sample(0, seed)["image"].shape[:2] for seed in range(20)}
    assert sizes == ({size} if size else {(30, 30), (80, 80)})


@pytest.mark.parametrize("alpha", [0.5, 32.0, 1e9])
def test_mixup_keeps_the_boxes_and_rows_of_both_images(alpha):
    levels = set()
    samples = [flat(0, 20, 30, [[1, 2, 3, 4]], [7]), flat(200, 20, 30, [[5, 6, 9, 9], [0, 0, 30, 20]], [8, 9])]
    data = images.Annotated(samples, images.SampleMixUp(alpha), **BOXES)
    for seed in range(30):
        made = data.try_sample(0, seed)
        (level,) = np.unique(made["image"])
        if len(made["labels"]) == 2:  # mixed with itself
            assert made["labels"].tolist() == [7, 7] and level == 0
            continue
        assert made["labels"].tolist() == [7, 8, 9]
        assert made["boxes"].tolist() == [[1, 2, 3, 4], [5, 6, 9, 9], [0, 0, 30, 20]]
        levels.add(int(level))
    spread = max(levels) - min(levels)
    assert spread > 150 if alpha < 1 else 10 < spread < 100 if alpha == 32 else levels == {100}


def test_images_of_different_sizes_are_mixed_on_a_canvas_that_holds_both():
    samples = [flat(0, 20, 30), flat(200, 30, 20)]
    samples[0]["mask"], samples[1]["mask"] = np.full((20, 30), 1, np.uint8), np.full((30, 20), 2, np.uint16)
    samples[0]["objects"], samples[1]["objects"] = np.ones((0, 20, 30), bool), np.ones((1, 30, 20), bool)
    samples[1] |= {"boxes": [[0, 0, 20, 30]], "labels": [1]}
    data = images.Annotated(
        samples, images.SampleMixUp(1e9, fill=(100, 0, 50)), **BOXES, masks=["mask", "objects"], mask_fill=3
    )
    kinds = set()
    for seed in range(20):
        made = data.try_sample(0, seed)
        if made["image"].shape[:2] == (20, 30):
            continue  # mixed with itself
        assert made["image"].shape == (30, 30, 3) and made["mask"].dtype == np.uint16
        corners = [made["image"][y, x].tolist() for y in (0, 29) for x in (0, 29)]
        of_first, of_second = [50, 0, 25], [150, 100, 125]  # mixed with the colour of the canvas
        assert corners == [[100] * 3, of_first, of_second, [100, 0, 50]]
        kinds.add(tuple(made["mask"][y, x] for y in (0, 29) for x in (0, 29)))
        assert made["objects"].shape == (1, 30, 30) and made["objects"].sum() == 600
    assert kinds == {(1, 1, 3, 3), (2, 3, 2, 3)}


def pasted(blending=False):
    """Return another scene with gray objects, and a scene into which it was pasted, for several seeds."""
    other = scene(1)
    other["image"] = other["right"] = np.uint8(other["image"] // 2 + 1)
    for key in ("image", "right", "classes", "objects"):
        other[key] = np.roll(other[key], (7, 5), (-3, -2) if key in ("image", "right") else (-2, -1))
    other["boxes"] = [[left + 5, top + 7, right + 5, bottom + 7] for left, top, right, bottom in other["boxes"]]
    other["points"] = [[[point[0][0] + 5, point[0][1] + 7, 2]] for point in other["points"]]
    other["labels"] = [10, 11, 12]
    data = images.Annotated([scene(), other], images.CopyPaste(blending, p=1), **PARTS)
    made = [data.try_sample(0, seed) for seed in range(12)]
    return other, [sample for sample in made if max(sample["labels"]) >= 10]


def test_pasted_objects_cover_the_images_own():
    own = scene()
    other, found = pasted()
    selections = set()
    for made in found:
        labels = made["labels"].tolist()
        taken = [label - 10 for label in labels if label >= 10]
        left = [label for label in labels if label < 10]
        assert labels == [*left, *(n + 10 for n in taken)] and left == sorted(left) and taken == sorted(set(taken))
        selections.add(tuple(taken))
        covered = other["objects"][taken].any(0)
        for key in ("image", "right"):
            assert np.array_equal(made[key], np.where(covered[..., None], other["image"], own["image"]))
        assert np.array_equal(made["classes"], np.where(covered, other["classes"], own["classes"]))
        for n, label in enumerate(left):
            assert np.array_equal(made["objects"][n], own["objects"][label] & ~covered)
            rows, columns = np.nonzero(made["objects"][n])
            box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert made["boxes"][n].tolist() == box
        for n, row in enumerate(taken, len(left)):
            assert np.array_equal(made["objects"][n], other["objects"][row])
            assert made["boxes"][n].tolist() == other["boxes"][row]
            assert made["points"][n].tolist() == other["points"][row]
    assert len(selections) > 2


def test_blending_changes_the_pixels_near_the_edges_only():
    for plain, made in zip(pasted()[1], pasted(blending=True)[1]):
        assert all(np.array_equal(plain[key], made[key]) for key in ("objects", "boxes", "labels", "classes"))
        covered = np.pad(plain["objects"][plain["labels"] >= 10].any(0), 2, mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(covered, (5, 5))
        near = windows.any((-2, -1)) & ~windows.all((-2, -1))
        assert np.array_equal(plain["image"][~near], made["image"][~near])
        assert (plain["image"][near] != made["image"][near]).any()


def test_an_object_that_is_covered_completely_is_removed_and_its_untouched_neighbour_keeps_its_box():
    first = {
        **{"image": np.zeros((20, 30, 3), np.uint8), "boxes": [[2.5, 2.5, 6, 6], [20.5, 10.5, 25.5, 15.5]]},
        **{"labels": ["covered", "free"], "objects": np.zeros((2, 20, 30), np.uint8)},
    }
    first["objects"][0, 3:6, 3:6] = first["objects"][1, 11:15, 21:25] = 255
    second = {
        **{"image": np.full((40, 60, 3), 90, np.uint8), "boxes": [[2, 2, 24, 24]], "labels": ["large"]},
        "objects": np.zeros((1, 40, 60), np.uint8),
    }
    second["objects"][0, 2:24, 2:24] = 1
    data = images.Annotated([first, second], images.CopyPaste(False, p=1), **BOXES, masks="objects")
    found = [made for made in (data.try_sample(0, seed) for seed in range(9)) if "large" in made["labels"]]
    assert found
    for made in found:
        assert made["labels"].tolist() == ["free", "large"]
        assert made["boxes"].tolist() == [[20.5, 10.5, 25.5, 15.5], [1, 1, 12, 12]]  # scaled to half the size
        assert (made["image"][1:12, 1:12] == 90).all() and made["image"].sum() == 90 * 3 * 11 * 11


def test_samples_without_objects_can_be_combined():
    empty = flat(9, 20, 20) | {"points": [], "objects": np.zeros((0, 20, 20), bool)}
    full = flat(0, 20, 20, [[1, 2, 9, 8]], [3]) | {"points": [[[4, 4, 2]]], "objects": np.ones((1, 20, 20), bool)}
    parts = {**BOXES, "keypoints": "points", "masks": "objects"}
    for step in (images.Mosaic(20), images.SampleMixUp(), images.CopyPaste(p=1)):
        for samples in ([empty], [empty, full], [full, empty]):
            data = images.Annotated(samples, [step, images.RandomHorizontalFlip(1)], **parts)
            for seed in range(10):
                made = data.try_sample(0, seed)
                lengths = {len(made[key]) for key in ("boxes", "labels", "points", "objects")}
                assert len(lengths) == 1 and (lengths == {0} or len(samples) == 2)
                assert made["boxes"].shape[1:] == (4,) and made["labels"].dtype == np.int64


def test_copy_paste_needs_boxes_and_masks_of_objects():
    plain = scene()
    for parts in (BOXES, {**BOXES, "masks": "classes"}, {"masks": "objects"}):
        data = images.Annotated([plain], images.CopyPaste(p=1), **parts)
        with pytest.raises(ValueError, match=r"index 0: CopyPaste\(.*needs boxes=, and masks= with one mask per box"):
            data[0]


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: images.Mosaic(0), ValueError, "size must be"),
        (lambda: images.Mosaic(40, (1.5, 0.5)), ValueError, "center must be"),
        (lambda: images.Mosaic(40, (0, 1)), ValueError, "center must be"),
        (lambda: images.Mosaic(40, fill=300), ValueError, "fill must be"),
        (lambda: images.SampleMixUp(0), ValueError, "alpha must be a number above 0"),
        (lambda: images.SampleMixUp(fill=(1, 2)), ValueError, "fill must be"),
        (lambda: images.CopyPaste(blending=2), TypeError, "blending must be"),
        (lambda: images.Folder("train/", images.Mosaic(40)), TypeError, "which images.Annotated has"),
        (
            lambda: images.Annotated([scene()], images.RandomApply([images.Mosaic(40)])),
            TypeError, "must be in the dataset's own list",
        ),
        (
            lambda: images.Annotated([scene()], images.RandomOrder([images.RandomChoice([images.CopyPaste()])])),
            TypeError, "must be in the dataset's own list",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def broken_files(folder, count, broken):
    samples = []
    for n in range(count):
        path = folder / f"{n}.png"
        path.write_bytes(b"no image" if n in broken else encoded(pixels(20, 30, n), "PNG"))
        samples.append({"image": path, "boxes": [[1, 1, 9, 9]], "labels": [n]})
    return samples


def test_a_broken_other_image_of_a_mosaic_is_named(tmp_path):
    data = images.Annotated(broken_files(tmp_path, 4, {1, 2, 3}), images.Mosaic(20), **BOXES)
    with pytest.raises(ImageError, match=r"^[^(]*[123]\.png \(index [123]\): .*no format") as caught:
        data[0]
    assert caught.value.index in (1, 2, 3) and str(caught.value.path).endswith(f"{caught.value.index}.png")
    assert isinstance(caught.value.__cause__, ImageError) and caught.value.__cause__.__cause__ is None


def test_another_image_takes_the_place_of_a_broken_one(tmp_path, caplog):
    data = images.Annotated(broken_files(tmp_path, 6, {1, 2, 4}), images.Mosaic(20, (1, 1)), **BOXES, on_error="skip")
    with caplog.at_level(logging.WARNING, "slipring"):
        for seed in range(8):
            made = data.try_sample(0, seed)
            assert made["labels"][0] == 0 and len(made["labels"]) == 4 and set(made["labels"]) <= {0, 3, 5}
            assert set(data[1]["labels"]) <= {0, 3, 5}  # and of the sample itself
    assert {line.split("skipped ")[1].split("(")[1].split(")")[0] for line in caplog.messages} == {
        "index 1", "index 2", "index 4",
    }  # fmt: skip
    data = images.Annotated(broken_files(tmp_path, 3, {0, 1, 2}), images.Mosaic(20), **BOXES, on_error="skip")
    with pytest.raises(ImageError, match="none of the 3 images can be read"):
        data[0]


def test_errors_in_the_boxes_of_another_sample_name_that_sample():
    samples = [flat(n, 20, 30, [[1, 1, 9, 9]], [n]) for n in range(3)]
    samples[1]["boxes"] = samples[2]["boxes"] = [[5, 5, 5, 9]]
    data = images.Annotated(samples, images.Mosaic(20), **BOXES)
    with pytest.raises(ValueError, match=r"^index [12]: (Mosaic.*: )?box 0, from \(5, 5\)"):
        data.try_sample(0, 0)


@pytest.mark.parametrize("mix", [images.Mosaic(20), images.SampleMixUp(), images.CopyPaste()], ids=repr)
def test_an_error_of_a_step_before_a_mix_names_that_step_alone(mix):
    parts = {**BOXES, "masks": "masks"}
    samples = [flat(n, 20, 30, [[1, 1, 9, 9]], [n]) | {"masks": np.ones((1, 20, 30), bool)} for n in range(2)]

    def shrink(image):
        return image[1:] if image[0, 0, 0] == 1 else image

    data = images.Annotated(samples, [shrink, mix], **parts)
    for own in (0, 1):  # the error comes from the other sample, or from the sample itself
        with pytest.raises(ValueError, match=r"^index 1: the step <function .*shrink.* returned"):
            for seed in range(20):
                data.try_sample(own, seed)
    elastic = images.ElasticTransform()
    with pytest.raises(ValueError, match=r"^index [01]: ElasticTransform\(") as caught:
        images.Annotated(samples, [elastic, mix], **parts)[0]
    assert type(mix).__name__ not in str(caught.value)


def make_one(steps):
    """Make one of nine samples in a loader, which seeds the generators for users' functions."""
    data = images.Annotated([flat(n, 20, 20) for n in range(9)], steps, **BOXES)
    with Loader(data, 1, sampler=[0], seed=3) as loader:
        next(iter(loader))


@pytest.mark.parametrize("p", [0, 1])
def test_functions_before_and_after_a_mix_have_random_numbers_of_their_own(p):
    drawn = []

    def draw(image):
        drawn.append(random.random())

    steps = [draw, images.Mosaic(20, p=p), draw, images.SampleMixUp(p=p), draw]
    make_one(steps)
    assert len(drawn) == (11 if p else 3)
    assert len(set(drawn)) == len(drawn)
    with_mixes = drawn.pop()
    make_one([draw, draw, draw])
    assert drawn.pop() == with_mixes  # mixes leave the numbers of functions as they are


@pytest.mark.parametrize("position", [1, 2])
def test_an_exception_of_a_signal_handler_is_raised_as_it_is(position):
    raised = []

    def handler(*_):
        raised.append(ValueError("stop"))
        raise raised[-1]

    steps = [images.RandomHorizontalFlip(), images.Mosaic(20)]
    steps.insert(position, lambda image: signal.raise_signal(signal.SIGUSR1))
    data = images.Annotated([flat(n, 20, 20) for n in range(3)], steps, **BOXES)
    with handling(handler), pytest.raises(ValueError, match="stop") as caught:
        data[0]
    assert caught.value is raised[0] and caught.value.__cause__ is None
