"""slipring ps."""

import json
import os
import subprocess

from tests.support.inside import observing, view
from tests.support.processes import descendants
from tests.support.watched import run, watched


def only(monkeypatch, *programs):
    """Hide the processes of other tests, because some of them cannot be watched."""
    ours = [pid for program in programs for pid in (program.pid, *descendants(program.pid))]
    monkeypatch.setattr(observing("jobs"), "pids", lambda: ours)


def test_a_loader_and_a_queue_are_listed_with_their_figures(capsys, monkeypatch):
    loader = watched("running", start=subprocess.Popen, num_workers=2)
    with loader as loader, watched("queue", processes=3) as queue:
        only(monkeypatch, loader, queue)
        code, out, err = run(capsys, "ps")
        told = {row["pid"]: row for row in json.loads(run(capsys, "ps", "--json")[1])["jobs"]}
        whole = run(capsys, "ps", "--arguments", columns=300)[1]
    assert code == 0 and not err
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert lines["PID"].split()[1:] == [
        "rank", "segment", "kind", "workers", "slots", "batches", "batches/s", "MB/s", "waiting", "job",
    ]  # fmt: skip
    assert "loader" in lines[str(loader.pid)] and lines[str(loader.pid)].endswith("-m tests.support.watched")
    assert "tests.support.watched running" in whole
    assert "queue" in lines[str(queue.pid)] and "over the last 5 s" in out
    row = told[loader.pid]
    assert row["command"].endswith("-m tests.support.watched") and row["name"].endswith(row["command"])
    assert (row["kind"], row["workers"]) == ("loader", 2) and row["batches"] >= 20
    assert row["batches_per_s"] > 0 and row["bytes_per_s"] > 0 and 0 <= row["waiting"] <= 1
    assert set(loader.told["workers"]) < set(row["processes"])
    row = told[queue.pid]
    assert (row["kind"], row["slots"], row["batches"]) == ("queue", 8, 4) and row["waiting"] is None


def test_if_there_are_none_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(observing("jobs"), "pids", lambda: [os.getppid()])
    assert run(capsys, "ps") == (0, "no jobs\n", "")
    code, out, _ = run(capsys, "ps", "--json")
    assert code == 0 and json.loads(out)["jobs"] == []


def test_a_job_of_another_version_is_reported_with_the_others(capsys, tmp_path):
    record = tmp_path / "record"
    with watched("held", {"SLIPRING_RECORD": str(record)}, num_workers=1):
        whole = bytearray(record.read_bytes())
    whole[8:12] = (999).to_bytes(4, "little")
    record.write_bytes(whole)
    with watched("opened", path=str(record)) as other, watched("held", num_workers=1) as program:
        code, out, err = run(capsys, "ps")
    assert code == 0 and str(program.pid) in out
    assert f"process {other.pid} cannot be watched: it speaks version 999" in err


def test_a_tables_numbers_are_whole_and_its_last_column_is_folded(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "12")
    view.print_table(("PID", "sum", "job"), [("12345678", "9" * 12, "a job with a name")], left=("job",))
    head, line, *folded = capsys.readouterr().out.splitlines()
    assert head.split() == ["PID", "sum", "job"]
    assert line.split()[:2] == ["12345678", "9" * 12]
    assert " ".join([*line.split()[2:], *map(str.strip, folded)]) == "a job with a name"
