"""slipring top: one frame and many frames, with any terminal and without one."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest

from tests.support import warm
from tests.support.inside import observing
from tests.support.processes import LONG_S, ROOT, state, until
from tests.support.scenes import Gate
from tests.support.watched import fails, run, watched

TOP = [sys.executable, "-m", "slipring", "top"]


def frame(capsys, pid, *options, columns=160):
    code, out, err = run(capsys, "top", pid, "--once", *options, columns=columns)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2, "start_method": "fork"}, {"num_workers": 2, "start_method": "thread"}],
    ids=lambda options: options["start_method"],
)
def test_a_frame_reports_rate_waiting_slots_workers_stages_and_the_verdict(capsys, options):
    with watched("running", **options) as program:
        out = frame(capsys, program.pid)
        told = json.loads(run(capsys, "top", program.pid, "--json")[1])
    assert f"loader of process {program.pid}" in out
    assert re.search(r"[\d,.]+ batches/s +[\d,.]+ MB/s +waiting \d+%", out)
    assert re.search(r"\d+ slots: ", out) and re.search(r"^consumer +", out, re.M)
    for stage in ("queued", "fetch", "ready", "waited", "step", "lease"):
        assert re.search(rf"^{stage} ", out, re.M), stage
    names = [each["name"] for each in told["participants"]]
    assert names == ["consumer", "worker 0", "worker 1"]
    assert told["batches"] > 0 and 0 <= told["waiting"] <= 1 and told["verdict"] and told["total"] > 20
    assert sum(told["states"].values()) <= told["slots"]
    for each in told["participants"][1:]:
        assert each["state"] in "RSD" and each["pid"]
    assert any(each["batches_per_s"] > 0 and each["fetch_ms"] > 0 for each in told["participants"][1:])
    assert all(each["cpu"] >= 0 for each in told["participants"])  # None would not be comparable
    (head,) = (line for line in out.splitlines() if line.startswith("who "))
    end = head.index("CPU") + len("CPU")
    rows = [line for line in out.splitlines() if re.match("consumer |worker ", line)]
    assert len(rows) == len(names) and all(re.search(r"\d%$", row[:end]) for row in rows)


def test_a_frame_has_the_parts_of_fetching_that_a_dataset_reports(capsys):
    pytest.importorskip("PIL")
    with watched("running", num_workers=1, start_method="fork", photos=True) as program:
        out = frame(capsys, program.pid)
        told = json.loads(run(capsys, "top", program.pid, "--json")[1])
    assert re.search(r"^of fetching: .*\d+% decode", out, re.M), out
    assert set(told["parts"]) == {"read", "decode", "augment", "your_code"}
    assert all(share > 0 for share in told["parts"].values()) and sum(told["parts"].values()) <= 1
    with watched("running", num_workers=1) as program:
        assert "of fetching" not in frame(capsys, program.pid)


def test_a_queue_has_a_frame_and_a_dump_too(capsys):
    with watched("queue", processes=3) as program:
        out = frame(capsys, program.pid)
        (segment,) = json.loads(run(capsys, "dump", program.pid, "--json")[1])["segments"]
    assert segment["segment"]["push"] and segment["sums"]["batches"] == 4
    assert program.pid in {each["pid"] for each in segment["participants"]}
    assert f"queue of process {program.pid}" in out and "1 ready" in out
    assert re.search(r"^participant \d+ +", out, re.M)


def test_a_hung_sample_and_a_stopped_job_are_seen(capsys, tmp_path):
    with Gate(tmp_path / "gate") as gate, watched("hung", gate=gate.path, index=77, num_workers=2, n=400) as program:
        pid = gate.arrived()
        os.kill(program.pid, signal.SIGSTOP)
        until(lambda: state(program.pid) == "T", "it has stopped")
        out = frame(capsys, program.pid)
        told = json.loads(run(capsys, "top", program.pid, "--json")[1])
        os.kill(program.pid, signal.SIGCONT)
        gate.open()
        assert program.line()["done"]
    assert told["participants"][0]["name"] == "consumer" and told["participants"][0]["cpu"] == 0
    (line,) = (line for line in out.splitlines() if "reads index 77" in line)
    assert str(pid) in line
    assert "stopped: " in next(line for line in out.splitlines() if line.startswith("consumer"))


# A stopped consumer does not reap its worker, but a fork server does.
@pytest.mark.parametrize(("method", "left", "mark"), [("fork", "Z", "dead: "), ("forkserver", "", "gone: ")])
def test_a_worker_that_was_killed_is_seen_to_be_dead(capsys, method, left, mark):
    with watched("held", num_workers=2, start_method=method) as program:
        os.kill(program.pid, signal.SIGSTOP)  # so that it does not handle the death
        until(lambda: state(program.pid) == "T", "it has stopped")
        victim = program.told["workers"][1]
        os.kill(victim, signal.SIGKILL)
        until(lambda: state(victim) == left, "it is dead")
        out = frame(capsys, program.pid)
        os.kill(program.pid, signal.SIGCONT)
    assert mark in next(line for line in out.splitlines() if line.startswith("worker 1"))


def test_without_a_pid_the_only_job_is_taken_and_of_several_one_must_be_chosen(capsys, monkeypatch):
    with watched("running", num_workers=1) as one, watched("held", num_workers=1) as other:
        monkeypatch.setattr(observing("jobs"), "pids", lambda: [one.pid, other.pid])
        said = fails(capsys, "top", "--once", code=2)
        assert "give the PID of one" in said and f"{one.pid} (" in said and f"{other.pid} (" in said
        monkeypatch.setattr(observing("jobs"), "pids", lambda: [one.pid])
        code, out, _ = run(capsys, "top", "--once")
        assert code == 0 and f"of process {one.pid}" in out
    monkeypatch.setattr(observing("jobs"), "pids", lambda: [])
    assert "there is no job of slipring's" in fails(capsys, "top", "--once")


def test_of_several_loaders_one_can_be_chosen(capsys):
    with watched("several", n=2) as program:
        assert "segment 1 of 2" in frame(capsys, program.pid)
        assert "segment 2 of 2" in frame(capsys, program.pid, "--segment", "2")
        assert "the job has 2" in fails(capsys, "top", program.pid, "--segment", "3", code=2)


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_segment_that_ends_while_it_is_watched_ends_the_command(end):
    with watched("held", num_workers=1) as program:
        command = [*TOP, str(program.pid), "--interval", "0.05"]
        top = warm.Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert "slipring top" in top.stdout.readline()
        if end == "close":
            program.say("close")
            assert program.line()["closed"]
        else:
            program.kill()
        _out, err = top.communicate()
    said = {"kill": "ended", "close": "closed the segment"}[end]
    assert (top.returncode, err) == (1, f"slipring top: process {program.pid} has {said}\n")


@pytest.mark.parametrize("command", ["top", "dump", "trace"])
def test_a_process_that_is_no_job_is_refused_in_one_line(capsys, command, tmp_path):
    options = ["-o", tmp_path / "run.json"] if command == "trace" else []
    with watched("nothing") as program:
        assert "has no segment of slipring's open" in fails(capsys, command, program.pid, *options)
    assert f"there is no process {program.pid}: it has ended" in fails(capsys, command, program.pid, *options)
    assert not os.listdir(tmp_path)


def test_without_rich_it_says_what_to_install(capsys, monkeypatch):
    for name in ("rich", "rich.console", "rich.live"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "slipring._cli.view", raising=False)
    with watched("held", num_workers=1) as program:
        for command in (["top", program.pid, "--once"], ["ps"], ["dump", program.pid]):
            code, _, err = run(capsys, *command)
            assert code == 1 and err.count("\n") == 1 and err.endswith("pip install slipring[monitor]\n")
            assert json.loads(run(capsys, *command, "--json")[1])


# ---- terminals


class Terminal:
    """A command in its own terminal, with or without a size."""

    def __init__(self, arguments, columns, rows):
        self.master, inner = pty.openpty()
        ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {name: os.environ[name] for name in os.environ if name not in ("COLUMNS", "LINES")}
        self.process = warm.Program(
            [*TOP, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**environment, "TERM": "xterm-256color"},
            cwd=ROOT,
            start_new_session=True,
        )
        os.close(inner)
        self.said = b""

    def until(self, text):
        """Read until `text` comes; return the output."""
        while text not in self.said:
            assert select.select([self.master], [], [], LONG_S)[0], self.said
            try:
                more = os.read(self.master, 1 << 16)
            except OSError:
                raise AssertionError(f"it has ended: {self.said.decode()}") from None
            self.said += more
        return self.said

    def end(self):
        """Read until the command has ended; return its exit code."""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while more := os.read(self.master, 1 << 16):
                self.said += more
        os.close(self.master)
        return self.process.wait()


@pytest.mark.parametrize(
    ("columns", "rows", "number", "code"),
    [(120, 40, signal.SIGINT, 130), (0, 0, signal.SIGINT, 130), (100, 30, signal.SIGTERM, 128 + signal.SIGTERM)],
)
def test_on_a_terminal_the_whole_screen_is_used_and_given_back_at_a_signal(columns, rows, number, code):
    with watched("running", num_workers=2) as program:
        terminal = Terminal([str(program.pid), "--interval", "0.1"], columns, rows)
        terminal.until(b"\x1b[?1049h")
        terminal.until(b"batches/s")
        terminal.process.send_signal(number)
        assert terminal.end() == code
    assert terminal.said.rstrip().endswith((b"\x1b[?1049l", b"\x1b[?25h"))
    assert b"\x1b[?1049l" in terminal.said and b"Traceback" not in terminal.said


def test_on_a_small_screen_workers_are_seen(capsys):
    with watched("held", num_workers=2) as program:
        out = frame(capsys, program.pid, columns=40)
    assert max(map(len, out.splitlines())) <= 40 and "w1" in out and "batches/s" in out


def test_if_the_job_ends_the_terminal_is_restored_before_the_reason_is_reported():
    with watched("held", num_workers=1) as program:
        terminal = Terminal([str(program.pid), "--interval", "0.1"], 100, 30)
        terminal.until(b"batches/s")
        program.kill()
        assert terminal.end() == 1
    after = terminal.said.split(b"\x1b[?1049l")[-1]
    assert f"slipring top: process {program.pid} has ended".encode() in after
