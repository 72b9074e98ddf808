"""Everything before a release is uploaded: all wheels are built, checked and built again, and nothing is uploaded."""

import hashlib
import os
import platform
import re
import shutil
import sys
import tarfile

from tools.wheels import build, check, pythons
from tools.wheels.pythons import MACHINES, ROOT, WORK, run


def release():
    """Build and check all files of a release; print their digests, and the commands that publish them."""
    version = check_tree()
    shutil.rmtree(build.DIST, ignore_errors=True)
    missing = build.build(MACHINES)
    if missing:
        sys.exit("\n  ".join(["a release has all wheels, and these were not built:", *missing]))
    check.check(MACHINES)
    check_reproducible()
    files = sorted(build.DIST.iterdir())
    print(*(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files), sep="\n")
    print(
        "to publish:",
        f"git tag -a v{version} -m 'slipring {version}' && git push origin v{version}",
        f"{os.path.relpath(sys.executable, ROOT)} -m twine upload {' '.join(f'dist/{path.name}' for path in files)}",
        sep="\n  ",
    )


def check_tree():
    """Return the version; exit unless everything is committed and all files name it."""
    changed = run("git", "status", "--porcelain", quiet=True)
    if changed:
        sys.exit(f"a release is made of a commit; commit these files or remove them:\n{changed}")
    version = re.search(r'"(.*)"', (ROOT / "pkg/slipring/_version.py").read_text())[1]
    for name, line in (("CITATION.cff", f"version: {version}"), ("CHANGELOG.md", f"## {version}")):
        if line not in (ROOT / name).read_text().splitlines():
            sys.exit(f"{name} has no line {line!r}, and _version.py has this version")
    return version


def check_reproducible():
    """Build the sdist and one wheel again, from the sdist and in another folder: they must have the same bytes."""
    (archive,) = build.DIST.glob("slipring-*.tar.gz")
    python = next(iter(pythons.find(platform.machine())[0].values()))
    again = WORK / "again"
    shutil.rmtree(again, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(again, filter="data")
    (folder,) = again.iterdir()
    # The time is that of the unpacked files, as for anybody who has only the sdist.
    command = (sys.executable, "-m", "tools.wheels", "build", platform.machine())
    run(*command, cwd=folder, env={"PYTHONS": str(python.executable), "SOURCE_DATE_EPOCH": ""})
    for made in sorted((folder / "dist").iterdir()):
        if made.read_bytes() != (build.DIST / made.name).read_bytes():
            sys.exit(f"{made} differs from {build.DIST / made.name}: the build is not reproducible")
        print(f"{made.name}: the same bytes when it is built again elsewhere", flush=True)
