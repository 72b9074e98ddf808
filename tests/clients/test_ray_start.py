"""Worker processes of a program: they join the loader's cluster, start no other one, and end without output."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")
pytest.importorskip("ray.data")

from tests.clients.rays import MARKS, cluster_of_one  # noqa: E402
from tests.support.inside import join  # noqa: E402

pytestmark = MARKS

# A main module that calls ray.init() at import.
PROGRAM = """
import ray, ray.data, slipring.ray

ray.init(log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False

if __name__ == "__main__":
    with slipring.ray.Loader(ray.data.range(100), 16, timeout=600) as loader:
        print(sum(len(batch["id"]) for batch in loader))
"""


def outcome(folder, program, *args):
    """Run a program; return its exit code, stdout, stderr and the number of clusters that it started."""
    path = folder / "program.py"
    path.write_text(program)
    with tempfile.TemporaryDirectory(prefix="ray") as short:
        environment = {**os.environ, "RAY_TMPDIR": short, "PYTHONPATH": ":".join(p for p in sys.path if p)}
        command = [sys.executable, path, *args]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        clusters = list(Path(short).glob("ray/session_2*"))
    return done.returncode, done.stdout, done.stderr, len(clusters)


def test_a_main_module_that_calls_ray_init_without_a_guard_starts_no_second_cluster(tmp_path):
    code, out, err, clusters = outcome(tmp_path, PROGRAM)
    assert (code, out) == (0, "100\n"), err
    assert clusters == 1


ENDING = """
import sys
import slipring.ray, ray, ray.data  # in this order Ray's end comes before slipring's

def endless(rows):
    import time
    while 150 in rows["id"]:
        time.sleep(1)
    return rows

if __name__ == "__main__":
    ray.init(num_cpus=2, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    made = ray.data.range(200, override_num_blocks=10).map_batches(endless)
    loader = slipring.ray.Loader(made, 16, timeout=600)
    sys.kept = iter(loader)
    next(sys.kept)
    if sys.argv[1] == "after ray.shutdown":
        ray.shutdown()
"""


@pytest.mark.parametrize("when", ["at exit", "after ray.shutdown"])
def test_a_program_with_a_loader_in_use_prints_nothing_at_its_end(tmp_path, when):
    code, out, err, _ = outcome(tmp_path, ENDING, when)
    assert (code, out) == (0, "")
    assert not re.search(r"SIGTERM|Exception ignored|Error in|Traceback", err), err


def test_a_worker_in_another_cluster_is_an_error_that_names_both():
    with cluster_of_one() as context:
        own = context.address_info["gcs_address"]
        join(own, None, 0)
        with pytest.raises(RuntimeError, match=rf"at {re.escape(own)}.*at 192\.0\.2\.1:6379.*__main__"):
            join("192.0.2.1:6379", None, 0)
