"""From the bytes or pixels of an image to its patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slipring.images._render.scratch import scratch
from slipring.images._sources.renderer import Renderer
from slipring.images._steps.patches import Patches

if TYPE_CHECKING:
    from typing import Any

_FIELDS = "patches", "patch_coord", "patch_valid"


class PatchRenderer(Renderer):
    """Makes the arrays of `Patches`."""

    def __init__(self, transform: Patches, **options: Any) -> None:
        super().__init__(transform.steps, **options)
        if self.layout != "NHWC":
            raise ValueError(f"layout must be 'NHWC' with Patches, which have no channels first, not {self.layout!r}")
        self._side_of_patch = transform.patch_size
        count, values = transform.max_patches, transform.patch_size**2 * 3
        self.is_single, self.size = False, count
        self.shapes = (count, values), (count, 2), (count,)
        self.storages = self.storage, "int64", "bool"

    def sample_of(self, arrays):
        return dict(zip(_FIELDS, arrays))

    def shown(self, arrays):
        return {**arrays, "patches": super().shown(arrays["patches"])}

    def _run(self, recipes, image, out):
        if self.is_single:  # of StepTimes, for an image
            super()._run(recipes, image, out)
            return
        (recipe,), (patches, places, valid) = recipes, out
        side, memory = self._side_of_patch, np.dtype(self.storage)
        rows, columns = recipe.height // side, recipe.width // side
        pixels = scratch(recipe.height, recipe.width * memory.itemsize).reshape(-1).view(memory)
        recipe.run(image, pixels.reshape(recipe.height, recipe.width, 3), self._table)
        count = rows * columns
        to = patches[:count].reshape(rows, columns, side, side, 3)
        to[...] = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        number = np.arange(count)
        places[:count, 0], places[:count, 1] = number // columns, number % columns
        patches[count:], places[count:] = 0, 0
        valid[:count], valid[count:] = True, False


def renderer_of(transform: Any, **options: Any) -> Renderer:
    """Return the renderer of a dataset's transforms."""
    return (PatchRenderer if isinstance(transform, Patches) else Renderer)(transform, **options)
