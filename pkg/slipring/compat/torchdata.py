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

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        in_order=True,
        snapshot_every_n_steps=1,
        **slipring,
    ):
        given = sampler is not None or batch_sampler is not None or generator is not None
        if shuffle and not given and not isinstance(dataset, IterableDataset):
            shuffle, sampler = None, RandomSampler(dataset)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
            snapshot_every_n_steps=snapshot_every_n_steps,
            **slipring,
        )

    # Clients that make a loader anew from its attributes (Lightning) look here for their names.
    __init__.__signature__ = inspect.signature(DataLoader.__init__)
