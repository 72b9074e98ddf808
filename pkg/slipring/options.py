"""Every option of the loaders, declared once: a field with its type, default and check, and an entry in the docstring.

A new option that all loaders have is one field of `CommonOptions`. It reaches their signatures, ``help()``, type
checkers and documentation, and `Options` (``_core.options.values``), which carries the values to where they act.
Options for experts are fields of `Workers`, `Memory` and `Device`.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypedDict, TypeVar

from slipring._core.options import checks, rule
from slipring._core.options.rule import Group, Rule, option, rules, suggesting_group
from slipring._core.ring.ring_limits import MAX_SLOTS

_Constructor = TypeVar("_Constructor", bound=Callable[..., Any])

if TYPE_CHECKING:
    from typing import overload

    import torch
    import torch.distributed.device_mesh
    from typing_extensions import TypeVar

    _Made = TypeVar("_Made")
    _Batch = TypeVar("_Batch", default=Any)
else:
    _Batch = TypeVar("_Batch")

StartMethod = Literal["fork", "forkserver", "spawn", "thread"]
OF_WORKERS = "; num_workers= is their number"  # ends the error for a wrong workers=
OF_RNG = "; it says when generators are seeded: seed= sets what they give, and slipring.rng() is the one of a batch"
MAX_FETCH_THREADS = 1024  # of one worker; more would wait for a processor, not for a disk or a network


def _indices(name, value):
    if value is not None:
        checks.iterable(name, value, "an iterable of indices")


def _count(least=1, most=checks.MAX_COUNT, optional=False):
    return partial(checks.integer, least=least, most=most, optional=optional)


# ---- groups of options


@suggesting_group
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Workers(Group):
    """Options for how workers start, how they read, and what happens if one dies.

    Parameters
    ----------
    start_method : {None, 'fork', 'forkserver', 'spawn', 'thread'}, default None
        None: multiprocessing's default. 'thread': workers are threads of this process, for datasets that release the
        GIL while they work.
    chunk_size : int or None, default None
        Rows per range. Several workers fill one batch concurrently, so that the first batch arrives sooner. None: one
        worker makes each batch.
    fetch_threads : int or None, default None
        Threads in each worker that read the samples of a batch concurrently, for datasets that wait for a disk or a
        network. If the dataset has ``async def __getitem__``, it is the number of samples that the worker's event loop
        reads at once. None: no threads, and all coroutines of a batch at once. A batch that the dataset makes in one
        call (``__getitems__``, ``fetch_into``) stays one call. If samples are read concurrently, `slipring.rng` is
        seeded for each sample.
    on_death : {None, 'raise', 'respawn'}, default None
        'raise': the iteration raises `slipring.errors.WorkerDied`. 'respawn': a new worker replaces the dead one and
        makes the batches that the dead one had not published. A stream continues from its ``state_dict``, if the
        dataset or its iterator has one; else it is read again from its beginning. None: 'raise'; for
        `slipring.ray.Loader` without `local_shuffle` and for a map dataset whose attribute ``on_death`` is 'respawn',
        as of `slipring.clips.Videos`: 'respawn'.
    max_restarts : int, default 3
        With ``on_death='respawn'``: how often workers may die over the same batch.
    pool : str or None, default None
        'node': the loaders of all processes of the job on this machine share one group of workers, and one copy of the
        dataset. `num_workers` is the number of workers in the pool. A name: the same, for all processes of this user on
        this machine that give it. For map datasets without a state; with ``rng='batch'`` or ``'sample'``, of which
        torch's loader takes the first. None: workers of its own.
    memory : int or str or None, default None
        Bytes, such as "64GiB", that the slots of all loaders of the `pool` and the caches of their datasets may take
        together. If they are used up, loaders read fewer batches ahead, and wait. The loaders of a pool must agree on
        it. None: no limit but the machine's.
    snapshot_every_n_steps : int or None, default 1
        If the dataset or its iterator is Stateful, its state travels with every n-th batch of the loader. After a death
        or a resume, a worker reads the batches since the last state again. 0 or None: only with a worker's first batch
        and at the end of its stream.
    numa : int or {None, 'auto'}, default 'auto'
        NUMA node of the slots, on whose processors the workers stay. 'auto': if memory can lie on several nodes, the
        one next to the GPU of the loader's `device`; without a device, or with devices on several nodes, as with None.
        None: the system places slots and workers.

    Raises
    ------
    TypeError, ValueError
        An option is wrong; the text names the option, its value and the rule.

    Examples
    --------
    >>> import slipring
    >>> workers = slipring.Workers(start_method="fork", chunk_size=2)
    >>> with slipring.Loader(range(8), batch_size=4, num_workers=2, workers=workers) as loader:
    ...     print(*loader)
    [0 1 2 3] [4 5 6 7]
    """

    start_method: StartMethod | None = option(None)
    chunk_size: int | None = option(None, _count(optional=True))
    fetch_threads: int | None = option(None, _count(most=MAX_FETCH_THREADS, optional=True))
    on_death: Literal["raise", "respawn"] | None = option(None)
    max_restarts: int = option(3, _count(0))
    pool: str | None = option(None, checks.pool_name)
    memory: int | str | None = option(
        None, lambda name, value: value if value is None else checks.size_in_bytes(name, value)
    )
    snapshot_every_n_steps: int | None = option(1, _count(0, optional=True))
    numa: int | Literal["auto"] | None = option("auto", checks.numa_node)


@suggesting_group
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Memory(Group):
    """The shared memory that carries batches, and when a batch is copied out of it.

    Parameters
    ----------
    slots : int or None, default None
        Slots of the segment. You can keep this number of batches, less two, without a copy. None: ``prefetch_factor *
        num_workers + 16``, and one for each batch that is ready ahead. For ``num_workers=(least, most)``, `most`
        counts.
    slot_bytes : int or None, default None
        Bytes of address space to reserve for each slot: the size of the largest batch. Memory is committed when it is
        written. None: 16 GiB, or what fits.
    backing : str or path, default 'auto'
        Where the memory comes from: 'auto', 'shm', 'memfd', or the absolute path of a directory on a tmpfs.
    copy : {'auto', 'always', 'never'}, default 'auto'
        When batches are copied out of their slots. 'auto': if fewer than two slots would be left. 'always' copies every
        batch, 'never' none.

    Raises
    ------
    TypeError, ValueError
        An option is wrong; the text names the option, its value and the rule.

    Examples
    --------
    >>> import slipring
    >>> slipring.Memory(slots=32, copy="never")
    Memory(slots=32, copy='never')
    """

    slots: int | None = option(None, _count(2, MAX_SLOTS, optional=True))
    slot_bytes: int | None = option(None, _count(1, 1 << 46, optional=True))
    backing: str | PathLike[str] = option("auto", lambda name, value: checks.checked_backing(value))
    copy: Literal["auto", "always", "never"] = option("auto")


@suggesting_group
@dataclasses.dataclass(frozen=True, repr=False)
class Device(Group, Generic[_Batch]):
    """A device for batches, which are torch tensors there, and how they are copied to it.

    Slots are pinned, and batches are copied from there on a stream of the loader. On the CPU, nothing is copied.
    Strings and other objects stay as they are.

    Parameters
    ----------
    device : torch.device or str or int or Sequence[torch.device or str or int]
        A device, or a sequence of devices: then each step is a list with one batch for each device. If too few batches
        are left for a step, they are dropped.
    preload : int or None, default None
        Number of steps that a thread has ready before you ask for them. 0: no thread. None: 1; `slipring.ray.Loader` on
        the CPU: 0. Without workers, batches are made and copied when you ask for them.
    non_blocking : bool, default True
        True: `next` returns when the caller's current stream is ordered after the copy. False: when the copy is
        complete.
    memory_format : torch.memory_format or None, default None
        Memory format of the tensors with 4 dimensions (``torch.channels_last``) or 5 (``channels_last_3d``) on the
        device.
    transform : callable or None, default None
        Function of a batch on the device. It runs on the loader's stream, in the thread that preloads, and returns what
        the loader delivers. Slots can thus carry uint8 while the model gets bfloat16.

    Raises
    ------
    TypeError, ValueError
        An option is wrong; the text names the option, its value and the rule.

    Examples
    --------
    >>> import torch
    >>> from slipring.torch import DataLoader, Device
    >>> device = Device("cpu", preload=2, transform=lambda batch: batch.to(torch.float32) / 255)
    >>> pixels = torch.arange(6, dtype=torch.uint8)
    >>> with DataLoader(pixels, batch_size=3, num_workers=1, device=device) as loader:
    ...     print([batch.dtype for batch in loader])
    [torch.float32, torch.float32]
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: "Device[list[_Made]]", device: "list[Any] | tuple[Any, ...]", *, transform: Callable[[Any], _Made],
            preload: int | None = None, non_blocking: bool = True, memory_format: torch.memory_format | None = None,
        ) -> None: ...  # fmt: skip
        @overload
        def __init__(
            self: "Device[_Made]", device: "torch.device | str | int", *, transform: Callable[[Any], _Made],
            preload: int | None = None, non_blocking: bool = True, memory_format: torch.memory_format | None = None,
        ) -> None: ...  # fmt: skip
        @overload
        def __init__(
            self, device: "torch.device | str | int | list[Any] | tuple[Any, ...]", *, transform: None = None,
            preload: int | None = None, non_blocking: bool = True, memory_format: torch.memory_format | None = None,
        ) -> None: ...  # fmt: skip
        def __init__(self, device: Any, **options: Any) -> None: ...

    device: "torch.device | str | int | Sequence[torch.device | str | int]" = option(dataclasses.MISSING)
    _: dataclasses.KW_ONLY
    preload: int | None = option(None, _count(0, 64, optional=True))
    non_blocking: bool = option(True)
    memory_format: "torch.memory_format | None" = option(None)
    transform: Callable[[Any], _Batch] | None = option(None, checks.function)


