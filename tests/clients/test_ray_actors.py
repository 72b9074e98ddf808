"""Ray actors prepare batches, and threads of the loader's process copy them into slots."""

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")

import slipring  # noqa: E402
from tests.clients.rays import MARKS, cluster  # noqa: E402, F401

pytestmark = MARKS


class Producer:
    """Returns batches of its numbers, and None at the end; fails if a number is negative."""

    def __init__(self, numbers):
        self.batches = [numbers[at : at + 5] for at in range(0, len(numbers), 5)]

    def next(self):
        if not self.batches:
            return None
        numbers = np.array(self.batches.pop(0))
        if (numbers < 0).any():
            raise LookupError("this shard is gone")
        return {"number": numbers, "image": np.broadcast_to(numbers[:, None, None], (5, 64, 64)).astype(np.uint8)}


class FromActors:
    """The batches of some actors; each worker reads its share of the actors, two batches ahead."""

    def __init__(self, actors):
        self.actors = actors

    def __iter__(self):
        info = slipring.get_worker_info()
        for actor in self.actors[info.id :: info.num_workers]:
            ahead = [actor.next.remote(), actor.next.remote()]
            while (batch := ray.get(ahead.pop(0))) is not None:
                ahead.append(actor.next.remote())
                yield batch


def loader_of(*numbers):
    """Return a loader with an actor and a thread for each list of numbers."""
    actors = [ray.remote(Producer).options(num_cpus=0).remote(given) for given in numbers]
    threads = slipring.Workers(start_method="thread")
    return slipring.Loader(FromActors(actors), None, num_workers=len(actors), in_order=False, workers=threads)


def test_threads_of_the_driver_pull_from_actors_into_slots():
    seen = []
    with loader_of(list(range(20)), list(range(20, 40))) as loader:
        for batch in loader:
            assert (batch["image"] == batch["number"][:, None, None]).all()
            seen += batch["number"].tolist()
        assert loader.stats().pickled_leaves == 0 and loader.stats().batches == 8
    assert sorted(seen) == list(range(40))


def test_an_actors_exception_is_raised_in_the_consumer_and_ends_the_iteration():
    with loader_of([*range(10), *[-1] * 5]) as loader:
        iterator = iter(loader)
        assert [len(next(iterator)["number"]) for _ in range(2)] == [5, 5]
        # Ray makes the class of this error dynamically, and it cannot be made again here: the text is kept.
        with pytest.raises(slipring.WorkerError, match=r"LookupError[^$]*this shard is gone"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
