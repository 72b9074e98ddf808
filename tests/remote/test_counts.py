"""Attempts to read are counted and logged for every worker, and a verdict names failures as the cause."""

import logging
import os
import signal

import pytest

import slipring
from slipring.monitor import prometheus
from tests.support.inside import read_of
from tests.support.options import grouped
from tests.support.processes import LONG_S

SIZE = 1000  # bytes per sample
WORKERS = [{"num_workers": 0, "fetch_threads": 3}, {"num_workers": 2}, {"num_workers": 2, "start_method": "thread"}]
PATIENT = {"attempts": 30, "timeout": 100.0}
REASONS = ("timeouts", "broken", "refused", "rejected")


class Ranges:
    """Samples that are ranges of one file, with one request each."""

    def __init__(self, url, n, storage):
        self.url, self.n, self.storage = url, n, storage

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        data = read_of(self.storage)(self.url, SIZE * index, SIZE * index + SIZE)
        assert len(data) == SIZE
        return index


class Deadly(Ranges):
    """The process that reads sample 21 dies after it, once."""

    def __getitem__(self, index):
        found = super().__getitem__(index)
        if index == 21 and not os.path.exists(self.marker):
            open(self.marker, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@pytest.fixture
def ranges(tmp_path, serve):
    """Return (dataset, server) with faults of some kinds."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(os.urandom(60 * SIZE))

    def made(n=60, kind=Ranges, query="", storage=PATIENT, **faults):
        server = serve(tmp_path / "served", **faults)
        return kind(f"{server.url}/file{query}", n, slipring.Storage(**storage)), server

    return made


def figures(stats):
    return {name: getattr(stats, f"remote_{name}") for name in ("reads", *REASONS, "bytes")}


def failed(stats):
    return sum(getattr(stats, f"remote_{name}") for name in REASONS)


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_every_attempt_of_every_worker_is_counted(ranges, workers):
    data, server = ranges(fail=0.3, seed=5)
    with slipring.Loader(data, 5, timeout=LONG_S, **grouped(**workers)) as loader:
        assert sorted(i for batch in loader for i in batch.tolist()) == list(range(60))
        live = loader.report().reads
        stats = loader.stats()
    faults = server.tells("faults")
    assert stats.remote_reads - failed(stats) == 60 and stats.remote_bytes == 60 * SIZE
    assert stats.remote_refused == faults["503"] + faults["429"] > 0
    assert stats.remote_broken > 0 and stats.remote_timeouts == stats.remote_rejected == 0
    assert stats.remote_s > 0 and stats.remote_lost_s > 0.05 * failed(stats)
    assert live["attempts"] == stats.remote_reads and live["refused"] == stats.remote_refused
    assert figures(loader.stats()) == figures(stats)  # of a closed loader


def test_torchs_loader_without_workers_counts_too(ranges):
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    data, server = ranges(fail=0.3, seed=5)
    loader = DataLoader(data, batch_size=10)
    assert len(list(loader)) == 6
    stats, faults = loader.stats(), server.tells("faults")
    assert stats.remote_reads - failed(stats) == 60
    assert stats.remote_refused == faults["503"] + faults["429"] > 0
    assert loader.report().reads["attempts"] == stats.remote_reads


def test_a_workers_counts_stay_after_its_death(ranges, tmp_path):
    data, server = ranges(kind=Deadly)
    data.marker = str(tmp_path / "dead")
    workers = slipring.Workers(on_death="respawn", start_method="fork")
    with slipring.Loader(data, 10, num_workers=1, timeout=LONG_S, workers=workers) as loader:
        assert sum(len(batch) for batch in loader) == 60
        stats = loader.stats()
    assert stats.respawns == 1
    assert stats.remote_reads == server.tells("requests")["requests"] == 62  # two samples were read again


def test_stalls_are_counted_as_timeouts_and_a_missing_file_as_rejected(ranges):
    data, server = ranges(n=12, stall=0.2, seed=1, storage={"attempts": 30, "attempt_timeout": 0.5, "timeout": 100.0})
    with slipring.Loader(data, 4, timeout=LONG_S) as loader:
        assert len(list(loader)) == 3
        assert loader.stats().remote_timeouts >= 1 and loader.stats().remote_reads >= 13
        data.url = f"{server.url}/nowhere"
        with pytest.raises(slipring.errors.RemoteError):
            next(iter(loader))
        assert loader.stats().remote_rejected == 1


def test_failures_that_take_the_time_are_the_cause_of_a_verdict(ranges):
    data, _ = ranges(fail=0.4, seed=3)
    assert data[0] == 0  # so that forked workers need not import fsspec, which takes longer than 60 reads
    with slipring.Loader(data, 4, num_workers=2, timeout=LONG_S) as loader:
        assert len(list(loader)) == 15
        report = loader.report()
    assert report.verdict.cause == "retries" and report.verdict.data_bound
    assert "remote reads failed and were repeated (refused with 429 or 5xx: " in report.verdict.sentence
    assert f"Remote reads: {report.reads['attempts']}, " in str(report)
    assert report.dict()["reads"] == report.reads


def test_a_server_that_answers_is_no_cause_and_prometheus_has_the_counts_of_all_epochs(ranges):
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest

    data, _ = ranges()
    registry = CollectorRegistry()
    with (
        slipring.Loader(data, 10, num_workers=1, timeout=LONG_S) as loader,
        prometheus(None, loaders={"train": loader}, registry=registry),
    ):
        for _ in range(2):
            assert len(list(loader)) == 6
        page, report = generate_latest(registry).decode(), loader.report()
    assert report.verdict.cause != "retries" and "Remote reads: 120, none failed; " in str(report)
    assert report.reads["bytes"] == 120 * SIZE
    assert 'slipring_remote_reads_total{loader="train"} 120.0' in page
    assert f'slipring_remote_bytes_total{{loader="train"}} {120.0 * SIZE}' in page


def test_the_first_failure_of_a_kind_and_every_tenfold_of_them_is_logged_without_credentials(ranges, caplog):
    data, _ = ranges(fail=0.5, seed=2, query="?X-Amz-Signature=hidden&part=3")
    data.url = data.url.replace("://", "://me:hidden@")
    workers = grouped(num_workers=2, start_method="thread")
    with caplog.at_level(logging.WARNING, "slipring"), slipring.Loader(data, 5, timeout=LONG_S, **workers) as loader:
        assert len(list(loader)) == 12
        stats = loader.stats()
    lines = [record.getMessage() for record in caplog.records if "are repeated" in record.getMessage()]
    expected = [10**power for count in (stats.remote_broken, stats.remote_refused) for power in range(len(str(count)))]
    assert sorted(int(line.split()[-3]) for line in lines) == sorted(expected) and len(expected) >= 3
    assert "hidden" not in caplog.text and all("part=3" in line for line in lines)
