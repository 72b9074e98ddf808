"""Ray for tests: a small cluster; a dataset over actors that worker processes can be sent, which knows names."""

import contextlib
import tempfile

import pytest
import torch.utils.data

from tests.support import inside

MARKS = [
    pytest.mark.alone,  # a cluster wants all processors to start within its own limits of time
    pytest.mark.timeout(400),
    pytest.mark.leaks_ok("Ray keeps files and threads in its driver's process after shutdown()"),
]
WAIT = 120  # seconds, on a machine where much else runs


@contextlib.contextmanager
def cluster_of_one(**options):
    """Ray on this machine; gives what ``ray.init`` has returned."""
    import ray
    import ray.data

    # Ray's workers cannot import the tests. Tests of Ray send functions of this module to them.
    ray.cloudpickle.register_pickle_by_value(inside)
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # for sockets: 107 characters at most
        context = ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 << 20,
            _temp_dir=short,
            **options,
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            yield context
        finally:
            ray.shutdown()


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """For modules that import it."""
    with cluster_of_one():
        yield


class ByName(torch.utils.data.IterableDataset):
    """The batches of named actors, each worker's and rank's share of them."""

    def __init__(self, address, names, rank=0, world=1):
        self.address, self.names = address, names[rank::world]

    def __iter__(self):
        import ray

        ray.init(self.address, namespace="slipring", log_to_driver=False, ignore_reinit_error=True)
        info = torch.utils.data.get_worker_info()
        for name in self.names[info.id :: info.num_workers]:
            actor = ray.get_actor(name)
            while (batch := ray.get(actor.next.remote())) is not None:
                yield batch
