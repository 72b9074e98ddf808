"""``share=``: which process makes the batches of a group of ranks, and what these ranks must agree on."""

import contextlib
import hashlib
import operator
import os
import socket

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from slipring._core.passes.connection import MAX_READERS, accepted, connected, listening
from slipring._core.passes.reshard import rank_of, ranks_of
from slipring._core.passes.sharing import Lead, Reader, difference
from slipring._core.ring import process
from slipring._core.workers.stateful import attempt
from slipring._version import __version__
from slipring.errors import LeadDied, shown
from slipring.torch.generators import generator_of, samplers_of
from slipring.torch.order import source_of
from slipring.torch.placeholder import facts_of, is_factory, placeholder

LONGEST_TEXT = 10_000  # characters of another rank's exception: a message has a limit


@contextlib.contextmanager
def joining(loader, dataset, *samplers):
    """Make the loader in the block, while the other ranks make theirs; yield its dataset and samplers.

    All ranks of the group enter it with each loader. It is the only collective operation of a loader. An exception in
    the block is raised in all ranks.
    """
    if loader.share is None:
        if is_factory(dataset):  # torch would find it only when it asks for a length or a sample
            raise TypeError(
                f"dataset is {shown(dataset)}, and a function that makes the dataset needs share=: give share= too, or "
                "the dataset itself"
            )
        yield dataset, *samplers
        return
    meeting = _Meeting(loader.share, is_factory(dataset))
    try:
        error = None
        try:
            loader._is_made_once = meeting.is_made_once
            yield meeting.made(dataset, samplers)
        except LeadDied:
            raise  # the ranks cannot meet again
        except Exception as raised:
            error = raised
        loader._sharing = meeting.agreed(loader, error)
    except BaseException:
        for connection in meeting.connections:
            connection.close()
        raise


class _Meeting:
    """The exchange between the ranks of a group while each of them makes its loader.

    `number` is that of this reader; None: this rank leads. `connections` lead to the readers on this machine, or to the
    lead.
    """

    def __init__(self, share, is_made_once):
        self.groups, self.is_made_once = _groups(share), is_made_once
        listener, address = listening()
        try:
            facts = {
                "the version of slipring": __version__,
                "the user": str(os.geteuid()),
                "dataset": "a function that makes it" if is_made_once else "the dataset itself",
            }
            ranks = self.gathered(facts, pid=process.pid(), machine=machine(), address=address)
            _check_number(ranks)
            rank = torch.distributed.get_rank()
            lead, *readers = (each for each in ranks if ranks[each]["machine"] == ranks[rank]["machine"])
            self.number = None if rank == lead else readers.index(rank)
            if self.number is None:
                self.connections = accepted(listener, {ranks[reader]["pid"]: reader for reader in readers})
            else:
                self.connections = [connected(ranks[lead]["address"], lead, ranks[lead]["pid"])]
        finally:
            listener.close()

    def gathered(self, facts, error=None, **more):
        """Return {rank: what each rank has sent}, in the order of the ranks, if their facts are equal.

        Raise the error of this rank, or a ValueError with that of another one.
        """
        here = {"facts": facts, "error": _text(error), **more}
        found = [(torch.distributed.get_rank(), here)]
        for group in reversed(self.groups):  # one dimension after the other: no group is made for all of them
            rows = [None] * torch.distributed.get_world_size(group)
            torch.distributed.all_gather_object(rows, found, group)
            found = [each for row in rows for each in row]
        if error is not None:
            raise error
        ranks = dict(sorted(found, key=operator.itemgetter(0)))
        for rank, each in ranks.items():
            if each["error"] is not None:
                raise ValueError(_raised(rank, each["error"]))
        _check_equal({rank: each["facts"] for rank, each in ranks.items()})
        return ranks

    def made(self, dataset, samplers):
        """Return the dataset and samplers of this rank. Functions make them, that of the dataset only in the lead."""
        if self.number is None:
            dataset, error = attempt(dataset if self.is_made_once else lambda: dataset)
            for connection in self.connections:
                connection.send(None if error is not None else facts_of(dataset), _text(error))
            if error is not None:
                raise error
        else:
            facts, text = self.connections[0].receive()
            if text is not None:
                raise ValueError(_raised(self.connections[0].rank, text))
            if self.is_made_once:
                dataset = placeholder(facts, self.connections[0].name)
        given = self.is_made_once
        return dataset, *(each(dataset) if given and is_factory(each) else each for each in samplers)

    def agreed(self, loader, error):
        """Return the loader's `Lead` or `Reader`; None if no other rank of the group is on this machine.

        `error` is the exception with which this rank could not make it.
        """
        facts, error = attempt(_facts, loader) if error is None else (None, error)
        ranks = self.gathered(facts, error, seed=None if error is not None else _seed(loader))
        _agree(loader, ranks)
        if self.number is not None:
            return Reader(self.connections[0], self.number, loader._engines)
        return Lead(self.connections) if self.connections else None


def _text(error):
    return None if error is None else f"{type(error).__name__}: {error}"[:LONGEST_TEXT]


def _raised(rank, text):
    return f"share=: rank {rank} has raised {text}"


@contextlib.contextmanager
def beginning(loader, sharing):
    """Begin a pass in the block with the lead's generators: a rank that left a pass early has drawn less from them."""
    generators = [loader.generator, generator_of(loader)]
    if isinstance(sharing, Lead):
        with sharing.beginning((loader._epochs, [generator.get_state().numpy().tobytes() for generator in generators])):
            yield
        return
    with sharing.beginning(loader.timeout) as (loader._epochs, states):
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        yield


