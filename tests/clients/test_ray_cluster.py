"""Several nodes, and Ray Train: each row comes once per epoch from any node."""

import os
import re
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")
data = pytest.importorskip("ray.data")

import slipring  # noqa: E402
import slipring.ray  # noqa: E402
from tests.clients.rays import MARKS, WAIT, cluster_of_one, patient_start  # noqa: E402
from tests.support.inside import coordinator_of  # noqa: E402

pytestmark = MARKS


@pytest.fixture
def nodes(monkeypatch):
    """Start two nodes with a processor each; yield the cluster and the second node."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray") as short:
        monkeypatch.setenv("RAY_TMPDIR", short)
        os.mkdir(f"{short}/ray")  # Cluster writes its address there
        head = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
        with patient_start():
            made = Cluster(initialize_head=True, head_node_args=head)
            second = made.add_node(num_cpus=1, object_store_memory=100 << 20)
            ray.init(made.address, log_to_driver=False)
        data.DataContext.get_current().enable_progress_bars = False
        try:
            yield made, second
        finally:
            ray.shutdown()
            made.shutdown()


def spread_over(rows):
    """A dataset whose blocks are made on both nodes. (Ray's workers there have no module of tests.)"""

    def spread(block):
        return {"id": block["id"], "image": np.broadcast_to(block["id"][:, None], (len(block["id"]), 1000)).copy()}

    return data.range(rows, override_num_blocks=20).map_batches(spread, scheduling_strategy="SPREAD")


def test_rows_of_two_nodes_come_once_in_each_epoch_also_when_a_worker_is_killed(nodes):
    made = spread_over(400)
    found = [[[], []] for _ in range(2)]  # by rank and epoch
    loaders = [slipring.ray.Loader(part, 16, timeout=WAIT) for part in made.streaming_split(2)]

    def train(rank):
        for epoch in range(2):
            for n, batch in enumerate(loaders[rank]):
                assert (batch["image"] == batch["id"][:, None]).all()
                found[rank][epoch] += batch["id"].tolist()
                if (rank, epoch, n) == (1, 0, 2):
                    os.kill(loaders[1].report().workers[0].pid, signal.SIGKILL)

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(train, range(2)))
    for epoch in range(2):
        assert sorted(found[0][epoch] + found[1][epoch]) == list(range(400))
    assert loaders[1].stats().respawns == 1
    for loader in loaders:
        loader.close()


def test_a_loader_on_another_node_than_the_drivers_reads_there(nodes):
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Rank:  # a local class, so that Ray sends it by value
        def read(self, part):
            import slipring.ray

            with slipring.ray.Loader(part, 16, timeout=600) as loader:
                ids = [i for batch in loader for i in batch["id"].tolist()]
                coordinator = coordinator_of(loader).__ray_call__.remote(
                    lambda _: ray.get_runtime_context().get_node_id()
                )
                return ids, ray.get(coordinator), ray.get_runtime_context().get_node_id()

    _, second = nodes
    there = NodeAffinitySchedulingStrategy(second.node_id, soft=False)
    parts = spread_over(400).streaming_split(2)
    other = ray.remote(Rank).options(num_cpus=0, scheduling_strategy=there).remote().read.remote(parts[1])
    with slipring.ray.Loader(parts[0], 16, timeout=WAIT) as loader:
        here = [i for batch in loader for i in batch["id"].tolist()]
    ids, coordinator, node = ray.get(other, timeout=WAIT)
    assert coordinator == node == second.node_id
    assert here and ids and sorted(here + ids) == list(range(400))


def test_blocks_of_a_lost_node_are_made_again_or_missed_with_rays_text(nodes):
    made, second = nodes
    table = spread_over(400)
    with slipring.ray.Loader(table, 16, timeout=WAIT) as loader:
        batches, ids = iter(loader), []
        ids += next(batches)["id"].tolist()
        made.remove_node(second, allow_graceful=False)
        try:
            for batch in batches:
                ids += batch["id"].tolist()
        except (slipring.WorkerError, ray.exceptions.RayError) as error:
            lost = "ObjectLost|OwnerDied|ObjectFetchTimedOut|ObjectReconstruction|NodeDied|WorkerCrashed|Actor(Died|Un)"
            assert re.search(lost, str(error))
        else:
            assert sorted(ids) == list(range(400))
        assert len(set(ids)) == len(ids)


def test_two_workers_of_ray_train_share_each_epoch(tmp_path):
    pytest.importorskip("torch")

    def train_loop(config):  # a local function, so that Ray sends it by value: its workers have no test modules
        import ray.train

        import slipring.ray

        with slipring.ray.Loader(ray.train.get_dataset_shard("train"), 16, device="cpu", timeout=180) as loader:
            for epoch in range(2):
                ids = [i for batch in loader for i in batch["id"].tolist()]
                with open(f"{config['folder']}/{ray.train.get_context().get_world_rank()}-{epoch}", "w") as file:
                    file.write(" ".join(map(str, ids)))

    with cluster_of_one():
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        trainer = TorchTrainer(
            train_loop,
            train_loop_config={"folder": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=str(tmp_path / "runs")),
            datasets={"train": data.range(200, override_num_blocks=10)},
        )
        trainer.fit()
    for epoch in range(2):
        ids = [int(i) for rank in range(2) for i in (tmp_path / f"{rank}-{epoch}").read_text().split()]
        assert sorted(ids) == list(range(200))


def test_a_loader_that_is_closed_ends_its_worker_and_its_actor():
    psutil = pytest.importorskip("psutil")
    with cluster_of_one():
        with slipring.ray.Loader(data.range(100), 16, timeout=WAIT) as loader:
            list(loader)
            worker = loader.report().workers[0].pid
            coordinator = psutil.Process(ray.get(coordinator_of(loader).__ray_call__.remote(lambda _: os.getpid())))
        assert not psutil.pid_exists(worker)
        assert not psutil.wait_procs([coordinator], timeout=WAIT)[1]
