"""Samples with masks, boxes and keypoints that belong together, and checks that they still do."""

import numpy as np

LEVELS = 80, 160, 240  # of the objects' pixels
RECTANGLES = (8, 10, 28, 26), (40, 6, 70, 30), (20, 35, 50, 52)  # left, top, right, bottom
HEIGHT, WIDTH = 60, 80
PARTS = {
    "images": ("image", "right"),
    "masks": ("classes", "objects"),
    "boxes": "boxes",
    "rows": "labels",
    "keypoints": "points",
}


def scene(number=0):
    """Return a sample: three rectangles, each with a label, a mask, a value in the mask of classes and its centre."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    classes = np.zeros((HEIGHT, WIDTH), np.uint16)
    objects = np.zeros((3, HEIGHT, WIDTH), bool)
    points = []
    for n, (left, top, right, bottom) in enumerate(RECTANGLES):
        region = slice(top, bottom), slice(left, right)
        image[region], classes[region], objects[(n, *region)] = LEVELS[n], 300 * (n + 1), True
        points.append([[(left + right) / 2, (top + bottom) / 2, 2]])
    return {
        "image": image,
        "right": image.copy(),
        "classes": classes,
        "objects": objects,
        "boxes": [list(map(float, box)) for box in RECTANGLES],
        "labels": [0, 1, 2],
        "points": points,
        "number": number,
    }


def around(mask):
    """Return left, top, right and bottom of the pixels of a mask that is not empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def touches_border(mask):
    return mask[0].any() or mask[-1].any() or mask[:, 0].any() or mask[:, -1].any()


def check_objects(sample, tolerance=1.6, fits=True):
    """Check that boxes, masks, keypoints and labels describe the same objects; return the number of whole ones.

    `fits`: a box around a whole object is as large as the object, and the keypoint is its centre.
    """
    height, width = sample["image"].shape[:2]
    boxes, objects, points, labels = (sample[key] for key in ("boxes", "objects", "points", "labels"))
    assert boxes.dtype == points.dtype == np.float32 and objects.dtype == bool
    assert len(boxes) == len(objects) == len(points) == len(labels)
    assert objects.shape[1:] == sample["classes"].shape == (height, width)
    assert np.array_equal(sample["image"], sample["right"])
    whole = 0
    for box, mask, (point,), label in zip(boxes, objects, points, labels):
        assert (box[:2] >= 0).all() and box[2] <= width and box[3] <= height
        assert np.array_equal(mask, (sample["classes"] == 300 * (label + 1)))
        if not mask.any():
            continue
        its = around(mask)
        assert (box[:2] <= its[:2] + tolerance).all() and (box[2:] >= its[2:] - tolerance).all(), (box, its)
        inside = 0 <= point[0] <= width and 0 <= point[1] <= height
        assert point[2] in (0, 2 * inside)
        if touches_border(mask):
            continue
        whole += 1
        if fits:
            assert np.abs(box - its).max() <= tolerance and point[2] == 2, (box, its, point)
            y, x = np.nonzero(mask)
            assert abs(x.mean() + 0.5 - point[0]) <= tolerance and abs(y.mean() + 0.5 - point[1]) <= tolerance
    return whole


def check_pixels(sample, exact):
    """Check that the image shows what the mask of classes says; unless `exact`, only away from edges."""
    image, classes = sample["image"][..., 0].astype(int), sample["classes"].astype(int)
    wanted = np.array([0, *LEVELS])[classes // 300]
    if exact:
        assert np.array_equal(image, wanted)
        return
    flat = np.ones(classes.shape, bool)
    for down in (-2, 0, 2):
        for across in (-2, 0, 2):
            flat &= np.roll(classes, (down, across), (0, 1)) == classes
    flat[:2] = flat[-2:] = False
    flat[:, :2] = flat[:, -2:] = False
    assert flat.any() and np.abs(image - wanted)[flat].max() <= 1
