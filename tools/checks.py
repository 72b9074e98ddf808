"""Run several make targets, continue after a failure, and print the failed ones with the commands that repeat them.

Usage: python tools/checks.py [--jobs N] TARGET...

A target may have variables: "fuzz FUZZ_SECONDS=10". With --jobs 1 output appears as it is written. With more, the
targets run concurrently and only the output of a failed one is shown. A target may itself be such a list of checks:
then its failed parts are named in its place.
"""

import argparse
import concurrent.futures
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Variables on the command line of the make that started this script: VENV=.venv312 TORCH=0
VARIABLES = os.environ.get("MAKEFLAGS", "").partition("-- ")[2]
REPORT = "SLIPRING_CHECKS_REPORT"  # names the file to which nested runs add the targets that failed


def environment(report):
    """Return the environment for make, with the variables of the command line, without its options and jobserver."""
    others = {name: value for name, value in os.environ.items() if name not in ("MFLAGS", "MAKELEVEL")}
    return {**others, "MAKEFLAGS": f" -- {VARIABLES}" if VARIABLES else "", REPORT: str(report)}


class Checks:
    """Targets that were run, and a report of those that failed."""

    def __init__(self, report, captured):
        self.report, self.captured, self.failed = report, captured, 0

    def run(self, target):
        """Run one target; return (target, exit status, output, seconds)."""
        if not self.captured:
            print(f"== make {target}", flush=True)
        begun, told = time.monotonic(), self.report.stat().st_size
        command = ["make", "--no-print-directory", *shlex.split(target)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if self.captured else {}
        done = subprocess.run(command, env=environment(self.report), text=True, errors="replace", **pipes)
        if done.returncode and (self.captured or self.report.stat().st_size == told):
            with self.report.open("a") as file:
                file.write(f"{target} {VARIABLES}".rstrip() + "\n")
        return target, done.returncode, done.stdout or "", time.monotonic() - begun

    def show(self, target, status, output, seconds):
        """Print the result of a target, and its captured output if it failed."""
        if status:
            self.failed += 1
            print(output, end="" if not output or output.endswith("\n") else "\n")
        print(f"== {'FAILED' if status else 'ok'}: make {target} ({seconds:.0f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="targets that run at the same time")
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slipring-checks-") as folder:
        report = Path(os.environ.get(REPORT) or Path(folder, "failed"))
        report.touch()
        checks = Checks(report, captured=options.jobs > 1)
        # The plain map runs a target when the loop requests it, so its result is printed before the next target starts.
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            run = map if options.jobs == 1 else pool.map
            for result in run(checks.run, options.targets):
                checks.show(*result)
        if REPORT in os.environ:  # the outermost run prints the summary
            return 1 if checks.failed else 0
        print(f"{len(options.targets) - checks.failed} passed, {checks.failed} failed")
        print(f"== {time.monotonic() - begun:.0f} s")
        for target in dict.fromkeys(report.read_text().splitlines()):
            print(f"== failed; repeat it alone with: make {target}")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