# ---- the declarations


class CommonOptions(TypedDict, total=False):
    """Options of all loaders.

    Parameters
    ----------
    rng : {'batch', 'worker', 'sample'}, default 'batch'
        When generators are seeded, `slipring.rng` among them. 'batch': for each batch, so that results do not depend on
        the workers. 'worker': once per worker and epoch, and the workers take batches in turn. For torch's loader the
        seeds are torch's, one per worker's life, so that the same script gives the same bytes as with torch. 'sample':
        also before each sample, from its position in the order of all ranks; random numbers then depend neither on
        `batch_size` nor on the number of ranks. 'sample' gives other numbers than 'batch', reads samples by
        ``__getitem__``, costs microseconds per sample, and needs the same `seed` in all ranks. ``collate_fn`` draws
        from the batch's generator.
    workers : Workers, default Workers()
        How workers start, read and are replaced.
    memory : Memory, default Memory()
        The shared memory that carries batches.
    skip_none : bool, default False
        Leave out samples that are None. A batch of a map dataset has fewer samples then, and is left out if it has
        none. A batch of an iterable dataset is filled with the samples that follow. A stream leaves out blocks that are
        None.
    warn_after : float, default 0
        Seconds after which a wait for a batch logs one line, which names the worker that has been busy for longest, its
        batch and row. 0: never. Without workers there is no wait.
    """

    rng: Annotated[Literal["batch", "worker", "sample"], Rule("batch", hint=OF_RNG)]
    workers: Annotated[Workers, Rule(Workers(), partial(checks.instance, kind=Workers, hint=OF_WORKERS))]
    memory: Annotated[Memory, Rule(Memory(), partial(checks.instance, kind=Memory))]
    skip_none: Annotated[bool, Rule(False)]
    warn_after: Annotated[float, Rule(0, partial(checks.seconds, zero="no line"))]


