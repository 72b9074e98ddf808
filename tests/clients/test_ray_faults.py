"""Faults of Ray's blocks, producers and nodes: each causes an error that names it, in time."""

import contextlib
import io
import os

import numpy as np
import pyarrow as pa
import pytest

from slipring import Memory
from tests.support.options import grouped

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")
data = pytest.importorskip("ray.data")

import slipring  # noqa: E402
import slipring.ray  # noqa: E402
from slipring import images  # noqa: E402
from slipring.errors import BlockError, ImageError  # noqa: E402
from tests.clients.rays import MARKS, WAIT, cluster  # noqa: E402, F401
from tests.support.inside import coordinator_of  # noqa: E402

pytestmark = MARKS


def in_order(blocks):
    """Return a dataset whose blocks keep their order."""
    made = data.from_arrow(blocks)
    made.context.execution_options.preserve_order = True
    return made


def read(loader, key="x"):
    """Return the values of all batches, and the errors between them."""
    found, errors = [], []
    batches = iter(loader)
    while True:
        try:
            batch = next(batches, None)
        except (BlockError, ImageError) as error:
            errors.append(error)
            continue
        if batch is None:
            return found, errors
        found.append(batch[key].tolist())


def test_a_block_with_another_type_is_named_with_column_and_batch_and_the_rest_comes():
    blocks = [pa.table({"x": np.arange(5)}), pa.table({"x": np.arange(5.0)}), pa.table({"x": np.arange(5, 9)})]
    with slipring.ray.Loader(in_order(blocks), 4, timeout=WAIT) as loader:
        found, (error,) = read(loader)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert (error.column, error.block, error.batch) == ("x", 1, 1)
    assert "float64" in str(error) and "int64" in str(error)


@pytest.mark.parametrize(
    ("row", "text"), [(None, "1 of 3 are null"), ([0.0, None, 0.0, 0.0], "nulls within them")], ids=["rows", "values"]
)
def test_nulls_where_tensors_are_expected_are_refused(row, text):
    from ray.data.extensions import ArrowTensorArray

    whole = ArrowTensorArray.from_numpy(np.arange(12.0).reshape(3, 2, 2))
    holes = pa.ExtensionArray.from_storage(whole.type, pa.array([[0.0] * 4, row, [1.0] * 4], whole.type.storage_type))
    blocks = [pa.table({"x": whole}), pa.table({"x": holes}), pa.table({"x": whole})]
    with slipring.ray.Loader(in_order(blocks), 3, timeout=WAIT) as loader:
        found, (error,) = read(loader)
    assert found == [np.arange(12.0).reshape(3, 2, 2).tolist()] * 2
    assert error.column == "x" and text in str(error)


def test_nulls_of_numbers_are_filled_and_masked_where_the_options_name_them():
    table = pa.table({"x": pa.array([1, None, 3]), "t": ["a", "b", "c"]})
    with slipring.ray.Loader(in_order([table]), 3, timeout=WAIT) as loader:
        _, (error,) = read(loader)
    assert error.column == "x" and "name it in fill_null= or null_mask=" in str(error)
    with slipring.ray.Loader(in_order([table]), 3, timeout=WAIT, fill_null={"x": -1}, null_mask=["x"]) as loader:
        [batch] = loader
    assert batch["x"].tolist() == [1, -1, 3] and batch["x_mask"].tolist() == [False, True, False]


def test_tensors_of_several_shapes_are_refused_by_name():
    def ragged(rows):
        made = np.empty(len(rows["id"]), object)
        made[:] = [np.zeros((1 + i % 2, 3)) for i in rows["id"].tolist()]
        return {"x": made}

    with slipring.ray.Loader(data.range(6, override_num_blocks=1).map_batches(ragged), 4, timeout=WAIT) as loader:
        _, (error, *_) = read(loader)
    assert error.column == "x" and "(1, 3)" in str(error) and "(2, 3)" in str(error)


