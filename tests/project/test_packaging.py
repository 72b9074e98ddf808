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

ROOT = Path(__file__).resolve().parents[2]

# All files that builds, tests and benchmarks need; a folder stands for its sources.
NEEDED = (
    "csrc",
    "pkg",
    "tests",
    "bench",
    "docs",
    "examples",
    "tools",
    ".ci/run",
    "Makefile",
    "setup.py",
    "pyproject.toml",
)
NEEDED += (
    "requirements-core.txt",
    "requirements-dev.txt",
    "requirements-clients.txt",
    "requirements-coverage.txt",
    "requirements-wheel.txt",
    "requirements-docs.txt",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CITATION.cff",
    "LICENSE",
)
SOURCE = {".c", ".h", ".py", ".pyi", ".pyx", ".pxd", ".pxi", ".md", ".txt", ".toml", ".typed", ".sh"}


def version():
    """Return the version of the source, read without an import of the package."""
    tree = ast.parse((ROOT / "pkg/slipring/_version.py").read_text())
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


def sources():
    """Return the files that belong in an sdist: those that git tracks or, in an unpacked sdist, all of them."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", *NEEDED], cwd=ROOT, capture_output=True, text=True, check=True)
        return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    found = set()
    for name in NEEDED:
        path = ROOT / name
        inside = [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in SOURCE]
        found |= {str(p.relative_to(ROOT)) for p in inside if "build" not in p.relative_to(ROOT).parts}
    return found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """An open sdist of this tree and its top folder, built with installed packages: no network."""
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
        "pkg/slipring/_core/_ring.pyx",
        "pkg/slipring/_core/_cring.pxd",
        "pkg/slipring/py.typed",
    } <= packed


@pytest.mark.slow
def test_the_sdist_holds_nothing_that_was_built(sdist):
    archive, folder = sdist
    names = [member.name.removeprefix(f"{folder}/") for member in archive.getmembers() if member.isfile()]
    built = [name for name in names if name.endswith((".so", ".o", ".pyc")) or "__pycache__" in name]
    built += [name for name in names if name.endswith(".c") and name.startswith("pkg/")]
    built += [name for name in names if name.startswith(("build/", "bench/results/", "bench/data/", "tests/c/build/"))]
    assert not built, f"exclude in MANIFEST.in: {', '.join(built)}"


@pytest.mark.slow
def test_the_metadata_is_true(sdist):
    info = metadata(sdist)
    assert info["Name"] == "slipring"
    assert info["Version"] == version()
    assert info["Requires-Python"] == ">=3.10"
    assert info["License-Expression"] == "Apache-2.0"
    always = [line for line in info.get_all("Requires-Dist") if "extra ==" not in line]
    assert always == ["numpy>=1.23"], "numpy is the only dependency; anything else is an extra"
    assert {"torch", "arrow", "monitor", "dev"} <= set(info.get_all("Provides-Extra"))


def links(text):
    """Return the targets of a Markdown page's links."""
    return re.findall(r"\]\(([^)]+)\)", text)


@pytest.mark.slow
def test_no_link_of_the_package_page_is_relative(sdist):
    page = metadata(sdist).get_payload()
    assert page.lstrip().startswith("# slipring\n") and "(`docs/quickstart.md`)" in page
    assert [target for target in links(page) if not target.startswith("https://")] == []


def test_with_a_home_the_links_of_the_package_page_lead_there(tmp_path):
    (tmp_path / "README.md").write_text("![a](docs/a.png) and [b](docs/b.md#c), [d](https://d.org)\n")
    (tmp_path / "pyproject.toml").write_text('Repository = "https://example.org/x"\n')
    tree = ast.parse((ROOT / "setup.py").read_text())
    function = next(node for node in tree.body if getattr(node, "name", "") == "package_page")
    code = f"import re\nfrom pathlib import Path\n{ast.unparse(function)}\nprint(package_page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    home = "https://example.org/x"
    assert done.stdout.strip() == (
        f"![a]({home}/raw/HEAD/docs/a.png) and [b]({home}/blob/HEAD/docs/b.md#c), [d](https://d.org)"
    ), done.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the files that a build needs: other tests build in the original at the same time."""
    place = tmp_path_factory.mktemp("tree")
    for name in ("csrc", "pkg", "tests/steps"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    return place


def build_one_module(tree, **environment):
    command = [sys.executable, "setup.py", "build_ext"]
    environment = {**os.environ, "SLIPRING_BUILD": "steps", **environment}
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "why"),
    [("no-such-compiler", "there is no 'no-such-compiler'"), ("/bin/false", "'/bin/false' fails")],
)
def test_a_build_without_a_compiler_ends_in_a_sentence_with_the_remedy(tree, compiler, why):
    done = build_one_module(tree, CC=compiler)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert why in last and last.startswith("slipring has no wheel for this Python (cpython-3")
    assert "apt install gcc python3-dev" in last
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_fault_of_the_code_is_not_blamed_on_the_compiler(tree):
    done = build_one_module(tree, CFLAGS="-Dsr_create=+")
    assert done.returncode == 1
    assert "no wheel" not in done.stderr and "csrc/ring.h" in done.stderr


def test_the_imported_package_has_the_version_of_its_metadata():
    import slipring

    assert slipring.__version__ == version()


@pytest.mark.slow
def test_the_smoke_test_of_an_installation_runs_again_in_the_same_folder(tmp_path):
    pytest.importorskip("PIL")
    for _ in range(2):
        command = [sys.executable, str(ROOT / "tools" / "smoke.py")]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "pkg")}, check=True)
    assert not list(tmp_path.iterdir())


def test_the_citation_names_this_version():
    assert f"\nversion: {version()}\n" in (ROOT / "CITATION.cff").read_text()
