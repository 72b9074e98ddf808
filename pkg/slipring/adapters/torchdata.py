"""torchdata.stateful_dataloader's names: ``from slipring.adapters.torchdata import StatefulDataLoader``."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch.utils.data import IterableDataset
from torch.utils.data.distributed import DistributedSampler

from slipring._core.options.checks import instance
from slipring._core.passes.state import State
from slipring.errors import shown
from slipring.options import OF_WORKERS, Workers
from slipring.torch import DataLoader
from slipring.torch.torchdata_states import in_their_form

__all__ = ["RandomSampler", "Stateful", "StatefulDataLoader", "StatefulDistributedSampler", "torchdata_state"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
    from multiprocessing.context import BaseContext
    from typing import Literal, TypeAlias, overload

    from typing_extensions import TypeVar, Unpack

    from slipring.loader import Samples
    from slipring.options import TorchOptions

    T_co = TypeVar("T_co", covariant=True, default=Any)
    _Workers: TypeAlias = int | Literal["auto"] | tuple[int | None, int | None]
    _Made = TypeVar("_Made")
    _Sample = TypeVar("_Sample")
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Stateful(Protocol):
    """An object that can save its position and return to it: a dataset, its iterator, a sampler, a loader.

    Examples
    --------
    >>> from slipring.adapters.torchdata import Stateful, StatefulDataLoader
    >>> isinstance(StatefulDataLoader(range(10)), Stateful)
    True
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as plain values."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Return to that position."""


class RandomSampler(torch.utils.data.RandomSampler):
    """Indices in a random order, drawn from the sampler's own generator.

    The generator is seeded once, from torch's global generator, when the sampler is made, as in torchdata. A state
    that contains the generator therefore determines the order of later epochs.

    Parameters
    ----------
    data_source : Sized
        Its length is the number of indices.
    replacement : bool
        Draw each index from all of them.
    num_samples : int, optional
        Indices per pass; default: the length of `data_source`. If more are wanted without replacement, further
        permutations follow.
    generator : torch.Generator, optional
        The generator to draw from.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.

    Examples
    --------
    >>> from slipring.adapters.torchdata import RandomSampler
    >>> sorted(RandomSampler(range(5)))
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_())
            generator = torch.Generator().manual_seed(seed)
        super().__init__(data_source, replacement, num_samples, generator)

    def __iter__(self) -> Iterator[int]:
        left, n = self.num_samples, len(self.data_source)
        while left > 0:
            if self.replacement:
                drawn = torch.randint(n, (_AT_ONCE,), generator=self.generator)
            else:
                drawn = torch.randperm(n, generator=self.generator)
            yield from drawn[:left].tolist()
            left -= len(drawn)


_AT_ONCE = 32  # indices that are drawn at a time with replacement, as in torchdata


class StatefulDistributedSampler(DistributedSampler[Any]):
    """torch's DistributedSampler, able to save how many indices it has given and to continue after them.

    Parameters
    ----------
    dataset, num_replicas, rank, shuffle, seed, drop_last
        As torch's.

    Examples
    --------
    >>> from slipring.adapters.torchdata import StatefulDistributedSampler
    >>> sampler = StatefulDistributedSampler(range(6), num_replicas=2, rank=1, shuffle=False)
    >>> indices = iter(sampler)
    >>> next(indices), sampler.state_dict()
    (1, {'yielded': 1})
    """

    yielded: int = 0
    next_yielded: int | None = None

    def __iter__(self) -> Iterator[Any]:
        skipped, self.next_yielded = self.next_yielded or 0, None
        self.yielded = skipped
        for index in itertools.islice(super().__iter__(), skipped, None):
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        """Return how many indices of this pass have been given."""
        return {"yielded": self.yielded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Skip so many indices in the next pass.

        Raises
        ------
        ValueError
            It is not the state of such a sampler.
        """
        if "yielded" not in state_dict:
            raise ValueError(f"this is no state of a StatefulDistributedSampler: {shown(state_dict)}")
        if state_dict["yielded"] < 0:
            raise ValueError(f"yielded must be at least 0, not {state_dict['yielded']}")
        self.next_yielded = state_dict["yielded"]


def _signature():
    """Return the signature of DataLoader, with torchdata's additions directly after torch's arguments."""
    signature = inspect.signature(DataLoader.__init__)
    parameters = dict(signature.parameters)
    at = list(parameters).index("in_order") + 1
    own = inspect.Parameter("snapshot_every_n_steps", inspect.Parameter.KEYWORD_ONLY, default=1, annotation=int | None)
    ordered = list(parameters.values())
    return signature.replace(parameters=[*ordered[:at], own, *ordered[at:]])


_SIGNATURE = _signature()

