"""The values of the corpus: ``python -m tests.fuzz.values`` writes it again."""

import collections
import dataclasses
from pathlib import Path

import numpy as np

from tests.fuzz.case import Window
from tests.support.trip import Trip

CORPUS = Path(__file__).parent / "corpus"
Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    image: object
    label: int = 0


def values():
    """Return {name: value} with each kind of leaf and node."""
    twice = np.arange(6)
    found = {
        "numbers": [1, -(2**63), 2.5, True, None],
        "lists": {"ints": [1, -2, 3], "floats": [0.5, 2.0]},
        "texts": {"s": "ü" * 20, "b": b"bytes", "l": ["a", "", "ccc"], "m": [b"x", b"yy"]},
        "arrays": [np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 4)), np.array(1.5)],
        "dtypes": [np.zeros(n, dtype) for n, dtype in ((2, "M8[s]"), (2, "i4,f8"), (3, ">u2"), (2, "U3"), (2, "S5"))],
        "many_dimensions": np.zeros((1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 3), np.uint8),
        "orders": [np.arange(24).reshape(2, 3, 4).transpose(axes) for axes in ((1, 2, 0), (2, 1, 0))],
        "scalars": (np.float32(1), np.str_("x"), np.datetime64(5, "s")),
        "containers": {
            ("k", (1, None)): collections.OrderedDict(a=[(), {}]),
            1.5: Point(1, [2]),
            b"r": Record("x", 3),
            True: (Point(None, ()), [[[]]]),
        },
        "objects": [{1, 2}, {frozenset("k"): np.arange(10)}, 1 << 70],
        "repeated": [1, twice, {"again": twice}, twice, np.float32(2)],
        "images": {"image": np.zeros((4, 8, 8, 3), np.uint8), "label": np.arange(4), "name": list("abcd")},
    }
    try:
        import torch
    except ImportError:
        pass
    else:
        found["tensors"] = [
            torch.arange(6).reshape(2, 3),
            torch.ones(3, dtype=torch.bfloat16),
            torch.tensor(True),
            torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        ]
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        found["extension_dtypes"] = [np.ones((2, 3), ml_dtypes.bfloat16), ml_dtypes.int4(3)]
    try:
        import pyarrow as pa
    except ImportError:
        pass
    else:
        found["arrow"] = [
            pa.array([1, None, 3]),
            pa.RecordBatch.from_pydict({"a": ["x", None], "b": [[1], []]}),
            pa.chunked_array([["a", "b"], ["c"]]).dictionary_encode(),
        ]
    return found


def main():
    trip = Trip(2)
    window = Window(trip.ring)
    CORPUS.mkdir(exist_ok=True)
    for name, value in values().items():
        slot = trip.put([value])
        (CORPUS / f"{name}.bin").write_bytes(window.case(slot).write())
        trip.ring.discard(slot)


if __name__ == "__main__":
    from tests.fuzz import values as findable  # classes of __main__ cannot be found

    findable.main()
