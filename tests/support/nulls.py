"""Columns with nulls, for tests of the values that replace nulls."""

import datetime

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

DAY = datetime.date(2020, 1, 2)
PAIRS = pa.list_(pa.int16(), 2)
SECOND = [0, 1, 0, 0]
# kind of column -> (four values, the fill value for nulls, the result, the mask)
COLUMNS = {
    "integers": (pa.array([1, None, 3, 2**53 + 1]), -7, [1, -7, 3, 2**53 + 1], SECOND),
    "large integers": (pa.array([1, None, 3, 4], pa.uint64()), 2**64 - 1, [1, 2**64 - 1, 3, 4], SECOND),
    "floats": (pa.array([1, None, 3, None], pa.float32()), 0.5, [1, 0.5, 3, 0.5], [0, 1, 0, 1]),
    "half floats": (pa.array([np.float16(1), None] * 2, pa.float16()), 9, [1, 9, 1, 9], [0, 1, 0, 1]),
    "bools": (pa.array([True, None, False, None]), True, [True, True, False, True], [0, 1, 0, 1]),
    "dates": (pa.array([None, DAY, None, DAY]), DAY, [DAY] * 4, [1, 0, 1, 0]),
    "timestamps": (
        pa.array([0, None, 1, 2], pa.timestamp("ns")), np.datetime64(9, "ns"), [0, 9, 1, 2], SECOND,
    ),
    "zoned": (
        pa.array([0, None, 1, 2], pa.timestamp("ns", "Asia/Tokyo")),
        datetime.datetime(1970, 1, 1, 9, tzinfo=datetime.timezone(datetime.timedelta(hours=9))), [0, 0, 1, 2], SECOND,
    ),
    "durations": (pa.array([1, None, 1, 2], pa.duration("ns")), datetime.timedelta(0), [1, 0, 1, 2], SECOND),
    "lists": (
        pa.array([[1, 2], None, [None, 4], [5, 6]], PAIRS), 0,
        [[1, 2], [0, 0], [0, 4], [5, 6]], [[0, 0], [1, 1], [1, 0], [0, 0]],
    ),
    "lists of lists": (
        pa.array([[[1, 2], None], None, [[3, None], [4, 5]], [[6, 7], [8, 9]]], pa.list_(PAIRS, 2)), -1,
        [[[1, 2], [-1, -1]], [[-1, -1]] * 2, [[3, -1], [4, 5]], [[6, 7], [8, 9]]],
        [[[0, 0], [1, 1]], [[1, 1]] * 2, [[0, 1], [0, 0]], [[0, 0]] * 2],
    ),
    "tensors": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int16(), [1, 2], permutation=[1, 0]),
            pa.array([[1, 2], None, [None, 4], [5, 6]], PAIRS),
        ), 0,
        [[[1], [2]], [[0], [0]], [[0], [4]], [[5], [6]]], [[[0], [0]], [[1], [1]], [[1], [0]], [[0], [0]]],
    ),
}  # fmt: skip

# (a column, a value that its type cannot represent, the text of the error)
UNFIT = [
    (pa.array([1, None], pa.int8()), 300, "300 (int) for column 'x', whose values are int8"),
    (pa.array([1, None], pa.uint8()), -1, "-1 (int) for column 'x', whose values are uint8"),
    (pa.array([1, None]), 1.5, "1.5 (float) for column 'x', whose values are int64"),
    (pa.array([1, None]), True, "True (bool) for column 'x', whose values are int64"),
    (pa.array([1, None]), "0", "'0' (str) for column 'x', whose values are int64"),
    (pa.array([1, None]), np.datetime64("NaT", "s"), "(datetime64) for column 'x', whose values are int64"),
    (pa.array([1, None], pa.float32()), 1e300, "1e+300 (float) for column 'x', whose values are float"),
    (pa.array([1, None], pa.float32()), True, "True (bool) for column 'x', whose values are float"),
    (pa.array([True, None]), 0, "0 (int) for column 'x', whose values are bool"),
    (pa.array([1, None], pa.timestamp("s")), 0, "0 (int) for column 'x', whose values are timestamp[s]"),
    (
        pa.array([1, None], pa.timestamp("s")), datetime.datetime(2020, 1, 1, 0, 0, 0, 5),
        "(datetime) for column 'x', whose values are timestamp[s]",
    ),
    (pa.array([1, None], pa.date32()), datetime.datetime(2020, 1, 1, 5), "whose values are date32[day]"),
    (pa.array([[1, 2], None], PAIRS), 2**15, "32768 (int) for column 'x', whose values are int16"),
    (pa.array(["a", None]), 5, "5 (int) for column 'x', whose values are string"),
]  # fmt: skip
