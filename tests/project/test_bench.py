"""The bench itself: question (f), whose batches are random, is checked by form and by each decoder's error."""

import numpy as np
import pytest
from PIL import Image

from bench.decoders import SIDE
from bench.exact import check_form
from bench.question import Target
from bench.questions import QUESTIONS
from bench.runner import Plan, run
from bench.summary import summarize


def plan(data, only, question="f"):
    return Plan(
        questions=(QUESTIONS[question],),
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
def test_images_end_to_end_are_measured_with_their_error_and_a_missing_rival_says_why(folder):
    pytest.importorskip("torch")
    asked = plan(folder, ("images", "images_alone", "images_torch", "images_ffcv"))
    found = summarize(asked.questions, run(asked))
    ours, alone, torch, ffcv = found["tables"]["f"]
    assert not ours.notes and not alone.notes and not torch.notes
    assert ours.error_max <= 1 and torch.error_max == 0
    assert ours.images_per_s == ours.rate.median * 64  # the quick batch
    assert "ffcv" in ffcv.notes[0] and ffcv.rate is None
    measured = {verdict.target.against: verdict.measured for verdict in found["targets"]}
    assert measured["torch"] == ours.to_torch == measured["exact"]
    assert measured["threads"] is None  # nobody asked them


def test_an_inexact_rival_does_not_count_among_the_exact():
    question = QUESTIONS["f"]
    answers = {
        key: [{"rate": rate, "nbytes": 1, "batch_size": 64, "error_mean": 0.1, "error_max": error}]
        for key, rate, error in (
            ("images", 6.0, 1), ("images_torch", 2.0, 0), ("images_dali", 4.0, 2), ("images_opencv", 5.0, 3),
        )
    }  # fmt: skip
    found = summarize([question], {"rounds": {"f": answers}, "missing": {}})
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


def test_batches_of_blank_pictures_are_refused():
    assert check_form([np.zeros((4, SIDE, SIDE, 3), np.uint8)], 4) == "4 of 4 pictures are blank"


def test_each_question_names_rivals_that_there_are_and_roles_among_them():
    for question in QUESTIONS.values():
        rivals = {rival.key for rival in plan(None, None, question.key).rivals_of(question)}
        roles = question.roles
        assert {roles.ours, *roles.torch, *roles.spdl, *roles.roofline} <= rivals
