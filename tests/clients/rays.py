"""Ray for tests: a small cluster, and a dataset over named actors that can be sent to worker processes."""

import contextlib
import tempfile

import pytest
import torch.utils.data

from tests.support import inside

MARKS = [
    pytest.mark.alone,  # a cluster needs all processors to start within its own timeouts
    pytest.mark.timeout(400),
    pytest.mark.leaks_ok("Ray keeps files and threads in its driver's process after shutdown()"),
]
WAIT = 120  # seconds, enough on a loaded machine


@contextlib.contextmanager
def cluster_of_one(**options):
    """Start Ray on this machine; yield the result of ``ray.init``."""
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
    """Ray, for modules that import this fixture."""
    with cluster_of_one():
        yield


class ByName(torch.utils.data.IterableDataset):
    """The batches of named actors: the share of a worker of a rank."""

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
