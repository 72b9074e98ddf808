"""Map datasets whose samples are cached."""

from __future__ import annotations

import copy as copying
import operator
import os
import warnings
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slipring._core.codec.samples import one_each
from slipring._core.options.checks import flag, map_dataset
from slipring._core.ring.sample_marks import failed_among, failed_at
from slipring.cache.cache import Cache, as_cache
from slipring.errors import CacheMismatch, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipring.typing import MapDataset

_Sample = TypeVar("_Sample")
_WRAPPERS = 8  # nested wrappers that are searched
# Beginnings of the names of torchvision's random transforms.
_RANDOM = ("Random", "RandAugment", "AutoAugment", "TrivialAugment", "AugMix", "ColorJitter", "Gaussian", "Elastic")


def bind(cache: Cache, what: str, fingerprint: str | None, samples: int, dataset: object, form: str = "") -> None:
    """Declare the contents of a cache: samples of `dataset` in some `form`.

    `fingerprint` None: only the object itself identifies its samples. Raise `CacheMismatch` if the cache holds other
    contents, and ValueError if it has a name, so that other processes could take their samples for these.
    """
    known, held = fingerprint is not None, cache._held
    if not known:
        if cache.name is not None:
            raise ValueError(
                f"the cache is shared by its name, {cache.name!r}, but nothing tells {what} from another dataset: "
                f"give fingerprint=, a text that changes when the samples do"
            )
        if held is None or held[0] is not dataset:
            held = dataset, os.urandom(16).hex()
        fingerprint = held[1]
    try:
        cache.bind(what, f"{what} {form} {fingerprint}", samples)
    except CacheMismatch as error:
        hint = "" if known else ". If they are the same samples, say so by the same fingerprint="
        raise CacheMismatch(f"{error}{hint}") from None
    cache._held = held  # only then: the dataset that the cache holds stays known if another one is refused


def _random_part(dataset):
    """Return a text that names a random transform in a dataset of known kind; None if there is none."""
    for _ in range(_WRAPPERS):
        if isinstance(dataset, Cached):  # its samples are cached already
            break
        if getattr(dataset, "is_random", False) is True:
            return f"the transform of {shown(dataset)}"
        transforms = [getattr(dataset, name, None) for name in ("transform", "transforms")]
        for step in transforms:
            parts = getattr(step, "transforms", None)
            transforms += parts if isinstance(parts, (list, tuple)) else ()
            kind = type(step)
            library = kind.__module__.partition(".")[0]
            if (library == "torchvision" and kind.__name__.startswith(_RANDOM)) or library == "albumentations":
                return f"{library}'s {kind.__name__}"
        dataset = getattr(dataset, "dataset", None)  # of torch's Subset, for example
    return None


