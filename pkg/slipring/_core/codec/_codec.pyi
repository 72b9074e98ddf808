"""The codec, as far as Python modules need its types: the arrays that are made in a slot."""

from collections.abc import Iterable
from typing import Any, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)
_Shape = SupportsIndex | Iterable[SupportsIndex]

@overload
def empty(shape: _Shape, dtype: type[float] = ...) -> NDArray[np.float64]: ...
@overload
def empty(shape: _Shape, dtype: np.dtype[_Scalar] | type[_Scalar]) -> NDArray[_Scalar]: ...
@overload
def empty(shape: _Shape, dtype: DTypeLike) -> NDArray[Any]: ...