def test_empty_blocks_are_skipped():
    made = data.range(40, override_num_blocks=4).filter(lambda row: row["id"] >= 30 or row["id"] < 5)
    with slipring.ray.Loader(made, 4, timeout=WAIT) as loader:
        found, errors = read(loader, "id")
    assert sorted(i for ids in found for i in ids) == [*range(5), *range(30, 40)] and not errors


@pytest.mark.parametrize(
    ("first", "workers", "dies", "text"),
    [(90, 1, False, "this shard is gone"), (0, 2, False, "this shard is gone"), (90, 1, True, "(?i)died|crashed")],
    ids=["raises", "raises at once", "dies"],
)
def test_a_failing_task_of_rays_is_reported_with_its_text_by_each_call(first, workers, dies, text):
    def failing(rows):  # a local function, so that Ray sends it by value
        import os

        if max(rows["id"]) >= first and dies:
            os._exit(3)
        if max(rows["id"]) >= first:
            raise LookupError("this shard is gone")
        return rows

    made = data.range(100, override_num_blocks=4).map_batches(failing, max_retries=0)
    errors = slipring.WorkerError, ray.exceptions.RayError
    with slipring.ray.Loader(made, 10, num_workers=workers, timeout=WAIT) as loader:
        batches = iter(loader)
        with pytest.raises(errors, match=text):
            list(batches)
        with pytest.raises(errors, match=text):  # no end, and no other error
            next(batches)


def test_no_row_is_lost_where_an_actor_of_rays_dies_and_is_started_again(tmp_path):
    mark = str(tmp_path / "died")

    class Once:  # a local class, so that Ray sends it by value
        def __call__(self, rows):
            import os

            if 100 in rows["id"] and not os.path.exists(mark):
                open(mark, "w").close()
                os._exit(3)
            return rows

    made = data.range(200, override_num_blocks=10).map_batches(Once, concurrency=1)
    with slipring.ray.Loader(made, 16, timeout=WAIT) as loader:
        assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(200))
    assert os.path.exists(mark)


def test_a_wait_for_a_producer_that_hangs_ends_in_time_and_the_next_call_waits_again(tmp_path):
    go = tmp_path / "go"

    def hanging(rows):
        import time

        while 99 in rows["id"] and not go.exists():
            time.sleep(0.05)
        return rows

    made = data.range(100, override_num_blocks=4).map_batches(hanging)
    with slipring.ray.Loader(made, 10, timeout=20) as loader:
        batches, found = iter(loader), 0
        with pytest.raises(slipring.LoaderTimeout):
            for batch in batches:
                found += len(batch["id"])
        go.touch()
        while found < 100:
            with contextlib.suppress(slipring.LoaderTimeout):
                found += len(next(batches)["id"])
        assert next(batches, None) is None


def test_a_dead_ledger_is_an_error_of_rays():
    with slipring.ray.Loader(
        data.range(1000, override_num_blocks=50), 10, timeout=WAIT, memory=Memory(slots=4)
    ) as loader:
        batches = iter(loader)
        next(batches)
        ray.kill(coordinator_of(loader))
        with pytest.raises((slipring.WorkerError, ray.exceptions.RayError), match=r"(?i)actor|owner"):
            list(batches)


# ---- images


