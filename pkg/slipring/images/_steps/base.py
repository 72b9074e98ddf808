"""The base class of transforms, lists of them, and checks of their arguments."""

from __future__ import annotations

import abc
import copy
import inspect
import itertools
import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import integer, real
from slipring._core.ring.worker_info import runs_in_thread
from slipring._core.workers import seeding
from slipring.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._steps.batch import Images

_MOST_PIXELS = 1 << 20  # of a side


class Transform(abc.ABC):
    """One step of a list of transforms."""

    is_random: bool = False  # whether its effect is drawn for each sample
    resizes: bool = False  # whether it scales the image, by its `interpolation`
    mixes_batch: bool = False  # whether it is a batch_transform
    needs_parts: bool = False  # whether it needs boxes, or several samples, which only `Annotated` has
    combines_samples: bool = False  # whether it needs other samples, too
    is_last: bool = False  # whether it changes the result itself, so that no other kind of step can follow

    @abc.abstractmethod
    def apply(self, recipe: Recipe, draws: Draws) -> None:
        """Add the step to a sample's `recipe`, with random numbers from `draws`."""

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the size of the result for an image of `size`; None: it depends on the image, or is drawn."""
        return size

    def check(self, dtype: str) -> None:  # noqa: B027 - most steps suit every dtype
        """Raise ValueError if the step cannot be part of a dataset whose results have that dtype."""

    def __repr__(self) -> str:
        return self._shown(*inspect.signature(type(self)).parameters)

    def _shown(self, *names: str) -> str:
        """Return a text with the step's arguments."""
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class OneSize(Transform):
    """A step whose results have the same size for all images."""

    size: tuple[int, int]

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return self.size


class BatchTransform(abc.ABC):
    """A transform of a whole batch, for ``batch_transform=``."""

    @abc.abstractmethod
    def mix(self, images: Images, targets: NDArray[Any], draws: Draws) -> NDArray[np.float32]:
        """Change the images in place, and return the targets."""


class RandomStep(Transform):
    """A step that is applied with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        self.p: float = probability_of("p", p)
        self.is_random: bool = 0 < self.p < 1

    def __repr__(self) -> str:
        names = inspect.signature(type(self)).parameters
        return self._shown("p", *(name for name in names if name != "p"))

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        if draws.chance(self.p):
            self.perform(recipe, draws)

    @abc.abstractmethod
    def perform(self, recipe: Recipe, draws: Draws) -> None:
        """Add the step to a sample's `recipe`."""


class UserStep(Transform):
    """A user's function as a step: it gets the image, a writable height × width × 3 array of uint8.

    `slipring.rng` is seeded for each sample, also outside of a loader. Python's, numpy's and torch's global generators
    are seeded for it, except in thread workers, which share them. A transform of Albumentations has generators of its
    own, which are seeded everywhere.
    """

    is_random: bool = True  # it may be

    def __init__(self, function: Callable[[NDArray[np.uint8]], Any]) -> None:
        self.function = function
        root = type(function).__module__.partition(".")[0]
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._by_name = root.startswith("albumentations") and hasattr(function, "set_random_seed")

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        recipe.call(Seeded(self, draws.apart(recipe.calls)))

    def run(self, image: NDArray[np.uint8], seed: int) -> Any:
        """Return the function's result for a sample's image."""
        seeding.seed_for_sample(seed)
        batch = seeding.swap_context(seeding.RngContext(seed, batch=seed))
        try:
            return self._result(image, seed)
        finally:
            seeding.swap_context(batch)

    def _result(self, image: NDArray[np.uint8], seed: int) -> Any:
        if not self._by_name:
            return self.function(image)
        function = self._of_thread() if runs_in_thread() else self.function
        function.set_random_seed(seed & 0xFFFFFFFF)
        return function(image=image)["image"]

    def _of_thread(self):
        """Return this thread's copy of the transform: another thread would seed the original meanwhile."""
        copies = _thread.__dict__.setdefault("copies", weakref.WeakKeyDictionary())
        if self not in copies:
            copies[self] = copy.deepcopy(self.function)
        return copies[self]

    def __repr__(self) -> str:
        return shown(self.function)


_thread = threading.local()


class Seeded:
    """A user's step with the seed for one sample."""

    def __init__(self, step, seed):
        self.step, self.seed, self.__name__ = step, seed, step.name

    def __call__(self, image):
        return self.step.run(image, self.seed)

    def __repr__(self):
        return repr(self.step)


Size: TypeAlias = "int | tuple[int, int]"  # of the images of a batch
Step: TypeAlias = "Transform | Callable[[NDArray[np.uint8]], Any]"  # in a list of transforms


def chain(transform: Step | Sequence[Step] | None, name: str = "transform") -> tuple[Transform, ...]:
    """Return the steps of `transform`: one, several, or None for none. Raise TypeError if one cannot be called.

    `name` is that of the argument, for error messages.
    """
    steps = () if transform is None else tuple(transform) if isinstance(transform, (tuple, list)) else (transform,)
    for step in steps:
        if isinstance(step, BatchTransform) or getattr(step, "mixes_batch", False):
            raise TypeError(f"{name} must not have {shown(step)}, which mixes a batch: give batch_transform= instead")
        if not isinstance(step, Transform) and (not callable(step) or isinstance(step, type)):
            raise TypeError(
                f"{name} must be of slipring.images, a function of an image's array, or a list of these, not "
                f"{shown(step)}"
            )
    made = tuple(step if isinstance(step, Transform) else UserStep(step) for step in steps)
    for step, following in itertools.pairwise(made):
        if step.is_last and not following.is_last:
            raise ValueError(
                f"{name} must have {type(step).__name__} at its end, because it changes the normalised result, and "
                f"{shown(following)} follows it"
            )
    return made


def final_size(steps: Sequence[Transform], size: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """Return the size of all results for images of `size`, or None if it depends on the image, or is drawn."""
    for step in steps:
        size = step.result_size(size)
    return size


def pixels(name, value):
    try:
        return integer(name, value, 1, _MOST_PIXELS)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number of pixels from 1 to {_MOST_PIXELS}, not {shown(value)}") from None


def pair(name, value):
    if isinstance(value, (tuple, list)):
        if len(value) == 1:
            value = value[0]
        elif len(value) == 2:
            return pixels(name, value[0]), pixels(name, value[1])
        else:
            raise ValueError(f"{name} must be a number, or height and width, not {shown(value)}")
    return (pixels(name, value),) * 2


def positive_range(name, value):
    try:
        low, high = (real(name, number) for number in value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be two numbers, not {shown(value)}") from None
    if not 0 < low <= high < math.inf:
        raise ValueError(f"{name} must be two numbers above 0, the smaller first, not {shown(value)}")
    return low, high


def probability_of(name, value):
    probability = real(name, value, "a probability from 0 to 1")
    if not 0 <= probability <= 1:
        raise ValueError(f"{name} must be a probability from 0 to 1, not {shown(value)}")
    return probability
