"""Jobs of Ray's that end while a loader reads: the reader gets an error, and nothing stays behind."""

import os
import subprocess
import sys
import threading

import pytest

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")
data = pytest.importorskip("ray.data")
psutil = pytest.importorskip("psutil")

import slipring  # noqa: E402
import slipring.ray  # noqa: E402
from tests.clients.rays import MARKS, WAIT, cluster_of_one  # noqa: E402
from tests.support.inside import coordinator_of  # noqa: E402

pytestmark = MARKS


# A driver that makes a split of a dataset whose last rows never come, and waits until stdin ends.
DRIVER = """
import sys, time
import ray, ray.data
from ray import cloudpickle

def endless(rows):
    while 150 in rows["id"]:
        time.sleep(1)
    return rows

ray.init(sys.argv[1], log_to_driver=False)
made = ray.data.range(200, override_num_blocks=10)
made.context.execution_options.preserve_order = True
part = made.map_batches(endless).streaming_split(1)[0]
with open(sys.argv[2], "wb") as file:
    cloudpickle.dump(part, file)
print("ready", flush=True)
sys.stdin.read()
"""


def never_ends():
    """A dataset whose last rows never come."""

    def endless(rows):  # a local function, so that Ray sends it by value
        import time

        while 150 in rows["id"]:
            time.sleep(1)
        return rows

    made = data.range(200, override_num_blocks=10)
    made.context.execution_options.preserve_order = True
    return made.map_batches(endless)


def test_a_reader_of_a_split_gets_an_error_when_its_driver_is_killed(tmp_path):
    with cluster_of_one() as context:
        address, file = context.address_info["gcs_address"], tmp_path / "part"
        command = [sys.executable, "-c", DRIVER, address, str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            while driver.stdout.readline() != "ready\n":
                assert driver.poll() is None
            from ray import cloudpickle

            part = cloudpickle.loads(file.read_bytes())
            with slipring.ray.Loader(part, 16, timeout=WAIT) as loader:
                batches = iter(loader)
                assert len(next(batches)["id"]) == 16
                driver.kill()
                with pytest.raises((slipring.WorkerError, ray.exceptions.RayError), match=r"(?i)actor|owner"):
                    list(batches)


def test_a_cluster_that_is_shut_down_meanwhile_is_an_error():
    with cluster_of_one():
        loader = slipring.ray.Loader(never_ends(), 16, timeout=WAIT)
        batches = iter(loader)
        assert len(next(batches)["id"]) == 16
        worker = psutil.Process(loader.report().workers[0].pid)
        over = threading.Thread(target=ray.shutdown)
        over.start()
        ended = slipring.WorkerError, slipring.WorkerDied, ray.exceptions.RayError
        with pytest.raises(ended):
            list(batches)
        over.join()
        loader.close()
        assert not worker.is_running()


@pytest.mark.parametrize("when", ["in mid-epoch", "before the first epoch"])
def test_a_loader_starts_no_worker_after_ray_shutdown_and_says_why(when):
    with cluster_of_one():
        loader = slipring.ray.Loader(never_ends(), 16, timeout=WAIT)
        if when == "in mid-epoch":
            batches = iter(loader)
            assert len(next(batches)["id"]) == 16
            worker = psutil.Process(loader.report().workers[0].pid)
            worker.kill()  # as Ray does when its store ends; the loader notices it with the next batch
            ray.shutdown()
        else:
            ray.shutdown()
            batches = loader
        with pytest.raises(RuntimeError, match=r"has left the Ray cluster.*ray.shutdown"):
            list(batches)
        loader.close()


def test_the_workers_of_an_actor_that_is_killed_end_with_it():
    class Training:  # a local class, so that Ray sends it by value
        def __init__(self, made):
            import slipring.ray

            self.loader = slipring.ray.Loader(made, 16, timeout=600)
            self.batches = iter(self.loader)

        def first(self):
            assert len(next(self.batches)["id"]) == 16
            coordinator = ray.get(coordinator_of(self.loader).__ray_call__.remote(lambda _: os.getpid()))
            return self.loader.report().workers[0].pid, coordinator

    with cluster_of_one():
        training = ray.remote(Training).options(num_cpus=0).remote(never_ends())
        processes = [psutil.Process(pid) for pid in ray.get(training.first.remote())]
        ray.kill(training)
        assert not psutil.wait_procs(processes, timeout=WAIT)[1]


def read_and_tell(made, file):
    """Read a loader to its end in a task; write the ids of its worker and its actor after the first batch."""

    def read(made):  # a local function, so that Ray sends it by value
        import os

        import slipring.ray

        with slipring.ray.Loader(made, 16, timeout=600) as loader:
            for _ in loader:
                if not os.path.exists(file):
                    coordinator = ray.get(coordinator_of(loader).__ray_call__.remote(lambda _: os.getpid()))
                    with open(file + ".new", "w") as told:
                        told.write(f"{loader.report().workers[0].pid} {coordinator}")
                    os.rename(file + ".new", file)

    return ray.remote(read).options(num_cpus=0).remote(made)


def wait_for_file_of(task, file):
    """Return once the task has written the file; raise its error if it ends before."""
    while not file.exists():
        if ray.wait([task], timeout=0.1)[0]:
            ray.get(task)
            assert file.exists(), "the task has ended without the file"


@pytest.mark.parametrize("force", [False, True], ids=["interrupted", "killed"])
def test_a_task_that_is_cancelled_ends_its_loader(force, tmp_path):
    with cluster_of_one():
        file = tmp_path / "processes"
        task = read_and_tell(never_ends(), str(file))
        wait_for_file_of(task, file)
        processes = [psutil.Process(int(pid)) for pid in file.read_text().split()]
        ray.cancel(task, force=force)
        with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError)):
            ray.get(task, timeout=WAIT)
        assert not psutil.wait_procs(processes, timeout=WAIT)[1]


def test_a_run_of_train_that_fails_in_one_rank_ends_the_loaders_of_all(tmp_path):
    train = pytest.importorskip("ray.train")
    torch_trainer = pytest.importorskip("ray.train.torch")

    def loop(config):
        import os
        import time

        import slipring.ray

        rank = ray.train.get_context().get_world_rank()
        shard = ray.train.get_dataset_shard("train")
        with slipring.ray.Loader(shard, 16, timeout=600) as loader:
            batches = iter(loader)
            next(batches)
            with open(f"{config}/{rank}.new", "w") as told:
                told.write(f"{loader.report().workers[0].pid}")
            os.rename(f"{config}/{rank}.new", f"{config}/{rank}")
            while len(os.listdir(config)) < 2:
                time.sleep(0.05)
            if rank == 0:
                raise ZeroDivisionError("rank 0 gives up")
            list(batches)  # their end never comes

    told = tmp_path / "told"
    told.mkdir()
    with cluster_of_one():
        trainer = torch_trainer.TorchTrainer(
            loop,
            train_loop_config=str(told),
            scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=train.RunConfig(storage_path=str(tmp_path / "runs")),
            datasets={"train": never_ends()},
        )
        with pytest.raises(Exception, match="rank 0 gives up"):
            trainer.fit()
        begun = [int(file.read_text()) for file in told.iterdir()]
        assert len(begun) == 2
        left = [psutil.Process(pid) for pid in begun if psutil.pid_exists(pid)]
        assert not psutil.wait_procs(left, timeout=WAIT)[1]
