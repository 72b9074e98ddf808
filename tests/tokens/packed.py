"""Streams of documents, and jobs of several ranks that pack them."""

import itertools
import json

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import slipring  # noqa: E402
from slipring import tokens  # noqa: E402
from slipring.streams import ShardStream  # noqa: E402
from tests.support.kinds import loading  # noqa: E402

SIZES = (40, 7, 1, 0, 62, 25, 9, 14, 33, 50)  # documents per shard
BUDGET = 100


def length_of(shard, row, most=80):
    return 1 + hash((shard, row)) % most


def document(shard, row, most=80):
    """Return tokens that say which document they are of, and where in it they are."""
    return (shard * 1000 + row) * 1000 + np.arange(length_of(shard, row, most))


def read(shard):
    for first in range(0, SIZES[shard], 8):
        rows = [document(shard, row) for row in range(first, min(first + 8, SIZES[shard]))]
        yield {"input_ids": pa.array(rows, pa.list_(pa.int64())), "shard": np.full(len(rows), shard)}


def part_of_shards(worker, num_workers):
    for number in range(worker, len(SIZES), num_workers):
        yield from read(number)


def read_long(shard):
    """As `read`, with documents of up to four times the budget."""
    for row in range(SIZES[shard]):
        yield {"input_ids": pa.array([document(shard, row, 400)])}


EVERY = [x for shard, size in enumerate(SIZES) for row in range(size) for x in document(shard, row).tolist()]
EVERY_LONG = [x for shard, size in enumerate(SIZES) for row in range(size) for x in document(shard, row, 400).tolist()]


class Numbers:
    """Documents without shards or a state, divided among workers."""

    def __init__(self, n=200):
        self.n = n

    def __repr__(self):
        return type(self).__name__

    def documents(self):
        info = slipring.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return [{"input_ids": document(0, row)} for row in range(self.n)[worker::workers]]

    def __iter__(self):
        yield from self.documents()


class Walk:
    """An iterator that can say where it is."""

    def __init__(self, documents):
        self.documents, self.at = documents, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.documents):
            raise StopIteration
        self.at += 1
        return self.documents[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Positioned(Numbers):
    def __iter__(self):
        return Walk(self.documents())


def ranks_of(n, source=read, shuffle=False, **options):
    """Return the packs of each rank."""
    return [
        tokens.pack(
            ShardStream(range(len(SIZES)), source, 1, shuffle=shuffle, rank=rank, world_size=n), BUDGET, **options
        )
        for rank in range(n)
    ]


def found_in(packs):
    """Return the tokens of packs; check that none is too large."""
    found = []
    for pack in packs:
        sizes = [len(each["input_ids"]) for each in pack]
        assert 0 < sum(sizes) <= BUDGET and min(sizes) > 0
        found += [x for each in pack for x in each["input_ids"].tolist()]
    return found


def job(ranks, workers, most=None, states=None, seed=5):
    """Return the packs of all ranks, and their states after so many packs of each."""
    packs, after = [], []
    for rank in ranks:
        with loading(rank, batch_size=None, num_workers=workers, start_method="thread", seed=seed) as loader:
            if states is not None:
                loader.load_state_dict(states)
            packs += itertools.islice(loader, most)
            after.append(json.loads(json.dumps(loader.state_dict())))
    return packs, after
