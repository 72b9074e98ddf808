"""The ingest's states, shuffle and figures, what it keeps and releases, and batches with collate_fn and devices."""

import copy
import dataclasses
import gc
import json
import os
import pickle
import signal
import time
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest

from tests.support.options import grouped

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")
data = pytest.importorskip("ray.data")

import slipring  # noqa: E402
import slipring.ray  # noqa: E402
from tests.clients.rays import MARKS, WAIT, cluster  # noqa: E402, F401
from tests.support.inside import (  # noqa: E402
    Coming,
    coordinator_of,
    ingest_of,
)
from tests.support.inside import _cluster as cluster_of  # noqa: E402
from tests.support.processes import until  # noqa: E402

pytestmark = MARKS


def numbers(rows=200, blocks=9, ordered=True):
    made = data.range(rows, override_num_blocks=blocks)
    made.context.execution_options.preserve_order = ordered
    return made


def rows_of(loader):
    """Return how many rows each worker has delivered."""
    return [worker["states"]["iterator"]["rows"] for worker in loader.state_dict()["workers"]]


def ids(batches):
    """Return the ids of each batch."""
    return [np.asarray(batch["id"]).tolist() for batch in batches]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"local_shuffle": 50}], ids=["", "two", "shuffled"])
def test_a_resume_gets_the_same_batches_as_without_the_interruption_and_its_epoch_can_come_again(options):
    with slipring.ray.Loader(numbers(), 16, seed=3, timeout=WAIT, **grouped(**options)) as loader:
        batches = iter(loader)
        first = ids(next(batches) for _ in range(5))
        state = json.loads(json.dumps(loader.state_dict()))
        rest = ids(batches)
        second = ids(loader)
    assert sorted(chain(*first, *rest)) == list(range(200)) == sorted(chain(*second))
    with slipring.ray.Loader(numbers(), 16, timeout=WAIT, **grouped(**options)) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == rest
        assert ids(loader) == second
        loader.load_state_dict(state)  # the same epoch again
        assert ids(loader) == rest
        loader.epoch = 0
        assert ids(loader) == first + rest


def test_a_state_is_neither_made_nor_loaded_where_rays_order_is_not_the_same_again():
    with slipring.ray.Loader(numbers(), 16, num_workers=2, timeout=WAIT) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for made, options, text in [
        (numbers(ordered=False), {}, "preserve_order"),
        (numbers().random_shuffle(), {}, "seed"),
        (numbers(), {"in_order": False}, "in_order"),
    ]:
        with slipring.ray.Loader(made, 16, num_workers=2, timeout=WAIT, **grouped(**options)) as loader:
            with pytest.raises(ValueError, match=text):
                loader.state_dict()
            with pytest.raises(ValueError, match=text):
                loader.load_state_dict(state)
            assert loader.seed != state["seed"]


def split(made):
    """Return a loader for each of two ranks."""
    return [slipring.ray.Loader(part, 16, timeout=WAIT) for part in made.streaming_split(2)]


def test_each_rank_of_a_split_resumes_from_its_own_state():
    loaders = split(numbers())
    iterations = [iter(loader) for loader in loaders]
    with ThreadPoolExecutor(2) as ranks:  # an epoch starts when all ranks have requested it
        first = list(ranks.map(lambda batches: ids(next(batches) for _ in range(2)), iterations))
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        rest = list(ranks.map(ids, iterations))
    for loader in loaders:
        loader.close()
    assert sorted(chain(*first[0], *rest[0], *first[1], *rest[1])) == list(range(200))
    loaders = split(numbers())
    with pytest.raises(ValueError, match=r"rank 1 of 2.*as rank 0 of 2"):
        loaders[0].load_state_dict(states[1])
    for loader, state in zip(loaders, states):
        loader.load_state_dict(state)
    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(ids, loaders)) == rest
    for loader in loaders:
        loader.close()
    whole = pytest.raises(ValueError, match=r"rank 1 of 2.*here is rank 0 of 1")
    with slipring.ray.Loader(numbers(), 16, timeout=WAIT) as loader, whole:
        loader.load_state_dict(states[1])


def test_a_splits_state_is_refused_if_its_order_does_not_repeat_and_made_if_its_coordinator_is_dead():
    (part,) = numbers().random_shuffle().streaming_split(1)
    with slipring.ray.Loader(part, 16, timeout=WAIT) as loader, pytest.raises(ValueError, match="seed"):
        loader.state_dict()
    (part,) = numbers().streaming_split(1)
    with slipring.ray.Loader(part, 16, timeout=WAIT) as loader:
        next(iter(loader))
        ray.kill(part._coord_actor)
        assert rows_of(loader) == [16]


def test_a_pass_that_cannot_begin_in_time_can_be_tried_again(tmp_path):
    go = tmp_path / "go"

    def hanging(rows):
        import time

        while 199 in rows["id"] and not go.exists():
            time.sleep(0.05)
        return rows

    with slipring.ray.Loader(numbers().map_batches(hanging), 16, timeout=20) as loader:
        batches, found, state = iter(loader), [], loader.state_dict()
        with pytest.raises(slipring.LoaderTimeout):  # on a busy machine, perhaps before the first batch
            for batch in batches:
                found.append(batch["id"].tolist())
                state = loader.state_dict()
        loader.options = dataclasses.replace(loader.options, timeout=0.1)
        loader.load_state_dict(state)
        with pytest.raises(slipring.LoaderTimeout, match="Try again"):
            iter(loader)
        assert loader.state_dict() == state
        go.touch()
        loader.options = dataclasses.replace(loader.options, timeout=WAIT)
        assert sorted(chain(*found, *ids(loader))) == list(range(200))


