"""slipring.adapters.paddle in static mode: the executor gets the same feed as from Paddle's own loader."""

import subprocess
import sys

import pytest

from tests.support.adapters import import_paddle

# In its own process: the mode applies to the whole program, and an eager tensor in that mode ends the process.
PROGRAM = """
import sys
import numpy as np
import paddle
from slipring.adapters.paddle import DataLoader

WORKERS = int(sys.argv[1])
paddle.enable_static()
place = paddle.CPUPlace()


class Rows(paddle.io.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return np.full((3,), i, "float32"), np.int64(i)


def plain(value):
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return type(value).__name__, np.array(value).tolist(), np.array(value).dtype.name


def steps(kind, feed, places, return_list):
    loader = kind(Rows(), feed, [place] * places, return_list=return_list, batch_size=2, num_workers=WORKERS)
    return [plain(step) for step in loader()]


main, start = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, start):
    x = paddle.static.data("x", [None, 3], "float32")
    y = paddle.static.data("y", [None], "int64")
    total = x.sum() + y.astype("float32").sum()
for places in (1, 2):
    for return_list in (False, True):
        theirs = steps(paddle.io.DataLoader, [x, y], places, return_list)
        ours = steps(DataLoader, [x, y], places, return_list)
        if places == 2:
            # Paddle gives the remaining batches at the end to the first places.
            theirs = [step for step in theirs if len(step) == places]
        if return_list and places == 1:
            ours = [list(step) for step in ours]
        assert ours == theirs, (places, return_list, ours, theirs)

executor = paddle.static.Executor(place)
executor.run(start)
loader = DataLoader(Rows(), [x, y], place, return_list=False, batch_size=2, num_workers=WORKERS)
sums = [executor.run(main, feed=feed, fetch_list=[total])[0] for feed in loader]
assert [float(s) for s in sums] == [4.0, 20.0, 36.0], sums
print("held")
"""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_static_mode_a_step_is_the_feed_of_an_executor(num_workers):
    import_paddle()
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(num_workers)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("held")