class Cached(Generic[_Sample]):
    """A map dataset whose samples are made once on this machine; `cached` makes it.

    Attributes
    ----------
    dataset : map dataset
    cache : Cache

    Examples
    --------
    >>> import slipring
    >>> data = slipring.cached([10, 20, 30], "1MiB")
    >>> data[1], data[-1], len(data)
    (20, 30, 3)
    """

    dataset: Any
    cache: Cache
    copy: bool
    # Only if the dataset has one: it then reads the missing samples in one call.
    __getitems__: Callable[[Sequence[int]], list[Any]]

    def __init__(
        self,
        dataset: MapDataset[_Sample],
        cache: int | str | Cache,
        *,
        fingerprint: str | None = None,
        copy: bool = False,
    ) -> None:
        map_dataset("dataset", dataset)
        flag("copy", copy)
        self.dataset = dataset
        self.cache = as_cache(cache)
        self.copy = copy
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._several
        kind = type(dataset)
        if fingerprint is None:
            fingerprint = known_fingerprint(dataset)
        elif not isinstance(fingerprint, str):
            raise TypeError(
                f"fingerprint must be a str, not {shown(fingerprint)}: of an array take a digest of its bytes"
            )
        if (drawn := _random_part(dataset)) is not None:
            warnings.warn(
                f"{drawn} draws random numbers, and the cache keeps the first result for all epochs: cache the dataset "
                "without it, and apply it by cached(...).map(...). (slipring.images caches what precedes its random "
                "transforms: give it cache=)",
                stacklevel=3,
            )
        samples = len(dataset)
        bind(self.cache, f"{samples} samples of {kind.__module__}.{kind.__qualname__}", fingerprint, samples, dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> _Sample:
        index = self._checked(index)
        return self._given(self.cache.get_or_make(index, lambda: self.dataset[index]))

    def _several(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples; the dataset reads the missing ones in one call."""
        indices = [self._checked(index) for index in indices]
        missing = [index for index in dict.fromkeys(indices) if index not in self.cache]
        try:
            samples = one_each(self.dataset, missing, self.dataset.__getitems__(missing)) if missing else ()
        except Exception as error:
            failed_among([indices.index(index) for index in missing], error)
            raise
        read = dict(zip(missing, samples))

        def one(index):
            make = (lambda: read[index]) if index in read else (lambda: self.dataset[index])
            return self._given(self.cache.get_or_make(index, make))

        return _each(one, indices)

    def _given(self, sample):
        return copying.deepcopy(sample) if self.copy else sample

    def _checked(self, index):
        index, n = operator.index(index), len(self.dataset)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range: the dataset has {n} samples")
        return index + n if index < 0 else index

    def map(self, function: Callable[[_Sample], Any]) -> Mapped:
        """Return a dataset of ``function(sample)``, which is called each time: the random part of a transform.

        Parameters
        ----------
        function : callable
            It gets read-only arrays, and must copy those that it changes.
        """
        return Mapped(self, function)

    def __repr__(self) -> str:
        return f"Cached({self.dataset!r}, {self.cache!r})"


def _each(function, samples):
    """Return ``[function(sample) for sample in samples]``; an error names the sample."""
    made = []
    try:
        for sample in samples:
            made.append(function(sample))
    except Exception as error:
        failed_at(len(made), error)
        raise
    return made


class Mapped:
    """A map dataset with a function called on each sample.

    Examples
    --------
    >>> import slipring
    >>> data = slipring.cached([10, 20, 30], "1MiB").map(lambda number: number + 1)
    >>> data[1], len(data)
    (21, 3)
    """

    dataset: Any
    function: Callable[[Any], Any]
    __getitems__: Callable[[Sequence[int]], list[Any]]

    def __init__(self, dataset: MapDataset[Any], function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable; a {type(function).__name__} is not")
        self.dataset = dataset
        self.function = function
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._several

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.dataset[index])

    def _several(self, indices: Sequence[int]) -> list[Any]:
        return _each(self.function, one_each(self.dataset, indices, self.dataset.__getitems__(indices)))

    def __repr__(self) -> str:
        return f"{self.dataset!r}.map({getattr(self.function, '__qualname__', self.function)})"

    def map(self, function: Callable[[Any], Any]) -> Mapped:
        """Return a dataset of ``function(sample)`` of these samples."""
        return Mapped(self, function)


def cached(
    dataset: MapDataset[_Sample], cache: int | str | Cache, *, fingerprint: str | None = None, copy: bool = False
) -> Cached[_Sample]:
    """Return a map dataset whose samples are made once on this machine, and then found in shared memory.

    Apply random transforms afterwards, with ``cached(dataset, "8GiB").map(augment)``: a cached sample is the same in
    each epoch. A warning names a random transform of `slipring.images`, torchvision or Albumentations in `dataset`.

    Parameters
    ----------
    dataset : map dataset
        Its samples consist of the same values as batches: arrays, tensors, numbers, strings, and containers of these;
        other objects are pickled.
    cache : int, str or Cache
        A budget such as "8GiB", or a cache that several processes share.
    fingerprint : str, optional
        A text that identifies these samples if the cache has a name; other processes that open the cache must give the
        same one. Hugging Face's datasets have their own.

    Returns
    -------
    Cached
        Arrays in its samples are read-only from the first epoch on, unless `copy` is True.

    Raises
    ------
    CacheMismatch
        The cache holds another dataset's samples.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> class Squares:
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return np.full(3, index * index)
    >>> data = slipring.cached(Squares(), "8MiB").map(lambda sample: sample + 1)
    >>> with slipring.Loader(data, batch_size=2, num_workers=1) as loader:
    ...     for epoch in range(2):
    ...         last = [batch for batch in loader][-1]
    >>> last.tolist()
    [[5, 5, 5], [10, 10, 10]]
    """
    return Cached(dataset, cache, fingerprint=fingerprint, copy=copy)


def known_fingerprint(dataset: object) -> str | None:
    """Return the fingerprint that a dataset itself has; only Hugging Face's have one."""
    if type(dataset).__module__.partition(".")[0] != "datasets":
        return None
    found = vars(dataset).get("_fingerprint")
    return found if isinstance(found, str) else None
