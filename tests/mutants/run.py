"""Break slipring on purpose, once per patch below this folder, and fail unless the named check notices.

Usage: ``run.py [NAME...]``.

A patch begins with a description of the fault and a line "Caught by:", which names a check:

- ``model SCENARIO`` (tests/model), or ``ctest`` or ``tsan`` with a program of tests/c and perhaps a part of a test's
  name: for patches of the ring, in this folder. Each is applied to a copy of csrc.
- ``pytest TEST...``: for patches of the loaders' Python and Cython code, in the folder loader. Each is applied to a
  copy of the package and its tests. Before that, the named tests must pass without a patch. A Cython module is
  compiled without optimization (``SLIPRING_BUILD=mutants``), because its test takes less time than its optimization.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 300  # seconds for one catcher on a loaded machine; the C tests have watchdogs of their own
HANG = 30  # seconds after which pytest ends a test, which counts as failed

SKIPPED = "its tests are skipped here"

# The text of each catcher that notices a fault. A failed build, or a crash of the catcher, does not count.
NOTICED = {
    "model": re.compile(r"VIOLATED"),
    "ctest": re.compile(r"^FAIL ", re.MULTILINE),
    "tsan": re.compile(r"WARNING: ThreadSanitizer|^FAIL ", re.MULTILINE),
    "pytest": re.compile(r"^(FAILED|ERROR) \S+::", re.MULTILINE),
}

# The parts of the tree that a mutant of the loaders needs, and those for compiling a Cython module again.
PYTHON_PARTS = ["pkg", "tests", "pyproject.toml", "docs/state.schema.json"]
CYTHON_PARTS = ["csrc", "setup.py", "README.md", "build/mutants", "build/release/cython"]
BUILD_CYTHON = [sys.executable, "setup.py", "--quiet", "build_ext"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--timeout={HANG}"]


def catcher_of(patch):
    """Return (kind, arguments) of the line that names the catcher."""
    found = re.search(rf"^Caught by: ({'|'.join(NOTICED)}) (.+)$", patch.read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"{patch.name} has no line 'Caught by: {'|'.join(NOTICED)} ...'")
    return found[1], found[2].split()


def changes_cython(patch):
    """Return whether a module must be compiled again."""
    return re.search(r"^\+\+\+ .*\.p(?:yx|xd)$", patch.read_text(), re.MULTILINE) is not None


def command(kind, arguments, tree):
    """Return the commands that build and run a catcher in a copy of the tree; the limit holds for the run alone."""
    if kind == "pytest":
        return [*BUILD_CYTHON, "--inplace"], [*PYTEST, *arguments]
    if kind == "model":
        make = ["make", "-s", "-C", str(tree / "tests" / "model")]
        return [*make, "build"], [*make, "run", f"ARGS={' '.join(arguments)}"]
    variant = {"ctest": "plain", "tsan": "tsan"}[kind]
    make = ["make", "-s", "-C", str(tree / "tests" / "c"), f"ONLY={arguments[0]}"]
    run = "run" if kind == "ctest" else "run-tsan"
    return [*make, f"build-{variant}"], [*make, run, f"FILTER={' '.join(arguments[1:])}"]


def execute(argv, tree, limit=None):
    """Run a command in a copy of the tree, whose package Python imports; return the finished process."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "pkg"), "SLIPRING_BUILD": "mutants"}
    return subprocess.run(
        argv, cwd=tree, env=environment, timeout=limit, capture_output=True, text=True, errors="replace"
    )


def prepare(folder, patches):
    """Build what the ring's catchers need from the sources as they are; return that tree.

    Each mutant starts from a copy, so that only the files that a patch touches are compiled again.
    """
    tree = folder / "unpatched"
    shutil.copytree(ROOT / "csrc", tree / "csrc")
    for part in ("c", "model"):
        shutil.copytree(ROOT / "tests" / part, tree / "tests" / part)
        if (built := ROOT / "build" / part).is_dir():  # only objects that are out of date are then compiled
            shutil.copytree(built, tree / "build" / part, ignore=shutil.ignore_patterns("asan", "test_*", "stress_*"))
    catchers = [catcher_of(patch) for patch in patches]
    programs = {(kind, arguments[0] if kind != "model" else "") for kind, arguments in catchers if kind != "pytest"}
    for kind, program in sorted(programs):
        build, _ = command(kind, [program], tree)
        done = execute([*build, f"-j{os.cpu_count()}"], tree)
        if done.returncode != 0:
            sys.exit(f"without a patch, {' '.join(build)} fails: {done.stderr.strip()}")
    return tree


