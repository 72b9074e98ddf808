"""`slipring top` and `ps` on the ranks of a distributed job: real processes, real collective operations."""

import contextlib
import json
import os
import re
import signal
import subprocess

import pytest

from tests.pool.rank import ranks as pool_of_ranks
from tests.support.inside import attach, environ_of, observing, process, rank_of
from tests.support.processes import state, until
from tests.support.watched import fails, run, watched

SHORT, LONG = 0.002, 0.06


@contextlib.contextmanager
def distributed(tmp_path, reads):
    """Run a rank for each of `reads` with torchrun's environment; yield the programs while they work."""
    pytest.importorskip("torch.distributed")
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(len(reads)):
            size = str(len(reads))
            environment = {"RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "OMP_NUM_THREADS": "1"}
            # The port is not used: it distinguishes this job from others.
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
            scene = watched("ranked", environment, subprocess.Popen, file=str(tmp_path / "meet"), reads=reads)
            ranks.append(stack.enter_context(scene))
        for each in ranks:
            each.line()
        yield ranks


def seen(capsys, pid):
    code, out, err = run(capsys, "top", pid, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_ps_shows_ranks_and_top_names_the_one_that_is_slow_or_stopped_to_all(capsys, tmp_path, monkeypatch):
    with distributed(tmp_path, [SHORT, LONG]) as ranks, watched("several", n=2) as several:
        frames = [seen(capsys, each.pid) for each in ranks]
        drawn = run(capsys, "top", ranks[0].pid, "--once")[1]
        monkeypatch.setattr(observing("jobs"), "pids", lambda: [several.pid, *(each.pid for each in ranks)])
        rows = json.loads(run(capsys, "ps", "--json")[1])["jobs"]
        out = run(capsys, "ps")[1]
        chosen = attach(several.pid)  # top --segment N selects the Nth of them
        pid = ranks[1].pid
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state(pid) == "T", "it has stopped")
        verdict = seen(capsys, ranks[0].pid)["verdict"]
        os.kill(pid, signal.SIGCONT)
    for frame in frames:
        assert frame["verdict"].startswith(f"Rank 1 (pid {pid}) holds up all 2: its workers can supply")
        assert "On rank 1: Data-bound: the loop waits" in frame["verdict"]
        assert [(each["rank"], each["pid"]) for each in frame["ranks"]] == [(0, ranks[0].pid), (1, pid)]
    assert f"loader of process {ranks[0].pid}, rank 0 of 2" in drawn and "Rank 1 (pid" in drawn
    assert verdict.startswith(f"Rank 1 (pid {pid}) holds up all 2: On rank 1: Stopped, by a signal")
    assert f"kill -CONT {pid}" in verdict
    of = {each.pid: [row for row in rows if row["pid"] == each.pid] for each in (*ranks, several)}
    for rank, each in enumerate(ranks):
        assert [(row["rank"], row["ranks"], row["segment"]) for row in of[each.pid]] == [(rank, 2, 1)]
        assert re.search(rf"^ *{each.pid} +{rank} +1 +loader ", out, re.M)
    assert [(row["rank"], row["segment"]) for row in of[several.pid]] == [(None, 1), (None, 2)]
    assert [row["file"] for row in of[several.pid]] == [job.path for job in chosen]


def test_without_a_pid_top_takes_the_ranks_of_a_launcher_as_one_job(capsys, tmp_path, monkeypatch):
    with distributed(tmp_path, [SHORT, SHORT]) as ranks, watched("several", n=2) as several:
        pids = [each.pid for each in ranks]
        monkeypatch.setattr(observing("jobs"), "pids", lambda: sorted(pids))
        told = json.loads(run(capsys, "top", "--json")[1])
        monkeypatch.setattr(observing("jobs"), "pids", lambda: sorted([*pids, several.pid]))
        said = fails(capsys, "top", "--once", code=2)
    assert told["pid"] == pids[0]
    assert [(each["rank"], each["pid"]) for each in told["ranks"]] == list(enumerate(pids))
    assert re.search(rf"\b{pids[0]} \(.*\) and 1 other process\b", said) and f" {several.pid} (" in said
    assert f" {pids[1]} (" not in said


def test_programs_that_have_inherited_the_same_rank_are_several_jobs(capsys, monkeypatch):
    launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": str(os.getpid())}
    with contextlib.ExitStack() as stack:
        scenes = [watched("held", launched, subprocess.Popen, num_workers=1) for _ in range(2)]
        pids = [stack.enter_context(scene).pid for scene in scenes]
        monkeypatch.setattr(observing("jobs"), "pids", lambda: sorted(pids))
        said = fails(capsys, "top", "--once", code=2)
    assert all(f" {pid} (" in said for pid in pids)


def test_the_cpus_of_a_job_are_its_ranks_share_and_not_the_commands():
    with watched("asked", {"LOCAL_WORLD_SIZE": "1000"}, subprocess.Popen, num_workers=1) as program:
        assert process.cpus(program.pid, environ_of(program.pid)) == 1


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "8"}, (7, 8)),
        ({"RANK": "1", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 4)),
        ({"RANK": "1"}, None),
        ({"RANK": "x", "WORLD_SIZE": "y"}, None),
    ],
)
def test_launchers_tell_a_process_its_rank(environ, rank):
    assert rank_of(environ) == rank


def test_top_and_report_show_the_ranks_of_a_pool_and_their_memory(capsys, monkeypatch):
    """No launcher numbers these processes: their pids do."""
    data = {"n": 4000, "size": 1024, "slow": 0.02, "slow_from": 2000}
    with pool_of_ranks(2, data=data, memory="64MB", shuffle=False) as (fast, slow):
        slow.ask("make", pool=slow.name, num_workers=2, data=data, memory="64MB", sampler=list(range(2000, 4000)))
        ordered = sorted((fast, slow), key=lambda rank: rank.pid)
        assert fast.ask("batch") and slow.ask("batch")
        for _ in range(12):
            slow.ask("batch")
        for _ in range(12):
            fast.ask("batch")
        found = seen(capsys, fast.pid)
        drawn = run(capsys, "top", fast.pid, "--once")[1]
        told = fast.ask("report")
        monkeypatch.setattr(observing("jobs"), "pids", lambda: [each.pid for each in ordered])
        only = json.loads(run(capsys, "top", "--json")[1])
    numbers = {rank.pid: number for number, rank in enumerate(ordered)}
    assert only["pid"] == ordered[0].pid
    for ranks in (found["ranks"], told["ranks"], only["ranks"]):
        assert {(each["rank"], each["pid"]) for each in ranks} == {(n, pid) for pid, n in numbers.items()}
        for each in ranks:
            assert 0 < each["memory_bytes"] < each["budget_bytes"] < 64e6 and not each["waits_for_memory"]
    assert told["memory"]["budget"] < 64e6
    blamed = f"Rank {numbers[slow.pid]} (pid {slow.pid}) holds up all 2"
    assert found["verdict"].startswith(blamed) and told["verdict"]["sentence"].startswith(blamed)
    assert re.search(rf"^ *{numbers[slow.pid]} +{slow.pid} +\d+% .*MB", drawn, re.M), drawn