class FlowOptions(CommonOptions, total=False):
    """Options of all loaders except torch's, which has its own parameters for them; of `slipring.stream`, all.

    Parameters
    ----------
    num_workers : int or (int or None, int or None) or {'auto'}, default 0
        0: this process makes a batch when you ask for it. 'auto' or (least, most): the number that makes the loop
        fastest, which the loader finds while batches flow; see `tuning`. None instead of a bound: 1 for the least;
        4 per processor for the most, but at least 16 and at most 64, or the number of processors if that is higher. If
        batches depend on the workers (``rng='worker'``, iterable datasets), the number changes between epochs only.
        `slipring.stream` and `slipring.ray.Loader` need a fixed number.
    drop_last : bool, default False
        Drop a last batch that is not full. For a stream: the last batch of each worker.
    timeout : float, default 0
        Seconds to wait for a batch; 0: no limit.
    worker_init_fn : callable or None, default None
        Called in each worker with the worker's number. Seeds that it sets stay in effect with ``rng="worker"`` only.
    seed : int or None, default None
        The same seed gives the same epochs. None: a new seed from the system. Each `rank` draws random numbers of its
        own.
    prefetch_factor : int, default 2
        Batches in flight per worker.
    persistent_workers : bool, default True
        Keep the workers between epochs.
    in_order : bool, default True
        True: deliver batches by sequence number. False: as they are completed.
    """

    num_workers: Annotated[int | Literal["auto"] | tuple[int | None, int | None], Rule(0, checks.worker_count)]
    drop_last: Annotated[bool, Rule(False)]
    timeout: Annotated[float, Rule(0, checks.seconds)]
    worker_init_fn: Annotated[Callable[[int], object] | None, Rule(None, checks.function)]
    seed: Annotated[int | None, Rule(None, partial(checks.integer, optional=True))]
    prefetch_factor: Annotated[int, Rule(2, _count())]
    persistent_workers: Annotated[bool, Rule(True)]
    in_order: Annotated[bool, Rule(True)]


