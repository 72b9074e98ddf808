"""Packages: the sdist has every file that a build needs, and the metadata is true."""

import ast
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import slipring

ROOT = Path(__file__).resolve().parents[2]

# All files that builds, tests and benchmarks need; a folder stands for its sources.
NEEDED = (
    "csrc pkg tests bench docs examples tools .ci/run Makefile setup.py pyproject.toml requirements-core.txt "
    "requirements-dev.txt requirements-clients.txt requirements-coverage.txt requirements-wheel.txt "
    "requirements-docs.txt README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md CITATION.cff LICENSE"
)


def version():
    """Return the version of the source, read without an import of the package."""
    tree = ast.parse((ROOT / "pkg/slipring/_version.py").read_text())
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


def sources():
    """Return the files that belong in an sdist: those that git tracks."""
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is no clone")
    listed = subprocess.run(["git", "ls-files", *NEEDED.split()], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """An open sdist of this tree and its top folder, built with installed packages: no network."""
    out = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(out / f"slipring-{version()}.tar.gz") as archive:
        yield archive, f"slipring-{version()}"


@pytest.mark.slow
def test_the_sdist_holds_every_source_and_nothing_that_was_built(sdist):
    archive, folder = sdist
    names = {member.name.removeprefix(f"{folder}/") for member in archive.getmembers() if member.isfile()}
    missing = sorted(sources() - names)
    assert not missing, f"add to MANIFEST.in: {', '.join(missing)}"
    assert {
        "csrc/ring.h",
        "pkg/slipring/_core/ring/_ring.pyx",
        "pkg/slipring/_core/ring/_cring.pxd",
        "pkg/slipring/py.typed",
    } <= names
    built = [name for name in names if name.endswith((".so", ".o", ".pyc")) or "__pycache__" in name]
    built += [name for name in names if name.endswith(".c") and name.startswith("pkg/")]
    built += [name for name in names if name.startswith(("build/", "bench/results/", "bench/data/", "tests/c/build/"))]
    assert not built, f"exclude in MANIFEST.in: {', '.join(built)}"


@pytest.mark.slow
def test_the_metadata_is_true_and_no_link_of_the_package_page_is_relative(sdist):
    archive, folder = sdist
    info = email.message_from_bytes(archive.extractfile(f"{folder}/PKG-INFO").read())
    assert info["Name"] == "slipring"
    assert info["Version"] == version()
    assert info["Requires-Python"] == ">=3.11"
    assert info["License-Expression"] == "Apache-2.0"
    always = [line for line in info.get_all("Requires-Dist") if "extra ==" not in line]
    assert always == ["numpy>=1.23"], "numpy is the only dependency; anything else is an extra"
    assert {"torch", "arrow", "monitor", "dev"} <= set(info.get_all("Provides-Extra"))
    page = info.get_payload()
    assert page.lstrip().startswith("# slipring\n") and "(`docs/quickstart.md`)" in page
    assert [target for target in re.findall(r"\]\(([^)]+)\)", page) if not target.startswith("https://")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said", "unsaid"),
    [
        ({"CC": "no-such-compiler"}, "there is no 'no-such-compiler'", "Traceback"),
        ({"CC": "/bin/false"}, "'/bin/false' fails", "Traceback"),
        ({"CFLAGS": "-Dsr_create=+"}, "csrc/ring.h", "no wheel"),  # a fault of the code
    ],
)
def test_a_build_without_a_compiler_ends_in_a_sentence_with_the_remedy(tmp_path, changed, said, unsaid):
    for name in ("csrc", "pkg", "tests/steps"):  # a copy: other tests build in the original at the same time
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "setup.py", "build_ext"]
    environment = {**os.environ, "SLIPRING_BUILD": "steps", **changed}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert said in done.stderr and unsaid not in done.stderr
    if "CC" in changed:
        last = done.stderr.strip().splitlines()[-1]
        assert said in last and last.startswith("slipring has no wheel for this Python (cpython-3")
        assert "apt install gcc python3-dev" in last


def test_the_package_and_the_citation_have_this_version():
    assert slipring.__version__ == version()
    assert f"\nversion: {version()}\n" in (ROOT / "CITATION.cff").read_text()