def copy_tree(patch, unpatched, tree):
    """Make the copy of the tree that a patch is applied to. It keeps mtimes: only patched files are compiled again."""
    if catcher_of(patch)[0] != "pytest":
        shutil.copytree(unpatched, tree, copy_function=os.link)  # git and gcc replace a file, they do not write to it
        return
    for part in [*PYTHON_PARTS, *(CYTHON_PARTS if changes_cython(patch) else [])]:
        (tree / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, tree / part)


def check_unpatched(patches):
    """End with an error if a named test fails without a patch, then build the Cython modules.

    Return whether a named test was skipped.
    """
    tests = sorted({test for kind, names in map(catcher_of, patches) if kind == "pytest" for test in names})
    if not tests:
        return False
    files = {test.partition("::")[0] for test in tests}
    # One session, because a start takes longer than most tests; their slowest part is waiting.
    run = [*PYTEST, "-n", str(min(2 * os.cpu_count(), len(files))), "--dist", "worksteal", *tests]
    done = execute(run, ROOT)
    if done.returncode != 0:
        sys.exit(f"without a patch, named tests fail: {(done.stdout + done.stderr)[-2000:]}")
    skipped = "SKIPPED" in done.stdout
    if any(map(changes_cython, patches)):
        done = execute(BUILD_CYTHON, ROOT)
        if done.returncode != 0:
            sys.exit(f"without a patch, the modules cannot be built: {done.stderr.strip()}")
    return skipped


def try_one(patch, unpatched, folder, may_skip):
    """Return why this mutant survived, None if it was caught, or SKIPPED."""
    kind, arguments = catcher_of(patch)
    tree = folder / patch.stem
    try:
        copy_tree(patch, unpatched, tree)
        # One line of context is enough, if other lines nearby have changed.
        done = execute(["git", "apply", "-C1", str(patch)], tree)
        if done.returncode != 0:
            return f"does not apply any more: {done.stderr.strip()}"
        build, run = command(kind, arguments, tree)
        if kind != "pytest" or changes_cython(patch):
            done = execute(build, tree)
            if done.returncode != 0:
                return f"does not build: {done.stderr.strip()[-500:]}"
        try:
            done = execute(run, tree, LIMIT)
        except subprocess.TimeoutExpired:
            return f"{kind} {' '.join(arguments)} was not done after {LIMIT} s"
        if done.returncode == 0 and may_skip and "SKIPPED" in done.stdout and " passed" not in done.stdout:
            return SKIPPED
        if done.returncode == 0 or not NOTICED[kind].search(done.stdout + done.stderr):
            return f"SURVIVED {kind} {' '.join(arguments)}: {done.stdout.strip()[-300:]}"
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="patches, by parts of their paths: rewind, loader/")
    options = parser.parse_args()
    patches = [
        patch
        for patch in sorted(HERE.rglob("*.patch"))
        if not options.names or any(name in str(patch.relative_to(HERE)) for name in options.names)
    ]
    caught, survived = {}, []
    of_loaders = [patch for patch in patches if catcher_of(patch)[0] == "pytest"]
    of_loaders.sort(key=changes_cython, reverse=True)  # those that take longest begin first

    def timed(patch, may_skip=False):
        begun = time.monotonic()
        return patch, try_one(patch, unpatched, folder, may_skip), time.monotonic() - begun

    # Each has its own copy of the sources. One more than there are CPUs, because tests wait half of their time.
    with (
        tempfile.TemporaryDirectory(prefix="slipring-mutants-") as name,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count() + 1) as pool,
    ):
        folder = Path(name)
        unpatched = prepare(folder, patches)
        pending = [pool.submit(timed, patch) for patch in patches if patch not in of_loaders]
        try:
            may_skip = check_unpatched(of_loaders)
        except SystemExit:
            pool.shutdown(cancel_futures=True)
            raise
        pending += [pool.submit(timed, patch, may_skip) for patch in of_loaders]
        for done in concurrent.futures.as_completed(pending):
            patch, problem, took = done.result()
            kind, arguments = catcher_of(patch)
            if problem is SKIPPED:
                print(f"left out  {patch.stem}: {problem}", flush=True)
                continue
            by = problem or f"{kind} {' '.join(arguments)}"
            print(f"{'FAIL' if problem else 'ok  '}  {patch.stem}: {by} ({took:.0f} s)", flush=True)
            if problem:
                survived.append(patch.stem)
            else:
                caught[kind] = caught.get(kind, 0) + 1
    by = ", ".join(f"{n} by {kind}" for kind, n in sorted(caught.items())) or "none"
    print(f"mutants: {sum(caught.values())} caught ({by}), {len(survived)} not")
    return 1 if survived or not caught else 0


if __name__ == "__main__":
    sys.exit(main())
