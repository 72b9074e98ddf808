"""Ranks of ``share=`` that do not fit together: each rank raises an error that names what differs."""

import re

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from slipring.torch import DataLoader  # noqa: E402
from tests.sharing.jobs import Job  # noqa: E402

REVERSED = [*reversed(range(60))]
DIFFERENT = {
    "batch_size: 4 in rank 0, 5 in rank 1": [{}, {"batch_size": 5}],
    "num_workers: 1 in rank 0, 2 in rank 1": [{}, {"num_workers": 2}],
    "drop_last: False in rank 0, True in rank 1": [{}, {"drop_last": True}],
    "rng: worker in rank 0, batch in rank 1": [{}, {"rng": "batch"}],
    "in_order: True in rank 0, False in rank 1": [{}, {"in_order": False}],
    "rank: None in rank 0, 3 in rank 1": [{}, {"rank": 3}],
    "the seed (generator=): 1, state": [{"seed": 1}, {"seed": 2}],
    "the seed (generator=): none in rank 0, 2, state": [{}, {"seed": 2}],
    "the length of the dataset: 60 in rank 0, 61 in rank 1": [{}, {"length": 61}],
    "the class of the sampler": [{}, {"shuffle": True}],
    "Rows in rank 0, __main__.Divided in rank 1": [{}, {"divided": 0}],
    "the part of the samples that the dataset gives: rank 0 in rank 0, rank 1": [{"divided": 0}, {"divided": 1}],
    "dataset: the dataset itself in rank 0, a function that makes it in rank 1": [{}, {"factory": "rows"}],
    "rank 0 of 2 in rank 0, rank 1 of 2 in rank 1. The ranks of share= read the same": [
        {"parts": [2, 0]},
        {"parts": [2, 1]},
    ],
    "the sampler gives: rank 0 of 2 in rank 0, rank 1 of 2 in rank 1": [{"nested": [2, 0]}, {"nested": [2, 1]}],
    "the user: 0 in rank 0, 12345 in rank 1": [{"user": 0}, {"user": 12345}],
    "the version of slipring: 1 in rank 0, 2 in rank 1": [{"version": "1"}, {"version": "2"}],
}


def refusals(folder, *options):
    """Return the text of the ValueErrors of two ranks, which have these options."""
    with Job(folder, "refused", ranks=2, options=options) as job:
        results = job.results()
    assert [result["error"] for result in results] == ["ValueError"] * 2
    return [result["text"] for result in results]


@pytest.mark.parametrize("text", DIFFERENT)
def test_each_rank_raises_an_error_that_names_what_differs(tmp_path, text):
    first, second = refusals(tmp_path, *DIFFERENT[text])
    assert first == second
    assert first.startswith("the ranks of share= must have equal loaders; ") and text in first


