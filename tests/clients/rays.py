"""Ray for tests: a small cluster on this machine."""

import contextlib
import tempfile

import pytest

from tests.support import inside

MARKS = [
    pytest.mark.alone,  # a cluster needs all processors to start within its own timeouts
    pytest.mark.timeout(400),
    pytest.mark.leaks_ok("Ray keeps files and threads in its driver's process after shutdown()"),
]
WAIT = 120  # seconds, enough on a loaded machine


@contextlib.contextmanager
def cluster_of_one():
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
