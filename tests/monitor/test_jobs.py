"""Jobs are found by the open files of their processes."""

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import slipring
from tests.support.inside import NoJob, attach, jobs, observing
from tests.support.processes import ROOT, state, until
from tests.support.watched import watched


def test_a_job_is_found_once_by_its_consumer_and_by_its_workers():
    with watched("held", start=subprocess.Popen, num_workers=2) as program:
        found = [job for job in jobs()[0] if program.pid in job.holders]
        assert [job.pid for job in found] == [program.pid] and not found[0].push
        assert {program.pid, *program.told["workers"]} <= set(found[0].holders)
        for pid in (program.pid, *program.told["workers"]):
            (job,) = attach(pid)
            assert job.key == found[0].key and job.pid == program.pid
            assert job.named().endswith("-m tests.support.watched")
            assert "tests.support.watched held" in job.named(arguments=True)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/usr/bin/python3", "train.py", "--token=abc"], "python3 train.py"),
        (["python", "-u", "-Xdev", "-W", "ignore", "/a b/train.py", "x"], "python -u -Xdev -W ignore /a b/train.py"),
        (["python", "-um", "package.train", "--token", "abc"], "python -um package.train"),
        (["python", "-mtrain", "--token=abc"], "python -m train"),
        (["python", "-Ic", "token = 'abc'"], "python -Ic"),
        (["python", "-", "abc"], "python -"),
        (["python: train.py --token=abc"], "python: train.py"),
        (["trainer --token=abc"], "trainer"),
        (["python"], "python"),
    ],
    ids=str,
)
def test_a_command_line_ends_at_the_name_of_the_script(words, shown, tmp_path, monkeypatch):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    monkeypatch.setattr(observing("jobs"), "PROC", str(tmp_path))
    assert observing("jobs").command_of(7) == shown


@pytest.mark.parametrize("method", ["spawn", "forkserver", "thread"])
def test_workers_of_every_start_method_lead_to_their_job(method):
    with watched("held", num_workers=1, start_method=method) as program:
        (worker,) = program.told["workers"]
        assert attach(worker)[0].pid == program.pid


def test_a_queue_is_one_job_of_several_processes():
    with watched("queue", processes=3) as program:
        (job,) = attach(program.told["children"][1])
        assert job.push and {program.pid, *program.told["children"]} <= set(job.holders)
        assert attach(program.pid)[0].key == job.key


def test_an_index_is_read_out_of_the_slot_also_where_the_controls_are_in_a_file(tmp_path):
    for environment in ({}, {"SLIPRING_RECORD": str(tmp_path / "record")}):
        with watched("held", environment, num_workers=1) as program:
            (job,) = attach(program.pid)
            assert job.path == environment.get("SLIPRING_RECORD", job.path)
            slot = next(s for s in job.watch.slots() if s["batch"]["first_index"] >= 0)
            first = int(slot["batch"]["first_index"])
            assert [job.index_at(int(slot["batch"]["slot"]), row) for row in range(4)] == [
                first + row for row in range(4)
            ]


@pytest.mark.parametrize("end", ["end", "close"])
def test_a_job_is_there_until_it_ends_or_its_loader_is_closed(end):
    with watched("held", num_workers=1) as program:
        (job,) = attach(program.pid)
        assert job.is_there()
        if end == "end":
            program.end()
        else:
            program.say("close")
            assert program.line()["closed"]
        assert not job.is_there()


# ---- processes and files that are no job


def test_a_process_that_nobody_has_waited_for_has_ended():
    child = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: state(child.pid) == "Z", "it has ended")
    try:
        with pytest.raises(NoJob, match="has ended"):
            attach(child.pid)
    finally:
        child.wait()
    with pytest.raises(NoJob, match=f"there is no process {child.pid}: it has ended"):
        attach(child.pid)
    with pytest.raises(NoJob, match="the number is too large"):
        attach(1 << 40)


def test_a_segment_of_another_version_is_named(tmp_path):
    record = tmp_path / "record"
    with watched("held", {"SLIPRING_RECORD": str(record)}, num_workers=1):
        whole = bytearray(record.read_bytes())
    whole[8:12] = (999).to_bytes(4, "little")
    record.write_bytes(whole)
    (tmp_path / "other").write_bytes(b"SLIPRING" + bytes(8192))
    with watched("opened", path=str(record)) as program:
        with pytest.raises(NoJob, match=rf"process {program.pid} cannot be watched: it speaks version 999"):
            attach(program.pid)
        refused = dict(jobs()[1])
        assert "version 999" in refused[program.pid]
    with watched("opened", path=str(tmp_path / "other")) as program, pytest.raises(NoJob):
        attach(program.pid)


AS_NOBODY = """
import os, sys
from tests.support.inside import NoJob, attach, jobs
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    attach(int(sys.argv[1]))
except NoJob as error:
    print(error)
print(int(sys.argv[1]) in {job.pid for job in jobs()[0]})
"""


def test_a_process_of_another_user_is_refused_with_its_name():
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    if any(mount[1] == "/proc" and "hidepid" in mount[3] for mount in mounts):
        pytest.skip("this /proc hides the processes of others")
    with watched("held", num_workers=1) as program:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(program.pid)], capture_output=True, text=True, cwd=ROOT
        )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"process {program.pid} belongs to root: ask as that user, or as root", "False"]


@pytest.mark.parametrize(("link", "said"), [("", "there is no /proc"), ("1234567", "another PID namespace")])
def test_without_a_proc_of_this_namespace_the_reason_is_reported(tmp_path, monkeypatch, link, said):
    monkeypatch.setattr(observing("jobs"), "PROC", str(tmp_path))
    if link:
        (tmp_path / "self").symlink_to(link)
    for look in (jobs, lambda: attach(os.getpid())):
        with pytest.raises(NoJob, match=said):
            look()


def test_a_job_in_another_pid_namespace_is_found_by_its_number_here():
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if os.fork() == 0:
        os._exit(unshare(0x20000000) != 0)  # CLONE_NEWPID
    if os.wait()[1]:
        pytest.skip("this process may not make a PID namespace")
    inside = "import ctypes, os, sys; ctypes.CDLL(None).unshare(0x20000000); "
    inside += "command = [sys.executable, '-m', 'tests.support.watched', *sys.argv[1:]]; "
    inside += "pid = os.fork(); pid or os.execv(sys.executable, command)"
    inside += "; print(pid, flush=True); sys.exit(os.waitpid(pid, 0)[1])"
    program = subprocess.Popen(
        [sys.executable, "-c", inside, "held", '{"num_workers": 1}'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        here = int(program.stdout.readline())
        assert '"pid": 1,' in program.stdout.readline()  # in its namespace
        (job,) = attach(here)
        assert job.elsewhere and job.pid == here and job.number(1) == here
        assert job.number(int(job.watch.participants()["pid"][1])) in job.holders
    finally:
        program.stdin.close()
        program.wait()
        program.stdout.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 4}, "list, batch_size=4"),
        ({"batch_sampler": slipring.BatchSampler(12, 3)}, "list, batch_size=3"),
        ({"batch_sampler": [[0, 1], [2]]}, "list, batch_sampler"),
    ],
)
def test_a_loader_is_named_by_its_dataset_and_the_size_of_its_batches(options, named):
    gc.collect()  # segments of earlier tests that an exception has kept
    with slipring.Loader(list(range(12)), num_workers=1, **options) as loader:
        batches = iter(loader)
        next(batches)
        names = [job.named() for job in attach(os.getpid())]
    assert len(names) == 1 and names[0].startswith(f"{named} \u00b7 ")
