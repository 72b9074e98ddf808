"""Fuzz decoding: ``python -m tests.fuzz.codec``; `make fuzz` does so under the address sanitizer.

A malformed payload must give `CorruptBatch`, never a crash, a read beyond the payload or another exception.
Each case goes through `_codec.probe`, in memory that ends where the payload ends, and through a real slot,
written by a worker that follows no rules.

With tests/fuzz/edges.c preloaded and modules built for it (SLIPRING_BUILD=fuzz) a case that takes a new edge
is mutated in its turn. ``--grow`` keeps those that are needed to take all edges in tests/fuzz/found, smallest first.

Not fuzzed: the opcodes of pickles. `pickle.loads` runs whatever it is given, so a stand-in takes its place
that reads every byte of the pickle and its buffers; this tests their framing. For the same reason no
module is imported for the sake of a mutated name. Arrow data is validated in full before it is read, as the
debug mode does; without that, the contents of its buffers are trusted as a pickle is.
"""

import argparse
import contextlib
import hashlib
import importlib
import os
import random
import sys
import time
import types
from pathlib import Path

os.environ["SLIPRING_DEBUG"] = "1"  # before anything of ours is imported

import numpy as np

from slipring.errors import CorruptBatch
from tests.fuzz.case import Case, Window
from tests.fuzz.edges import Edges
from tests.fuzz.mutate import mutated
from tests.fuzz.values import CORPUS
from tests.support.inside import COPY_ALWAYS, COPY_AUTO, _codec, probe, pytree, receive
from tests.support.trip import Trip

LAST = Path("build/fuzz/last.bin")
FOUND = Path(__file__).parent / "found"
FOUND_BYTES = 150_000  # limit for the cases in the repository


def pretend_to_unpickle(data, buffers):
    """Reads all bytes of a pickle and its buffers."""
    return [sum(bytes(part)) for part in (data, *buffers)]


def import_nothing(name):
    raise ImportError(name)


def guard():
    """Install stand-ins wherever mutated bytes would otherwise run code."""
    _codec.pickle = types.SimpleNamespace(loads=pretend_to_unpickle)
    pytree.importlib = types.SimpleNamespace(import_module=import_nothing)
    importlib.import_module("tests.fuzz.values")


def refusals():
    """Return the exceptions that a malformed batch may raise, and the corpus files that cannot be read here."""
    allowed, unreadable = [CorruptBatch], []
    for name, corpus in (
        ("slipring._core.codec.tensors", "tensors.bin"),
        ("slipring.arrow", "arrow.bin"),
        ("ml_dtypes", "extension_dtypes.bin"),
    ):
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"without {name}: {error}")
            allowed.append(ImportError)
            unreadable.append(corpus)
    return tuple(allowed), unreadable


def touch(value):
    """Read every byte of a value, and write to its arrays."""
    if isinstance(value, np.ndarray):
        value.tobytes()
        if value.flags.writeable and value.flags.c_contiguous and value.size:
            value.view(np.ndarray).reshape(-1)[-1:] = value.reshape(-1)[:1]
    elif isinstance(value, dict):
        for child in value.values():
            touch(child)
    elif isinstance(value, (list, tuple)):
        for child in value:
            touch(child)
    elif hasattr(value, "untyped_storage"):
        bytes(value.detach().contiguous().untyped_storage())
    elif hasattr(value, "to_pylist"):
        with contextlib.suppress(ValueError):  # names that are not UTF-8
            value[:1000].to_pylist()  # an array of many nulls takes no memory
    else:
        repr(value)


