"""Measure how much more memory a program needs for many samples than for few."""

import subprocess
import sys

REPORT = "\nimport resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def growth(code, few, many):
    """Return in kB how much the peak memory of `code` grows if its ``n`` is `many` and not `few`."""
    used = []
    for n in (few, many):
        program = [sys.executable, "-c", f"n = {n}\n{code}{REPORT}"]
        used.append(int(subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout))
    return used[1] - used[0]
