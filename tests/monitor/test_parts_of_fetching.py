"""The parts of fetching that a real loader counts."""

import time

import numpy as np
import pytest

import slipring
from tests.support.inside import PARTS
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


def report_of(data, **options):
    with slipring.Loader(data, BATCH, **grouped(**{"num_workers": 1, **options})) as loader:
        assert sum(len(targets) for _, targets in loader) == N
        return loader.report()


def parts_of(report):
    return {name: report.sums[field] for name, field in PARTS.items()}


# ---- the times that are counted


def stacked(samples):
    return tuple(map(np.stack, zip(*samples)))


WAYS = {
    "a whole batch": {},
    "threads": {"start_method": "thread", "num_workers": 2},
    "ranges": {"chunk_size": 2, "num_workers": 2},
    "sample by sample": {"collate_fn": stacked},
    "sample by sample, concurrently": {"collate_fn": stacked, "fetch_threads": 2},
}


@pytest.mark.parametrize(("way", "kept"), [(way, number % 2 == 1) for number, way in enumerate(WAYS)])
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


def test_a_part_that_a_list_does_not_have_takes_no_time():
    report = report_of(Photos(images.RandomHorizontalFlip(1.0)))
    assert parts_of(report)["augment"] == parts_of(report)["your_code"] == 0
    assert "augment" not in str(report) and "your code" not in str(report)


@pytest.mark.usefixtures("forked")
def test_images_that_a_users_function_reads_are_not_counted_twice():
    inner = Photos(*OPERATIONS, sleeps)

    def reads_another(image):
        time.sleep(STEP_S)
        image[...] = inner[0][0]

    report = report_of(Photos(reads_another))
    parts = parts_of(report)
    assert parts["your_code"] >= 2 * N * STEP_S * 1e9 and parts["augment"] > 0
    assert sum(parts.values()) <= report.stages["fetch"].total_s * 1e9


def test_a_slow_function_in_the_list_is_named():
    found = report_of(Photos(sleeps)).verdict
    assert found.data_bound and "% your code)" in found.sentence
    # If other programs use the processors, the worker is mostly ready to run, as if it computed.
    advised = {"storage": "Your function waits", "compute": "Change the image in place"}
    assert advised[found.cause] in found.advice
