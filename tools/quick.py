"""Lint and test the changes since the last commit, and run smoke tests: the program of `make quick`.

It takes about 90 seconds at most: after BUDGET_S no further test starts, and the summary says how many
were left out. Tests in changed files run first, then those of the folders that belong to the changed sources.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
BUDGET_S = 70
LEAST_S = 10  # for pytest, if the build and the C tests used most of the budget

# Smoke tests after any change: import, map and iterable datasets, a queue.
SMOKE = (
    "tests/ring/test_tasks.py",
    "tests/codec/test_values.py",
    "tests/loader/test_map.py",
    "tests/loader/test_stream.py",
    "tests/queue/test_queue.py",
    "tests/project/test_layers.py",
    "tests/project/test_public_names.py",
)

# Folder of sources -> the folders of its tests, if they have other names.
TESTED_BY = {
    ".": ("project",),
    ".ci": ("project",),
    "bench": ("project",),
    "csrc": ("ring", "codec", "queue"),
    "csrc/images": ("images",),
    "docs": ("project",),
    "examples": ("project",),
    "pkg/slipring": ("loader",),
    "pkg/slipring/_core": ("ring", "codec", "collate", "loader", "fault"),
    "pkg/slipring/_files": ("remote",),
    "pkg/slipring/torch": ("torch", "parity"),
    "tests": ("project",),
    "tools": ("project",),
}


def changed_files():
    """Return the existing files that differ from the last commit, untracked ones included."""
    commands = (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    names = {
        name
        for command in commands
        for name in subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    }
    return sorted(name for name in names if (ROOT / name).is_file())


def linters(changed):
    """Yield the commands that check the changed files."""

    def of(*endings):
        return [name for name in changed if name.endswith(endings)]

    if python := of(".py", ".pyi"):
        yield [BIN / "ruff", "check", *python]
        yield [BIN / "ruff", "format", "--check", *python]
    if cython := of(".pyx", ".pxd", ".pxi"):
        yield [BIN / "cython-lint", "--max-line-length", "120", *cython]
    if any(name.startswith("csrc/") for name in changed):
        yield ["make", "--no-print-directory", "lint-c"]
    if of(".md"):
        yield ["make", "--no-print-directory", "lint-pages"]


def tests_of(changed):
    """Return the changed test files, and the folders of the changed sources with the smoke tests."""
    files, folders = [], []
    for name in changed:
        path = Path(name)
        if name.startswith("tests/") and path.match("test_*.py"):
            files.append(name)
        if path.parts[0] == "tests" and len(path.parts) > 2:
            folders.append(f"tests/{path.parts[1]}")
        else:
            folder = str(path.parent)
            folders += [f"tests/{tested}" for tested in TESTED_BY.get(folder, (path.parent.name,))]
    return files, [path for path in dict.fromkeys([*folders, *SMOKE]) if (ROOT / path).exists()]


class Run:
    """Runs commands in order, and records their time and their failures."""

    def __init__(self):
        self.begun, self.failed = time.monotonic(), []

    @property
    def seconds(self):
        return time.monotonic() - self.begun

    def command(self, *parts, repeat=None):
        """Run a command; remember it, or the command that repeats it, if it fails."""
        command = [str(part) for part in parts]
        if subprocess.run(command, cwd=ROOT).returncode:
            self.failed.append(repeat or " ".join(command))

    def pytest(self, *arguments):
        """Run tests as far as the budget goes."""
        tests = ["-m", "not slow and not alone", *arguments]
        jobs = os.environ.get("JOBS") or str(len(os.sched_getaffinity(0)))
        left = max(LEAST_S, BUDGET_S - self.seconds)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            jobs,
            "--dist",
            "worksteal",
            "--budget",
            f"{left:.0f}",
        ]
        repeat = f'{sys.executable} -m pytest -m "{tests[1]}" {" ".join(arguments)}'
        self.command(*command, *tests, repeat=repeat)


def main():
    run, changed = Run(), changed_files()
    files, others = tests_of(changed)
    print(f"== {len(changed)} files differ from the last commit", flush=True)
    run.command("make", "--no-print-directory", "build")
    if not run.failed:
        for command in linters(changed):
            run.command(*command)
        if any(name.startswith(("csrc/", "tests/c/")) for name in changed):
            run.command("make", "--no-print-directory", "ctest", "STRESS=0")
        if files:
            run.pytest(*files)
        run.pytest(*others, *(f"--ignore={name}" for name in files))
    print(f"== {run.seconds:.0f} s")
    for command in run.failed:
        print(f"== failed; repeat it alone with: {command}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
