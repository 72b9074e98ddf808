"""Build the sdist, and from it a wheel for each CPython and processor."""

import filecmp
import gzip
import hashlib
import io
import os
import platform
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from tools.wheels import pythons, sbom
from tools.wheels.pythons import ROOT, WORK, run

DIST = ROOT / "dist"
GLIBC = "2.17"  # the oldest version that zig offers; slipring's kernels are newer than systems with it


def epoch():
    """Return SOURCE_DATE_EPOCH: from the environment, else the time of the commit, or of an unpacked sdist's files."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    if not (ROOT / ".git").exists():
        return int((ROOT / "pyproject.toml").stat().st_mtime)
    return int(run("git", "log", "-1", "--format=%ct", quiet=True))


def build(machines):
    """Build all wheels of `machines` into DIST; return a sentence about each missing interpreter."""
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch())
    found, missing = pythons.find(platform.machine())
    archive = build_sdist(DIST)
    print(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB", flush=True)
    source = unpack(archive)
    forget_stale(source)
    for minor, python in found.items():
        inside = python.environment(WORK / f"cp3{minor}", "setuptools", "cython", "numpy", "wheel")
        forget_c_of_another_numpy(source, run(inside, "-c", "import numpy; print(numpy.__version__)", quiet=True))
        for machine in machines:
            made = build_wheel(python, inside, machine, source)
            print(f"{made.name}: {size(made)}", flush=True)
    return missing


def build_sdist(folder):
    """Build the sdist in `folder`, with the same bytes for the same files; return its path."""
    command = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--skip-dependency-check")
    folder.mkdir(parents=True, exist_ok=True)
    run(*command, "--outdir", folder, quiet=True)
    archive = max(folder.glob("slipring-*.tar.gz"), key=os.path.getmtime)
    normalize_sdist(archive, int(os.environ["SOURCE_DATE_EPOCH"]))
    return archive


def normalize_sdist(archive, time):
    """Write an archive again: files in order of their names, all of one time and of no user.

    A list of all files (in egg-info) is left out: setuptools writes another one in an unpacked sdist.
    """
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        kept = (member for member in old if ".egg-info" not in member.name)
        for member in sorted(kept, key=lambda member: member.name):
            member.mtime, member.pax_headers = time, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=time))


def unpack(archive):
    """Unpack the sdist in WORK/src; unchanged files keep their mtime, so they are not compiled again."""
    source = WORK / "src"
    with tarfile.open(archive) as tar:
        tops = {member.name.partition("/")[0] for member in tar}
        fresh = {member.name.partition("/")[2] for member in tar if member.isfile()}
        tar.extractall(WORK, filter="data")
    (top,) = tops
    source.mkdir(parents=True, exist_ok=True)
    for path in [p for p in source.rglob("*") if p.is_file()]:
        name = path.relative_to(source)
        if name.parts[0] != "build" and str(name) not in fresh:
            path.unlink()
    for name in fresh:
        if not (source / name).exists() or not filecmp.cmp(WORK / top / name, source / name, shallow=False):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(WORK / top / name, source / name)
            os.utime(source / name)  # newer than objects that were compiled while the file was edited elsewhere
    shutil.rmtree(WORK / top)
    return source


def forget_stale(source):
    """Keep an earlier run's modules that still exist and were compiled in the same way."""
    how = GLIBC.encode() + b"".join(
        (ROOT / name).read_bytes() for name in ("setup.py", "requirements-core.txt", "requirements-wheel.txt")
    )
    digest, stamp = hashlib.sha256(how).hexdigest(), source / "build" / "how"
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(source / "build", ignore_errors=True)
        stamp.parent.mkdir()
        stamp.write_text(digest)
    for library in source.glob("build/*/lib.*"):
        for path in [p for p in library.rglob("*") if p.is_file()]:
            module = source / "pkg" / path.relative_to(library).parent / path.name.partition(".")[0]
            if path.suffix != ".so" or not module.with_suffix(".pyx").exists():
                path.unlink()


def forget_c_of_another_numpy(source, version):
    """Delete Cython's C files if they were made with another numpy: those of a later one do not compile with it."""
    stamp = source / "build" / "numpy"
    if not stamp.exists() or stamp.read_text() != version:
        for folder in source.glob("build/*/cython"):
            shutil.rmtree(folder)
        stamp.write_text(version)


def build_wheel(python, inside, machine, source):
    """Build the wheel of one Python for `machine`, with its SBOM, into DIST; return its path."""
    raw = WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "--python", inside, "wheel", "--quiet", "--no-build-isolation", "--no-deps")
    run(*pip, "-w", raw, source, env=compiler(python, machine))
    (wheel,) = raw.glob("*.whl")
    # The wheel needs no libraries: auditwheel only checks the symbols, and sets the name.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    repair = (sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "-w", raw / "repaired", wheel)
    run(*repair, env={"PATH": path}, quiet=True)
    (repaired,) = raw.glob("repaired/*.whl")
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    if tag not in repaired.name:
        sys.exit(f"{repaired.name} should be {tag}: see `auditwheel show`")
    for old in DIST.glob(f"slipring-*-cp3{python.minor}-cp3{python.minor}-*{machine}.whl"):
        old.unlink()
    made = DIST / repaired.name
    sbom.pack(repaired, made, sbom.describe(repaired, inside), int(os.environ["SOURCE_DATE_EPOCH"]))
    return made


def compiler(python, machine):
    """Return an environment that makes setuptools compile for `machine` and GLIBC."""
    cc = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}"
    return {
        "CC": cc,
        "CFLAGS": f"-I{headers(python, machine)}",
        "LDSHARED": f"{cc} -shared -s",  # stripped, and without the paths of this interpreter's build
        "ZIG_GLOBAL_CACHE_DIR": str(WORK / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(WORK / "zig"),
        "SLIPRING_BUILD": "release",
        # For another processor: this Python's headers fit any 64-bit Linux.
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-3{python.minor}-{machine}-linux-gnu.so",
    }


def headers(python, machine):
    """Return a folder in which `machine`'s pyconfig.h is found: Debian keeps it outside of the folder of Python.h."""
    name = python.include.name
    folder = WORK / "include" / f"cp3{python.minor}"
    own = python.include.parent / f"{python.machine}-linux-gnu" / name
    link = folder / f"{machine}-linux-gnu" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if own.is_dir() and not link.is_symlink():
        link.symlink_to(own)
    return folder


def size(wheel):
    """Return a wheel's size, packed and unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    return f"{wheel.stat().st_size / 1e6:.2f} MB, {unpacked / 1e6:.2f} MB unpacked"
