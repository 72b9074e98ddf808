"""The bench itself: (f) and (g), whose batches are random, are checked by form and by each decoder's error."""

import mmap
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench import decoded
from bench.decoders import SIDE
from bench.exact import check_form
from bench.memory import of_files, of_job
from bench.photos import image_files
from bench.runner import Plan, run
from bench.summary import summarize
from bench.workload import Target
from bench.workloads import WORKLOADS, epochs

ROOT = Path(__file__).resolve().parents[2]


def plan(data, only, workload="f"):
    return Plan(
        workloads=(WORKLOADS[workload],),
        workers=1,
        repeats=1,
        warm_s=0.0,
        window_s=0.05,
        limit_s=60.0,
        data=str(data),
        only=only,
        quick=True,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "class").mkdir()
    ramp = np.add.outer(np.arange(48), np.arange(64))
    for number in range(4):
        pixels = np.stack([ramp + number, ramp[::-1], 2 * ramp], axis=-1).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "class" / f"{number}.jpg", quality=90)
    return tmp_path


@pytest.mark.slow
def test_images_end_to_end_are_measured_with_their_error_and_a_missing_baseline_has_a_reason(folder):
    pytest.importorskip("torch")
    asked = plan(folder, ("images", "images_alone", "images_torch", "images_ffcv"))
    found = summarize(asked.workloads, run(asked))
    ours, alone, torch, ffcv = found["tables"]["f"]
    assert not ours.notes and not alone.notes and not torch.notes
    assert ours.error_max <= 1 and torch.error_max == 0
    assert ours.images_per_s == ours.rate.median * 64  # the quick batch
    assert "ffcv" in ffcv.notes[0] and ffcv.rate is None
    measured = {verdict.target.against: verdict.measured for verdict in found["targets"]}
    assert measured["torch"] == ours.to_torch == measured["exact"]
    assert measured["threads"] is None  # they were not measured


def test_an_inexact_baseline_does_not_count_among_the_exact():
    workload = WORKLOADS["f"]
    answers = {
        key: [{"rate": rate, "nbytes": 1, "batch_size": 64, "error_mean": 0.1, "error_max": error}]
        for key, rate, error in (
            ("images", 6.0, 1), ("images_torch", 2.0, 0), ("images_dali", 4.0, 2), ("images_opencv", 5.0, 3),
        )
    }  # fmt: skip
    found = summarize([workload], {"rounds": {"f": answers}, "missing": {}})
    exact = next(verdict for verdict in found["targets"] if verdict.target == Target("exact", 1.4))
    assert exact.measured.median == 6.0 / 4.0 and exact.met


@pytest.mark.parametrize(
    "shape, said",
    [
        ((4, SIDE, SIDE, 3), None),
        ((4, 3, SIDE, SIDE), None),
        ((3, SIDE, SIDE, 3), "pictures of shape"),
        ((4, 3, SIDE, 3), "pictures of shape"),
    ],
)
def test_batches_of_crops_are_checked_by_their_shape(shape, said):
    pictures = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    wrong = check_form([pictures, np.arange(4)], 4)
    assert wrong is None if said is None else wrong.startswith(said)


@pytest.mark.slow
def test_verdicts_are_asked_of_real_loaders_and_shown_in_a_table():
    command = [sys.executable, "-m", "bench.verdicts", "--only", "unknown", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("unknown"))
    assert line.split()[-2:] == ["1/1", "unknown"], done.stdout


def test_batches_of_blank_images_are_refused():
    assert check_form([np.zeros((4, SIDE, SIDE, 3), np.uint8)], 4) == "4 of 4 pictures are blank"


def test_the_roles_of_each_workload_are_among_its_baselines():
    for workload in WORKLOADS.values():
        baselines = {baseline.key for baseline in plan(None, None, workload.key).baselines_of(workload)}
        roles = workload.roles
        named = {roles.threads, roles.plain, roles.half, roles.mapped} - {None}
        assert {roles.ours, *roles.torch, *roles.spdl, *roles.roofline, *named} <= baselines


@pytest.mark.slow
def test_later_epochs_are_measured_with_the_hits_and_the_memory_of_all_processes(folder):
    pytest.importorskip("torch")
    asked = plan(folder, ("kept_none", "kept_all", "kept_side", "kept_dict", "kept_ffcv"), "g")
    found = summarize(asked.workloads, run(asked))
    none, kept, side, own, ffcv = found["tables"]["g"]
    assert not none.notes and not kept.notes and not side.notes and not own.notes
    assert none.hits is None and kept.hits == side.hits == own.hits == 1.0
    assert none.error_max <= 1 and kept.error_max <= 1 and side.error_max is None and own.error_max == 0
    assert none.memory > 10e6 and none.to_plain.median == 1.0
    assert "ffcv" in ffcv.notes[0] and ffcv.rate is None
    measured = {verdict.target.against: verdict.measured for verdict in found["targets"]}
    assert measured["plain"] == kept.to_plain and measured["half"] is None and measured["mapped"] is None


def test_a_workload_may_have_fewer_baselines_with_quick():
    asked = plan(None, None, "g")
    few = {baseline.key for baseline in asked.baselines_of(WORKLOADS["g"])}
    assert few < {baseline.key for baseline in replace(asked, quick=False).baselines_of(WORKLOADS["g"])}


def test_memory_in_a_file_counts_once_for_several_processes_and_also_unmapped():
    before = of_job(os.getpid())
    size = 64 << 20
    descriptor = os.memfd_create("unmapped")
    try:
        os.posix_fallocate(descriptor, 0, size)
        assert of_files([descriptor]) == size
        child = subprocess.Popen(["sleep", "60"], pass_fds=[descriptor])
        try:
            with mmap.mmap(descriptor, size) as mapped:
                mapped[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)
                grown = of_job(os.getpid()) - before
        finally:
            child.kill()
            child.wait()
    finally:
        os.close(descriptor)
    assert abs(grown - size) < size / 4  # other memory of the process changes meanwhile


def test_the_images_of_the_second_epoch_are_those_that_fit_and_each_epoch_has_all_of_them(folder, monkeypatch):
    monkeypatch.setattr(epochs, "MOST", 3 * 48 * 64 * 3)  # three of the four images
    pictures = epochs.dataset(str(folder))
    assert pictures.distinct == len(pictures.files) == 3
    order = list(islice(pictures.order, 9))
    assert [sorted(order[start : start + 3]) for start in (0, 3, 6)] == [[0, 1, 2]] * 3


def test_decoded_images_lie_in_one_file_as_pillow_decodes_them(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(decoded, "DECODED", tmp_path / "decoded")
    files = image_files(str(folder))
    for _ in range(2):  # first made, then found
        pixels, places = decoded.decoded(files)
        for (path, _), (at, height, width) in zip(files, places):
            with Image.open(path) as image:
                expected = np.asarray(image.convert("RGB"))
            assert (pixels[at : at + 3 * height * width].reshape(height, width, 3) == expected).all()
    assert len(list((tmp_path / "decoded").iterdir())) == 2
