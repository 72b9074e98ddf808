"""bench.recipes: what it checks, and what it computes from the measurements."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench import cpu, recipes
from bench.annotated_photos import AnnotatedPhotos
from bench.baselines.recipes import (
    BATCH,
    CANDIDATES,
    CLASSES,
    MEAN,
    RECIPES,
    SIDE,
    STD,
    slipring_list,
    slipring_list_parts,
)
from bench.photos import image_files
from bench.workloads.epochs import Pictures

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (BATCH, SIDE, SIDE, 3)
LABELS = np.zeros(BATCH, np.int64)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "class").mkdir()
    ramp = np.add.outer(np.arange(48), np.arange(64))
    for number in range(4):
        pixels = np.stack([ramp + number, ramp[::-1], 2 * ramp], axis=-1).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "class" / f"{number}.jpg", quality=90)
    return tmp_path


@pytest.mark.slow
def test_each_candidate_is_measured_with_its_levels_or_says_why_it_is_not(folder, tmp_path):
    command = [sys.executable, "-m", "bench.recipes", "--only", "crop", "--rounds", "1", "--seconds", "0.1"]
    command += ["--data", folder, "--record", tmp_path / "crop.json"]
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
def test_slipring_makes_batches_of_every_recipe(recipe, folder):
    made = slipring_list_parts if recipe.parts else slipring_list
    pictures = AnnotatedPhotos(str(folder)) if recipe.parts else Pictures(image_files(str(folder)))
    levels = recipes.check(recipe, [next(iter(made.loader(recipe, pictures, 0)))])
    assert 0 < levels["mean"] < 255 and levels["deviation"] > 0


def test_ratios_are_formed_within_a_round_and_a_missing_candidate_is_a_row_with_the_reason():
    ours, theirs = (
        [{"per_cpu_s": rate, "per_s": 2 * rate, "mean": 100.0, "deviation": 50.0} for rate in rates]
        for rates in ((40, 90, 60), (10, 30, 20))
    )
    crop = RECIPES["crop"]
    rows = [recipes.summary(crop, "slipring", ours, theirs), recipes.summary(crop, "pil", theirs, theirs)]
    rows.append(recipes.summary(crop, "timm", [{"missing": "no timm here"}], theirs))
    assert rows[0]["ratio"] == [4, 3, 3]
    lines = list(recipes.table([rows]))
    assert "| 60 (40 – 90) | 120 (80 – 180) | 3 (3 – 4) | 100.0, 50.0 |" in lines[2]
    assert lines[4].endswith("| – | – | – | – |") and "torch, timm: no timm here" in lines


def test_without_the_reference_there_is_no_ratio():
    answers = [{"per_cpu_s": 40.0, "per_s": 80.0, "mean": 100.0, "deviation": 50.0}]
    row = recipes.summary(RECIPES["crop"], "slipring", answers, [{"missing": "no torchvision here"}])
    assert "ratio" not in row
    assert "| 80 | – |" in list(recipes.table([[row]]))[2]


@pytest.mark.parametrize(
    ("key", "pixels", "labels", "said"),
    [
        ("crop", np.zeros(SHAPE, np.float32), LABELS, "a batch of float32"),
        ("crop", np.zeros((1, *SHAPE[1:]), np.uint8), LABELS, "a batch of uint8"),
        ("timm", np.zeros(SHAPE, np.float32), LABELS, "a batch of float32"),
        ("crop", np.zeros(SHAPE, np.uint8), np.zeros((BATCH, CLASSES), np.float32), "labels of shape"),
        ("mixed", np.zeros((BATCH, 3, SIDE, SIDE), np.float32), LABELS, "labels of shape"),
    ],
)
def test_batches_of_another_form_are_refused(key, pixels, labels, said):
    with pytest.raises(ValueError, match=said):
        recipes.check(RECIPES[key], [(pixels, labels)])


def test_levels_are_those_of_pixels_whether_or_not_they_are_normalised():
    pixels = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    plain = recipes.check(RECIPES["crop"], [(pixels, LABELS)])
    assert plain["mean"] == pytest.approx(pixels.mean()) and plain["deviation"] == pytest.approx(pixels.std())
    normalised = ((pixels / 255 - MEAN) / STD).astype(np.float32).transpose(0, 3, 1, 2)
    assert recipes.check(RECIPES["timm"], [(normalised, LABELS)]) == pytest.approx(plain, rel=1e-5)


def test_the_cpu_time_of_a_job_includes_children_that_have_ended():
    before = cpu.of_job(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert cpu.of_job(os.getpid()) - before >= 0.48