if TYPE_CHECKING:

    class StatefulDataLoader(DataLoader[T_co]):
        snapshot_every_n_steps: int | None

        # The batch type is the return type of `collate_fn`, as in `slipring.torch.DataLoader`.
        @overload
        def __init__(
            self: StatefulDataLoader[_Made], dataset: Samples[_Sample], batch_size: None, shuffle: bool | None = None,
            sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None,
            num_workers: _Workers = 0, *, collate_fn: Callable[[_Sample], _Made],
            pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
            worker_init_fn: Callable[[int], object] | None = None,
            multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None,
            prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
            in_order: bool = True, snapshot_every_n_steps: int | None = 1, **options: Unpack[TorchOptions],
        ) -> None: ...  # fmt: skip
        @overload
        def __init__(
            self: StatefulDataLoader[_Made], dataset: Samples[_Sample], batch_size: int = 1,
            shuffle: bool | None = None, sampler: Iterable[Any] | None = None,
            batch_sampler: Iterable[Sequence[Any]] | None = None,
            num_workers: _Workers = 0, *, collate_fn: Callable[[list[_Sample]], _Made],
            pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
            worker_init_fn: Callable[[int], object] | None = None,
            multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None,
            prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
            in_order: bool = True, snapshot_every_n_steps: int | None = 1, **options: Unpack[TorchOptions],
        ) -> None: ...  # fmt: skip
        @overload
        def __init__(
            self, dataset: Samples[Any], batch_size: int | None = 1, shuffle: bool | None = None,
            sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None,
            num_workers: _Workers = 0, collate_fn: Callable[[Any], Any] | None = None,
            pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
            worker_init_fn: Callable[[int], object] | None = None,
            multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None,
            *, prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
            in_order: bool = True, snapshot_every_n_steps: int | None = 1, **options: Unpack[TorchOptions],
        ) -> None: ...  # fmt: skip
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
else:

    class StatefulDataLoader(DataLoader[T_co]):
        """`torchdata.stateful_dataloader.StatefulDataLoader` over slipring's ring.

        It is `slipring.torch.DataLoader` under torchdata's name, with torchdata's order of a shuffled epoch
        (`RandomSampler`). torchdata's arguments have torchdata's order; slipring's may follow by name. A state is
        exact after every batch, whatever `snapshot_every_n_steps` is, and has slipring's own form. The number sets how
        often workers save the states of Stateful objects; when a loader resumes, it reads the later samples again.
        It also loads a state that torchdata 0.11 has saved. See ``docs/adapters.md`` for the differences.

        Parameters
        ----------
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last
        timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers
        pin_memory_device, in_order, snapshot_every_n_steps
            As torchdata's.
        **slipring
            `slipring.torch.DataLoader`'s other arguments: ``device``, ``workers``, ...

        Raises
        ------
        TypeError, ValueError, RuntimeError
            Raised at construction; for torch's arguments with torch's text.

        Examples
        --------
        >>> from slipring.adapters.torchdata import StatefulDataLoader
        >>> batches = iter(loader := StatefulDataLoader(range(6), batch_size=2))
        >>> next(batches)
        tensor([0, 1])
        >>> state = loader.state_dict()
        >>> again = StatefulDataLoader(range(6), batch_size=2)
        >>> again.load_state_dict(state)
        >>> next(iter(again))
        tensor([2, 3])
        """

        _skips_empty_rest = False

        def __init__(self, *args, **kwargs):
            try:
                bound = _SIGNATURE.bind(self, *args, **kwargs)
            except TypeError:
                kwargs.pop("snapshot_every_n_steps", None)
                super().__init__(*args, **kwargs)  # raises the error that names the wrong argument
                raise
            given = bound.arguments
            ordered = any(given.get(name) is not None for name in ("sampler", "batch_sampler", "generator"))
            if given.get("shuffle") and not ordered and not isinstance(given["dataset"], IterableDataset):
                given.update(shuffle=None, sampler=RandomSampler(given["dataset"]))
            if "snapshot_every_n_steps" in given:
                every, workers = given.pop("snapshot_every_n_steps"), given.get("workers", DataLoader.workers)
                instance("workers", workers, Workers, OF_WORKERS)
                given["workers"] = dataclasses.replace(workers, snapshot_every_n_steps=every)
            super().__init__(*bound.args[1:], **bound.kwargs)

        @property
        def snapshot_every_n_steps(self):
            """int: how often workers save the states of Stateful objects."""
            return self.workers.snapshot_every_n_steps

        @snapshot_every_n_steps.setter
        def snapshot_every_n_steps(self, every):
            self.workers = dataclasses.replace(self.workers, snapshot_every_n_steps=every)

        # Lightning, which makes a new loader from the attributes of another, looks here for their names.
        __init__.__signature__ = _SIGNATURE


def torchdata_state(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return a loader's position in the form of torchdata 0.11, so that torchdata's own loader continues from there.

    Parameters
    ----------
    loader : slipring.torch.DataLoader
        It may be a `StatefulDataLoader`. torchdata's loader needs the same dataset, batches and number of workers, and
        ``shuffle=True`` if this one has it.

    Returns
    -------
    dict
        The argument for `load_state_dict` of ``torchdata.stateful_dataloader.StatefulDataLoader``.

    Raises
    ------
    TypeError
        `loader` is not a `slipring.torch.DataLoader`.
    ValueError
        torchdata's form cannot express the position: batches out of order, batches since a worker's last snapshot,
        or a Stateful sampler that was read ahead.

    Examples
    --------
    >>> from slipring.adapters.torchdata import StatefulDataLoader, torchdata_state
    >>> batches = iter(loader := StatefulDataLoader(range(6), batch_size=2))
    >>> next(batches)
    tensor([0, 1])
    >>> torchdata_state(loader)["_num_yielded"]
    1
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader must be a slipring.torch.DataLoader, not {shown(loader)}")
    return in_their_form(loader, State.of(loader.state_dict()))
