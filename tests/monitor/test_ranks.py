"""The verdicts on several ranks: the ranks that make the others wait, by their data or by their steps."""

import json
import multiprocessing
import sys
import time
from types import SimpleNamespace

import pytest

import slipring
from slipring import Workers
from slipring.monitor import Verdict
from tests.monitor.simulated import Job
from tests.support.datasets import Slow
from tests.support.inside import observing
from tests.support.processes import LONG_S

ranks, report = observing("ranks"), observing("report")

MS = 1_000_000  # ns
OK = Verdict("ok", "Nothing is wrong.")


def told(rank, wait_share=0.0, supply=0.01, own=None, batch=0.1):
    """Return a rank's figures about itself."""
    return {
        "rank": rank,
        "wait_share": wait_share,
        "data_bound": wait_share >= 0.1,
        "cause": "storage" if wait_share >= 0.1 else "ok",
        "sentence": f"Of rank {rank}.",
        "advice": f"Help rank {rank}.",
        "batch_s": batch,
        "supply_s": supply,
        "own_s": own,
    }


def judged(*each, size=None):
    return ranks.judged(each, size)


# ---- ranks that are slow because of their data


@pytest.mark.parametrize("waits", [(0.9, 0.0, 0.0, 0.0), (0.5, 0.5, 0.5, 0.5)])
def test_ranks_that_are_equally_slow_are_not_blamed_however_long_one_waits(waits):
    supply = (0.1, 0.097, 0.104, 0.099)  # the rank with slightly slower workers has all the waits
    found = judged(*(told(rank, wait, s, own=0.01) for rank, (wait, s) in enumerate(zip(waits, supply))))
    cause, sentence, advice = found
    assert cause == "storage" and sentence.startswith("All 4 ranks are about equally slow")
    assert advice == "Help rank 0."


def test_rates_above_1000_have_all_their_digits():
    fast = told(0, supply=0.0002), told(1, supply=0.0001)
    assert "supply 10 batches/s, the others' 5,000 or more." in judged(*fast, told(2, 0.8, 0.1))[1]


def test_all_ranks_with_slow_workers_are_named_also_if_only_one_waits():
    cause, sentence, advice = judged(told(0, 0.0, 0.098), told(1), told(2, 0.8, 0.1), told(3))
    assert (cause, advice) == ("rank", "Help rank 2.")
    assert sentence == (
        "Ranks 0 and 2 hold up all 4: their workers can supply 10.2 and 10 batches/s, the others' 100 or more. "
        "On rank 2: Of rank 2."
    )
    # A rank that is slower than some, but keeps up with the slowest, is not named.
    assert "Rank 2 holds up" in judged(told(0, 0.0, 0.03), told(1, 0.0, 0.02), told(2, 0.7, 0.1))[1]


@pytest.mark.parametrize(
    "each",
    [
        [],
        [told(0, 0.9)],
        [told(1, 0.09), told(0, 0.0)],
        [told(0, 0.02, 0.05), told(1, 0.0, 0.005)],  # slow workers that no step waits for
        [told(1, 0.39), told(0, 0.2)],  # not twice as long
        [told(0, own=0.001), told(1, own=0.009)],  # own steps that differ by little, in steps of 100 ms
        [told(0, own=0.09), told(1, own=0.1)],
        [told(0, 0.5, 0.1), {**told(1), "cause": "unknown"}],
    ],
)
def test_no_rank_is_blamed_where_nothing_distinguishes_them(each):
    assert judged(*each) is None


def test_a_rank_that_waits_for_something_else_than_the_rate_of_its_workers_is_named():
    cause, sentence, advice = judged(told(2, 0.41), told(0, 0.2), told(1, 0.1), told(3, 0.0))
    assert (cause, advice) == ("rank", "Help rank 2.")
    assert sentence == "Rank 2 holds up all 4: it waits 41% of its time for data, the others 10%. On rank 2: Of rank 2."


def test_ranks_that_are_seen_from_outside_are_named_with_their_process_and_those_elsewhere_are_not_counted():
    seen = [told(0, 0.5, 0.1), told(1), told(2, 0.4, 0.09), told(3)]
    cause, sentence, advice = judged(*({**each, "pid": 100 + each["rank"]} for each in seen), size=8)
    assert (cause, advice) == ("rank", "Help rank 0.")
    assert sentence == (
        "Ranks 0 (pid 100) and 2 (pid 102) hold up the 4 ranks on this machine: their workers can supply 10 and 11.1 "
        "batches/s, the others' 100 or more. On rank 0: Of rank 0."
    )


@pytest.mark.parametrize("cause", ["stopped", "hung", "starting"])
def test_a_rank_that_delivers_nothing_is_named_before_a_slow_one(cause):
    found = judged(told(0, 0.5, 0.1), {**told(1), "cause": cause})
    assert found == ("rank", "Rank 1 holds up all 2: On rank 1: Of rank 1.", "Help rank 1.")


