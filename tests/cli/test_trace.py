"""slipring trace: the format that Perfetto needs, and completeness."""

import collections
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support import warm
from tests.support.inside import RECORD, Recording, attach
from tests.support.processes import ROOT, state, until
from tests.support.scenes import Gate
from tests.support.watched import fails, run, watched

TRACE = [sys.executable, "-m", "slipring", "trace"]


def traced(pid, path, seconds=0.1):
    """Return the checked events of a trace of an idle job."""
    options = [str(pid), "--seconds", str(seconds), "-o", path, "--json"]
    done = warm.run([*TRACE, *options], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and re.fullmatch(r"tracing process \d+ for \S+ s\n", done.stderr)
    events, lost = written(path, done.stdout)
    assert lost == 0
    return events


def traced_running(program, path, batches=100):
    """Return the checked events of a trace of so many batches, and how many batches are missing."""
    trace = began(program, path, "--json")
    program.say(batches)
    assert program.line()["took"] == str(batches)
    trace.send_signal(signal.SIGINT)
    out, err = trace.communicate()
    assert (trace.returncode, err) == (130, "")
    return written(path, out)


def written(path, said):
    """Return the checked events in a file, and how many batches were lost."""
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rt") as file:
        trace = json.load(file)
    told = json.loads(said)
    assert told["events"] == len(trace["traceEvents"])
    check(trace["traceEvents"])
    return trace["traceEvents"], told["lost"]


def check(events):
    """Check the format: names for all tracks, slices that do not overlap, arrows with both ends.

    Slices that may overlap (b, e) are not allowed: chrome://tracing shows each name of these in its own row.
    """
    named, tracks, arrows = set(), collections.defaultdict(list), collections.defaultdict(list)
    for event in events:
        kind = event["ph"]
        assert kind in "MXstf" and isinstance(event["pid"], int), event
        if kind == "M":
            if event["name"].endswith("_name"):
                assert isinstance(event["args"]["name"], str)
                named.add((event["pid"], event.get("tid")))
            continue
        assert isinstance(event["tid"], int) and event["ts"] > 0 and event["name"], event
        if kind == "X":
            assert event["dur"] >= 0, event
            tracks[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
        else:
            arrows[event["cat"], event["id"]].append((kind, event["ts"], event["pid"], event["tid"]))
    for track, slices in tracks.items():
        assert track in named and (track[0], None) in named
        end = 0
        for begin, duration in sorted(slices):
            assert begin >= end - 0.0015, track  # three decimals
            end = begin + duration
    for ends in arrows.values():
        assert sorted(kind for kind, *_ in ends) in (["f", "s", "t"], ["f", "s"])
        at = {kind: ts for kind, ts, *_ in ends}
        assert at["s"] <= at.get("t", at["f"]) + 0.001 and at.get("t", at["s"]) <= at["f"] + 0.001
        for _, ts, *track in ends:  # each end of an arrow is at a slice
            assert any(begin - 0.0015 <= ts <= begin + dur + 0.0015 for begin, dur in tracks[tuple(track)]), ends


def names(events):
    return {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}


def slices(events, begins):
    return [event for event in events if event["ph"] == "X" and event["name"].startswith(begins)]


def test_a_trace_has_tracks_slices_and_arrows_of_every_batch(tmp_path):
    with watched("asked", num_workers=2, batch_size=256) as program:
        events, lost = traced_running(program, tmp_path / "run.json")
        workers = program.told["workers"]
    told = names(events)
    assert {"consumer", "slot 0"} <= told
    assert {f"worker {n} (pid {pid})" for n, pid in enumerate(workers)} <= told
    made = slices(events, "fetch ")
    assert len(made) > 10
    for event in made:
        args = event["args"]
        assert args["first_index"] == 256 * args["seq"] and args["rows"] == 256 and args["epoch"] == 0
        assert event["name"] == f"fetch {args['seq']} [{args['first_index']} + 256]"
    done = [event for event in made if event["args"]["bytes"]]
    assert any(event["args"].get("slowest", {}).get("ms", 0) > 0 for event in done)
    seqs = sorted(event["args"]["seq"] for event in made)
    assert len(seqs) == len(set(seqs)) == seqs[-1] - seqs[0] + 1 - lost  # no batch occurs twice
    for kind in ("collate ", "wait for ", "step", "task ", "being made: ", "ready ", "leased "):
        assert len(slices(events, kind)) > 5, kind
    assert sum(event["ph"] == "f" for event in events) > 10
    assert not slices(events, "copy ")


def test_copies_to_a_device_have_a_track(tmp_path):
    with watched("asked", num_workers=1, batch_size=64, copies=True) as program:
        events, _ = traced_running(program, tmp_path / "run.json.gz")
    assert (tmp_path / "run.json.gz").read_bytes()[:2] == b"\x1f\x8b"  # compressed, by its name
    assert os.listdir(tmp_path) == ["run.json.gz"]
    assert "copies to the device" in names(events)
    assert slices(events, "copy ")[0]["dur"] == pytest.approx(100)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "start_method": "thread"},
        {"num_workers": 2, "chunk_size": 64},
        {"num_workers": 1, "start_method": "fork", "photos": True},
    ],
)
def test_each_kind_of_loader_is_traced(tmp_path, options):
    if "photos" in options:
        pytest.importorskip("PIL")
    with watched("asked", batch_size=16, **options) as program:
        events, _ = traced_running(program, tmp_path / "run.json")
    done = [event["args"] for event in slices(events, "fetch ") if event["args"]["bytes"]]
    assert len(done) > 5
    for args in done if "photos" in options else ():
        assert all(args[f"{name}_ms"] > 0 for name in ("read", "decode", "augment", "your_code")), args
        assert "resize_ms" not in args


