"""How much more memory a program needs for many samples than for few."""

import subprocess
import sys

REPORT = "\nimport resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def growth(code, few, many):
    """Return in kB how much more a process takes at most for `many` than for `few`, which `code` reads as ``n``."""
    used = []
    for n in (few, many):
        program = [sys.executable, "-c", f"n = {n}\n{code}{REPORT}"]
        used.append(int(subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout))
    return used[1] - used[0]
