"""Ranks of ``share=`` that leave, lag or are killed: the others get every batch once, or an error with the rank."""

import os
import random
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from tests.sharing.jobs import Job  # noqa: E402
from tests.support.processes import ROOT, alive, sleeps_in_futex, until, wait_dead  # noqa: E402

BATCHES = 15


@pytest.fixture
def job(tmp_path):
    """Three ranks that do what the test says."""
    with Job(tmp_path, "stepwise", seed=1, rng="batch", memory={"slots": 6}, persistent_workers=True) as job:
        for rank in job.ranks:
            assert rank.line()["pid"] == rank.pid
        yield job


def begin(job, batches=0):
    """Let all ranks begin a pass and read so many batches; return these."""
    for rank in job.ranks:
        rank.say("iter")
    for rank in job.ranks:
        assert rank.line()["begun"]
    found = [job.say("next") for _ in range(batches)]
    assert all(each == answers[0] for answers in found for each in answers)
    return [answers[0]["batch"] for answers in found]


def expected(tmp_path):
    """Return the batches of an epoch of a loader that does not share."""
    folder = tmp_path / "plain"
    folder.mkdir()
    with Job(folder, "passes", ranks=1, seed=1, rng="batch", epochs=2) as job:
        seen = job.results()[0]["seen"]
    return seen[:BATCHES], seen[BATCHES + 1 : -1]


@pytest.mark.parametrize("read", [0, 1, 7, BATCHES])
@pytest.mark.parametrize("way", ["close", "kill", "kill while it waits"])
def test_a_reader_that_goes_is_not_waited_for(job, tmp_path, read, way):
    first, second = expected(tmp_path)
    assert begin(job, read) == first[:read]
    if way == "close":
        assert job[1].ask("close")["closed"]
    else:
        if way == "kill while it waits" and read < BATCHES:
            job[1].say("next")
            until(lambda: sleeps_in_futex(job[1].pid), "the reader waits")
        job[1].kill_alone()
        wait_dead(job[1].pid)
    living = [job[0], job[2]]
    for rank in living:
        rank.say("rest")
    assert [rank.line()["rest"] for rank in living] == [first[read:]] * 2
    living = job.ranks if way == "close" else living
    for rank in living:
        rank.say("iter")
    for rank in living:
        assert rank.line()["begun"]
        rank.say("rest")
    assert [rank.line()["rest"] for rank in living] == [second] * len(living)


def test_a_reader_that_is_killed_before_it_takes_part_is_not_waited_for(job, tmp_path):
    job[0].ask("iter")
    job[0].say("rest")
    job[2].ask("iter")
    job[2].say("rest")
    until(lambda: not sleeps_in_futex(job[0].pid), "the lead waits for the reader")
    job[1].kill_alone()
    assert job[0].line()["rest"] == job[2].line()["rest"] == expected(tmp_path)[0]


def test_a_reader_that_keeps_its_batches_and_stops_holds_the_others_back_until_it_is_killed(job, tmp_path):
    first, _ = expected(tmp_path)
    begin(job, 1)
    os.kill(job[1].pid, signal.SIGSTOP)
    job[0].say("rest")
    job[2].say("rest")
    until(lambda: sleeps_in_futex(job[0].pid), "no slot is free")
    job[1].kill_alone()
    assert job[0].line()["rest"] == job[2].line()["rest"] == first[1:]


def keep_all(job):
    """Let a reader keep the batches of all six slots, while the others drop theirs."""
    begin(job)
    for _ in range(6):
        for rank, command in zip(job.ranks, ("next", "keep", "next"), strict=True):
            assert "batch" in rank.ask(command)


def test_a_reader_that_keeps_all_slots_is_named_in_a_warning_and_in_the_timeout(tmp_path):
    options = {"memory": {"slots": 6, "copy": "never"}, "seed": 1, "rng": "batch", "timeout": 20}
    with Job(tmp_path, "stepwise", **options) as job:
        for rank in job.ranks:
            rank.line()
        keep_all(job)
        named = f"no slot of 6 is free, so the next batches wait for rank 1 (pid {job[1].pid}), which keeps 6 batches"
        job[0].ask("warn")
        job[0].say("next")
        warning, timeout = job[0].line()["warning"], job[0].line()
        assert warning.startswith(f"share=: {named}")
        assert timeout["error"] == "LoaderTimeout" and named in timeout["text"]
        job[1].ask("drop")
        assert job[0].ask("next")["batch"] == job[1].ask("next")["batch"] == job[2].ask("next")["batch"]


def test_a_slow_reader_gets_what_the_others_have_read_long_ago(job, tmp_path):
    first, second = expected(tmp_path)
    begin(job, 9)
    for _ in range(3):
        for rank in (job[0], job[2]):
            assert "batch" in rank.ask("next")
    for rank in job.ranks:
        rank.say("rest")
    assert job[0].line()["rest"] == job[2].line()["rest"] == first[12:]
    assert job[1].line()["rest"] == first[9:]
    begin(job)
    for rank in job.ranks:
        rank.say("rest")
    assert [rank.line()["rest"] for rank in job.ranks] == [second] * 3


