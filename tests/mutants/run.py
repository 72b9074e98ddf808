"""Breaks the ring on purpose, once per patch in this folder, and fails unless what the patch names notices.

Usage: ``run.py [NAME...]``.

A patch begins with what it breaks and a line "Caught by: model SCENARIO" (tests/model), or "ctest" or
"tsan" with a program of tests/c and perhaps a part of a test's name. It is applied to a copy of csrc.
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
LIMIT = 120  # seconds for one catcher; the C tests have watchdogs of their own

# What each catcher says when it has noticed. A build that fails, or a catcher that crashes, is not that.
NOTICED = {
    "model": re.compile(r"VIOLATED"),
    "ctest": re.compile(r"^FAIL ", re.MULTILINE),
    "tsan": re.compile(r"WARNING: ThreadSanitizer|^FAIL ", re.MULTILINE),
}


def catcher_of(patch):
    """(kind, arguments) of the line that says who must notice."""
    found = re.search(r"^Caught by: (model|ctest|tsan) (.+)$", patch.read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"{patch.name} has no line 'Caught by: model|ctest|tsan ...'")
    return found[1], found[2].split()


def command(kind, arguments, tree):
    """How to run a catcher in a copy of the tree: building first, so that the limit is on the run."""
    if kind == "model":
        make = ["make", "-s", "-C", str(tree / "tests" / "model")]
        return [*make, "build"], [*make, "run", f"ARGS={' '.join(arguments)}"]
    variant = {"ctest": "plain", "tsan": "tsan"}[kind]
    make = ["make", "-s", "-C", str(tree / "tests" / "c"), f"ONLY={arguments[0]}"]
    run = "run" if kind == "ctest" else "run-tsan"
    return [*make, f"build-{variant}"], [*make, run, f"FILTER={' '.join(arguments[1:])}"]


def prepare(folder, patches):
    """Build what the patches' catchers need from the sources as they are; return that tree.

    Each mutant starts from a copy, so that only the files that a patch touches are compiled again.
    """
    tree = folder / "unpatched"
    shutil.copytree(ROOT / "csrc", tree / "csrc")
    for part in ("c", "model"):
        shutil.copytree(ROOT / "tests" / part, tree / "tests" / part)
    programs = {
        (kind, arguments[0] if kind != "model" else "") for kind, arguments in map(catcher_of, patches)
    }
    for kind, program in sorted(programs):
        build, _ = command(kind, [program], tree)
        done = subprocess.run([*build, f"-j{os.cpu_count()}"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"without a patch, {' '.join(build)} fails: {done.stderr.strip()}")
    return tree


def try_one(patch, unpatched, folder):
    """Return why this mutant survived, or None if it was caught."""
    kind, arguments = catcher_of(patch)
    tree = folder / patch.stem
    try:
        shutil.copytree(unpatched, tree)  # keeps mtimes, so make rebuilds only patched files
        done = subprocess.run(["git", "apply", str(patch)], cwd=tree, capture_output=True, text=True)
        if done.returncode != 0:
            return f"does not apply any more: {done.stderr.strip()}"
        build, run = command(kind, arguments, tree)
        done = subprocess.run(build, capture_output=True, text=True)
        if done.returncode != 0:
            return f"does not build: {done.stderr.strip()[-500:]}"
        try:
            done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT, errors="replace")
        except subprocess.TimeoutExpired:
            return f"{kind} {' '.join(arguments)} was not done after {LIMIT} s"
        if done.returncode == 0 or not NOTICED[kind].search(done.stdout + done.stderr):
            return f"SURVIVED {kind} {' '.join(arguments)}: {done.stdout.strip()[-300:]}"
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="patches, by their names or parts of them")
    options = parser.parse_args()
    patches = [
        patch
        for patch in sorted(HERE.glob("*.patch"))
        if not options.names or any(name in patch.stem for name in options.names)
    ]
    caught, survived = {}, []

    def timed(patch):
        begun = time.monotonic()
        return patch, try_one(patch, unpatched, folder), time.monotonic() - begun

    # Each has its own copy of the sources, and waits for gcc and for one program on one processor.
    with (
        tempfile.TemporaryDirectory(prefix="slipring-mutants-") as name,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        folder = Path(name)
        unpatched = prepare(folder, patches)
        for done in concurrent.futures.as_completed([pool.submit(timed, patch) for patch in patches]):
            patch, problem, took = done.result()
            kind, arguments = catcher_of(patch)
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
