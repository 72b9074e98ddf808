"""`warn_after`: a long wait for a batch logs one line, which names the worker that is slow."""

import contextlib
import logging
import os
import re

import pytest

import slipring
from slipring import Loader, LoaderTimeout
from tests.support.datasets import Waiting, numbers, patiently
from tests.support.kinds import kinds, loading
from tests.support.processes import until


class Arriving(Waiting):
    """Writes the file `there` before it waits for the gate."""

    def __init__(self, folder, **more):
        super().__init__(folder / "gate", **more)
        self.there = folder / "there"

    def __getitem__(self, i):
        if i == self.at:
            self.there.touch()
        return super().__getitem__(i)


@kinds("fork", "thread")
def test_a_long_wait_logs_one_line_per_call_that_names_worker_and_sample(kind, tmp_path, caplog):
    data = Arriving(tmp_path, at=4, n=6)
    with loading(data, 2, **kind, timeout=0.3, warn_after=0.05) as loader:
        batches = iter(loader)
        got = [patiently(batches), patiently(batches)]
        until(data.there.exists, "a worker reads the sample")
        caplog.clear()
        for calls in (1, 2):
            with pytest.raises(LoaderTimeout, match=r"timeout=0.3 s.*batch 2") as caught:
                next(batches)
            assert isinstance(caught.value, TimeoutError) and len(caplog.messages) == calls
        (tmp_path / "gate").touch()
        got.append(patiently(batches))
    assert numbers(got) == [[0, 1], [2, 3], [4, 5]]
    line = re.compile(
        r"the loop has waited .* for batch 2\. Worker \d \(pid \d+\) has been reading one sample for .*: "
        rf"row 0 of its batch, which begins at index 4\. `slipring dump {os.getpid()}` shows all workers\."
    )
    assert all(line.fullmatch(said) for said in caplog.messages[:2])


@contextlib.contextmanager
def opening(folder, batch, error=None):
    """Let the dataset go on when a line names the batch; yield a list with that line, and raise `error` in the log."""
    lines = []

    def look(record):
        if f"for batch {batch}." in record.getMessage():
            lines.append(record.getMessage())
            (folder / "gate").touch()
            if error is not None:
                raise error("the line cannot be written")
        return True

    log = logging.getLogger("slipring")
    log.addFilter(look)
    try:
        yield lines
    finally:
        log.removeFilter(look)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, OSError),
        ({"in_order": False}, None),
        ({"workers": slipring.Workers(chunk_size=1)}, None),
    ],
)
def test_the_wait_goes_on_after_the_line(tmp_path, options, error):
    data = Waiting(tmp_path / "gate", n=2)
    with opening(tmp_path, 0, error) as lines, Loader(data, 2, num_workers=1, warn_after=0.01, **options) as loader:
        assert numbers(loader) == [[0, 1]]
    assert len(lines) == 1


def test_without_the_option_nothing_is_logged(tmp_path, caplog):
    data = Arriving(tmp_path, n=2)
    with Loader(data, 2, num_workers=1, timeout=0.3) as loader:
        batches = iter(loader)
        with pytest.raises(LoaderTimeout):
            next(batches)
        (tmp_path / "gate").touch()
        patiently(batches)
    assert caplog.messages == []