def test_a_queue_is_traced_from_put_to_get(tmp_path):
    with watched("queue", processes=2) as program:
        events = traced(program.pid, tmp_path / "run.json")
    assert slices(events, "ready ")  # the ready batch
    assert "consumer" not in names(events)


def test_a_hung_worker_is_seen_in_the_trace(tmp_path):
    with Gate(tmp_path / "gate") as gate, watched("hung", gate=gate.path, index=77, num_workers=1, n=400) as program:
        gate.arrived()
        os.kill(program.pid, signal.SIGSTOP)
        until(lambda: state(program.pid) == "T", "it has stopped")
        events = traced(program.pid, tmp_path / "run.json", 0.3)
        os.kill(program.pid, signal.SIGCONT)
        gate.open()
        assert program.line()["done"]
    last = max(slices(events, "fetch "), key=lambda event: event["ts"])
    assert last["args"]["first_index"] == 76 and last["dur"] >= 0.3e6 and last["args"]["bytes"] == 0


# ---- the recorded batches


class Ring:
    """A recorder of 1024 records, which a test fills."""

    def __init__(self):
        self.recorded, self.missing = 0, set()

    def segment_info(self):
        return {"recorded": self.recorded, "push": False}

    def records(self, first):
        numbers = range(max(first, self.recorded - 1023, 1), self.recorded + 1)
        made = np.zeros(1024, RECORD)
        kept = [number for number in numbers if number not in self.missing]
        made["number"][: len(kept)] = kept
        return made[: len(kept)]


def numbers(recording):
    return [int(n) for part in recording._kept for n in part["number"]]


def test_records_between_two_looks_are_kept_once_and_lost_ones_are_counted():
    job = SimpleNamespace(watch=Ring())
    job.watch.recorded = 7
    recording = Recording(job)
    for step in (0, 1, 500, 1024, 3):
        job.watch.recorded += step
        recording.poll()
    assert numbers(recording) == list(range(8, 8 + 1528)) and recording.lost == 0
    job.watch.recorded += 1030
    recording.poll()
    assert recording.lost == 6 and numbers(recording)[-1] == job.watch.recorded


def test_a_record_that_is_being_written_is_waited_for_and_one_that_stays_away_is_lost():
    job = SimpleNamespace(watch=Ring())
    recording = Recording(job)
    job.watch.recorded, job.watch.missing = 10, {8}
    recording.poll()
    assert numbers(recording) == list(range(1, 8)) and recording.lost == 0
    job.watch.missing = set()
    recording.poll()
    assert numbers(recording) == list(range(1, 11)) and recording.lost == 0
    job.watch.missing = {12}
    for _ in range(3):
        job.watch.recorded += 200
        recording.poll()
    assert recording.lost == 1 and numbers(recording)[-1] == 610