def test_the_last_batches_outlive_the_lead(job, tmp_path):
    first, _ = expected(tmp_path)
    begin(job, BATCHES - 3)
    assert job[0].ask("rest")["rest"] == first[-3:]
    job[0].kill()
    wait_dead(job[0].pid)
    for rank in job.ranks[1:]:
        assert rank.ask("rest")["rest"] == first[-3:]
        answer = rank.ask("iter")
        assert answer["error"] == "LeadDied" and f"rank 0 (pid {job[0].pid})" in answer["text"]


@pytest.mark.parametrize("read", [0, 1, 6])
def test_the_readers_learn_of_the_leads_death_and_of_its_name(job, read):
    begin(job, read)
    for rank in job.ranks[1:]:
        rank.say("next")
    if read:
        until(lambda: all(sleeps_in_futex(rank.pid) for rank in job.ranks[1:]), "the readers wait")
    job[0].kill_alone()
    for rank in job.ranks[1:]:
        answer = rank.line()
        assert answer["error"] == "LeadDied" and f"rank 0 (pid {job[0].pid})" in answer["text"]
        assert rank.ask("next")["error"] == "Closed"


def test_the_readers_learn_that_the_lead_died_before_it_began(job):
    for rank in job.ranks[1:]:
        rank.say("iter")
    job[0].kill_alone()
    assert [rank.line()["error"] for rank in job.ranks[1:]] == ["LeadDied"] * 2


def test_the_readers_of_a_pass_that_the_lead_has_left_raise_an_error(job):
    begin(job, 4)
    assert job[0].ask("close")["closed"]
    for rank in job.ranks[1:]:
        answer = rank.ask("next")
        assert answer["error"] == "Closed" and "ended this pass after 4 results" in answer["text"]
    begin(job)
    for rank in job.ranks:
        rank.say("rest")
    rests = [rank.line()["rest"] for rank in job.ranks]
    assert rests == rests[:1] * 3 and len(rests[0]) == BATCHES


def test_a_dead_worker_is_an_error_of_the_same_class_in_all_ranks(tmp_path):
    with Job(tmp_path, "stepwise", ranks=2, kind="dying") as job:
        for rank in job.ranks:
            rank.line()
        begin(job)
        answers = job.say("rest")
        assert [answer["error"] for answer in answers] == ["WorkerDied"] * 2
        assert answers[0]["text"] == answers[1]["text"]
        assert all(alive(rank.pid) for rank in job.ranks)


def random_moments(first, last):
    """Return seeds of tests that kill at random moments; all but a few are slow."""
    return [pytest.param(seed, marks=[pytest.mark.slow] if seed >= first else []) for seed in range(last)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with Job(tmp_path_factory.mktemp("plain"), "doomed", ranks=1, seed=2, rng="batch", deaths={}) as job:
        return job.results()[0]["seen"]


@pytest.mark.parametrize("seed", random_moments(4, 60))
def test_readers_that_are_killed_at_any_moment_cost_the_others_nothing(tmp_path, undisturbed, seed):
    draw = random.Random(seed)
    deaths = {"1": draw.uniform(0, 1.5), "3": draw.uniform(0, 1.5)}
    memory = {"slots": draw.choice([3, 6, 40])}
    with Job(tmp_path, "doomed", ranks=4, seed=2, rng="batch", deaths=deaths, memory=memory) as job:
        results = job.results(without=(1, 3))
    assert [result["seen"] for result in results] == [undisturbed] * 2


@pytest.mark.parametrize("seed", random_moments(4, 60))
def test_a_lead_that_is_killed_at_any_moment_costs_the_readers_nothing_that_it_has_shared(tmp_path, undisturbed, seed):
    deaths = {"0": random.Random(seed).uniform(0, 1)}
    with Job(tmp_path, "doomed", ranks=3, seed=2, rng="batch", deaths=deaths) as job:
        results = job.results(without=(0,))
        pid = job[0].pid
    for result in results:
        assert result["seen"] == undisturbed[: len(result["seen"])]
        assert f"rank 0 (pid {pid})" in result["error"] if result["seen"] != undisturbed else not result["error"]


GLOBAL = """
import sys
import torch.distributed as dist
from slipring.torch import DataLoader
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
loader = DataLoader(range(8), 4, num_workers=1, share=dist.group.WORLD)
assert len(list(loader)) == 2
loader.close()
"""


def test_a_loader_that_is_alive_when_the_interpreter_exits_says_nothing(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GLOBAL, str(tmp_path / "store"), str(rank)],
            cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        _, errors = rank.communicate()
        assert rank.returncode == 0 and "Connection.__del__" not in errors