def test_no_more_blocks_are_kept_than_are_read_from_and_asked_for():
    with slipring.ray.Loader(numbers(800, 80), 16, num_workers=2, timeout=WAIT) as loader:
        most = max(ray.get(coordinator_of(loader).kept.remote()) for _ in loader)
    # Blocks of 10 rows: 2 that are requested, and those of undelivered batches.
    assert 0 < most <= 2 * (2 + 4)


@pytest.mark.parametrize("how", ["dropped", "closed"])
def test_when_an_iteration_is_over_no_block_is_kept_for_it(how):
    with slipring.ray.Loader(numbers(), 16, num_workers=2, timeout=WAIT) as loader:
        batches = iter(loader)
        next(batches)
        assert ray.get(coordinator_of(loader).kept.remote())
        if how == "closed":
            batches.close()
        del batches
        while ray.get(coordinator_of(loader).kept.remote()):  # the loader does not wait for the coordinator
            pass
        assert sorted(chain(*ids(loader))) == list(range(200))


def test_a_closed_loader_keeps_no_block_in_the_object_store():
    made = data.range(100, override_num_blocks=5).materialize()  # a pass executes nothing
    blocks = {ref.hex().encode() for bundle in made.iter_internal_ref_bundles() for ref in bundle.block_refs}
    loader = slipring.ray.Loader(made, 16, timeout=WAIT)
    assert sorted(chain(*ids(loader))) == list(range(100))
    counts = ray._private.worker.global_worker.core_worker.get_all_reference_counts
    assert blocks <= set(counts())
    assert ray.get(coordinator_of(loader).__ray_call__.remote(lambda coordinator: coordinator.executor)) is None
    loader.close()
    del made
    gc.collect()  # a Dataset is in a cycle
    until(lambda: not blocks & set(counts()), "the blocks have gone")


def test_a_block_that_was_read_is_released_without_the_garbage_collector():
    ingest = cluster_of.Ingest(numbers().iterator(), True, 1, 4)
    coming = Coming(ingest.coordinator.take.remote((0, 1), 0, 0))
    gc.disable()
    try:
        coming.get()
        block, reference = weakref.ref(coming.block.result()), weakref.ref(coming.taken)
        del coming
        # Ray's thread may keep them a moment longer.
        until(lambda: block() is None and reference() is None, "the block has gone")
    finally:
        gc.enable()
        ingest.close()


def test_a_copy_is_refused():
    with slipring.ray.Loader(numbers(), 16, timeout=WAIT) as loader:
        for copied in (copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copied(loader)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_can_close_the_loader_and_the_parent_continues():
    with slipring.ray.Loader(numbers(), 16, timeout=WAIT) as loader:
        batches = iter(loader)
        first = ids([next(batches)])
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(WAIT)  # ends a child that hangs
                batches.close()
                loader.close()
                ingest_of(loader)._end()  # as when the loader is dropped
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert sorted(chain(*first, *ids(batches))) == list(range(200))


def test_the_report_has_rays_names():
    with slipring.ray.Loader(numbers(), 16, timeout=WAIT) as loader:
        list(loader)
        once = loader.report().waits
        list(loader)
        report = loader.report()
        assert "range" in loader.data_stats().lower()
    names = {"In get RefBundles", "In ray.get()", "In batch creation", "In collate_fn"}
    assert names < set(report.waits) and "In get RefBundles" in str(report)
    assert all(report.waits[name] >= once[name] for name in once)
    assert report.waits["In get RefBundles"] > 0 and report.dict()["waits"] == report.waits


def slowly(rows):
    time.sleep(0.2)
    return rows


def test_a_slow_pipeline_is_the_cause_of_a_loop_that_waits():
    made = data.range(240, override_num_blocks=24).map_batches(slowly)
    with slipring.ray.Loader(made, 5, timeout=WAIT) as loader:
        assert len(ids(loader)) == 48
        report = loader.report()
    assert (report.verdict.cause, report.verdict.data_bound) == ("ray", True)
    assert "wait for blocks of Ray Data" in report.verdict.sentence and "Ray pipeline" in report.verdict.advice
    assert report.dict()["verdict"]["cause"] == "ray" and "Ray pipeline" in str(report)


def summed(batch):
    return {"sum": batch["id"].sum(), "twice": (batch["id"], batch["id"] * 2)}


def test_collate_fn_makes_the_delivered_value():
    with slipring.ray.Loader(numbers(), 16, collate_fn=summed, timeout=WAIT) as loader:
        batch = next(iter(loader))
        once, twice = batch["twice"]
        assert (2 * once == twice).all() and batch["sum"] == once.sum() and rows_of(loader) == [16]


def test_a_device_makes_tensors_and_their_state_counts_no_prepared_batches():
    torch = pytest.importorskip("torch")
    from slipring.torch import Device

    with slipring.ray.Loader(numbers(), 16, device=Device("cpu", preload=2), timeout=WAIT) as loader:
        batches = iter(loader)
        first = next(batches)["id"]
        assert type(first) is torch.Tensor and rows_of(loader) == [16]
        assert sorted(chain(first.tolist(), *ids(batches))) == list(range(200))