def test_figures_that_one_rank_does_not_know_are_not_compared():
    slow, fast = told(0, 0.3, 0.1, own=0.09), told(1, 0.2, 0.01, own=0.01)
    assert "its workers can supply" in judged(slow, fast)[1]
    assert "its workers can supply" in judged({**slow, "own_s": None}, fast)[1]
    assert "by its step" in judged({**slow, "supply_s": None}, fast)[1]
    assert judged({**slow, "batch_s": None}, fast) is None


def test_ranks_that_wait_for_memory_are_named_with_the_one_that_has_too_much():
    def has(rank, nbytes, budget, waits):
        memory = {"memory_bytes": nbytes, "budget_bytes": budget, "waits_for_memory": waits}
        return {**told(rank, 0.9 if waits else 0.0), "pid": 10 + rank, **memory}

    found = judged(has(0, 5_000_000, 3_000_000, False), has(1, 0, 1_000_000, True), has(2, 1, 2_000_000, False))
    assert found[:2] == (
        "rank",
        "Rank 1 (pid 11) waits for memory for the next batch. Rank 0 (pid 10) holds the others back: its batches have "
        "5.0 MB, and its part of the pool's memory is 3.0 MB now. It gives the rest back when its loop releases "
        "batches.",
    )
    alone = judged(has(0, 1, None, True), has(1, 1, None, True))
    assert alone[1] == "Ranks 0 (pid 10) and 1 (pid 11) wait for memory for the next batch."


# ---- ranks that are slow because of their steps


def test_a_rank_whose_own_step_is_longer_is_named_as_a_slow_step():
    cause, sentence, advice = judged(told(0, own=0.02), told(1, own=0.1), told(2, 0.03, own=0.018))
    assert cause == "rank" and "Look at what only this rank does" in advice
    assert sentence == (
        "Rank 1 holds up all 3 by its step, not by its data: without waiting for other ranks, its step takes 100 ms, "
        "the others' 20 ms or less."
    )
    two = judged(told(0, own=0.02), told(1, own=0.1), told(2, own=0.09))
    assert "Ranks 1 and 2 hold up all 3 by their steps" in two[1] and "these ranks do" in two[2]


def test_waits_at_the_beginning_of_epochs_hide_no_slow_step():
    """They do not make a rank slow if its workers could make far more batches than it takes."""
    found = judged(told(0, 0.12, 0.0114, 0.028), told(1, 0.15, 0.0086, 0.075), told(2, 0.16, 0.0096, 0.027))
    assert "Rank 1 holds up all 3 by its step" in found[1]


def test_a_rank_waits_in_an_operation_from_its_entry_to_the_last_ones():
    slow = {("0", seq): seq * 100 for seq in range(10)}
    early = {("0", seq): seq * 100 - 80 for seq in range(10)}
    waits = ranks.collective_waits([early, slow, {**early, ("1", 3): 250}])
    assert waits == pytest.approx([0.82, 0.0, 0.82], abs=0.01)  # 10 waits of 80, in 9 steps of 100 and the last wait


def test_operations_that_are_under_way_together_are_one_wait():
    slow = {("0", seq): seq // 5 * 100 for seq in range(50)}
    early = {("0", seq): seq // 5 * 100 - 80 + seq % 5 for seq in range(50)}
    assert ranks.collective_waits([early, slow])[0] == pytest.approx(0.82, abs=0.01)
    assert ranks.collective_waits([{("0", seq): seq for seq in range(7)}] * 2) == []  # too few in common


# ---- figures that are gathered


class Recorder:
    """Stand in for torch.distributed of rank 0; rank 1 enters each operation 80 ms later and waits half of its time."""

    def __init__(self, node, clock_ns=0):
        self.node, self.clock_ns, self.calls = node, clock_ns, 0
        self.begun = time.time_ns() + 1000 * MS

    def entered(self, late):
        return {("0", seq): self.begun + seq * 100 * MS + late for seq in range(20)}

    def all_gather_object(self, found, own):
        self.calls += 1
        if self.calls % 2 == 0:
            found[:] = [own, own + self.clock_ns]
            return
        mine, node, _ = own
        other = {**mine, **{"rank": 1, "wait_share": 0.5, "advice": "Help rank 1."}}
        found[:] = [(mine, node, self.entered(0)), (other, self.node or node, self.entered(80 * MS + self.clock_ns))]


@pytest.fixture
def distributed(monkeypatch):
    """Replace torch.distributed by a `Recorder`."""

    def put(recorder):
        up = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 0, get_world_size=lambda: 2,
            all_gather_object=recorder.all_gather_object,
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=up))
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", None)
        return up

    return put


def test_times_of_a_rank_are_those_of_its_batches_workers_and_steps(distributed):
    distributed(Recorder(None))
    _, mine = ranks.gather(OK, Job(workers=2, fetch=6, collate=2, step=10).snapshot())
    assert mine["batch_s"] == pytest.approx(0.010, rel=0.01) and mine["supply_s"] == pytest.approx(0.004, rel=0.01)
    assert mine["own_s"] == pytest.approx(0.010 * (1 - 0.81), rel=0.05)
    # A sampler that draws slowly limits the supply, too.
    _, mine = ranks.gather(OK, Job(fetch=1, draw=30, step=1).snapshot())
    assert mine["supply_s"] == pytest.approx(0.030, rel=0.1)


