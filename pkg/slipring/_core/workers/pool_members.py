"""What the process of a pool knows about the loaders that it serves, and about its workers."""

import os


class Source:
    """What loaders of several processes share: a dataset with its functions, loaded once.

    Attributes
    ----------
    serial : int
        No other source of this pool had it.
    description : dict
        Of the loader that came first; see `pool_client.described`.
    parts : tuple or None
        See `worker_main.parts_of`; None: not here yet.
    bringer : Member or None
        The loader that was asked for the parts.
    members : set of Member
    """

    def __init__(self, serial, description):
        self.serial, self.description = serial, description
        self.parts = self.bringer = None
        self.members = set()


class Member:
    """A loader's connection.

    Attributes
    ----------
    ring, rest, base_seed
        Of the current workers; `ring` is None before the first and after a loader has stopped them.
    part : BudgetPart or None
        Of the pool's memory, if that is limited, from the first workers on.
    asks : dict
        Number of a worker that waits for memory -> (bytes, when to give up).
    attached : set of int
        The numbers of the workers that serve the segment, or will as soon as they read their messages.
    stopping : bool
        The workers have been told to leave the segment.
    gone : bool
        The loader's process has ended, or the loader.
    """

    def __init__(self, key, channel, pid):
        self.key, self.channel, self.pid = key, channel, pid
        self.pidfd = os.pidfd_open(pid)
        self.source = self.ring = self.rest = None
        self.base_seed, self.cpus, self.ranks = 0, set(), 1
        self.part, self.asks = None, {}
        self.attached = set()
        self.stopping = self.gone = False

    @property
    def num_workers(self):
        return self.source.description["num_workers"]


class PooledWorker:
    """A worker process. `sources`: the serial numbers of those that it has; `leaves`: it was told to end."""

    def __init__(self, number, process, channel, sources):
        self.number, self.process, self.channel, self.sources = number, process, channel, sources
        self.pidfd = os.pidfd_open(process.pid)
        self.leaves = False
