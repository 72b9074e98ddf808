"""How long each step of a list of transforms takes, measured in the calling process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from slipring.images._render.draws import Draws
from slipring.images._steps.base import UserStep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipring.images._render.recipe import Recipe
    from slipring.images._sources.renderer import Renderer
    from slipring.images._steps.base import Transform

_ROUNDS = 3  # each time is the shortest of this many measurements
CONVERT = "convert"


class StepTimes:
    """Sums of the steps' times over several images, in nanoseconds.

    An image is made with the first step, with the first two, and so on. A step's time is the difference. So operations
    that run together, such as two that become one table, are measured together. The first steps that only choose the
    part to decode count as decoding.

    Parameters
    ----------
    renderer : Renderer
    first : str
        Name of the time before the first operation.
    """

    def __init__(self, renderer: Renderer, first: str) -> None:
        self.renderer, self.first = renderer, first
        # One crop after another, as they are drawn: its steps in uint8, and those that change the converted result.
        self._crops = [_parted(steps) for count, steps in renderer.groups for _ in range(count)]
        self._images = 0
        self._converts = renderer.dtype != "uint8" or renderer.layout != "NHWC"
        ordered = [first, *(_name(step) for steps, _ in self._crops for step in steps)]
        ordered += [CONVERT, *(_name(step) for _, last in self._crops for step in last)]
        self._ns: dict[str, int | None] = dict.fromkeys(ordered)

    def add(self, make: Callable[[Renderer], Any], recipe: Callable[[], Recipe], seed: int) -> None:
        """Measure one image; ``make(renderer)`` renders it, and ``recipe()`` returns an empty recipe for it."""
        begins = self._begins(recipe, seed)
        counts = [0] * len(self._crops)
        for crop, (steps, _) in enumerate(self._crops):
            counts[crop] = self._views(steps, recipe(), begins[crop])
        names, variants = [self.first], [(tuple(counts), False, 0)]
        for crop, (steps, _) in enumerate(self._crops):
            while counts[crop] < len(steps):
                names.append(_name(steps[counts[crop]]))
                counts[crop] += 1
                variants.append((tuple(counts), False, 0))
        if self._converts:
            names.append(CONVERT)
            variants.append((tuple(counts), True, 0))
        for end in range(1, max(len(last) for _, last in self._crops) + 1):
            names.append(_name(next(last[end - 1] for _, last in self._crops if len(last) >= end)))
            variants.append((tuple(counts), True, end))
        took = [min(times) for times in zip(*([self._time(make, recipe, begins, one) for one in variants]
                                              for _ in range(_ROUNDS)))]  # fmt: skip
        for name, now, before in zip(names, took, [0, *took]):
            self._ns[name] = (self._ns[name] or 0) + now - before
        self._images += 1

    def seconds(self) -> dict[str, float]:
        """Return the seconds per image of each step that was measured, in the order of the steps."""
        return {name: max(0, ns) / self._images / 1e9 for name, ns in self._ns.items() if ns is not None}

    def _begins(self, recipe, seed):
        """Return the state of the random numbers before each crop."""
        draws, begins = Draws(seed), [seed]
        for steps, last in self._crops[:-1]:
            made = recipe()
            for step in (*steps, *last):
                step.apply(made, draws)
            begins.append(draws.state)
        return begins

    @staticmethod
    def _views(steps, recipe, state):
        """Return how many of the first steps need no operation, and no other sample."""
        draws = Draws(state)
        for index, step in enumerate(steps):
            if step.combines_samples:
                return index
            step.apply(recipe, draws)
            if not recipe.is_crop_only:
                return index
        return len(steps)

    def _time(self, make, recipe, begins, variant):
        """Return the time to render an image with some of the steps."""
        counts, converted, last = variant
        renderer = self.renderer.of_crops(converts=converted)
        lists = [(*steps[:count], *ends[:last]) for (steps, ends), count in zip(self._crops, counts)]
        renderer.steps = lists[0]

        def drawn(*_):
            recipes = []
            for steps, state in zip(lists, begins):
                made, draws = recipe(), Draws(state)
                made.dtype = renderer.dtype
                for step in steps:
                    step.apply(made, draws)
                recipes.append(made)
            return recipes

        renderer._drawn = drawn
        begun = time.thread_time_ns()
        make(renderer)
        return time.thread_time_ns() - begun


def _parted(steps: Sequence[Transform]) -> tuple[list[Transform], list[Transform]]:
    return [step for step in steps if not step.is_last], [step for step in steps if step.is_last]


def _name(step):
    return step.name if isinstance(step, UserStep) else type(step).__name__
