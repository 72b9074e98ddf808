"""Ray actors prepare batches, and the loaders' workers put them into slots."""

import numpy as np
import pytest

from slipring import Workers

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")

import slipring  # noqa: E402
from tests.clients.rays import MARKS, cluster_of_one  # noqa: E402

pytestmark = MARKS


@pytest.fixture(scope="module")
def cluster():
    """Start Ray for two actors on this machine; yield the arguments with which a worker process joins it."""
    with cluster_of_one(namespace="slipring") as context:
        yield context.address_info["address"]


class Producer:
    """Returns batches of its numbers, and None at the end."""

    def __init__(self, numbers):
        self.batches = [numbers[at : at + 5] for at in range(0, len(numbers), 5)]

    def next(self):
        if not self.batches:
            return None
        numbers = np.array(self.batches.pop(0))
        return {"number": numbers, "image": np.broadcast_to(numbers[:, None, None], (5, 64, 64)).astype(np.uint8)}


@pytest.fixture
def actors(cluster):
    """Start two named actors with twenty numbers each."""
    made = [
        ray.remote(Producer).options(name=f"producer {k}", num_cpus=0).remote(list(range(20 * k, 20 * k + 20)))
        for k in range(2)
    ]
    ray.get([actor.__ray_ready__.remote() for actor in made])
    yield made
    for actor in made:
        ray.kill(actor)


class FromActors:
    """An iterable dataset of the batches of some actors; each worker reads its share of the actors."""

    def __init__(self, actors):
        self.actors = actors

    def __iter__(self):
        info = slipring.get_worker_info()
        for actor in self.actors[info.id :: info.num_workers]:
            ahead = [actor.next.remote(), actor.next.remote()]
            while (batch := ray.get(ahead.pop(0))) is not None:
                ahead.append(actor.next.remote())
                yield batch


def check(batches, expected, kind=np.ndarray):
    seen = []
    for batch in batches:
        assert type(batch["image"]) is kind and batch["image"].shape == (5, 64, 64)
        assert (np.asarray(batch["image"])[:, 3, 3] == np.asarray(batch["number"])).all()
        seen += np.asarray(batch["number"]).tolist()
    assert sorted(seen) == list(expected)


def test_threads_of_the_driver_pull_from_actors_into_slots(actors):
    loader = slipring.Loader(
        FromActors(actors), None, num_workers=2, in_order=False, workers=Workers(start_method="thread")
    )
    with loader:
        check(loader, range(40))
        assert loader.stats().pickled_leaves == 0 and loader.stats().batches == 8


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_actors_of_its_own(actors, rank):
    with slipring.Loader(
        FromActors(actors[rank::2]), None, num_workers=1, workers=Workers(start_method="thread")
    ) as loader:
        check(loader, range(20 * rank, 20 * rank + 20))


def test_worker_processes_join_the_cluster_and_ask_actors_by_name(actors, cluster):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader
    from tests.clients.rays import ByName

    dataset = ByName(cluster, [f"producer {k}" for k in range(2)])
    with DataLoader(dataset, None, num_workers=2, multiprocessing_context="spawn") as loader:
        check(loader, range(40), torch.Tensor)
        assert loader.stats().pickled_leaves == 0


class Failing(Producer):
    def next(self):
        if len(self.batches) == 2:
            raise LookupError("this shard is gone")
        return super().next()


def test_an_actors_exception_is_raised_in_the_consumer(cluster):
    actor = ray.remote(Failing).options(num_cpus=0).remote(list(range(20)))
    with slipring.Loader(FromActors([actor]), None, num_workers=1, workers=Workers(start_method="thread")) as loader:
        iterator = iter(loader)
        assert [len(next(iterator)["number"]) for _ in range(2)] == [5, 5]
        # Ray makes the class of this error dynamically, and it cannot be made again here: the text is kept.
        with pytest.raises(slipring.WorkerError, match=r"LookupError[^$]*this shard is gone"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
    ray.kill(actor)
