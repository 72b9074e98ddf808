"""Random samples, and their batches in a slot."""

import collections
import dataclasses
import random

import numpy as np

from tests.support.inside import RowWriter
from tests.support.trip import Trip

ROWS = 5
Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Record:
    a: object
    b: object


DTYPES = ["u1", "i2", "<i8", ">i4", "f2", "f4", "f8", "c8", "?", "M8[s]", "U3", "S2", "i4,f8"]


def array(rng):
    shape = tuple(rng.randrange(4) for _ in range(rng.randrange(4)))
    dtype = np.dtype(rng.choice(DTYPES))
    count = int(np.prod(shape))
    data = bytes(rng.choices(range(2), k=count * dtype.itemsize) if dtype.kind != "U" else count * dtype.itemsize)
    made = np.frombuffer(bytearray(data), dtype).reshape(shape)
    turn = rng.randrange(3)
    made = made.T if turn == 0 else made[::-1] if turn == 1 and made.ndim else made
    return made.view(np.memmap) if rng.random() < 0.1 else made


LEAVES = [
    array,
    array,
    lambda rng: rng.randrange(-5, 5),
    lambda rng: rng.random(),
    lambda rng: rng.random() < 0.5,
    lambda rng: rng.choice(["", "text", "ü"]),
    lambda rng: b"bytes",
    lambda rng: None,
    lambda rng: np.float32(rng.random()),
    lambda rng: np.float64(rng.random()),
    lambda rng: np.int8(rng.randrange(100)),
    lambda rng: np.datetime64(rng.randrange(100), "s"),
    lambda rng: np.ma.masked_array([1, 2], [True, False]),
    lambda rng: {1, 2},
    lambda rng: 1 << 70,
    lambda rng: 1 << 63,
]


def drawn(rng, leaves, depth=0):
    """Return a random sample, or a part of one."""
    if depth == 3 or rng.random() < 0.4:
        return rng.choice(leaves)(rng)
    parts = [drawn(rng, leaves, depth + 1) for _ in range(rng.randrange(1, 4))]
    kind = rng.randrange(8)
    if kind < 2:
        return tuple(parts) if kind else parts
    if kind == 2:
        return Pair(parts[0], parts[-1])
    if kind == 3:
        return Record(parts[0], parts[-1])
    named = {f"k{i}": part for i, part in enumerate(parts)}
    return [dict, collections.OrderedDict, collections.UserDict, dict][kind - 4](named)


def changed(value, rng, leaves):
    """Return a copy of a part with one difference, none, or all different."""
    if rng.random() < 0.2:
        return drawn(rng, leaves, 2)
    if isinstance(value, (list, tuple)) and len(value):
        parts = list(value)
        at = rng.randrange(len(parts))
        parts[at] = changed(parts[at], rng, leaves)
        if type(value) is list or type(value) is tuple:
            if rng.random() < 0.1:
                parts.append(1)
            return type(value)(parts)
        return type(value)(*parts)
    if isinstance(value, (dict, collections.UserDict)) and len(value):
        copied = type(value)(value)
        key = rng.choice(list(copied))
        if rng.random() < 0.1:
            del copied[key]
        else:
            copied[key] = changed(copied[key], rng, leaves)
        return copied
    if isinstance(value, Record):
        return Record(value.a, changed(value.b, rng, leaves))
    return rng.choice(leaves)(rng)


def described(value):
    """Return a value's types, dtypes, shapes and bytes for comparison."""
    if isinstance(value, np.ndarray):
        return type(value).__name__, value.dtype, value.shape, value.tobytes()
    if isinstance(value, (dict, collections.UserDict)):
        return type(value), [(k, described(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(v) for v in value]
    if isinstance(value, Record):
        return Record, described(value.a), described(value.b)
    if hasattr(value, "is_sparse"):
        numbers = value.to_dense().detach().resolve_conj()
        strides = None if value.is_sparse else value.stride()
        return type(value), value.dtype, value.shape, value.requires_grad, strides, numbers.flatten().tolist()
    return type(value), value


def outcome(trip, make):
    """Make a batch in a slot; return it as the consumer gets it, or the exception."""
    writer = trip.claim(range(100, 100 + ROWS))
    with writer:
        try:
            box = [make()]
        except Exception as error:
            writer.abort()
            return type(error), str(error)
        trip.encoder.publish(writer, box)
    return described(trip.take(writer.slot))


def drawn_samples(rng, leaves):
    """Return samples; one may differ from the others."""
    first = drawn(rng, leaves)
    samples = [first] * ROWS
    if rng.random() < 0.7:
        samples[rng.randrange(ROWS)] = changed(first, rng, leaves)
    return samples


def row_by_row(samples, rules, collate_fn, order):
    """Return the batch of samples that come in this order."""
    rows = RowWriter(0, len(samples), rules)
    for row in order:
        rows.put(row, samples[row])
    return rows.batch(collate_fn)


def check_rows(seed, leaves, rules, collate):
    """Check that random samples make, row by row, the same batch or error as their collated list."""
    trip, rng = Trip(), random.Random(seed)
    for _ in range(20):
        samples = drawn_samples(rng, leaves)
        order = [0, *rng.sample(range(1, ROWS), ROWS - 1)]
        want = outcome(trip, lambda: collate(samples))  # noqa: B023
        got = outcome(trip, lambda: row_by_row(samples, rules, collate, order))  # noqa: B023
        assert got == want, samples