@pytest.mark.parametrize(("node", "clock_ms", "known"), [(None, 500, True), ("other", 0, True), ("other", 500, False)])
def test_clocks_of_several_machines_that_disagree_make_no_rank_slow(distributed, node, clock_ms, known):
    distributed(Recorder(node, clock_ms * MS))
    found = ranks.gather(OK, Job(step=40).snapshot())
    assert [each["own_s"] is not None for each in found] == [known] * 2


def test_operations_are_those_since_the_first_batch_and_between_all_ranks(distributed, monkeypatch):
    distributed(Recorder(None))
    at = time.time_ns() + 10_000 * MS
    entries = [
        {"time_created_ns": at + 2, "is_p2p": False, "process_group": ["0", "default"], "collective_seq_id": 8},
        {"time_created_ns": at + 1, "is_p2p": True, "process_group": ["0", "default"], "collective_seq_id": 7},
        {"time_created_ns": 5, "is_p2p": False, "process_group": ["0", "default"], "collective_seq_id": 1},
    ]
    recorders = {name: lambda: json.dumps({"entries": entries}).encode() for name in ranks.RECORDERS}
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**recorders))
    sent = []
    up = sys.modules["torch"].distributed
    up.all_gather_object = lambda found, own: (sent.append(own), found.__setitem__(slice(None), [own, own]))
    ranks.gather(OK, Job(step=4).snapshot())
    (_, _, entered), _ = sent
    assert entered == {(0, "0", 8): at + 2, (1, "0", 8): at + 2}


def test_the_report_of_a_rank_names_the_one_that_holds_it_up(distributed):
    up = distributed(Recorder(None))
    mine = report.Report("rank 0", Job(step=4).snapshot(), slipring.Stats()).gathered()
    assert mine.verdict.cause == "rank"
    assert (mine.verdict.wait_share, mine.verdict.data_bound) == (0.0, False)  # its own
    assert [(each["rank"], each["wait_share"]) for each in mine.dict()["ranks"]] == [(1, 0.5), (0, 0.0)]
    assert "Ranks, by waiting" in str(mine) and json.loads(mine.json())
    *_, rows = str(mine).partition("Ranks, by waiting")
    sentences = [each["sentence"] for each in mine.ranks]
    assert len({line.index(text) for line, text in zip(rows.splitlines()[2:], sentences, strict=True)}) == 1
    up.is_initialized = lambda: False
    assert ranks.gather(OK, Job(step=4).snapshot()) == []


# ---- real ranks: sleeps stand for reading, for computing and for the work after a collective operation


def _rank(rank, file, times, out):
    import torch.distributed

    torch.set_num_threads(1)
    reads, computes, logs = (each[rank] for each in times)
    world = len(times[0])
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    gradient = torch.ones(8)
    with slipring.Loader(Slow(24, reads), 1, num_workers=1, workers=Workers(start_method="fork")) as loader:
        for _ in loader:
            time.sleep(computes)
            torch.distributed.all_reduce(gradient)
            time.sleep(logs)
        alone, together = loader.report().dict(), loader.report(ranks=True).dict()
    out.put((rank, alone["ranks"], together["ranks"], together["verdict"]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


SHORT, LONG = 0.005, 0.1


@pytest.mark.parametrize(
    ("times", "begins"),
    [
        (([LONG, SHORT, LONG], [SHORT] * 3, [0.0] * 3), "Ranks 0 and 2 hold up all 3: their workers"),
        (([SHORT] * 2, [SHORT] * 2, [LONG, 0.0]), "Rank 0 holds up all 2 by its step, not by its data"),
        (([SHORT] * 2, [LONG] * 2, [0.0] * 2), ""),
    ],
    ids=["two slow datasets", "a slow step", "equally slow steps"],
)
def test_all_ranks_of_a_job_are_told_the_same(tmp_path, times, begins):
    pytest.importorskip("torch.distributed")
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    processes = [
        context.Process(target=_rank, args=(rank, tmp_path / "meet", times, out)) for rank in range(len(times[0]))
    ]
    for each in processes:
        each.start()
    said = [out.get(timeout=LONG_S) for _ in processes]
    for each in processes:
        each.join()
    assert sorted(rank for rank, *_ in said) == list(range(len(processes)))
    of_all = said[0][2]
    shares = [each["wait_share"] for each in of_all]
    assert shares == sorted(shares, reverse=True)
    for rank, alone, together, verdict in said:
        assert alone == [] and together == of_all  # one collective call informed all ranks
        (own,) = (each for each in of_all if each["rank"] == rank)
        assert verdict["wait_share"] == own["wait_share"]
        assert verdict["sentence"].startswith(begins), of_all
        assert (verdict["cause"] == "rank") == begins.startswith("Rank"), of_all
