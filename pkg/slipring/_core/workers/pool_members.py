"""What the process of a pool knows about the loaders that it serves, and about its workers."""

import os
import time


class Source:
    """A dataset with its functions, loaded once, which loaders of several processes share."""

    def __init__(self, serial, description):
        self.serial = serial  # no other source of this pool had it
        self.description = description  # of the loader that came first; see `pool_client.described`
        self.parts = None  # see `worker_main.parts_of`; None: not here yet
        self.bringer = None  # the loader that was asked for the parts
        self.members = set()


class Member:
    """A loader's connection."""

    def __init__(self, key, channel, pid):
        self.key, self.channel, self.pid = key, channel, pid
        self.pidfd = os.pidfd_open(pid)
        # expected: how many processes of this machine will come with the same loader
        self.source, self.cpus, self.expected = None, set(), 1
        # Of the current workers; `ring` is None before the first ones, and after the loader has stopped them.
        self.ring, self.rest, self.base_seed = None, None, 0
        self.part = None  # of the pool's memory, if that is limited, from the first workers on
        self.asks = {}  # number of a worker that waits for memory -> (bytes, when to give up)
        self.attached = set()  # numbers of workers that serve the segment, or will when they read their messages
        self.stopping = False  # the workers have been told to leave the segment
        self.gone = False  # the loader's process has ended, or the loader

    @property
    def num_workers(self):
        return self.source.description["num_workers"]


class PooledWorker:
    """A worker process. `sources`: the serial numbers of those that it has; `leaves`: it was told to end."""

    def __init__(self, number, process, channel, sources):
        self.number, self.process, self.channel, self.sources = number, process, channel, sources
        self.pidfd = os.pidfd_open(process.pid)
        self.began = time.monotonic()
        self.leaves = False