class LoaderOptions(FlowOptions, total=False):
    """Options of `slipring.Loader` besides ``dataset``, ``batch_size`` and ``collate_fn``.

    Parameters
    ----------
    shuffle : bool, default False
        A new order in every epoch.
    sampler : iterable or None, default None
        Iterable of indices, which reach the dataset with their own type.
    batch_sampler : iterable or None, default None
        Iterable of lists of indices. If its iterator must wait for its batches, it can have a method ``would_wait()``:
        the loader then asks for more only if it returns False, or if there is nothing else to wait for. If the iterator
        has a method ``close()``, the loader calls it when the iteration ends.
    rank : int or None, default None
        The rank whose random numbers are drawn. None: the `rank` of the sampler (`slipring.BatchSampler`, torch's
        DistributedSampler), else of torch.distributed, else 0. Ranks that load the same samples, as in a
        tensor-parallel group, need the same `rank`. Random numbers of iterable datasets depend on `seed` and worker:
        give each rank another `seed`.
    """

    shuffle: Annotated[bool, Rule(False)]
    sampler: Annotated[Iterable[Any] | None, Rule(None, _indices)]
    batch_sampler: Annotated[Iterable[Sequence[Any]] | None, Rule(None, _indices)]
    rank: Annotated[int | None, Rule(None, _count(0, optional=True))]


class RayOptions(FlowOptions, total=False):
    """Options of `slipring.ray.Loader` besides those for blocks and images.

    Parameters
    ----------
    device : Device or torch.device or str or int or None, default None
        Where batches go as torch tensors. A device or its name stands for `slipring.torch.Device` with its defaults.
        None: batches are numpy arrays.
    """

    device: Annotated["Device | torch.device | str | int | None", Rule(None)]


class OneDeviceOptions(CommonOptions, total=False):
    """Options of `slipring.torch.DataLoader` besides torch's parameters and `device`.

    Parameters
    ----------
    share : torch.distributed.ProcessGroup or torch.distributed.device_mesh.DeviceMesh or None, default None
        The ranks that need the same batches, as tensor- and context-parallel ranks do. On each machine, the lowest of
        these ranks makes the batches, and the others read them from the same memory. A mesh is the part with the
        dimensions that share, such as ``mesh["cp", "tp"]``. All of these ranks make the loader, and call ``iter()``
        equally often. If `dataset` is a function that makes the dataset, only the rank that makes the batches calls it;
        then `sampler` or `batch_sampler` may be a function that makes the sampler, which every rank calls with the
        dataset. See ``docs/sharing.md``.
    """

    rank: Annotated[int | None, Rule(None, _count(0, optional=True))]  # documented in `LoaderOptions`
    share: Annotated["torch.distributed.ProcessGroup | torch.distributed.device_mesh.DeviceMesh | None", Rule(None)]


class TorchOptions(OneDeviceOptions, total=False):
    """Options of `slipring.torch.DataLoader` besides torch's parameters.

    Parameters
    ----------
    device : Device or torch.device or str or int or Sequence[torch.device or str or int] or None, default None
        Where batches go as torch tensors. A device or its name stands for `slipring.torch.Device` with its defaults,
        and a sequence of devices for one batch each.
    """

    device: Annotated["Device | torch.device | str | int | Sequence[torch.device | str | int] | None", Rule(None)]


