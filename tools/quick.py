"""What `make quick` runs: lint and tests of what the working tree changed since the last commit, and smoke tests.

It stays below 90 seconds: BUDGET_S after the beginning no further test starts, and the last lines say how many were
left out. Tests in changed files come first, then those of the folders that belong to the changed sources.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
BUDGET_S = 70
LEAST_S = 10  # for the tests in Python, where the build and the C tests took nearly all of it

# What must work whatever was changed: import, map and iterable datasets, errors, state, a queue.
SMOKE = (
    "tests/ring/test_tasks.py",
    "tests/codec/test_whole.py",
    "tests/loader/test_map.py",
    "tests/loader/test_stream.py",
    "tests/queue/test_queue.py",
    "tests/project/test_layers.py",
    "tests/project/test_public_names.py",
)

# Folder of sources -> the folders that test it, where they have other names.
TESTED_BY = {
    "csrc": ("ring", "codec", "queue"),
    "csrc/images": ("images",),
    "pkg/slipring": ("loader",),
    "pkg/slipring/files": ("remote",),
    "pkg/slipring/iterate": ("loader",),
    "pkg/slipring/torch": ("torch", "parity"),
    "pkg/slipring/workers": ("loader", "fault"),
    "bench": ("project",),
    "docs": ("project",),
    "examples": ("project",),
}


def changed_files():
    """Paths that differ from the last commit, and those that git does not know yet, if they exist."""
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
    """The commands that look at the changed files."""

    def of(*endings):
        return [name for name in changed if name.endswith(endings)]

    if python := of(".py", ".pyi"):
        yield [BIN / "ruff", "check", *python]
        yield [BIN / "ruff", "format", "--check", *python]
    if cython := of(".pyx", ".pxd"):
        yield [BIN / "cython-lint", "--max-line-length", "120", *cython]
    if any(name.startswith("csrc/") for name in changed):
        yield ["make", "--no-print-directory", "lint-c"]


def test_paths(changed):
    """Changed test files, then the folders of what was changed, then the smoke tests; each once."""
    found = [name for name in changed if name.startswith("tests/") and Path(name).name.startswith("test_")]
    for name in changed:
        folder = str(Path(name).parent)
        if folder.startswith("tests/"):
            found.append("/".join(folder.split("/")[:2]))
        else:
            names = TESTED_BY.get(folder) or (Path(folder).name,)
            found += [f"tests/{name}" for name in names if folder and (ROOT / "tests" / name).is_dir()]
    return [path for path in dict.fromkeys([*found, *SMOKE]) if (ROOT / path).exists()]


def run(*command):
    """Run a command; return whether it succeeded."""
    return subprocess.run([str(part) for part in command], cwd=ROOT).returncode == 0


def main():
    begun, failed = time.monotonic(), []
    changed = changed_files()
    print(f"== {len(changed)} files differ from the last commit", flush=True)
    if not run("make", "--no-print-directory", "build"):
        print("== failed; repeat it alone with: make build")
        return 1
    for command in linters(changed):
        if not run(*command):
            failed.append(" ".join(str(part) for part in command))
    if any(name.startswith(("csrc/", "tests/c/")) for name in changed):
        if not run("make", "--no-print-directory", "ctest", "STRESS=0"):
            failed.append("make ctest STRESS=0")
    paths = test_paths(changed)
    jobs = str(3 * (os.cpu_count() or 1))
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", jobs, "--dist", "worksteal", "--budget"]
    left = max(LEAST_S, BUDGET_S - (time.monotonic() - begun))
    if not run(*pytest, f"{left:.0f}", "-m", "not slow and not alone", *paths):
        failed.append(f"make pytest ARGS='{' '.join(paths)}'")
    print(f"== {time.monotonic() - begun:.0f} s")
    for command in failed:
        print(f"== failed; repeat it alone with: {command}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
