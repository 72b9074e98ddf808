"""slipring.adapters.paddle: faults of Paddle's loader that ours must not have; errors and deaths."""

import subprocess
import sys

import pytest

from slipring import LoaderTimeout, WorkerDied
from slipring.adapters.paddle import DataLoader
from tests.support.adapters import Images, die, fail

WORKERS = [0, 2]

# ---- faults that are fixed


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_timeout_is_raised(kind, num_workers, hang):
    with pytest.raises(LoaderTimeout, match=r"timeout=0\.2"):
        next(iter(DataLoader(Images(at=0, act=hang), num_workers=num_workers, timeout=0.2)))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_an_exception_is_raised_and_the_iteration_continues(kind, num_workers):
    batches = iter(DataLoader(Images(6, at=2, act=fail), batch_size=2, num_workers=num_workers))
    assert next(batches)[1].tolist() == [0, 1]
    with pytest.raises(LookupError, match="no such image"):
        next(batches)
    assert next(batches)[1].tolist() == [4, 5]


def test_a_batch_before_an_exception_of_its_step_is_not_lost(kind):
    batches = iter(DataLoader(Images(5, at=1, act=fail), places=["cpu", "cpu"], num_workers=1))
    with pytest.raises(LookupError):
        next(batches)
    assert [batch[1].tolist() for batch in next(batches)] == [[0], [2]]


def test_a_dead_worker_is_named(kind):
    with pytest.raises(RuntimeError, match=r"exit unexpectedly, pids: \d+") as caught:
        next(iter(DataLoader(Images(at=0, act=die), num_workers=2)))
    assert isinstance(caught.value, WorkerDied)


def test_no_torch_is_needed():
    code = (
        "import sys; from slipring.adapters import megengine, paddle, webdataset; "
        "print({'torch', 'pyarrow', 'zmq'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