def _moved(group, template):
    """Return {field: where it belongs} for the options of a group; `template` has "{}" for the field."""
    return {field.name: f"Give {template.format(field.name + '=...')}" for field in dataclasses.fields(group)}


# Arguments of tf.data, Keras and Grain -> the name here, or the text of a remedy.
ELSEWHERE = {
    **dict.fromkeys(("worker_count", "num_parallel_calls"), "num_workers"),
    "use_multiprocessing": "Give workers=slipring.Workers(start_method=...)",
    "num_threads": "Give workers=slipring.Workers(fetch_threads=...)",
    "drop_remainder": "drop_last",
    **dict.fromkeys(("max_queue_size", "worker_buffer_size"), "prefetch_factor"),
    **dict.fromkeys(("buffer_size", "shuffle"), "shuffle_buffer"),
    "deterministic": "in_order",
    **dict.fromkeys(("num_epochs", "repeat"), "Iterate the loader once for each epoch"),
    **dict.fromkeys(("transforms", "operations"), "Transform samples in the dataset, or batches in collate_fn"),
    "shard_options": "Give batch_sampler=slipring.BatchSampler(..., rank=, world_size=)",
}
# Arguments that loaders do not have -> where they belong.
MOVED = {
    **_moved(Workers, "workers=slipring.Workers({})"),
    **_moved(Memory, "memory=slipring.Memory({})"),
    **_moved(Device, "device=slipring.torch.Device(..., {})"),
    "on_worker_death": "Give workers=slipring.Workers(on_death=...)",
    "transform_device": "Give device=slipring.torch.Device(..., transform=...)",
    "devices": "Give device=[...], a sequence of devices",
    **dict.fromkeys(("min_workers", "max_workers"), "Give num_workers=(least, most)"),
    "dispatch": "Leave it out: with rng='worker' the workers take batches in turn, with rng='batch' any free worker "
    "takes the next",
    **dict.fromkeys(("multiprocessing_context", "mp_context"), "Give workers=slipring.Workers(start_method=...)"),
    "generator": "seed",
}


def declares(
    declared: type, *, defaults: Mapping[str, Any] | None = None, refused: Iterable[str] = (), **known: str
) -> Callable[[_Constructor], _Constructor]:
    """Give a class's constructor, or a function, the options of a TypedDict above in place of its ``**options``.

    They appear in its signature, with this loader's own `defaults`. Their documentation replaces ``{options}`` in its
    docstring, except for the `refused` ones (see `rule.refuse`). An unknown argument raises a TypeError that suggests a
    known one; `known` maps other loaders' names to ours.
    """
    options = rules(declared)
    documented: dict[str, str] = {}
    for each in (CommonOptions, FlowOptions, LoaderOptions, OneDeviceOptions, declared):
        documented |= rule.entries(each)
    # Those that only this loader has come first.
    order = sorted(options, key=lambda name: [name in each.__annotations__ for each in (CommonOptions, FlowOptions)])
    values = {**{name: one.default for name, (_, one) in options.items()}, **(defaults or {})}
    given = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=values[name], annotation=options[name][0])
        for name in order
    ]
    entries = (
        re.sub("default .*", f"default {values[name]!r}", documented[name], count=1)
        for name in order
        if name in documented and name not in refused
    )
    text = "\n".join(entries)
    moved = {name: advice for name, advice in MOVED.items() if "device" in options or "device=" not in advice}

    def decorate(made):
        init = made.__init__ if isinstance(made, type) else made
        own = [p for p in inspect.signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = inspect.signature(init).replace(parameters=[*own, *given])
        checked = rule.suggesting(signature, **{**ELSEWHERE, **moved, **known})(init)
        checked.__signature__ = signature
        if made.__doc__:  # python -OO has none
            line = re.search(r"^( *)\{options\}$", made.__doc__, re.M)
            made.__doc__ = made.__doc__.replace(line[0], textwrap.indent(text, line[1]))
        if not isinstance(made, type):
            checked.__doc__ = made.__doc__
            return checked
        made.__init__ = checked
        return made

    return decorate
