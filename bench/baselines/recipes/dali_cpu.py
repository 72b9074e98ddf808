"""DALI without a GPU: its file reader, its decoder of random crops and its operations, in its own threads.

Its policies have torchvision's operations, with other ranges for some. It draws the order of the images itself, so that
the levels are those of other images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug import rand_augment, trivial_augment

from bench.baselines.recipes import BATCH, SIDE, Recipe
from bench.workloads.epochs import Pictures


def _simclr(pixels: Any) -> Any:
    if fn.random.coin_flip(probability=0.8, dtype=types.BOOL):
        factors = {name: fn.random.uniform(range=[0.6, 1.4]) for name in ("brightness", "contrast", "saturation")}
        pixels = fn.color_twist(pixels, **factors, hue=fn.random.uniform(range=[-36.0, 36.0]))
    if fn.random.coin_flip(probability=0.2, dtype=types.BOOL):
        pixels = fn.saturation(pixels, saturation=0)
    if fn.random.coin_flip(probability=0.5, dtype=types.BOOL):
        pixels = fn.gaussian_blur(pixels, window_size=23, sigma=fn.random.uniform(range=[0.1, 2.0]))
    return pixels


STEPS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "crop": lambda: lambda pixels: pixels,
    "trivial": lambda: (
        lambda pixels: trivial_augment.trivial_augment_wide(
            pixels, fill_value=0, interp_type=types.INTERP_NN, max_translate_abs=32
        )
    ),
    "rand": lambda: (
        lambda pixels: rand_augment.rand_augment(
            pixels, n=2, m=9, fill_value=0, interp_type=types.INTERP_LINEAR, max_translate_abs=101
        )
    ),
    "simclr": lambda: _simclr,
}


def loader(recipe: Recipe, pictures: Pictures, workers: int) -> Iterator[Any]:
    paths, labels = (list(column) for column in zip(*pictures.files))
    steps = STEPS[recipe.key]()

    @pipeline_def(enable_conditionals=True)
    def augmented() -> Any:
        data, label = fn.readers.file(files=paths, labels=labels, random_shuffle=True)
        cropped = fn.decoders.image_random_crop(
            data, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        pixels = fn.resize(cropped, resize_x=SIDE, resize_y=SIDE, interp_type=types.INTERP_LINEAR, antialias=True)
        return steps(fn.flip(pixels, horizontal=fn.random.coin_flip())), label

    pipeline = augmented(batch_size=BATCH, num_threads=workers, device_id=None)
    pipeline.build()
    while True:
        pixels, label = pipeline.run()
        yield pixels.as_array(), label.as_array()[:, 0]
