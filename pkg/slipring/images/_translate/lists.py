"""Translate the transforms of torchvision and timm, by class identity, to steps and options of a dataset of images.

A class is torchvision's if torchvision's own module, of v1 or v2, has this class under its name. A program that
has such objects has imported these modules, so slipring does not import them.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core.options.checks import one_of
from slipring.errors import shown
from slipring.images._render.recipe import WrongResult
from slipring.images._render.values import DTYPES
from slipring.images._render.view import INTERPOLATIONS
from slipring.images._sources.stored_parts import FORMATS
from slipring.images._steps.checks import RANDOM
from slipring.images._steps.color import RandomErasing
from slipring.images._translate.classes import IMAGE, LIBRARIES, PIL, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from slipring.images._steps.base import Step

    Rest = Literal["raise", "map"]

OPTIONS = "mask_fill", "box_format", "min_box_size"  # those that only `Annotated` has
_MASK = "torchvision.tv_tensors._mask.Mask"


class PartOptions:
    """Collects these options from one transform after another."""

    def __init__(self) -> None:
        self._fills: dict[str, int] = {}  # for each step, the value with which it fills masks
        self._given: int | None = None  # the fill that a step gives for masks in particular
        self._options: dict[str, Any] = {}

    def options(self) -> dict[str, Any]:
        if self._given is None:
            return self._options
        for name, fill in self._fills.items():
            if fill != self._given:
                raise ValueError(
                    f"{name} fills masks with {fill}, and another transform with {self._given}: slipring has one "
                    "mask_fill for all of them"
                )
        return {"mask_fill": self._given, **self._options}

    def add_fill(self, step: Any) -> None:
        """Record the value with which a step fills masks; only a dictionary has a value for masks alone."""
        fill = step.fill
        if isinstance(fill, dict):
            given = [value for kind, value in fill.items() if _name_of(kind) == _MASK]
            if given:
                self._given = _whole(given[0])
                if self._given is None:
                    raise ValueError(
                        f"{type(step).__name__} fills masks with {shown(given[0])}, which must be a whole number"
                    )
            fill = given[0] if given else fill.get("others")
        if (whole := _whole(fill)) is not None:
            self._fills.setdefault(type(step).__name__, whole)
            if self._fills[type(step).__name__] != whole:
                self._fills[f"a second {type(step).__name__}"] = whole

    def convert_boxes(self, step: Any) -> None:
        """Record the format of the boxes, which `Annotated` keeps: the dataset must have it already."""
        name = str(getattr(step.format, "name", step.format)).lower()
        if name not in FORMATS:
            raise ValueError(f"ConvertBoundingBoxFormat has format {name!r}; slipring has {', '.join(FORMATS)}")
        self._options["box_format"] = name

    def sanitize_boxes(self, step: Any) -> None:
        """Record the size of boxes to remove, as `Annotated` does at the end."""
        if step.min_area > step.min_size**2:
            raise ValueError(
                f"SanitizeBoundingBoxes has min_area={step.min_area}; slipring removes boxes by their sides only: use "
                "min_size"
            )
        if step.min_size != 1:
            self._options["min_box_size"] = step.min_size

    def check_order(self, name: str) -> None:
        """Raise ValueError if no transform may follow."""
        if "min_box_size" in self._options:
            raise ValueError(f"{name} comes after SanitizeBoundingBoxes with a min_size, which must be the last step")


def _name_of(kind):
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind


def _whole(fill: Any) -> int | None:
    """Return a fill as a whole number; None: it is a colour or a fraction, which no mask has."""
    values: Iterable[Any] = fill if isinstance(fill, (tuple, list)) else (fill,)
    found = {0 if value is None else value for value in values}
    value = found.pop() if len(found) == 1 else 0.5
    return int(value) if value == int(value) else None


class KeptStep:
    """A function of images of class `kind`, as a function of an image's array."""

    def __init__(self, function: Callable[[Any], Any], kind: str) -> None:
        self._function, self._kind = function, kind

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self._of_pil(image) if self._kind == PIL else self._of_tensor(image)

    def _of_pil(self, image):
        from PIL import Image

        result = self._function(Image.fromarray(image))
        if not isinstance(result, Image.Image) or result.mode != "RGB" or result.size != image.shape[1::-1]:
            raise self._wrong(result, f"a PIL image of mode RGB and size {image.shape[1]} x {image.shape[0]}")
        return np.asarray(result)

    def _of_tensor(self, image):
        import torch

        given = torch.from_numpy(image).permute(2, 0, 1)
        if self._kind == IMAGE:
            given = importlib.import_module("torchvision.tv_tensors").Image(given)
        result = self._function(given)
        if not isinstance(result, torch.Tensor) or result.dtype != torch.uint8 or result.shape != given.shape:
            raise self._wrong(result, f"a tensor of uint8 and shape {tuple(given.shape)}")
        return np.ascontiguousarray(result.detach().as_subclass(torch.Tensor).permute(1, 2, 0).numpy())

    def _wrong(self, result, wanted):
        return WrongResult(f"the step {shown(self._function)} returned {_described(result)}: it must return {wanted}")

    def __repr__(self) -> str:
        return repr(self._function)


