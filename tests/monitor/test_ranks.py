"""The verdicts of several ranks: which one makes the others wait."""

import multiprocessing
import sys
from types import SimpleNamespace

import pytest

import slipring
from slipring import Workers
from slipring.monitor import Verdict
from tests.datasets import Squares
from tests.monitor.simulated import Job
from tests.support.inside import observing

ranks, report = observing("ranks"), observing("report")


def told(rank, wait_share):
    """What a rank tells of itself."""
    return {
        "rank": rank,
        "wait_share": wait_share,
        "data_bound": wait_share >= 0.1,
        "sentence": f"Of rank {rank}.",
    }


def test_the_rank_that_waits_twice_as_long_as_the_others_is_named():
    said = ranks.slowest([told(2, 0.41), told(0, 0.2), told(1, 0.1), told(3, 0.0)])
    assert said == "Rank 2 holds up all 4: it waits 41% of its time for data, the others 10%. There: Of rank 2."
    assert ranks.slowest([told(1, 0.41), told(0, 0.2)]) != ""
    assert ranks.slowest([told(1, 0.39), told(0, 0.2)]) == ""


def test_no_rank_is_named_where_none_is_data_bound_or_there_is_one():
    assert ranks.slowest([told(1, 0.09), told(0, 0.0)]) == ""
    assert ranks.slowest([told(1, 0.11), told(0, 0.0)]) != ""
    assert ranks.slowest([told(0, 0.9)]) == ranks.slowest([]) == ""


@pytest.fixture
def distributed(monkeypatch):
    """Stand in for torch.distributed of rank 0, to which rank 1 tells that it waits for half of its time."""

    def all_gather_object(found, own):
        found[:] = [own, {**own, **told(1, 0.5), "advice": "Help rank 1."}]

    up = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 0, get_world_size=lambda: 2,
        all_gather_object=all_gather_object,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=up))
    return up


def test_the_verdicts_are_gathered_with_their_ranks_the_longest_wait_first(distributed):
    found = ranks.gather(Verdict("ok", "Nothing is wrong.", wait_share=0.04))
    assert [(each["rank"], each["wait_share"]) for each in found] == [(1, 0.5), (0, 0.04)]
    distributed.is_initialized = lambda: False
    assert ranks.gather(Verdict("ok", "Nothing is wrong.")) == []


def test_the_report_of_a_rank_names_the_one_that_holds_it_up(distributed):
    mine = report.Report("rank 0", Job(step=4).snapshot(), slipring.Stats()).gathered()
    assert (mine.verdict.cause, mine.verdict.advice) == ("rank", "Help rank 1.")
    assert mine.verdict.sentence.startswith("Rank 1 holds up all 2")
    assert (mine.verdict.wait_share, mine.verdict.data_bound) == (0.0, False)  # its own
    assert [each["rank"] for each in mine.dict()["ranks"]] == [1, 0] and "Ranks, by waiting" in str(mine)


def _rank(rank, file, out):
    import torch.distributed

    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    with slipring.Loader(Squares(80), 4, num_workers=1, workers=Workers(start_method="fork")) as loader:
        for _ in loader:
            pass
        alone, together = loader.report().dict(), loader.report(ranks=True).dict()
    out.put((rank, alone["ranks"], together["ranks"], together["verdict"]))
    torch.distributed.destroy_process_group()


def test_all_ranks_of_a_job_are_told_the_same(tmp_path):
    pytest.importorskip("torch")
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    processes = [context.Process(target=_rank, args=(rank, tmp_path / "meet", out)) for rank in range(2)]
    for each in processes:
        each.start()
    said = [out.get(timeout=100) for _ in processes]
    for each in processes:
        each.join()
    assert sorted(rank for rank, *_ in said) == [0, 1]
    (_, alone, of_all, _), (_, _, of_all_too, _) = said
    assert alone == [] and of_all == of_all_too  # one collective call told both
    assert sorted(each["rank"] for each in of_all) == [0, 1]
    shares = [each["wait_share"] for each in of_all]
    assert shares == sorted(shares, reverse=True)
    for rank, _, _, verdict in said:
        (own,) = (each for each in of_all if each["rank"] == rank)
        assert verdict["wait_share"] == own["wait_share"]
        assert verdict["cause"] == ("rank" if ranks.slowest(of_all) else own["cause"])
