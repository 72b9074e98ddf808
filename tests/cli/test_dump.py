"""slipring dump: past batches, and current activities."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.support.inside import Activity
from tests.support.parts import slow
from tests.support.processes import ROOT, state, until, wait_dead
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


@pytest.mark.parametrize("method", ["fork", "spawn", slow("forkserver"), "thread"])
def test_of_a_hung_dataset_worker_process_index_and_batch_are_named(capsys, tmp_path, method):
    with Gate(tmp_path / "gate") as gate:
        options = {"gate": gate.path, "index": HUNG, "num_workers": 2, "start_method": method, "n": 4000}
        with watched("hung", **options) as program:
            pid = gate.arrived()
            code, out, _ = run(capsys, "dump", program.pid)
            segment = dumped(capsys, program.pid)
            gate.open()
            assert program.line()["done"]
    assert code == 0
    (hangs,) = (line for line in out.splitlines() if f"reads index {HUNG} for" in line)
    assert f", pid {pid}:" in hangs
    assert f"(batch {HUNG // 4}, epoch 0, 4 rows, from index {HUNG - HUNG % 4} on)" in hangs
    (it,) = (each for each in segment["participants"] if each["what"] == "reading" and each["index"] == HUNG)
    assert it["name"] in ("worker 0", "worker 1") and it["pid"] == pid and it["since_s"] >= 0
    assert (it["seq"], it["first_index"], it["row"]) == (HUNG // 4, 1232, 2)


def test_a_hang_without_workers_is_named_too(capsys, tmp_path):
    with Gate(tmp_path / "gate") as gate, watched("hung", gate=gate.path, index=HUNG, n=4000) as program:
        assert gate.arrived() == program.pid
        segment = dumped(capsys, program.pid)
        gate.open()
        assert program.line()["done"]
    it, consumer = participant(segment, "made by the loop"), participant(segment, "consumer")
    assert it["index"] == HUNG and it["pid"] == program.pid
    assert (consumer["what"], consumer["seq"]) == ("waiting for a batch", HUNG // 4)
    assert consumer["since_s"] >= it["since_s"] > 0


def waiting(segment):
    """Return the segment if its consumer waits, else None."""
    return None if segment["participants"][0]["what"] == "in its step" else segment


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_workers_that_hang_at_their_start_are_named_with_their_waiting_time(capsys, tmp_path, method):
    options = {"num_workers": 2, "start_method": method}
    with Gate(tmp_path / "gate") as gate, watched("beginning", gate=gate.path, **options) as program:
        gate.arrived()
        gate.arrived()
        segment = until(lambda: waiting(dumped(capsys, program.pid)), "the consumer waits")
        gate.open(2)
        assert program.line()["done"]
    consumer, *workers = segment["participants"]
    assert consumer["what"] == "waiting for workers" and "waits for its workers to begin" in consumer["sentence"]
    assert [each["what"] for each in workers] == ["not begun", "not begun"]
    assert all(each["since_s"] > 0 for each in segment["participants"])
    assert consumer["since_s"] == max(each["since_s"] for each in workers)


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


def test_the_consumer_is_seen_to_wait_for_the_batch_that_hangs(capsys, tmp_path):
    with Gate(tmp_path / "gate") as gate, watched("hung", gate=gate.path, index=HUNG, num_workers=2, n=4000) as program:
        gate.arrived()
        until(
            lambda: (
                participant(dumped(capsys, program.pid), "consumer")["what"] == "waiting for a batch"
                and participant(dumped(capsys, program.pid), "consumer")["seq"] == HUNG // 4
            ),
            "the consumer waits for it",
        )
        gate.open()
        assert program.line()["done"]


def test_a_stopped_job_is_reported_without_its_help(capsys):
    with watched("held", num_workers=2) as program:
        everybody = [program.pid, *program.told["workers"]]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
            until(lambda pid=pid: state(pid) == "T", f"{pid} has stopped")
        segment = dumped(capsys, program.pid)
        out = run(capsys, "dump", program.pid)[1]
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
    assert [each["state"] for each in segment["participants"]] == ["T", "T", "T"]
    assert out.count(": stopped: ") == 3


def test_a_workers_pid_gives_the_same_as_its_jobs(capsys, tmp_path):
    with watched("held", num_workers=2) as program:
        one, other = (dumped(capsys, pid) for pid in (program.pid, program.told["workers"][1]))
    assert one["title"] == other["title"] and one["segment"]["total"] == other["segment"]["total"]
    assert [each["pid"] for each in one["participants"]] == [each["pid"] for each in other["participants"]]


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
        told = json.loads(run(capsys, "dump", program.pid, "--json")[1])["segments"]
        out = run(capsys, "dump", program.pid)[1]
    assert len(told) == 2 and out.count("what they do now") == 2


def test_a_queue_is_reported_by_its_participants(capsys):
    with watched("queue", processes=3) as program:
        segment = dumped(capsys, program.pid)
    assert segment["segment"]["push"] and segment["sums"]["batches"] == 4
    pids = {each["pid"] for each in segment["participants"]}
    assert pids <= {program.pid, *program.told["children"]} and program.pid in pids


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


def test_how_long_something_had_lasted_at_the_end_is_reported_as_the_least():
    hung = Activity("worker 0", 7, "", "reading", since_s=0.00508, row=3)
    assert hung.sentence(was=True) == "was reading row 3, for at least 5.08 ms"
    assert hung.sentence() == "gone: reads row 3 for 5.08 ms"
    assert Activity("consumer", 7, "", "in its step", since_s=8e-6).sentence(was=True) == "was in its step"


def test_times_of_a_file_are_reported_by_its_newest_stamp(capsys, crashed):
    record, pid = crashed
    segment = dumped(capsys, record)
    stamps = [batch[name] for batch in segment["batches"] for name in ("dispatched_at", "published_at", "taken_at")]
    assert max(stamps) <= segment["at_ns"]
    (it,) = (each for each in segment["participants"] if each["pid"] == pid)
    assert it["what"] == "reading"
    assert 0 <= it["since_s"] < 3600  # from this file's times, not from this machine's clock


def test_the_file_of_a_running_job_shows_its_activities(capsys, tmp_path):
    record = tmp_path / "record"
    with watched("held", {"SLIPRING_RECORD": str(record)}, num_workers=1) as program:
        segment = dumped(capsys, record)
        assert not segment["ended"] and participant(segment, "consumer")["pid"] == program.pid
        # Its workers may still be making batches ahead.
        until(lambda: dumped(capsys, program.pid)["batches"] == dumped(capsys, record)["batches"], "both tell the same")


def test_a_hung_index_is_named_also_where_the_controls_are_in_a_file(capsys, tmp_path):
    with Gate(tmp_path / "gate") as gate:
        options = {"gate": gate.path, "index": HUNG, "num_workers": 2, "n": 4000}
        with watched("hung", {"SLIPRING_RECORD": str(tmp_path / "record")}, **options) as program:
            gate.arrived()
            assert f"reads index {HUNG} for" in run(capsys, "dump", program.pid)[1]
            gate.open()
            assert program.line()["done"]


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


def test_a_process_that_is_no_job_is_refused_in_one_line(capsys):
    with watched("nothing") as program:
        assert "has no segment of slipring's open" in fails(capsys, "dump", program.pid)
    assert f"there is no process {program.pid}: it has ended" in fails(capsys, "dump", program.pid)


def test_a_number_of_batches_below_0_is_a_wrong_argument(capsys):
    code, out, err = run(capsys, "dump", "1", "-n", "-1")
    assert code == 2 and not out and "-n" in err


def test_a_reader_of_only_the_beginning_ends_the_command_quietly():
    with watched("held", num_workers=1) as program:
        shell = f"{sys.executable} -m slipring dump {program.pid} -n 1000 | head -c 10"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == "" and len(done.stdout) == 10
