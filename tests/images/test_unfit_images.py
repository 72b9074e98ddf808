"""Images that a step does not fit: an image's content causes an ImageError, which on_error="skip" skips."""

import numpy as np
import pytest

from slipring import images
from slipring.errors import ImageError
from tests.support.pictures import encoded, pixels

STEPS = {
    "a crop larger than the image": [images.RandomCrop(32)],
    "a crop larger than the image with its border": [images.RandomCrop(32, padding=2)],
    "a blur wider than the image": [images.GaussianBlur(23)],
    "an elastic transform wider than the image": [images.ElasticTransform(sigma=5.0)],
}


@pytest.mark.parametrize("what", STEPS)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "grey", "16 bits", "alpha"])
def test_an_image_that_a_step_does_not_fit_is_skipped(what, form):
    small = np.ascontiguousarray(pixels(2, 9))
    if form == "16 bits":
        small = small[..., 0].astype(np.uint16)
    elif form == "alpha":
        small = np.dstack([small, small[..., 0]])
    data = [(encoded(small[..., 0] if form == "grey" else small, "JPEG" if form == "JPEG" else "PNG"), 0)]
    data.append((encoded(pixels(40, 40), "PNG"), 1))
    with pytest.raises(ImageError, match="image"):
        images.Bytes(data, STEPS[what])[0]
    found = images.Bytes(data, STEPS[what], on_error="skip")[0]
    assert found[1] == 1 and found[0].shape == images.Bytes(data, STEPS[what])[1][0].shape