def test_every_batch_of_a_fast_job_is_there_once_or_is_counted_as_lost():
    with watched("running", num_workers=1, batch_size=1) as program:
        (job,) = attach(program.pid)
        recording = Recording(job)
        end = job.watch.segment_info()["recorded"] + 2000
        while job.watch.segment_info()["recorded"] < end:
            signal.sigtimedwait([], recording.poll())
        recording.end()
    table = recording.table()
    seqs = np.unique(table["seq"])
    assert len(seqs) == len(table) > 100
    assert int(seqs[-1]) - int(seqs[0]) + 1 == len(seqs) + recording.lost


# ---- ends


def began(program, path, *options):
    """Start a trace that would take ten minutes, and yield it once it runs."""
    trace = warm.Program(
        [*TRACE, str(program.pid), "--seconds", "600", "-o", path, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert trace.stderr.readline().startswith("tracing process")
    return trace


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_job_that_ends_ends_the_trace_which_is_written(tmp_path, end):
    path = tmp_path / "run.json"
    with watched("held", num_workers=1) as program:
        trace = began(program, path)
        if end == "kill":
            program.kill()
        else:
            program.say("close")
            assert program.line()["closed"]
        out, err = trace.communicate()
    assert trace.returncode == 0 and re.fullmatch(r"the job has ended, [\d.]+ s after the beginning\n", err)
    assert re.fullmatch(rf"{path}: \d+ batches, \d+ events, [\d.]+ MB\n", out)
    check(json.loads(path.read_text())["traceEvents"])


def test_a_trace_that_cannot_be_written_is_refused_in_one_line_and_leaves_nothing(capsys, tmp_path):
    with watched("held", num_workers=1) as program:
        assert "No such file" in fails(capsys, "trace", program.pid, "-o", tmp_path / "none" / "run.json")
        assert "Is a directory" in fails(capsys, "trace", program.pid, "-o", tmp_path)
        for seconds in ("0", "-1", "nan", "x"):
            assert run(capsys, "trace", program.pid, f"--seconds={seconds}")[0] == 2
            assert run(capsys, "top", program.pid, f"--interval={seconds}")[0] == 2
        assert run(capsys, "dump", program.pid, "-n", "-1")[0] == 2
    assert os.listdir(tmp_path) == []


# ---- the output file


def test_a_link_stays_a_link_and_other_files_beside_it_stay(tmp_path):
    target, link, other = (tmp_path / name for name in ("target", "run.json", "run.json.part"))
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    other.write_text("mine")
    with watched("held", num_workers=1) as program:
        traced(program.pid, link, 0.05)
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o640
    assert other.read_text() == "mine" and len(os.listdir(tmp_path)) == 3


def test_a_fifo_is_written_to_and_stays(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with watched("held", num_workers=1) as program:
        command = [*TRACE, str(program.pid), "--seconds", "0.05", "-o", path]
        trace = warm.Program(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
        check(json.loads(path.read_text())["traceEvents"])
        assert f"{path}: " in trace.communicate()[0] and trace.returncode == 0
    assert path.is_fifo() and os.listdir(tmp_path) == ["fifo"]


def test_a_line_stands_for_the_standard_output(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with watched("held", num_workers=1) as program:
        code, out, err = run(capsys, "trace", program.pid, "--seconds", "0.05", "-o", "-")
        both = run(capsys, "trace", program.pid, "--seconds", "0.05", "-o", "-", "--json")
    assert code == 0 and re.search(r"^-: \d+ batch.*events", err, re.M)
    check(json.loads(out)["traceEvents"])
    assert os.listdir(tmp_path) == []
    assert both[0] == 2 and "leave one out" in both[2]


def test_a_signal_that_ends_it_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    with watched("held", num_workers=1) as program:
        trace = began(program, path)
        trace.send_signal(signal.SIGHUP)
        out, err = trace.communicate()
    assert (trace.returncode, out, err) == (128 + signal.SIGHUP, "", "")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["run.json"]


def test_if_there_is_no_room_the_file_is_named_and_stays_as_it_was(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    with watched("held", num_workers=1, take=100) as program:
        line = f"ulimit -f 0; exec {' '.join(TRACE)} {program.pid} --seconds 0.05 -o {path}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT)
    told, said = done.stderr.splitlines()
    assert done.returncode == 1 and told.startswith("tracing")
    assert said == f"slipring trace: {path}: File too large"
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["run.json"]
