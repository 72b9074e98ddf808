"""Mutations of a case."""

from tests.fuzz.case import LEAF

EDGES = [0, *(2**bits + d for bits in (1, 3, 6, 7, 8, 12, 31, 32, 62, 63) for d in (-1, 0)), 2**64 - 8, 2**64 - 1]
# Offsets of the fields of a leaf record, with their widths.
FIELDS = [*((i, 1) for i in range(4)), (4, 4), *((at, 8) for at in range(8, 128, 8))]
assert LEAF.size == 128


def edge(rng, width, near):
    """Return a number of `width` bytes that is likely to be just beyond a limit."""
    choice = rng.randrange(4)
    if choice == 0:
        n = rng.choice(EDGES)
    elif choice == 1:
        n = near + rng.choice([-64, -8, -1, 1, 8, 64])
    elif choice == 2:
        n = -rng.choice(EDGES)
    else:
        n = rng.getrandbits(8 * width)
    return n & ((1 << 8 * width) - 1)


def flip_bytes(rng, case):
    for _ in range(rng.choice([1, 1, 2, 8])):
        if case.payload:
            case.payload[rng.randrange(len(case.payload))] = rng.randrange(256)


def change_record(rng, case):
    if case.n_leaves == 0:
        return
    at = case.table_off + 128 * rng.randrange(min(case.n_leaves, 64))
    offset, width = rng.choice(FIELDS)
    at += offset
    if at + width > len(case.payload):
        return
    old = int.from_bytes(case.payload[at : at + width], "little")
    new = rng.randrange(16) if offset < 3 and rng.random() < 0.7 else edge(rng, width, old)
    case.payload[at : at + width] = new.to_bytes(width, "little")


def swap_records(rng, case):
    if case.n_leaves < 2 or case.table_off + 128 * case.n_leaves > len(case.payload):
        return
    a, b = (case.table_off + 128 * rng.randrange(case.n_leaves) for _ in range(2))
    case.payload[a : a + 128], case.payload[b : b + 128] = case.payload[b : b + 128], case.payload[a : a + 128]


def change_definition(rng, case):
    end = min(case.def_off + case.def_bytes, len(case.payload))
    for _ in range(rng.choice([1, 1, 2, 4])):
        if case.def_off < end:
            at = rng.randrange(case.def_off, end)
            case.payload[at] = rng.choice(b"LDETSNdoltncsbif012(\x00\x01\x02\x7f\xff")
    case.def_hash = rng.choice([case.def_hash, None])


def change_result(rng, case):
    name = rng.choice(["table_off", "n_leaves", "def_off", "def_bytes", "bytes"])
    width = 4 if name in ("n_leaves", "def_bytes") else 8
    setattr(case, name, edge(rng, width, getattr(case, name)))
    case.def_hash = rng.choice([case.def_hash, None])


def truncate(rng, case):
    if case.payload:
        del case.payload[rng.randrange(len(case.payload)) :]


def change_heads(rng, case):
    """Return the positions of numbers in the payload: ends of texts, lengths of buffers."""
    if len(case.payload) >= 8:
        at = rng.randrange(min(len(case.payload), 4096) // 8) * 8
        old = int.from_bytes(case.payload[at : at + 8], "little")
        case.payload[at : at + 8] = edge(rng, 8, old).to_bytes(8, "little")


MUTATIONS = [flip_bytes, change_record, swap_records, change_definition, change_result, truncate, change_heads]
MUTATIONS += [change_record]  # the most likely one


def mutated(rng, case):
    """Return a changed copy of a case."""
    case = case.copy()
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        rng.choice(MUTATIONS)(rng, case)
    return case
