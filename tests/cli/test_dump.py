"""slipring dump: past batches, and current activities."""

import json
import os
import re

import pytest

from tests.support.inside import Activity
from tests.support.processes import until, wait_dead
from tests.support.scenes import Gate
from tests.support.watched import fails, run, watched

HUNG = 1234  # row 2 of the batch that starts with 1232


def dumped(capsys, what, *options):
    """Return the only segment of a dump."""
    code, out, err = run(capsys, "dump", what, "--json", *options)
    assert (code, err) == (0, "")
    (segment,) = json.loads(out)["segments"]
    return segment


def participant(segment, name):
    return next(each for each in segment["participants"] if each["name"] == name)


def waiting(segment):
    """Return the segment if its consumer waits for the batch that hangs or for workers, else None."""
    consumer = segment["participants"][0]
    return segment if consumer["what"] == "waiting for workers" or consumer.get("seq") == HUNG // 4 else None


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("thread", 2)])
def test_of_a_hung_dataset_worker_process_index_and_batch_are_named(capsys, tmp_path, method, workers):
    with Gate(tmp_path / "gate") as gate:
        options = {"gate": gate.path, "index": HUNG, "num_workers": workers, "start_method": method, "n": 4000}
        with watched("hung", **options) as program:
            pid = gate.arrived()
            code, out, _ = run(capsys, "dump", program.pid)
            segment = until(lambda: waiting(dumped(capsys, program.pid)), "the consumer waits")
            gate.open()
            assert program.line()["done"]
    assert code == 0
    (hangs,) = (line for line in out.splitlines() if f"reads index {HUNG} for" in line)
    assert f", pid {pid}:" in hangs
    assert f"(batch {HUNG // 4}, epoch 0, 4 rows, from index {HUNG - HUNG % 4} on)" in hangs
    (it,) = (each for each in segment["participants"] if each["what"] == "reading" and each["index"] == HUNG)
    assert it["name"] in ("worker 0", "worker 1")
    assert it["pid"] == pid and it["since_s"] >= 0
    assert (it["seq"], it["first_index"], it["row"]) == (HUNG // 4, 1232, 2)
    consumer = participant(segment, "consumer")
    assert (consumer["what"], consumer["seq"]) == ("waiting for a batch", HUNG // 4)


def test_collating_is_timed_from_when_the_samples_had_been_read(capsys, tmp_path):
    with (
        Gate(tmp_path / "reads") as reads,
        Gate(tmp_path / "collates") as collates,
        watched("collating", reads=reads.path, collates=collates.path) as program,
    ):
        reads.arrived()
        until(lambda: participant(dumped(capsys, program.pid), "worker 0")["since_s"] > 0.2, "it reads for a while")
        reads.open()
        collates.arrived()
        segment = dumped(capsys, program.pid)
        collates.open()
        assert program.line()["done"]
    it, (batch,) = participant(segment, "worker 0"), segment["batches"]
    since_claim = (segment["at_ns"] - batch["claimed_at"]) / 1e9
    assert it["what"] == "collating" and 0 <= it["since_s"] < since_claim - 0.15


def test_the_last_batches_are_reported_with_their_times_and_indices(capsys):
    with watched("held", num_workers=2, take=30) as program:
        segment = dumped(capsys, program.pid, "-n", "8")
        code, out, _ = run(capsys, "dump", program.pid, "-n", "8")
        assert len(dumped(capsys, program.pid, "-n", "0")["batches"]) == 0
        assert "the last batch; ms" in run(capsys, "dump", program.pid, "-n", "1")[1]
    assert code == 0 and "the last 8 batches" in out
    assert len(segment["batches"]) == 8 and segment["sums"]["batches"] >= 30
    for batch in segment["batches"]:
        assert batch["first_index"] == 4 * batch["seq"] and batch["rows"] == 4
        if batch["number"]:
            assert 0 < batch["dispatched_at"] <= batch["claimed_at"] <= batch["published_at"]
            assert batch["participant"] in (1, 2) and batch["bytes"] > 0 and batch["fetch_ns"] > 0


def test_all_segments_of_a_process_are_reported(capsys):
    with watched("several", n=2) as program:
        segments = json.loads(run(capsys, "dump", program.pid, "--json")[1])["segments"]
        out = run(capsys, "dump", program.pid)[1]
    assert len(segments) == out.count("what they do now") == 2


# ---- files


@pytest.fixture
def crashed(tmp_path):
    """The record file of a job that was killed while a worker hung, and this worker's pid."""
    record = tmp_path / "record"
    with Gate(tmp_path / "gate") as gate:
        options = {"gate": gate.path, "index": HUNG, "num_workers": 2, "n": 4000}
        with watched("hung", {"SLIPRING_RECORD": str(record)}, **options) as program:
            pid = gate.arrived()
            program.kill()
            wait_dead(pid)
    return record, pid


def test_the_file_of_a_crashed_job_shows_its_last_activities(capsys, crashed):
    record, pid = crashed
    code, out, _ = run(capsys, "dump", record)
    assert code == 0 and "what they were doing at the end:" in out
    times = re.findall(r"was .* for ([\w ]*?)[\d.]+ (?:ms|s|min)\b", out)
    assert set(times) <= {"at least "} and "before the newest stamp:" in out
    (hung,) = (line for line in out.splitlines() if "was reading row 2 of those from index 1232 on" in line)
    assert f", pid {pid}:" in hung
    segment = dumped(capsys, record)
    assert segment["ended"] and participant(segment, "consumer")["state"] in ("", "Z")
    assert segment["sums"]["batches"] >= HUNG // 4 - 10
    stamps = [batch[name] for batch in segment["batches"] for name in ("dispatched_at", "published_at", "taken_at")]
    assert max(stamps) <= segment["at_ns"]
    (it,) = (each for each in segment["participants"] if each["pid"] == pid)
    assert it["what"] == "reading" and 0 <= it["since_s"] < 3600  # from this file's times, not this machine's clock


def test_how_long_something_had_lasted_at_the_end_is_reported_as_the_least():
    hung = Activity("worker 0", 7, "", "reading", since_s=0.00508, row=3)
    assert hung.sentence(was=True) == "was reading row 3, for at least 5.08 ms"
    assert hung.sentence() == "gone: reads row 3 for 5.08 ms"
    assert Activity("consumer", 7, "", "in its step", since_s=8e-6).sentence(was=True) == "was in its step"


def test_the_file_of_a_running_job_shows_its_activities(capsys, tmp_path):
    record = tmp_path / "record"
    with watched("held", {"SLIPRING_RECORD": str(record)}, num_workers=1) as program:
        segment = dumped(capsys, record)
        assert not segment["ended"] and participant(segment, "consumer")["pid"] == program.pid
        # Its workers may still be making batches ahead.
        until(lambda: dumped(capsys, program.pid)["batches"] == dumped(capsys, record)["batches"], "both tell the same")


def test_files_that_are_none_are_refused_in_one_line(capsys, tmp_path, crashed):
    whole = crashed[0].read_bytes()
    path = tmp_path / "file"
    for text in (b"", b"SLIPRING", whole[:4000], whole[:5000], whole[: len(whole) - 1], os.urandom(100_000)):
        path.write_bytes(text)
        assert "is no slipring segment or record file, or it is damaged or cut short" in fails(capsys, "dump", path)
    path.write_bytes(whole[:8] + (999).to_bytes(4, "little") + whole[12:])
    assert "it speaks version 999 of slipring's protocol" in fails(capsys, "dump", path)
    os.unlink(path)
    assert f"there is no file {path}" in fails(capsys, "dump", path, code=2)
    assert fails(capsys, "dump", tmp_path)
    os.mkfifo(path)
    assert fails(capsys, "dump", path)


def test_a_file_whose_inside_is_rubbish_ends_without_a_traceback(capsys, tmp_path, crashed):
    whole = bytearray(crashed[0].read_bytes())
    path = tmp_path / "file"
    rubbish = os.urandom(len(whole))
    for begin, end in ((128, 576), (4096, 4800), (4096, len(whole)), (len(whole) // 2, len(whole))):
        path.write_bytes(whole[:begin] + rubbish[begin:end] + whole[end:])
        code, _, err = run(capsys, "dump", path)
        assert code in (0, 1) and err.count("\n") <= 1 and "please report" not in err, err
        code, _, err = run(capsys, "dump", path, "--json")
        assert code in (0, 1) and "please report" not in err, err
