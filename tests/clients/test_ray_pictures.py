"""Crops of images depend on the seed, the epoch, the worker and the row, and on nothing else."""

import io
import os
import signal

import numpy as np
import pyarrow as pa
import pytest

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")
data = pytest.importorskip("ray.data")

import slipring.ray  # noqa: E402
from slipring import images  # noqa: E402
from tests.clients.rays import MARKS, WAIT, cluster  # noqa: E402, F401

pytestmark = MARKS
ROWS = 60


@pytest.fixture(scope="module")
def pictures():
    """Blocks of the same image; no two crops of it are equal."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)).save(file, "PNG")
    blocks = [
        pa.table({"image": pa.array([file.getvalue()] * 6, pa.binary()), "id": np.arange(at, at + 6)})
        for at in range(0, ROWS, 6)
    ]
    made = data.from_arrow(blocks)
    made.context.execution_options.preserve_order = True
    return made


def loader_of(pictures, seed=3, **options):
    crop = {"image": images.RandomResizedCrop(16)}
    return slipring.ray.Loader(pictures, 8, num_workers=2, images=crop, seed=seed, timeout=WAIT, **options)


def crops(batches):
    """Return the bytes of each row's crop by its id."""
    return {number: crop.tobytes() for batch in batches for number, crop in zip(batch["id"].tolist(), batch["image"])}


def differ(some, others):
    return all(some[number] != others[number] for number in some)


def test_crops_differ_by_row_epoch_and_seed_and_are_the_same_after_a_killed_worker_and_from_a_state(pictures):
    with loader_of(pictures) as loader:
        whole, second = crops(loader), crops(loader)
    # They include rows at the same position of both workers' shares.
    assert len(whole) == ROWS == len(set(whole.values())) and differ(whole, second)
    with loader_of(pictures, seed=4) as loader:
        assert differ(whole, crops(loader))
    with loader_of(pictures, prefetch_blocks=3, memory=slipring.Memory(slots=8)) as loader:
        batches = iter(loader)
        first = crops(next(batches) for _ in range(3))
        state = loader.state_dict()
        os.kill(loader.report().workers[0].pid, signal.SIGKILL)
        rest = crops(batches)
        assert loader.stats().respawns == 1
    assert {**first, **rest} == whole
    with loader_of(pictures, seed=99) as loader:
        loader.load_state_dict(state)
        assert crops(loader) == rest
