"""The parts of fetching: which of them a real loader counts, and which verdict follows from them in a simulated job."""

import time

import numpy as np
import pytest

import slipring
from tests.monitor.simulated import Job
from tests.support.inside import PARTS, observing
from tests.support.options import grouped

pytest.importorskip("PIL")

from slipring import images
from tests.support.pictures import encoded, pixels

N, BATCH, STEP_S = 48, 4, 0.004
CROP = images.Resize((24, 32))
# The first resize belongs to the decoded view; each later one is an operation on the image.
OPERATIONS = [images.Resize((160 + 8 * n, 150)) for n in range(8)] + [CROP]


class Photos(images.ImageDataset):
    def __init__(self, *transform, **options):
        super().__init__([CROP, *transform], **options)
        self.data = [encoded(pixels(40, 50, n)) for n in range(4)]

    def __len__(self):
        return N

    def read(self, index):
        return self.data[index % 4], index


def sleeps(image):
    time.sleep(STEP_S)


def report_of(data, epochs=1, **options):
    options = {"num_workers": 1, **options}
    with slipring.Loader(data, BATCH, **grouped(**options)) as loader:
        for _ in range(epochs):
            assert sum(len(targets) for _, targets in loader) == N
        return loader.report()


def parts_of(report):
    return {name: report.sums[field] for name, field in PARTS.items()}


# ---- the times that are counted

WAYS = {
    "a whole batch": {},
    "threads": {"start_method": "thread", "num_workers": 2},
    "no worker": {"num_workers": 0},
    "ranges": {"chunk_size": 2, "num_workers": 2},
    "sample by sample": {"collate_fn": lambda samples: tuple(map(np.stack, zip(*samples)))},
    "sample by sample, concurrently": {
        "collate_fn": lambda samples: tuple(map(np.stack, zip(*samples))),
        "fetch_threads": 2,
    },
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept", [False, True], ids=["files", "cached"])
def test_operations_and_a_users_functions_are_parts_of_fetching(way, kept, forked):
    options = {"cache": "8MiB", "side": 36} if kept else {}
    report = report_of(Photos(*OPERATIONS, sleeps, *OPERATIONS, **options), **WAYS[way])
    parts = parts_of(report)
    assert parts["augment"] > 0 and parts["decode"] > 0
    assert (parts["resize"] > 0) == kept
    concurrent = "fetch_threads" in WAYS[way]  # parts that overlap count as their share of the time
    assert parts["your_code"] >= N * STEP_S * 1e9 / (4 if concurrent else 1)
    assert sum(parts.values()) <= report.stages["fetch"].total_s * 1e9
    assert {"augment", "your_code"} <= set(report.shares)
    assert "augment " in str(report) and "your code " in str(report)


@pytest.mark.parametrize(
    ("transform", "counted"),
    [([], set()), ([images.RandomHorizontalFlip(1.0)], set()), (OPERATIONS, {"augment"}), ([sleeps], {"your_code"})],
    ids=["view", "flip", "operations", "function"],
)
def test_a_part_that_a_list_does_not_have_takes_no_time(transform, counted):
    report = report_of(Photos(*transform))
    parts = parts_of(report)
    assert {name for name in ("augment", "your_code") if parts[name]} == counted
    assert ("augment" in str(report), "your code" in str(report)) == ("augment" in counted, "your_code" in counted)


def test_images_that_a_users_function_reads_are_not_counted_twice():
    inner = Photos(sleeps)

    def reads_another(image):
        time.sleep(STEP_S)
        image[...] = inner[0][0]

    report = report_of(Photos(reads_another))
    parts = parts_of(report)
    assert parts["your_code"] >= 2 * N * STEP_S * 1e9
    assert sum(parts.values()) <= report.stages["fetch"].total_s * 1e9


def test_an_operation_within_a_users_function_is_augmentation():
    inner = Photos(*OPERATIONS)

    def augments(image):
        inner[0]

    parts = parts_of(report_of(Photos(augments)))
    assert parts["augment"] > 0 and parts["your_code"] > 0


def test_a_slow_function_in_the_list_is_named():
    found = report_of(Photos(sleeps)).verdict
    assert (found.cause, found.data_bound) == ("your_code", True)
    assert "% your code)" in found.sentence and "slow" not in found.advice


# ---- what follows


@pytest.fixture
def four_processors(monkeypatch):
    """Make the advice independent of the machine."""
    monkeypatch.setattr(observing("verdict"), "cpus", lambda: 4)


@pytest.mark.parametrize(
    ("parts", "job", "cause"),
    [
        ({"decode": 0.4, "augment": 0.45}, {}, "augment"),
        ({"decode": 0.45, "augment": 0.4}, {}, "decode"),
        ({"decode": 0.3, "resize": 0.2, "augment": 0.45}, {}, "decode"),
        ({"resize": 0.1, "augment": 0.85}, {}, "augment"),
        ({"augment": 0.45}, {}, "decode"),  # more than half of the time is in no part
        ({"augment": 0.55}, {}, "augment"),
        ({"augment": 0.45, "your_code": 0.5}, {}, "your_code"),
        ({"augment": 0.5, "your_code": 0.45}, {}, "augment"),
        ({"decode": 0.5, "your_code": 0.45}, {}, "decode"),
        ({"read": 0.3, "augment": 0.5}, {}, "augment"),
        ({"read": 0.51, "augment": 0.4}, {}, "storage"),
        ({"read": 0.3, "augment": 0.5}, {"cpu": 0.3}, "storage"),
        ({"read": 0.3, "your_code": 0.6}, {"cpu": 0.3}, "your_code"),
        ({"augment": 0.9}, {"cpu": 0.3, "queued": 0.6}, "augment"),
        ({"augment": 0.9}, {"collate": 30}, "collate"),
        ({"augment": 0.9}, {"step": 30}, "consumer"),
    ],
)
def test_the_largest_part_of_fetching_is_the_cause(parts, job, cause, four_processors):
    assert Job(**{"fetch": 20, "step": 1, **job}, parts=parts).verdict().cause == cause


def test_the_advice_for_augmentation_is_about_operations_and_processors(four_processors):
    found = Job(fetch=8, step=1, parts={"decode": 0.2, "augment": 0.7}).verdict()
    assert "above all with augmentation" in found.sentence and "(20% decode, 70% augment)" in found.sentence
    assert "bilinear in place of bicubic" in found.advice and "A cache of decoded images does not help" in found.advice
    assert "8 workers would keep up" in found.advice and "use 4 workers, and make augmentation cheaper" in found.advice
    assert "smaller files" not in found.advice
    busy = Job(workers=4, fetch=8, step=1, parts={"augment": 0.7}).verdict()
    assert busy.cause == "augment" and "use 4 workers" not in busy.advice
    assert "3 workers would be enough" in Job(fetch=8, step=2.7, parts={"augment": 0.7}).verdict().advice


@pytest.mark.parametrize(
    ("job", "said", "unsaid"),
    [
        ({}, "Change the image in place, replace Python loops by NumPy", "Python's lock"),
        ({"cpu": 0.02}, "It waits for something", "NumPy"),
        ({"threads": True, "workers": 1}, "Threads share Python's lock", "waits"),
    ],
    ids=["computes", "waits", "thread"],
)
def test_the_advice_for_a_users_code_depends_on_whether_it_computes(job, said, unsaid, four_processors):
    found = Job(**{"fetch": 8, "step": 1, **job}, parts={"decode": 0.1, "your_code": 0.8}).verdict()
    assert found.cause == "your_code" and "your code in the list of transforms" in found.sentence
    assert "80% your code" in found.sentence and said in found.advice and unsaid not in found.advice
