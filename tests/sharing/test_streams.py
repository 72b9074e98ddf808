"""The ranks of ``share=`` on one machine read one stream: the same bytes, the same states, made once."""

import uuid

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from tests.sharing.jobs import Job  # noqa: E402

KINDS = ["rows", "remembering", "walk", "batches", "chunks", "numbers", "counting"]
PERSISTENT = {"persistent_workers": True}


def agreed(results, *names):
    """Check that all ranks have said the same under these names; return that."""
    found = [[result[name] for name in names] for result in results]
    assert all(each == found[0] for each in found)
    return found[0][0] if len(names) == 1 else found[0]


@pytest.mark.parametrize("options", [{}, PERSISTENT, {"rng": "batch"}], ids=["", "persistent", "batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_get_the_same_batches_and_states_which_one_process_makes(tmp_path, kind, options):
    with Job(tmp_path, "passes", kind=kind, seed=1, plain=True, **options) as job:
        results = job.results()
    seen, states = agreed(results, "seen", "states")
    assert seen == results[0]["plain"], "as without share="
    assert len(set(states)) > len(states) // 2
    assert seen.count("end") == 2 and len(seen) > 20
    pids = agreed(results, "pids")
    assert (not pids) if kind == "chunks" else 0 < len(pids) <= (2 if options == PERSISTENT else 4)
    assert [len(result["workers"]) for result in results[1:]] == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_without_a_dataset_get_the_same_as_the_one_that_makes_it(tmp_path, kind):
    results = []
    for once in (False, True):
        (folder := tmp_path / str(once)).mkdir()
        with Job(folder, "passes", kind=kind, seed=1, once=once) as job:
            results.append(job.results())
    facts = [agreed(each, "seen", "states", "name", "lengths") for each in results]
    assert facts[0] == facts[1]
    assert [result["made"] for result in results[1]] == [1, 0, 0]


def test_a_loader_that_follows_a_shared_one_in_a_pool_is_the_same_in_all_ranks(tmp_path):
    with Job(tmp_path, "pooled", ranks=2, pool=f"test-{uuid.uuid4().hex}") as job:
        shared, own = agreed(job.results(), "shared", "own")
    assert len(shared) == 15 and [i for batch in own for i in batch] == [*range(20)]


@pytest.mark.parametrize("kind", ["rows", "numbers", "chunks"])
def test_an_epoch_that_all_ranks_leave_early_is_followed_by_the_next(tmp_path, kind):
    with Job(tmp_path, "passes", kind=kind, stop=4, epochs=3, **PERSISTENT) as job:
        results = job.results()
    seen, _ = agreed(results, "seen", "states")
    assert seen[4] == "end" and seen.count("end") == 3
    assert all("DataLoader" in result["report"] for result in results)


@pytest.mark.parametrize(
    "options",
    [
        {"device": {"preload": 2}},
        {"device": {"preload": 0}},
        {"in_order": False, "rng": "batch"},
        {"memory": {"copy": "always"}},
        {"workers": {"chunk_size": 2}, "rng": "batch"},
        {"memory": {"slots": 3}},
        {"rng": "sample"},
        {"drop_last": True, "timeout": 600},
    ],
    ids=str,
)
def test_all_ranks_get_the_same_with_other_options(tmp_path, options):
    with Job(tmp_path, "passes", epochs=2, stop=6, **options) as job:
        results = job.results()
    if "device" in options:  # how far a sampler has been read depends on a thread, but not what follows
        agreed(results, "seen")
    else:
        agreed(results, "seen", "states")


@pytest.mark.parametrize("once", [False, True], ids=["", "once"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_resume_in_the_middle_of_an_epoch(tmp_path, kind, once):
    with Job(tmp_path, "resumed", ranks=2, kind=kind, seed=1, rng="batch", once=once) as job:
        results = job.results()
    rest, again, other, following = agreed(results, "rest", "again", "other", "following")
    assert rest == again == other and len(rest) > 5
    assert following


def test_a_state_from_the_end_of_an_epoch_is_followed_by_the_next_one_in_all_ranks(tmp_path):
    with Job(tmp_path, "resumed", ranks=2, at=15, seed=1, rng="batch") as job:
        rest, again, other, following = agreed(job.results(), "rest", "again", "other", "following")
    assert rest == [] and again == other and len(again) == len(following) == 15 and following != other


def test_the_report_of_each_rank_has_its_own_batches_and_waits(tmp_path):
    with Job(tmp_path, "stepwise", rng="batch") as job:
        for rank in job.ranks:
            rank.line()
        job.say("iter")
        for _ in range(10):
            job.say("next")
        job[1].ask("close")
        job[0].ask("rest")
        job[2].ask("rest")
        lead, closed, reader = (rank.ask("report")["report"] for rank in job.ranks)
        assert [report["batches"] for report in (lead, closed, reader)] == [15, 10, 15]
        for report in (closed, reader):
            assert report["stages"]["waited"]["count"] == report["batches"] and report["batches_per_s"] > 0
            assert 0 < report["verdict"]["wait_share"] <= 1
            assert f"for rank 0 (pid {job[0].pid}), which makes the batches" in report["verdict"]["sentence"]


def test_an_exception_of_the_dataset_comes_in_all_ranks_at_its_place(tmp_path):
    with Job(tmp_path, "errors") as job:
        seen, _ = agreed(job.results(), "seen", "state")
    assert [each for each in enumerate(seen) if "bad" in each[1]] == [(4, "ValueError: ValueError: sample 17 is bad")]
    assert len(seen) == 15


def test_two_loaders_share_at_the_same_time(tmp_path):
    with Job(tmp_path, "interleaved", persistent_workers=True) as job:
        seen = agreed(job.results(), "seen")
    assert len(seen) > 40


def test_two_iterators_of_one_loader_share_at_the_same_time(tmp_path):
    with Job(tmp_path, "iterators", ranks=2, rng="batch") as job:
        seen, rest = agreed(job.results(), "seen", "rest")
    assert len(seen) * 2 + len(rest[0]) == len(seen) + len(rest[1]) == 15


def test_ranks_that_only_read_reserve_no_part_of_a_pools_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with Job(tmp_path, "budgeted", pool=f"test-{uuid.uuid4().hex}", memory="64MB") as job:
        results = job.results()
    assert agreed(results, "seen") == [[*range(at, at + 4)] for at in range(0, 60, 4)]
    assert results[0]["budget"] > 30e6, "one half is for the lead, and the other for one more loader"


def test_a_group_on_two_machines_reads_one_stream_on_each(tmp_path):
    with Job(tmp_path, "machines", ranks=4, kind="rows") as job:
        results = job.results()
    agreed(results, "seen", "states")
    assert results[0]["pids"] == results[1]["pids"] and results[2]["pids"] == results[3]["pids"]
    assert not {*results[0]["pids"]} & {*results[2]["pids"]}


@pytest.mark.parametrize("part", [["tp"], ["dp"], ["dp", "tp"]], ids="-".join)
def test_the_ranks_along_dimensions_of_a_mesh_share(tmp_path, part):
    with Job(tmp_path, "meshes", ranks=4, part=part) as job:
        results = job.results()
    groups = {number: [each for each in results if each["number"] == number] for number in (0, 1)}
    for group in filter(None, groups.values()):
        agreed(group, "seen")
        assert sorted(each["workers"] for each in group) == [0] * (len(group) - 1) + [2]
    indices = [i for group in groups.values() if group for _, batch in group[0]["seen"] for i in batch]
    assert sorted(indices) == list(range(60))
