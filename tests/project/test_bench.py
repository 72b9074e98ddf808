"""The bench itself: measurements with little data, and batches of every recipe."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import recipes
from bench.annotated_photos import AnnotatedPhotos
from bench.baselines.recipes import CANDIDATES, RECIPES, slipring_list, slipring_list_parts
from bench.memory import of_files, of_job
from bench.photos import image_files
from bench.runner import Plan, run
from bench.summary import summarize
from bench.workloads import WORKLOADS
from bench.workloads.epochs import Pictures
from tests.support.pictures import encoded, pixels

ROOT = Path(__file__).resolve().parents[2]


def plan(data, only, workload="f"):
    times = {"warm_s": 0.0, "window_s": 0.05, "limit_s": 60.0}
    return Plan(
        workloads=(WORKLOADS[workload],), workers=1, repeats=1, data=str(data), only=only, quick=True, **times
    )  # fmt: skip


@pytest.fixture
def photographs(tmp_path):
    """A class folder with four small images."""
    (tmp_path / "class").mkdir()
    for number in range(4):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(encoded(pixels(48, 64, number)))
    return tmp_path


@pytest.mark.slow
def test_images_end_to_end_are_measured_with_their_error_and_a_missing_baseline_has_a_reason(photographs):
    pytest.importorskip("torch")
    asked = plan(photographs, ("images", "images_alone", "images_torch", "images_ffcv"))
    found = summarize(asked.workloads, run(asked))
    ours, alone, torch, ffcv = found["tables"]["f"]
    assert not ours.notes and not alone.notes and not torch.notes
    assert ours.error_max <= 1 and torch.error_max == 0
    assert ours.images_per_s == ours.rate.median * 64  # the quick batch
    assert "ffcv" in ffcv.notes[0] and ffcv.rate is None
    measured = {verdict.target.against: verdict.measured for verdict in found["targets"]}
    assert measured["torch"] == ours.to_torch == measured["exact"]
    assert measured["threads"] is None  # they were not measured


def test_memory_in_a_file_counts_once_for_several_processes_and_also_unmapped():
    before = of_job(os.getpid())
    size = 64 << 20
    descriptor = os.memfd_create("unmapped")
    try:
        os.posix_fallocate(descriptor, 0, size)
        assert of_files([descriptor]) == size
        with subprocess.Popen(["sleep", "60"], pass_fds=[descriptor]) as child, mmap.mmap(descriptor, size) as mapped:
            mapped[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)
            grown = of_job(os.getpid()) - before
            child.kill()
    finally:
        os.close(descriptor)
    assert abs(grown - size) < size / 4  # other memory of the process changes meanwhile


# ---- bench.recipes


@pytest.mark.slow
def test_each_candidate_is_measured_with_its_levels_or_says_why_it_is_not(photographs, tmp_path):
    command = [sys.executable, "-m", "bench.recipes", "--only", "crop", "--rounds", "1", "--seconds", "0.1"]
    command += ["--data", photographs, "--record", tmp_path / "crop.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "crop.json").read_text())
    columns, row = (result["tables"]["images per CPU second"][part] for part in ("columns", "rows"))
    figures = dict(zip(columns, row[0], strict=True))
    assert columns == ["recipe", *(candidate.label for candidate in CANDIDATES.values())]
    assert figures["slipring.images"][0] > 0 and figures["torch, timm"] is None
    assert "torch, timm has no such recipe" in result["note"] or "timm" in result["note"]
    assert all(figure is None or figure[0] > 0 for figure in list(figures.values())[1:])
    assert result["machine"]["command"].startswith("python -m bench.recipes --only crop")
    assert "--record" not in result["machine"]["command"]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_slipring_makes_batches_of_every_recipe(recipe, photographs):
    made = slipring_list_parts if recipe.parts else slipring_list
    pictures = AnnotatedPhotos(str(photographs)) if recipe.parts else Pictures(image_files(str(photographs)))
    levels = recipes.check(recipe, [next(iter(made.loader(recipe, pictures, 0)))])
    assert 0 < levels["mean"] < 255 and levels["deviation"] > 0


def test_plans_of_tokens_are_measured(tmp_path):
    few = ["--documents", "20000", "--mapped", "20000", "--rounds", "1", "--record", str(tmp_path / "found.json")]
    subprocess.run([sys.executable, "-m", "bench.tokens", "plans", *few], check=True, cwd=ROOT, capture_output=True)
    tables = json.loads((tmp_path / "found.json").read_text())["tables"]
    assert [len(table["rows"]) for table in tables.values()] == [5, 5, 1]


def test_collation_of_tokens_is_measured(tmp_path):
    short = ["--rounds", "1", "--seconds", "0.01", "--record", str(tmp_path / "found.json")]
    subprocess.run(
        [sys.executable, "-m", "bench.tokens", "collation", *short], check=True, cwd=ROOT, capture_output=True
    )
    assert len(json.loads((tmp_path / "found.json").read_text())["tables"]["collation"]["rows"]) >= 18


def test_chunks_of_a_corpus_are_measured(tmp_path):
    few = ["--tokens", "4000000", "--mapped", "100000", "--rounds", "1", "--seconds", "0.01"]
    record = ["--record", str(tmp_path / "found.json")]
    subprocess.run(
        [sys.executable, "-m", "bench.tokens", "corpus", *few, *record], check=True, cwd=ROOT, capture_output=True
    )
    tables = json.loads((tmp_path / "found.json").read_text())["tables"]
    assert len(tables["chunks"]["rows"]) >= 6 and len(tables["chunk starts"]["rows"]) == 1


def test_messages_to_several_readers_are_measured():
    """One measurement of each kind; a whole round takes minutes."""
    for what, figures in (("latency", {"median", "p99"}), ("cpu", {"cpu"})):
        command = [sys.executable, "-m", "bench.broadcast", "--one", "Slipring", what, "1024", "2", "10", "0.002"]
        done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
        assert set(json.loads(done.stdout)) == figures


def test_clips_of_videos_are_measured(tmp_path):
    """One measurement of one candidate, of each kind; all of them take minutes."""
    pytest.importorskip("torch")
    pytest.importorskip("av")
    from bench.clips.videos import WORKLOADS

    WORKLOADS["random clips"].quick().write(str(tmp_path))
    found = {}
    for function in ("measured", "memory_used"):
        command = [sys.executable, "-m", "bench.clips", "--call", function, "slipring.clips, cache", "random clips"]
        done = subprocess.run(
            [*command, str(tmp_path), "1", "--quick"], check=True, cwd=ROOT, capture_output=True, text=True
        )
        found |= json.loads(done.stdout)
    assert found["decoded"] == 1 and len(found["rates"]) == 3
    assert found["memory"] > 4 * 150 * 340 * 256 * 3  # all frames


def test_ranks_that_share_a_stream_are_measured():
    """One measurement of one candidate; all of them take minutes."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "bench.ranks", "--measure", "slipring.torch, share=, one dataset", "2"]
    done = subprocess.run(
        [*command, "--batches=2", "--names=1000"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert found["bytes read"] == pytest.approx(1, abs=0.01) and found["batches/s"] > 0