def jpeg(number, size=(40, 60)):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.full((*size, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


def pictures(rows, bad=()):
    files = [b"no picture" if i in bad else jpeg(i) for i in range(rows)]
    return [
        pa.table({"image": pa.array(files[at : at + 7], pa.binary()), "label": np.arange(at, min(rows, at + 7))})
        for at in range(0, rows, 7)
    ]


def test_images_are_decoded_into_the_batch():
    options = {"layout": "NCHW", "dtype": "float32"}
    way = {"images": {"image": images.RandomResizedCrop(16)}, "image_options": options, "timeout": WAIT}
    with slipring.ray.Loader(in_order(pictures(20)), 8, **grouped(**way)) as loader:
        seen = 0
        for batch in loader:
            assert batch["image"].shape == (len(batch["label"]), 3, 16, 16)
            assert np.allclose(batch["image"], batch["label"][:, None, None, None] / 255)
            seen += len(batch["label"])
        assert seen == 20 and loader.stats().pickled_leaves == 0


def test_an_image_that_cannot_be_read_costs_its_row():
    way = {"images": {"image": images.CenterCrop(16)}, "timeout": WAIT}
    with slipring.ray.Loader(in_order(pictures(20, bad=(9,))), 8, **grouped(**way)) as loader:
        found, (error,) = read(loader, "label")
    assert found == [[*range(8)], [8, *range(10, 17)], [17, 18, 19]]
    assert error.index == 9 and "'image'" in str(error)


@pytest.mark.parametrize("masked", [False, True], ids=["in the field", "of the struct"])
def test_images_that_are_null_are_refused_wherever_the_null_is(masked):
    files = [jpeg(0), jpeg(1) if masked else None, jpeg(2)]
    fields = [pa.array(files, pa.binary()), pa.array(["a", "b", "c"])]
    structs = pa.StructArray.from_arrays(fields, ["bytes", "path"], mask=pa.array([False, masked, False]))
    whole = pa.table({"image": structs.take(pa.array([0, 2])), "label": [0, 2]})
    blocks = [whole, pa.table({"image": structs, "label": [0, 1, 2]})]
    way = {"images": {"image": images.CenterCrop(16)}, "timeout": WAIT}
    with slipring.ray.Loader(in_order(blocks), 2, **grouped(**way)) as loader:
        found, (error,) = read(loader, "label")
    assert found == [[0, 2]]
    assert error.column == "image" and "1 of 3 are null" in str(error)


def test_images_that_cannot_be_read_can_be_passed_over():
    way = {"images": {"image": images.CenterCrop(16)}, "image_options": {"on_error": "skip"}, "timeout": WAIT}
    with slipring.ray.Loader(in_order(pictures(20, bad=(0, 9))), 8, **grouped(**way)) as loader:
        found, errors = read(loader, "label")
        assert loader.stats().skipped_samples == 2
    assert found == [[*range(1, 9)], [*range(10, 18)], [18, 19]] and not errors


def test_arguments_that_do_not_fit_are_refused_by_name():
    made = data.range(10)
    for wrong, text in [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4, "device": ["cpu", "cpu"]}, "to one device"),
        ({"batch_size": 4, "local_shuffle": 2}, "shuffle_buffer|local_shuffle"),
        ({"batch_size": 4, "local_shuffle": 8, "on_death": "respawn"}, "local_shuffle"),
        ({"batch_size": 4, "images": {"x": images.Resize(8)}}, "different sizes"),
        ({"batch_size": 4, "image_options": {"side": 8}}, "images"),
        ({"batch_size": 4, "worker_init_fn": print}, "a worker joins the cluster when it starts"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            slipring.ray.Loader(made, **grouped(**wrong))
    with pytest.raises(TypeError, match="DataIterator"):
        slipring.ray.Loader([1, 2], 4)


class Killing:
    """A collate_fn that kills its worker once, at a given row."""

    def __init__(self, flag, row):
        self.flag, self.row = str(flag), row

    def __call__(self, batch):
        import signal

        if self.row in batch["x"] and not os.path.exists(self.flag):
            open(self.flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


@pytest.mark.parametrize("row", [20, 45])
def test_a_worker_that_is_killed_near_a_bad_block_loses_no_row_and_reports_the_block_once(tmp_path, row):
    tables = [pa.table({"x": np.arange(10 * i, 10 * i + 10) * (1.0 if i == 3 else 1)}) for i in range(7)]
    found = []
    with slipring.ray.Loader(
        in_order(tables), 16, collate_fn=Killing(tmp_path / "killed", row), timeout=WAIT
    ) as loader:
        batches = iter(loader)
        while True:
            try:
                found += next(batches)["x"].tolist()
            except slipring.errors.BlockError:
                found.append("bad")
            except StopIteration:
                break
        assert loader.stats().respawns == 1
    assert found.count("bad") == 1
    assert [x for x in found if x != "bad"] == [*range(30), *range(40, 70)]