class Fuzzer:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.refusals, unreadable = refusals()
        files = [path for path in sorted(CORPUS.glob("*.bin")) if path.name not in unreadable]
        self.valid = [Case.read(path.read_bytes()) for path in files]
        assert self.valid, f"no corpus in {CORPUS}"
        self.found = [Case.read(path.read_bytes()) for path in sorted(FOUND.glob("*.bin"))]
        self.edges = Edges.preloaded()
        self.trip = Trip(2, capacity=1 << 20)
        self.window = Window(self.trip.ring)
        self.accepted = self.refused = 0
        LAST.parent.mkdir(parents=True, exist_ok=True)

    def run(self, case):
        """Decode one case both ways; return the number of new edges (0 if they are not counted)."""
        LAST.write_bytes(with_hash(case).write())  # to reproduce a crash
        fresh = self.expect(lambda: self.through_probe(case))
        slot = self.published(case)
        mode = (COPY_AUTO, COPY_ALWAYS)[len(case.payload) % 2]
        return fresh + self.expect(lambda: receive(self.trip.ring, slot, mode)[1])

    def expect(self, decode):
        fresh = []
        with contextlib.nullcontext() if self.edges is None else self.edges.counted(fresh):
            try:
                touch(decode())
                self.accepted += 1
            except self.refusals:
                self.refused += 1
        return sum(fresh)

    def through_probe(self, case, with_state=False):
        return probe(bytearray(case.payload), *case.fields(), with_state)

    def published(self, case):
        slot = self.trip.put(None)
        self.window.poke(slot, with_hash(case))
        assert self.trip.ring.wait_ready(slot, 10) == slot
        return slot

    def fuzz(self, seconds):
        """Mutate for so long; return the number of cases."""
        for case in self.valid:
            self.run(case)
        assert self.refused == 0, "the corpus is out of date: python -m tests.fuzz.values"
        for case in self.found:
            self.run(case)
        if self.edges is not None:
            print(f"{len(self.valid)} valid and {len(self.found)} found cases take {self.edges.seen} edges")
        end = time.monotonic() + seconds
        rounds = 0
        while time.monotonic() < end:
            for _ in range(100):
                case = mutated(self.rng, self.choice())
                if self.run(case):
                    self.found.append(with_hash(case))
                self.expect(lambda case=case: self.through_probe(case, with_state=True))
            rounds += 100
            assert self.trip.free == 2, "a refused batch keeps its slot"
        return rounds

    def choice(self):
        """Return a case to mutate: a valid one, a found one, or a recently found one."""
        pools = [self.valid, self.found, self.found[-20:]]
        return self.rng.choice(self.rng.choice([pool for pool in pools if pool]))

    def needed(self):
        """Return the found cases that take edges which no valid case and no smaller one takes."""
        self.edges.forget()
        for _ in range(2):  # in the first round everything is new, including caches
            for case in self.valid:
                self.run(case)
        needed = []
        for case in sorted(self.found, key=lambda case: len(case.payload)):
            seen = self.edges.seen
            self.run(case)
            if self.edges.seen > seen:  # not: the same edges more often
                needed.append(case)
        return needed

    def grow(self):
        """Write the cases that are needed to take all edges, as far as the limit allows."""
        FOUND.mkdir(exist_ok=True)
        for path in FOUND.glob("*.bin"):
            path.unlink()
        total = 0
        for case in self.needed():
            data = case.write()
            total += len(data)
            if total > FOUND_BYTES:
                break
            (FOUND / f"{hashlib.blake2b(data, digest_size=6).hexdigest()}.bin").write_bytes(data)

    def close(self):
        self.window.close()


def with_hash(case):
    """Return the case with a hash if it has none: a slot always has one."""
    if case.def_hash is not None:
        return case
    case = case.copy()
    piece = bytes(case.payload[case.def_off : case.def_off + case.def_bytes])
    case.def_hash = int.from_bytes(hashlib.blake2b(piece, digest_size=8).digest(), "little")
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--grow", action="store_true", help="keep in tests/fuzz/found what took new edges")
    parser.add_argument("--replay", type=Path, help="run one saved case")
    arguments = parser.parse_args()
    guard()
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    fuzzer = Fuzzer(seed)
    if arguments.grow and fuzzer.edges is None:
        parser.error("--grow needs edges.c preloaded and SLIPRING_BUILD=fuzz: make fuzz ARGS=--grow")
    if arguments.replay:
        fuzzer.run(Case.read(arguments.replay.read_bytes()))
        print("this case is handled")
        return
    print(f"fuzzing the codec for {arguments.seconds:g} s, --seed {seed}; a crash leaves {LAST}")
    sys.stdout.flush()
    try:
        rounds = fuzzer.fuzz(arguments.seconds)
    except BaseException:
        print(f"reproduce with: python -m tests.fuzz.codec --replay {LAST}", file=sys.stderr)
        raise
    told = f"{rounds} cases, each in memory and in a slot: {fuzzer.refused} refused, {fuzzer.accepted} read"
    if fuzzer.edges is not None:
        seen = fuzzer.edges.seen
        assert seen > 500, f"{seen} edges: the modules were built without counters (SLIPRING_BUILD=fuzz)"
        told += f"; {seen} edges, {len(fuzzer.found)} cases took a new one"
    print(told)
    if arguments.grow:
        fuzzer.grow()
    fuzzer.close()


if __name__ == "__main__":
    main()
