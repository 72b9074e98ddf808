"""Options of `Annotated`, from the arguments of torchvision's transforms for masks and boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipring.errors import shown
from slipring.images._sources.stored_parts import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    def check_place(self, name: str) -> None:
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