def _described(result):
    if hasattr(result, "dtype") and hasattr(result, "shape"):
        return f"an object of class {type(result).__name__}, {result.dtype} and shape {tuple(result.shape)}"
    if hasattr(result, "mode") and hasattr(result, "size"):
        return f"a PIL image of mode {result.mode} and size {result.size[0]} x {result.size[1]}"
    return shown(result)


_MAY_DIFFER = {"__init__", "__repr__", "extra_repr"}  # methods of a subclass that change no sample
_PILLOWS = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # numbers of Pillow's filters, which torchvision takes
_BEFORE = "move it before the conversion to floats"


def translated(transform: Any, rest: Rest = "raise") -> dict[str, Any]:
    """Return the options of a dataset that applies `transform`, a transform of torchvision or timm."""
    one_of("rest", rest, ("raise", "map"))
    made = Translation(rest)
    if transform is not None:
        made.add(transform)
    options = made.options()
    if made.kept:
        logging.getLogger("slipring").warning(
            "rest='map' keeps %s as Python functions, because slipring has no such steps: each runs under the GIL for "
            "every sample, with a copy of the image in each direction",
            ", ".join(made.kept),
        )
    return options


class Translation:
    """The steps and options of a dataset for a list of transforms, which are added one after another.

    Attributes
    ----------
    steps : list
        Of slipring.images, and functions of an image's array.
    kept : list of str
        Names of the transforms that became functions.
    kind : str
        Class of the image after the transforms so far: `PIL`, `TENSOR` or `IMAGE`.
    dtype : str or None
        Of that image; None as long as it is Pillow's.
    parts : PartOptions
        Collects the options of masks and boxes.
    """

    def __init__(self, rest: Rest = "raise") -> None:
        self._rest = rest
        self.steps: list[Step] = []
        self.kept: list[str] = []
        self.kind, self.dtype = PIL, None
        self.parts: PartOptions = PartOptions()
        self._scaled = False  # pixel values are 0 to 1
        self._mean = self._std = None
        self._erases = False

    def options(self) -> dict[str, Any]:
        """Return `transform`, the options of masks and boxes, and those of the result if it is a tensor."""
        made: dict[str, Any] = {"transform": self.steps, **self.parts.options()}
        if self.dtype is not None:
            if self.dtype != "uint8" and not self._scaled:
                raise ValueError(
                    "ToDtype(scale=False) gives pixel values from 0 to 255 as floats: use scale=True, or uint8"
                )
            made |= {"layout": "NCHW", "dtype": self.dtype, "mean": self._mean, "std": self._std}
        return made

    def add(self, step: Any) -> None:
        """Translate a transform."""
        try:
            translate = _translator(step)
        except TypeError as error:
            if self._rest == "raise":
                raise
            self._keep(step, error)
        else:
            translate(self, step)

    # ---- what the translators of single classes use

    def append(self, step: Any, made: Step, *, moves: bool = False) -> None:
        """Append the translation of `step`; `moves`: it only moves pixels, so it may follow the conversion to floats.

        A step that is never applied is dropped.
        """
        self._check_order(type(step).__name__)
        if self.dtype not in (None, "uint8") and not moves:
            raise ValueError(f"{type(step).__name__} comes after the image has become {self.dtype}: {_BEFORE}")
        if getattr(made, "p", None) != 0:
            self.steps.append(made)

    def make(self, step: Any, kind: Any, names: Iterable[str], **more: Any) -> Any:
        """Return a step of class `kind`, whose arguments are these attributes of `step`, and others."""
        found = {name: self.argument(step, name, resizes=kind.resizes) for name in names}
        return self.build(step, kind, **found, **more)

    def build(self, step: Any, kind: Any, **arguments: Any) -> Any:
        """Return a step of class `kind`; errors name the class of `step`."""
        try:
            return kind(**arguments)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{type(step).__name__}: {error}") from None

    def argument(self, step: Any, name: str, *, resizes: bool = False) -> Any:
        """Return an attribute of `step` in the form that slipring takes."""
        value = getattr(step, name)
        if name == "interpolation":
            return self.interpolation(step, value, resizes=resizes)
        if name == "size":
            return size_of(value)
        if isinstance(value, dict):
            value = self.of_image(step, name, value)
        return tuple(value) if isinstance(value, list) else value

    def interpolation(self, step: Any, value: Any, *, resizes: bool = False) -> str:
        """Return the name of an interpolation; `resizes`: `step` may have ``antialias=False``, which is refused."""
        if isinstance(value, (tuple, list)):  # timm's random one
            names = {self.interpolation(step, one, resizes=resizes) for one in value}
            if names != {"bilinear", "bicubic"}:
                drawn = ", ".join(sorted(names))
                raise ValueError(f"{type(step).__name__} draws one of {drawn}; slipring one of bilinear and bicubic")
            return RANDOM
        name = getattr(value, "value", value)  # of an enumeration's member
        name = _PILLOWS.get(name, name)
        name = "nearest" if name == "nearest-exact" else name
        if name not in INTERPOLATIONS:
            known = ", ".join(map(repr, INTERPOLATIONS))
            raise ValueError(f"{type(step).__name__} has interpolation {name!r}; slipring has {known}")
        antialias = getattr(step, "antialias", True)
        if resizes and name != "nearest" and (antialias is False or (antialias is None and self.kind != PIL)):
            raise ValueError(
                f"{type(step).__name__} has antialias={antialias}: slipring averages over all pixels when it shrinks "
                "an image, as Pillow does, so the result would differ on tensors (on PIL images, torchvision ignores "
                "this argument); use antialias=True"
            )
        return name

    def of_image(self, step: Any, name: str, values: dict[Any, Any]) -> Any:
        """Return the value that an argument of v2 has for images, from its values for classes."""
        for kind, value in values.items():
            if isinstance(kind, type) and f"{kind.__module__}.{kind.__qualname__}" == self.kind:
                return value
        if "others" not in values:
            raise ValueError(
                f"{type(step).__name__} has no {name} for images, of class {self.kind}, and none for 'others'"
            )
        return values["others"]

    def nested(self, step: Any, transforms: Iterable[Any]) -> list[Step]:
        """Return the translations of transforms that `step` has as a list; none may convert the image."""
        before = self.kind, self.dtype, self._mean
        outer, self.steps = self.steps, []
        try:
            for one in transforms:
                self.add(one)
            if (self.kind, self.dtype, self._mean) != before:
                raise ValueError(f"{type(step).__name__} converts or normalizes the image: do so in the outermost list")
            return self.steps
        finally:
            self.steps = outer

    def to_tensor(self, kind: str, dtype: str = "uint8") -> None:
        """Convert Pillow's image to a tensor; a tensor changes its class only."""
        if self.kind == PIL:
            self.dtype, self._scaled = dtype, dtype != "uint8"
        self.kind = kind

    def to_pil(self, step: Any) -> None:
        if self.dtype not in (None, "uint8"):
            raise ValueError(f"{type(step).__name__} comes after the image has become {self.dtype}: leave both out")
        self._check_order(type(step).__name__)
        self.kind, self.dtype = PIL, None

    def convert(self, dtype: Any, *, scale: bool) -> None:
        """Convert a tensor to another dtype."""
        if self.dtype is None:
            raise ValueError("the image becomes a tensor first: ToImage, PILToTensor or ToTensor before the dtype")
        name = str(dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise ValueError(f"dtype {name} is not one of slipring's: {', '.join(DTYPES)}")
        if self.dtype != "uint8" and name == "uint8":
            raise ValueError("floats are not turned back to uint8")
        if self.dtype == "uint8" and name != "uint8":
            self._scaled = scale
            self._change_erasures((0.0,) * 3, (255.0 if scale else 1.0,) * 3)
        self.dtype = name

    def normalize(self, step: Any, mean: Iterable[float], std: Iterable[float]) -> None:
        name = type(step).__name__
        if self.dtype in (None, "uint8"):
            raise ValueError(f"{name} needs floats: ToTensor, or ToDtype(torch.float32, scale=True), before it")
        if self._mean is not None:
            raise ValueError(f"{name} comes after Normalize: leave one of them out")
        mean, std = (tuple(map(float, numbers)) for numbers in (mean, std))
        if len(mean) == len(std) == 1:
            mean, std = mean * 3, std * 3
        self._change_erasures(mean, std)
        if not self._scaled:  # slipring's numbers are for values from 0 to 1
            mean, std = (tuple(one / 255 for one in numbers) for numbers in (mean, std))
            self._scaled = True
        self._mean, self._std = mean, std

    def erase(self, step: Any, made: RandomErasing) -> None:
        """Append a RandomErasing."""
        if self.dtype is None:
            raise ValueError(f"{type(step).__name__} comes before the conversion to a tensor; it must follow that")
        if self.dtype == "uint8" and made.mode != "const":
            raise ValueError(f"{type(step).__name__} writes normal random numbers, which need floats, not uint8")
        if made.p > 0:
            self.steps.append(made)
            self._erases = True

    # ---- helpers

    def _check_order(self, name):
        self.parts.check_order(name)
        if self._mean is not None:
            raise ValueError(f"{name} comes after Normalize, which only RandomErasing may follow")
        if self._erases:
            raise ValueError(f"{name} comes after RandomErasing, which must be the last step")

    def _change_erasures(self, mean, std):
        """Convert the values that erasing steps write, as the images' are converted: slipring writes to the result."""
        if not self._erases:
            return
        for index, step in enumerate(self.steps):
            if isinstance(step, RandomErasing):
                if step.mode != "const":
                    raise ValueError("RandomErasing draws values before Normalize or a conversion: move it to the end")
                values = step.value if isinstance(step.value, tuple) else (step.value,) * 3
                value = tuple((one - m) / s for one, m, s in zip(values, mean, std))
                self.steps[index] = RandomErasing(
                    step.p, step.scale, step.ratio, value, min_count=step.min_count, max_count=step.max_count
                )
            elif getattr(step, "is_last", False):
                raise ValueError(f"{shown(step)} erases before Normalize or a conversion: move it to the end")

    def _keep(self, step, reason):
        """Append a function for a transform that slipring lacks."""
        name = getattr(step, "__name__", type(step).__name__)
        if not callable(step) or isinstance(step, type):
            raise reason
        if self.dtype not in (None, "uint8"):
            raise TypeError(f"slipring has no {name}, and rest='map' keeps functions of images of uint8: {_BEFORE}")
        self._check_order(name)
        self.steps.append(KeptStep(step, self.kind))
        self.kept.append(name)


def is_known(thing: Any, modules: Iterable[str]) -> bool:
    """Return whether one of the modules has this class or function under its name."""
    name = getattr(thing, "__name__", None)
    return any(getattr(sys.modules.get(module), name or "", None) is thing for module in modules)


def _translator(step):
    """Return the function that translates a transform; raise TypeError if there is none, or a method is overridden."""
    kinds = type(step).__mro__
    for index, kind in enumerate(kinds):
        for modules, known in LIBRARIES:
            if kind.__name__ in known and is_known(kind, modules):
                _check_overrides(kinds[:index], kind)
                return known[kind.__name__]
    names = sorted({name for _, known in LIBRARIES for name in known})
    raise TypeError(
        f"slipring has no {type(step).__name__}, got {shown(step)}; rest='map' keeps it as a function. Of the "
        f"transforms of torchvision and timm, slipring has {', '.join(names)}"
    )


def _check_overrides(subclasses, known):
    for kind in subclasses:
        for name, value in vars(kind).items():
            if callable(value) and hasattr(known, name) and name not in _MAY_DIFFER:
                raise TypeError(
                    f"{kind.__name__} is a {known.__name__} with a {name} of its own, which slipring would not call; "
                    "rest='map' keeps it as a function"
                )
