"""A recipe that records what transforms add to it, for tests of their draws."""

from tests.support.inside import Boxes, Draws, Recipe


class Recorded(Recipe):
    """A recipe whose operations, crops, sizes and erasures are listed: (name, whole numbers, numbers)."""

    def __init__(self, height, width, dtype="float32"):
        super().__init__(height, width, dtype)
        self.added = []

    def op(self, operation):
        n, v = (tuple(one for one in operation.numbers if type(one) is kind) for kind in (int, float))
        self.added.append((operation.name, n, v))
        super().op(operation)

    def crop(self, top, left, height, width, fill=(0.0, 0.0, 0.0)):
        self.added.append(("box", (top, left, height, width), tuple(fill)))
        self.height, self.width = height, width

    def resize(self, height, width, interpolation):
        self.added.append(("resize", (height, width), (interpolation,)))
        self.height, self.width = height, width

    def flip_vertically(self):
        self.added.append(("vertical_flip", (), ()))

    def erase(self, top, left, height, width, values, seed=0):
        self.added.append(("erase", (top, left, height, width), values if values is None else tuple(values)))


def recorded(step, times, size=(200, 300), seed=1, dtype="float32", boxes=None):
    """Return what a step adds to each of `times` recipes for images of (height, width), which may have boxes."""
    draws, added = Draws(seed), []
    for _ in range(times):
        recipe = Recorded(*size, dtype)
        recipe.boxes = None if boxes is None else Boxes(boxes)
        step.apply(recipe, draws)
        added.append(recipe.added)
    return added