# ---- the group


def _groups(share):
    """Return the process groups of `share`, one for each dimension of a mesh."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise RuntimeError("share= needs torch.distributed: call torch.distributed.init_process_group() first")
    if share is torch.distributed.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"share=: rank {torch.distributed.get_rank()} is not in the group: give it its own group")
    if isinstance(share, torch.distributed.ProcessGroup):
        return [share]
    if not isinstance(share, torch.distributed.device_mesh.DeviceMesh):
        raise TypeError(
            "share must be a torch.distributed.ProcessGroup, or a DeviceMesh with the dimensions that share, such as "
            f"mesh['tp'], not {shown(share)}"
        )
    if share.get_coordinate() is None:
        raise ValueError(f"share=: rank {torch.distributed.get_rank()} is not in the mesh: give it its own part")
    return share.get_all_groups()


def machine():
    """Return a text that is equal in the processes that can share memory and see one another."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return " ".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))])
    except OSError:  # no /proc
        return socket.gethostname()


# ---- what the ranks must agree on


def _facts(loader):
    """Return {name: text} of a loader: what must be equal in all ranks. Raise ValueError for what cannot be shared."""
    _check_options(loader)
    source, group, _ = source_of(loader)
    generator = generator_of(loader)
    samplers = [*samplers_of(loader)]
    ranks = max(map(ranks_of, samplers))
    return {
        "batch_size": str(loader.batch_size),
        "num_workers": str(loader.num_workers),
        "prefetch_factor": str(loader.prefetch_factor),
        "drop_last": str(loader.drop_last),
        "in_order": str(loader.in_order),
        "rng": loader.rng,
        "rank": str(loader.rank),
        "skip_none": str(loader.skip_none),
        "persistent_workers": str(bool(loader.persistent_workers)),
        "snapshot_every_n_steps": str(loader.workers.snapshot_every_n_steps),
        "the class of the dataset": _name(loader.dataset),
        "the length of the dataset": _length(loader.dataset),
        "the class of the sampler": _name(source),
        "the length of the sampler": _length(source),
        "the sampler's batch_size": str(group or getattr(source, "batch_size", None)),
        "the part of the samples that the sampler gives": f"rank {rank_of(*samplers)} of {ranks}",
        "the part of the samples that the dataset gives": f"rank {_own(loader.dataset, 'rank')}",
        "the sampler's seed": str(_own(source, "seed")),
        "the seed (generator=)": "none" if generator is None else _digest(generator),
    }


def _check_options(loader):
    if not loader.num_workers:
        raise ValueError(
            "share= needs workers, and num_workers=0: their batches lie in memory that other processes can read"
        )
    if loader._bounds is not None:
        raise ValueError("share= needs a fixed num_workers, which all ranks have; it does not go with 'auto' or bounds")
    if isinstance(loader.dataset, (IterDataPipe, MapDataPipe)):
        raise ValueError(
            f"share= and a DataPipe ({type(loader.dataset).__name__}) exclude each other: torch divides its samples "
            "among all ranks"
        )


def _name(thing):
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _length(thing):
    length, error = attempt(len, thing)
    return "none" if error is not None else str(length)


def _own(thing, name):
    value = getattr(thing, name, None)
    return value if isinstance(value, int) else None


def _digest(generator):
    state = hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()
    return f"{generator.initial_seed()}, state {state[:8]}"


def _seed(loader):
    """Return the seed that this rank proposes for the order; None if the loader has a generator of its own."""
    if generator_of(loader) is not None and loader.generator is not None:
        return None
    return torch.empty((), dtype=torch.int64).random_().item()


def _check_equal(facts):
    """Raise ValueError for facts that differ among the ranks, from {rank: {name: text}}."""
    differs = difference(facts)
    if differs is None:
        return
    hint = ""
    if differs.startswith("the part of the samples"):
        hint = (
            ". The ranks of share= read the same samples: give the sampler or dataset the rank and the number of "
            "data-parallel ranks, such as DistributedSampler(dataset, num_replicas=mesh['dp'].size(), "
            "rank=mesh['dp'].get_local_rank())"
        )
    raise ValueError(f"the ranks of share= must have equal loaders; {differs}{hint}")


def _check_number(ranks):
    machines = [each["machine"] for each in ranks.values()]
    most = max(machines.count(machine) for machine in machines)
    if most > MAX_READERS + 1:
        raise ValueError(
            f"share= has {most} ranks on one machine, and one process can share its batches with {MAX_READERS} others: "
            "make smaller groups"
        )


def _agree(loader, ranks):
    """Give the loader what the first rank has proposed: a seed of the order, and the rank of random numbers."""
    first, proposed = next(iter(ranks.items()))
    if proposed["seed"] is not None:
        _put_generator(loader, torch.Generator().manual_seed(proposed["seed"] & (1 << 63) - 1))
    known = rank_of(*samplers_of(loader))
    if loader.rank is None and known is None and _own(loader.dataset, "rank") is None and loader.rng != "sample":
        loader.rank = first


def _put_generator(loader, generator):
    """Let the loader and its samplers draw from a generator, if they draw from torch's global one."""
    if loader.generator is None:
        loader.generator = generator
    for sampler in samplers_of(loader):
        if hasattr(sampler, "generator"):
            if sampler.generator is None:
                sampler.generator = loader.generator
            return
