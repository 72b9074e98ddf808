"""The values of a dataset's arrays: their dtype, and the value for each of the 256 pixel values of a channel."""

from __future__ import annotations

import importlib.util

import numpy as np

from slipring.errors import shown

DTYPES = ("uint8", "float32", "float16", "bfloat16")


def dtype_name(dtype):
    """Return the name of a dtype, whether numpy's, torch's or a string; raise ValueError if images cannot have it."""
    if isinstance(dtype, (type, np.dtype)):
        name = np.dtype(dtype).name
    else:
        names_a_dtype = isinstance(dtype, str) or type(dtype).__module__ == "torch"
        name = str(dtype).removeprefix("torch.") if names_a_dtype else None
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {shown(dtype)}")
    return name


def bfloat16_of_numpy(dtype):
    """Return the dtype of arrays of bfloat16; None for torch tensors."""
    if not isinstance(dtype, (type, np.dtype)) and importlib.util.find_spec("torch") is not None:
        return None
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError(
            "dtype='bfloat16' needs torch or ml_dtypes: install one of them, or use 'float32' or 'float16'"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)


def table_of(dtype, mean, std):
    """Return the values for the 256 pixel values of each channel, or None if the pixel values stay as they are."""
    if dtype == "uint8":
        if mean is not None or std is not None:
            raise ValueError(
                "mean and std are for dtype='float32', 'float16' or 'bfloat16'; with uint8 normalise on the device"
            )
        return None
    mean, std = _channels("mean", mean, 0.0), _channels("std", std, 1.0)
    for name, given, on_the_scale in (("mean", mean, mean <= 1), ("std", std, std <= 1)):
        if not on_the_scale.all():
            scaled = ", ".join(f"{number:.3g}" for number in (given / 255).tolist())
            raise ValueError(
                f"{name} must be at most 1, because pixel values are scaled from 0 ... 255 to 0 ... 1 first, not "
                f"{given.tolist()}: divide it by 255, {name}=({scaled})"
            )
    if not (std > 0).all():
        raise ValueError(f"std must be above 0, not {std.tolist()}")
    fractions = np.arange(256, dtype=np.float32) / np.float32(255)
    values = ((fractions[None] - mean[:, None]) / std[:, None]).astype(np.float32)
    if dtype == "bfloat16":  # the upper half of a float32, rounded to even
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(dtype)


def _channels(name, value, default):
    if value is None:
        value = (default,) * 3
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be three numbers, not {shown(value)}: {error}") from None
    if array.shape != (3,) or not np.isfinite(array).all():
        raise ValueError(f"{name} must be three numbers, of red, green and blue, not {shown(value)}")
    return array
