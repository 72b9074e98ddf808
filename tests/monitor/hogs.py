"""What takes processors away."""

import contextlib
import subprocess
import sys

BURN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@contextlib.contextmanager
def processor_hog(cpu):
    """A process that wants all of one processor."""
    with subprocess.Popen([sys.executable, "-c", BURN, str(cpu)], stdout=subprocess.PIPE) as hog:
        try:
            hog.stdout.readline()
            yield
        finally:
            hog.kill()
