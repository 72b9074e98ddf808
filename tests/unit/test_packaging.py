"""What a user gets: the sdist has all that a build needs, the metadata promise what is kept."""

import ast
import email
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# All that a build, the tests and the benchmarks are made of; a folder stands for its sources.
NEEDED = (
    "csrc",
    "pkg",
    "tests",
    "bench",
    "docs",
    "examples",
    ".ci/run",
    "Makefile",
    "setup.py",
    "pyproject.toml",
)
NEEDED += (
    "requirements-core.txt",
    "requirements-dev.txt",
    "requirements-clients.txt",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
)
SOURCE = {".c", ".h", ".py", ".pyi", ".pyx", ".pxd", ".md", ".txt", ".toml", ".typed", ".sh"}


def version():
    """The version as the source has it, read without importing the package."""
    tree = ast.parse((ROOT / "pkg/slipring/_version.py").read_text())
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


def sources():
    """The repository's files that belong into an sdist: what git tracks, or in an sdist, what is there."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", *NEEDED], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    found = set()
    for name in NEEDED:
        path = ROOT / name
        inside = [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in SOURCE]
        found |= {str(p.relative_to(ROOT)) for p in inside if "build" not in p.relative_to(ROOT).parts}
    return found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """An open sdist of this tree and its top folder, built with what is installed: no network."""
    out = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(out / f"slipring-{version()}.tar.gz") as archive:
        yield archive, f"slipring-{version()}"


def metadata(sdist):
    archive, folder = sdist
    return email.message_from_bytes(archive.extractfile(f"{folder}/PKG-INFO").read())


@pytest.mark.slow
def test_the_sdist_holds_every_source(sdist):
    archive, folder = sdist
    packed = {member.name.removeprefix(f"{folder}/") for member in archive.getmembers() if member.isfile()}
    missing = sorted(sources() - packed)
    assert not missing, f"add to MANIFEST.in: {', '.join(missing)}"
    assert {
        "csrc/ring.h",
        "pkg/slipring/_ring.pyx",
        "pkg/slipring/_cring.pxd",
        "pkg/slipring/py.typed",
    } <= packed


@pytest.mark.slow
def test_the_sdist_holds_nothing_that_was_built(sdist):
    archive, folder = sdist
    names = [member.name.removeprefix(f"{folder}/") for member in archive.getmembers() if member.isfile()]
    built = [name for name in names if name.endswith((".so", ".o", ".pyc")) or "__pycache__" in name]
    built += [name for name in names if name.endswith(".c") and name.startswith("pkg/")]
    built += [
        name
        for name in names
        if name.startswith(("build/", "bench/results/", "bench/data/", "tests/c/build/"))
    ]
    assert not built, f"exclude in MANIFEST.in: {', '.join(built)}"


@pytest.mark.slow
def test_the_metadata_promise_what_is_kept(sdist):
    info = metadata(sdist)
    assert info["Name"] == "slipring"
    assert info["Version"] == version()
    assert info["Requires-Python"] == ">=3.10"
    assert info["License-Expression"] == "Apache-2.0"
    always = [line for line in info.get_all("Requires-Dist") if "extra ==" not in line]
    assert always == ["numpy>=1.23"], "numpy is the only dependency; anything else is an extra"
    assert {"torch", "arrow", "dev"} <= set(info.get_all("Provides-Extra"))


def test_the_imported_package_has_the_version_of_its_metadata():
    import slipring

    assert slipring.__version__ == version()
