"""The contents of a report, also at unusual moments."""

import io
import json
import os
import sys

import numpy as np
import pytest

import slipring
from tests.support.inside import engine_of
from tests.support.processes import until


def iterated(**options):
    loader = slipring.Loader(range(200), **{"batch_size": 5, "num_workers": 2, **options})
    for _ in loader:
        until(lambda: engine_of(loader).pool.at_target, "all workers have begun")
    return loader


def test_it_is_the_same_as_text_html_json_and_for_rich():
    with iterated() as loader:
        report = loader.report()
    told = json.loads(report.json())
    assert told == json.loads(json.dumps(report.dict()))
    assert (told["batches"], told["errors"], len(told["workers"])) == (40, 0, 2)
    assert {"fetch", "collate", "waited", "step"} <= set(told["stages"])
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=120)
    console.print(report)
    for shown in (str(report), report._repr_html_(), console.file.getvalue()):
        assert report.verdict.sentence.split()[0] in shown and "Workers" in shown


def test_without_rich_it_is_six_plain_lines(monkeypatch):
    with iterated() as loader:
        report = loader.report()
        scalars = report.scalars("data/")
    assert scalars["data/batches_per_s"] > 0 and 0 <= scalars["data/wait_share"] <= 1
    assert all(type(value) is float and name.startswith("data/") for name, value in scalars.items())
    for name in ("rich.console", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    lines = str(report).splitlines()
    assert len(lines) == 6 and lines[0] == f"{report.name}: {report.verdict}"
    for line, begin in zip(lines[1:], ("40 batches, ", "Medians: ", "2 workers: ", "Memory: ", "Slowest samples: ")):
        assert line.startswith(begin)
    assert lines[0].split()[-1] in report._repr_html_()


def test_the_share_of_hits_in_a_cache_is_reported_until_the_cache_is_closed():
    data = slipring.cached(range(40), "1MiB")
    with slipring.Loader(data, batch_size=5, num_workers=2) as loader:
        for _ in range(2):
            list(loader)
        report = loader.report()
        data.cache.close()
        assert loader.report().memory["cache"] is None
    assert report.shares["hits"] == 0.5 and report.memory["cache"] is not None
    assert "Of fetching: hits 50%." in str(report)


def test_it_can_be_had_before_the_first_batch_and_after_the_last():
    loader = slipring.Loader(range(20), num_workers=1)
    assert loader.report().dict()["batches"] == 0
    batches = iter(loader)
    next(batches)
    assert loader.report().dict()["batches"] >= 1
    assert len(list(batches)) == 19
    loader.close()
    assert loader.report().dict()["batches"] == 20


def test_headroom_is_not_told_from_the_batch_that_waited_for_the_workers():
    with slipring.Loader(range(200), 5, num_workers=2) as loader:
        slipring.replay(loader, n=3)
        found = loader.report(headroom=0.001)
        assert (found.headroom["gain"], found.headroom["step_s"]) == (None, None)
        assert "Too early" in found.headroom["sentence"] and "Too early" in str(found)
        for _ in loader:
            pass
        assert 0 <= loader.report(headroom=1e-9).headroom["gain"] <= 1
        for wrong in (0, float("inf")):
            with pytest.raises(ValueError, match="headroom must be seconds"):
                loader.report(headroom=wrong)


def test_slowest_batches_are_reported_with_their_epoch_of_torchs_face():
    pytest.importorskip("torch")
    import slipring.torch

    for persistent in (False, True):
        loader = slipring.torch.DataLoader(list(range(12)), 4, num_workers=1, persistent_workers=persistent)
        with loader:
            for _ in range(3):
                assert len(list(loader)) == 3
            found = loader.report().slowest_batches
        assert sorted(batch["epoch"] for batch in found) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_sample_whose_index_is_no_int64_is_named_by_its_row(forked):
    class Far:
        def __getitem__(self, i):
            return np.zeros(2)

    with slipring.Loader(Far(), 2, sampler=[1 << 80, "name"] * 4, num_workers=1) as loader:
        assert len(list(loader)) == 4
        found = {sample["sample"] for sample in loader.report().slowest_samples}
    assert found <= {"row 0", "row 1"} and found


def test_a_queue_counts_its_messages():
    queue = slipring.Queue(4)
    for i in range(20):
        queue.put(np.full(10, i))
        queue.get()
    report = queue.report()
    queue.close()
    assert (report.dict()["batches"], report.slowest_batches, report.workers) == (20, [], [])


def test_a_record_file_that_is_taken_again_is_another_file(tmp_path, monkeypatch):
    path = tmp_path / "record"
    monkeypatch.setenv("SLIPRING_RECORD", str(path))
    with iterated(), open(path, "rb") as before:
        first = os.fstat(before.fileno())
    with open(path, "rb") as kept, iterated():
        assert os.stat(path).st_ino != first.st_ino or os.fstat(kept.fileno()).st_size == first.st_size
        assert os.fstat(kept.fileno()).st_size == first.st_size
