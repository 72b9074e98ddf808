"""The soak for some seconds, and proof that it can fail; `make soak MINUTES=20` is the long one."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.soak.__main__ import WRONG
from tests.soak.judge import LEAST, Quantity, judge
from tests.soak.plants import PLANTS
from tests.soak.watch import QUANTITIES, ROWS, Record
from tests.support.processes import ROOT

COUNT = Quantity("descriptors")
MEMORY = Quantity("heap in use", "MiB", 1.0)
N = 240
TIMES = 5.0 * np.arange(N)  # twenty minutes
TURN = np.arange(N)
NOISE = np.random.default_rng(1).normal(0, 0.6, N)


@pytest.mark.parametrize(
    ("why", "quantity", "values", "grows"),
    [
        ("nothing happens", COUNT, np.full(N, 30), False),
        ("one per turn", COUNT, 30 + TURN, True),
        ("one in a hundred turns", COUNT, 30 + TURN // 100, True),
        ("one in sixty turns, and some that come and go", COUNT, 30 + TURN // 60 + 2 * (TURN % 7 == 0), True),
        ("some that come and go", COUNT, 30 + TURN % 3, False),
        ("opened in the warm-up and kept", COUNT, np.where(TURN < 40, 30, 34), False),
        ("fewer in the end", COUNT, 30 - TURN // 100, False),
        ("only noise", MEMORY, 100 + NOISE, False),
        ("a leak within the noise of a turn", MEMORY, 100 + 0.03 * TURN + NOISE, True),
        ("a leak and no noise", MEMORY, 100 + 0.01 * TURN, True),
        ("a leak that nobody could see", MEMORY, 100 + 0.002 * TURN + NOISE, False),
        ("a heap that fills its holes ever more slowly", MEMORY, 100 + 9 * (1 - np.exp(-TURN / 40)), False),
        ("one step up, to stay there", MEMORY, np.where(TURN < 130, 100, 110) + NOISE, False),
        ("up and down", MEMORY, 100 + TURN % 20, False),
        ("one huge turn in the end", MEMORY, np.where(TURN == N - 1, 900, 100) + NOISE, False),
    ],
)
def test_growth_is_distinguished_from_fluctuation(why, quantity, values, grows):
    assert judge(quantity, TIMES, values).grew == grows


def test_growth_is_reported_per_hour_and_from_where_on_it_is_noticed():
    verdict = judge(MEMORY, TIMES, 100 + TURN)
    assert verdict.per_hour == pytest.approx(3600 / 5)
    assert verdict.noticed_from == pytest.approx(6.0, rel=0.05)  # 1 MiB in half of twenty minutes


def test_a_run_that_is_too_short_is_not_judged():
    with pytest.raises(ValueError, match=f"{4 * LEAST} are the least"):
        judge(COUNT, TIMES[: 4 * LEAST - 1], np.ones(4 * LEAST - 1))


def test_the_record_does_not_grow_and_keeps_the_whole_run():
    record, size = Record(), Record().rows.nbytes
    for turn in range(3 * ROWS):
        record.add(float(turn), {q.name: 2 * turn for q in QUANTITIES})
    times = record.times()
    assert record.rows.nbytes == size and ROWS // 2 < len(times) <= ROWS
    assert times[0] == 0 and times[-1] > 3 * ROWS - 8
    assert (np.diff(times) == np.diff(times)[0]).all()
    assert (record.series("RSS") == 2 * times).all()


def soak(tmp_path, *arguments):
    """Return a short run's (exit code, output, figures)."""
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    command = [sys.executable, "-W", "ignore", "-m", "tests.soak", "--quick", "--minutes", "0.1"]
    command += ["--seed", seed, "--json", tmp_path / "soak.json", *arguments]
    run = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said = run.communicate()[0]
    finally:
        if run.poll() is None:  # after the watchdog's exception
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    print(said)
    return run.returncode, said, json.loads((tmp_path / "soak.json").read_text())


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.alone  # its measurements fluctuate less on a quiet machine
def test_some_seconds_of_soak_lose_nothing_and_leave_nothing(tmp_path):
    _, said, found = soak(tmp_path)
    assert {name: found["counts"][name] for name in WRONG} == dict.fromkeys(WRONG, 0), said
    assert found["left"] == [] and found["counts"]["kills"] > 0 and found["counts"]["batches"] > 1000
    # The heap still changes in such a short run: only the long run judges memory.
    grew = [q.name for q in QUANTITIES if q.floor is None and found["quantities"][q.name]["grew"]]
    assert grew == [], said


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.alone  # its measurements fluctuate less on a quiet machine
def test_leaks_on_purpose_are_noticed_and_named(tmp_path):
    code, said, found = soak(tmp_path, "--plant", *PLANTS)
    grew = {name for name, verdict in found["quantities"].items() if verdict["grew"]}
    # Leaks of a descriptor, a thread, an array, a lease, and an array in the worker, if each is a count
    # or large enough for so few turns.
    assert {"descriptors", "threads", "slots out", "heap in use", "workers: anonymous memory"} <= grew, said
    assert code == 1 and "grew: threads, from" in said
