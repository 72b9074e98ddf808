"""Checks of the samples that a dataset has returned for several indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any


def listed_samples(samples: Any) -> list[Any]:
    """Return samples as a new list; raise TypeError if they are a finished batch, whose parts are not samples."""
    is_one = isinstance(samples, (Mapping, Set, str, bytes, bytearray)) or hasattr(samples, "__dataframe__")
    if not is_one and not (isinstance(samples, tuple) and hasattr(samples, "_fields")):  # of a namedtuple
        try:
            each = iter(samples)
        except TypeError:
            pass
        else:
            return list(each)
    raise TypeError(
        f"samples must be a list with one element per sample, and are of type {type(samples).__name__}. If "
        "__getitems__ returns finished batches, give a collate_fn, which gets them unchanged (not with chunk_size or "
        "skip_none), or return them from fetch_into"
    )


def one_each(dataset: Any, indices: Sequence[Any], samples: Iterable[Any]) -> list[Any]:
    """Return the samples of one call to a dataset as a list; raise an error unless there is one for each index."""
    found = listed_samples(samples)
    if len(found) != len(indices):
        raise ValueError(
            f"{type(dataset).__name__} has returned {len(found)} samples for {len(indices)} indices: which ones they "
            "are cannot be known"
        )
    return found