def test_what_cannot_be_shared_is_refused_in_all_ranks(tmp_path):
    for number, (options, text) in enumerate(
        [
            ({"num_workers": 0}, "share= needs workers, and num_workers=0"),
            ({"num_workers": "auto"}, "share= needs a fixed num_workers"),
            ({"pipe": True}, "share= and a DataPipe"),
            ({"batch_size": -1}, "batch_size should be a positive integer value"),
            ({"drop_last": True, "batch_size": None}, "batch_size=None option disables auto-batching"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        first, second = refusals(folder, {}, options)
        assert text in second and first == f"share=: rank 1 has raised ValueError: {second}"


def test_a_function_that_cannot_make_the_dataset_is_an_error_in_all_ranks(tmp_path):
    for factory, text in {
        "broken": "OSError: no such folder",
        "several arguments": "TypeError: Divided.__init__() missing 1 required positional argument: 'rank'",
        "pipe": "ValueError: share= and a DataPipe",
    }.items():
        (folder := tmp_path / factory).mkdir()
        with Job(folder, "refused", ranks=2, options=[{"factory": factory}] * 2) as job:
            first, second = job.results()
        assert f"{first['error']}: {first['text']}".startswith(text)
        assert second["error"] == "ValueError"
        assert second["text"] == f"share=: rank 0 has raised {first['error']}: {first['text']}"


def test_an_exception_with_a_very_long_text_reaches_the_ranks_that_wait_for_the_dataset(tmp_path):
    with Job(tmp_path, "refused", ranks=2, options=[{"factory": "broken at length"}] * 2) as job:
        first, second = job.results()
    assert (first["error"], first["text"]) == ("OSError", "x" * 1_000_000)
    assert second["text"].startswith("share=: rank 0 has raised OSError: xxx")


def test_a_sampler_that_needs_the_samples_is_an_error_in_all_ranks_if_only_one_has_them(tmp_path):
    with Job(tmp_path, "refused", ranks=2, options=[{"factory": "weighted"}] * 2) as job:
        first, second = job.results()
    named = f"Rows.__getitem__ is not in this process, because rank 0 (pid {job[0].pid}) has made the dataset"
    assert second["error"] == "RuntimeError" and second["text"].startswith(named)
    assert first["text"] == f"share=: rank 1 has raised RuntimeError: {second['text']}"


def test_the_death_of_the_lead_while_it_makes_the_dataset_is_an_error(tmp_path):
    with Job(tmp_path, "refused", ranks=2, options=[{"factory": "killed"}] * 2) as job:
        (second,) = job.results(without=(0,))
        assert second["error"] == "LeadDied"
        assert second["text"] == f"rank 0 (pid {job[0].pid}) has died before it had made its loader"


def test_more_ranks_than_a_process_can_share_with_are_refused(tmp_path):
    with Job(tmp_path, "refused", ranks=3, options=[{"most": 1}] * 3) as job:
        texts = {result["text"] for result in job.results()}
    assert texts == {
        "share= has 3 ranks on one machine, and one process can share its batches with 1 others: make smaller groups"
    }


def test_a_list_of_states_needs_the_dataset_in_each_rank(tmp_path):
    with Job(tmp_path, "listed", ranks=2, once=True) as job:
        texts = {result["text"] for result in job.results()}
    assert len(texts) == 1 and "give share= the dataset itself in each rank" in texts.pop()


def test_a_sampler_with_another_order_is_an_error_at_the_first_batch_that_differs(tmp_path):
    with Job(tmp_path, "refused", ranks=2, options=[{"order": [*range(60)]}, {"order": REVERSED}]) as job:
        first, second = job.results()
    assert "batch 0 was made of other indices than this rank's sampler gives" in second["text"]
    assert first["batches"] == 15
    assert first["text"] == second["text"], "the next pass raises it there, too"


def test_another_state_in_one_rank_is_an_error_in_all(tmp_path):
    with Job(tmp_path, "refused", ranks=2, options=[{}, {}]) as job:
        results = job.results()
    assert [result["batches"] for result in results] == [15, 15]
    assert results[0]["text"] == results[1]["text"]
    assert re.search(r"begin a pass differently; the seed .*: \d+ in rank 0, \d+ in this rank$", results[0]["text"])


def test_a_rank_that_does_not_begin_is_named(tmp_path):
    with Job(tmp_path, "stepwise", ranks=2, timeout=2, persistent_workers=True) as job:
        for rank in job.ranks:
            rank.line()
        job[0].ask("iter")
        answer = job[0].ask("next")
        assert answer["error"] == "LoaderTimeout"
        assert f"the batches wait for rank 1 (pid {job[1].pid})" in answer["text"]
        job[1].ask("iter")
        assert job.say("next")[0]["batch"]
        assert "error" not in job[0].ask("close")
        answer = job[1].ask("iter")
        assert answer["error"] == "LoaderTimeout" and f"rank 0 (pid {job[0].pid})" in answer["text"]


def test_a_warning_names_the_rank_that_does_not_begin(tmp_path):
    with Job(tmp_path, "stepwise", ranks=2, warn_soon=True) as job:
        for rank in job.ranks:
            rank.line()
        job[0].ask("iter")
        job[0].say("next")
        warning = job[0].line()["warning"]
        assert f"wait for rank 1 (pid {job[1].pid}), which has not called iter() of the loader" in warning
        job[1].ask("iter")
        assert job[0].line()["batch"] == job[1].ask("next")["batch"]


def test_a_process_outside_of_the_group_is_refused(tmp_path):
    with Job(tmp_path, "strangers", ranks=2) as job:
        first, second = job.results()
    assert "made" not in first and "made" not in second
    assert first["batches"] == 15
    assert second["text"] == "share=: rank 1 is not in the group: give it its own group"


def test_a_loader_that_shares_is_not_pickled(tmp_path):
    with Job(tmp_path, "pickled", ranks=2) as job:
        assert all("cannot be pickled or copied" in result["text"] for result in job.results())


def test_share_needs_a_process_group():
    with pytest.raises(RuntimeError, match="init_process_group"):
        DataLoader(range(4), num_workers=1, share="tp")


@pytest.mark.parametrize("make", [torch.utils.data.Dataset, lambda: range(4)], ids=["class", "function"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_function_that_makes_the_dataset_needs_share(make, num_workers):
    with pytest.raises(TypeError, match=r"^dataset is <.*>, and a function that makes the dataset needs share=: give"):
        DataLoader(make, num_workers=num_workers)


class Callable:
    """A dataset of whole batches that can be called, too."""

    def __len__(self):
        return 4

    def __call__(self):
        raise AssertionError("the loader has called the dataset")

    def fetch_into(self, indices, empty):
        made = empty((len(indices),), "int64")
        made[:] = indices
        return made


def test_a_dataset_of_whole_batches_that_can_be_called_is_no_function_that_makes_one():
    with DataLoader(Callable(), 2, num_workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_a_forked_child_of_a_rank_is_refused(tmp_path):
    with Job(tmp_path, "forked", ranks=2) as job:
        results = job.results()
    for result in results:
        assert "belongs to the process that made it" in result["text"] and result["batches"] == 15
