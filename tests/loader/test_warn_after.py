"""`warn_after`: a long wait for a batch logs one line, which names the worker that is slow."""

import contextlib
import logging
import os
import re

import pytest

import slipring
from slipring import Loader, LoaderTimeout
from tests.support.datasets import Squares, Waiting, numbers, patiently
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


class OpensGate(logging.Handler):
    """Lets the dataset go on when a line names the batch; keeps that line."""

    def __init__(self, folder, batch):
        super().__init__()
        self.gate, self.batch, self.lines = folder / "gate", batch, []

    def emit(self, record):
        if f"for batch {self.batch}." in record.getMessage():
            self.lines.append(record.getMessage())
            self.gate.touch()


@contextlib.contextmanager
def opening(folder, batch):
    log, handler = logging.getLogger("slipring"), OpensGate(folder, batch)
    log.addHandler(handler)
    try:
        yield handler.lines
    finally:
        log.removeHandler(handler)


@kinds("fork", "thread")
def test_a_long_wait_logs_one_line_per_call_that_names_worker_and_sample(kind, tmp_path, caplog):
    data = Arriving(tmp_path, at=4, n=6)
    with loading(data, 2, **kind, timeout=0.3, warn_after=0.05) as loader:
        batches = iter(loader)
        got = [patiently(batches), patiently(batches)]
        until(data.there.exists, "a worker reads the sample")
        caplog.clear()
        for calls in (1, 2):
            with pytest.raises(LoaderTimeout):
                next(batches)
            assert len(caplog.messages) == calls
        (tmp_path / "gate").touch()
        got.append(patiently(batches))
    assert numbers(got) == [[0, 1], [2, 3], [4, 5]]
    line = re.compile(
        r"the loop has waited .* for batch 2\. Worker \d \(pid \d+\) has been reading one sample for .*: "
        rf"row 0 of its batch, which begins at index 4\. `slipring dump {os.getpid()}` shows all workers\."
    )
    assert all(line.fullmatch(said) for said in caplog.messages[:2])


@pytest.mark.parametrize("options", [{}, {"in_order": False}, {"workers": slipring.Workers(chunk_size=1)}])
def test_the_wait_goes_on_after_the_line(tmp_path, options):
    data = Waiting(tmp_path / "gate", n=2)
    with opening(tmp_path, batch=0) as lines, Loader(data, 2, num_workers=1, warn_after=0.01, **options) as loader:
        assert numbers(loader) == [[0, 1]]
    assert len(lines) == 1


def test_a_stream_logs_too(tmp_path):
    data = Waiting(tmp_path / "gate", n=2)

    def blocks(worker, workers):
        yield {"x": data[0][0]}

    with opening(tmp_path, batch=0) as lines, slipring.stream(blocks, 4, num_workers=1, warn_after=0.01) as loader:
        assert len(list(loader)) == 1
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


def test_a_line_that_cannot_be_written_costs_no_batch(tmp_path):
    def fail(record):
        (tmp_path / "gate").touch()
        raise OSError("no log")

    log = logging.getLogger("slipring")
    log.addFilter(fail)
    try:
        with Loader(Waiting(tmp_path / "gate", n=2), 2, num_workers=1, warn_after=0.01) as loader:
            assert numbers(loader) == [[0, 1]]
    finally:
        log.removeFilter(fail)


def test_a_wrong_value_is_refused_with_the_rule():
    with pytest.raises(ValueError, match=r"warn_after must be 0 \(no line\) or seconds, not -1"):
        Loader(Squares(), warn_after=-1)
