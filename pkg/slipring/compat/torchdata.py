"""torchdata.stateful_dataloader's names: ``from slipring.compat.torchdata import StatefulDataLoader``."""

import inspect
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import IterableDataset

from slipring.torch import DataLoader

__all__ = ["RandomSampler", "Stateful", "StatefulDataLoader"]

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Stateful(Protocol):
    """What can say where it is, and be told: a dataset, its iterator, a sampler, a loader."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place, as plain values."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""


class RandomSampler(torch.utils.data.RandomSampler):
    """One permutation per epoch, from a generator of the sampler's own.

    It is seeded once, from torch's global generator, when the sampler is made, as torchdata's is. So a state
    that holds the generator says what the order of later epochs will be.

    Parameters
    ----------
    data_source : Sized
        Whose indices are drawn.
    """

    def __init__(self, data_source):
        seed = int(torch.empty((), dtype=torch.int64).random_())
        super().__init__(data_source, generator=torch.Generator().manual_seed(seed))

    def __iter__(self):
        yield from torch.randperm(len(self.data_source), generator=self.generator).tolist()


_SIGNATURE = inspect.signature(DataLoader.__init__)


class StatefulDataLoader(DataLoader[T_co]):
    """`torchdata.stateful_dataloader.StatefulDataLoader` over slipring's ring.

    It is `slipring.torch.DataLoader` by torchdata's name, with torchdata's order of a shuffled epoch
    (`RandomSampler`). torchdata's arguments stand where torchdata has them; slipring's may follow by name.
    A state is exact after every batch, whatever `snapshot_every_n_steps` is, and has a form of its own; one
    that torchdata 0.11 has saved can be loaded. See ``docs/faces.md`` for what differs.

    Parameters
    ----------
    dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last
    timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers
    pin_memory_device, in_order, snapshot_every_n_steps
        As torchdata's.
    **slipring
        `slipring.torch.DataLoader`'s other arguments: ``device``, ``on_worker_death``, ...

    Raises
    ------
    TypeError, ValueError, RuntimeError
        At construction; for torch's arguments with torch's text.
    """

    def __init__(self, *args, **kwargs):
        try:
            bound = _SIGNATURE.bind(self, *args, **kwargs)
        except TypeError:
            super().__init__(*args, **kwargs)  # says what is wrong with them
            raise
        given = bound.arguments
        ordered = any(given.get(name) is not None for name in ("sampler", "batch_sampler", "generator"))
        if given.get("shuffle") and not ordered and not isinstance(given["dataset"], IterableDataset):
            given.update(shuffle=None, sampler=RandomSampler(given["dataset"]))
        super().__init__(*bound.args[1:], **bound.kwargs)

    # Clients that make a loader anew from its attributes (Lightning) look here for their names.
    __init__.__signature__ = _SIGNATURE
