"""Ray for tests: a small cluster on this machine."""

import contextlib
import tempfile
from unittest import mock

import pytest

from tests.support import inside
from tests.support.processes import LONG_S, until

MARKS = [
    pytest.mark.alone,  # a cluster needs all processors to start within its own timeouts
    pytest.mark.leaks_ok("Ray keeps files and threads in its driver's process after shutdown()"),
]
WAIT = int(LONG_S)


@contextlib.contextmanager
def patient_start():
    """Let Ray wait for a node that starts: otherwise it gives up after 30 s, which a busy machine exceeds."""
    from ray._private import services

    get_node = services.get_node

    def once_there(*args, **kwargs):
        def node():
            with contextlib.suppress(RuntimeError):  # it is not there yet
                return get_node(*args, **kwargs)

        return until(node, "a node of Ray starts")

    with mock.patch.object(services, "get_node", once_there):
        yield


@contextlib.contextmanager
def cluster_of_one():
    """Start Ray on this machine; yield the result of ``ray.init``."""
    import ray
    import ray.data

    # Ray's workers cannot import the tests. Tests of Ray send functions of this module to them.
    ray.cloudpickle.register_pickle_by_value(inside)
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # for sockets: 107 characters at most
        with patient_start():
            context = ray.init(
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=100 << 20,
                _temp_dir=short,
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
