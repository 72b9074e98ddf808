"""Collation in the slot, of a list of samples."""

from collections.abc import Iterable
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

# Elements that a numpy array can contain; others become lists.
_Number = TypeVar("_Number", bound=np.number[Any] | np.bool)
_Text = TypeVar("_Text", str, bytes)

@overload
def default_collate(samples: Iterable[NDArray[_Number]]) -> NDArray[_Number]: ...
@overload
def default_collate(samples: Iterable[_Text]) -> list[_Text]: ...
@overload
def default_collate(samples: Iterable[None]) -> None: ...
@overload
def default_collate(samples: Iterable[Any]) -> Any: ...
