"""Build wheels for every CPython on this machine, and check them: `make wheel`, `make check-wheel`.

    python tools/wheels.py build [x86_64 | aarch64]
    python tools/wheels.py check

It runs in an environment with requirements-wheel.txt. PYTHONS in the environment names interpreters; without it,
those on PATH and pyenv's are used. All files are in build/wheel, the wheels in dist/.
"""

import filecmp
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheel"
DIST = ROOT / "dist"
GLIBC = "2.17"  # the oldest version that zig offers; slipring's kernels are newer than systems with it
OLDEST = 11  # CPython 3.11
ARCHITECTURES = ("x86_64", "aarch64")

LOOK = """
import os, sys, sysconfig
if sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    if os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        print(sys.version_info.minor, sys.executable)
"""


def run(*command, env=None, cwd=ROOT, quiet=False):
    """Run a command; if it fails, exit with its output."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.PIPE if quiet else None,
    )
    if done.returncode:
        said = f"{done.stdout or ''}{done.stderr or ''}"
        sys.exit(f"{said}{' '.join(map(str, command))}\nended with {done.returncode}")
    return done.stdout


def interpreters():
    """Return {minor version: interpreter with headers}; the first one of each version."""
    if os.environ.get("PYTHONS"):
        wanted = os.environ["PYTHONS"].split()
    else:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        wanted = [f"python3.{minor}" for minor in range(OLDEST, OLDEST + 20)]
        wanted += sorted(pyenv.glob("versions/3.*/bin/python3"))
    found = {}
    for name in wanted:
        path = shutil.which(name)
        if path is None:
            continue
        # pyenv may have a shim for a version that is not selected: it fails.
        done = subprocess.run([path, "-c", LOOK], capture_output=True, text=True)
        minor, _, executable = done.stdout.strip().partition(" ")
        if done.returncode == 0 and executable and int(minor) >= OLDEST:
            found.setdefault(int(minor), executable)
    if not found:
        sys.exit(
            "no CPython from 3.11 on with its headers was found: name some, as PYTHONS='python3.12 /opt/py/bin/python3'"
        )
    return dict(sorted(found.items()))


def environment(place, python, *packages, env=None):
    """Make an environment in `place` with `packages` as in requirements-core.txt; return its interpreter."""
    inside = place / "bin" / "python"
    if not inside.exists():
        run(python, "-m", "venv", place)
    pip = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
    run(*pip, "-c", ROOT / "requirements-core.txt", *packages, env=env)
    return inside


# ---- build


def unpack_sdist():
    """Build the sdist, and unpack it in WORK/src; unchanged files keep their mtime, so they are not compiled again."""
    DIST.mkdir(exist_ok=True)
    run(
        sys.executable,
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        DIST,
        quiet=True,
    )
    archive = max(DIST.glob("slipring-*.tar.gz"), key=os.path.getmtime)
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
    return archive, source


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


def compiler(arch, minor):
    """Return an environment that makes setuptools compile for `arch` and GLIBC."""
    cc = f"{sys.executable} -m ziglang cc -target {arch}-linux-gnu.{GLIBC}"
    return {
        "CC": cc,
        "LDSHARED": f"{cc} -shared -s",  # stripped, and without the paths of this interpreter's build
        "ZIG_GLOBAL_CACHE_DIR": str(WORK / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(WORK / "zig"),
        "SLIPRING_BUILD": "release",
        # For another processor: this Python's headers fit any 64-bit Linux.
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-3{minor}-{arch}-linux-gnu.so",
    }


def build(arch):
    pythons = interpreters()
    archive, source = unpack_sdist()
    print(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB")
    forget_stale(source)
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{arch}"
    for minor, python in pythons.items():
        inside = environment(WORK / f"cp3{minor}", python, "setuptools", "cython", "numpy", "wheel")
        raw = WORK / "raw"
        shutil.rmtree(raw, ignore_errors=True)
        pip = (inside, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        run(*pip, "--no-build-isolation", "--no-deps", "-w", raw, source, env=compiler(arch, minor))
        (wheel,) = raw.glob("*.whl")
        # The wheel needs no libraries: auditwheel only checks the symbols, and sets the name.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for old in DIST.glob(f"slipring-*-cp3{minor}-cp3{minor}-*{arch}.whl"):
            old.unlink()
        run(
            sys.executable,
            "-m",
            "auditwheel",
            "repair",
            "--plat",
            "auto",
            "-w",
            DIST,
            wheel,
            env={"PATH": path},
            quiet=True,
        )
        (made,) = DIST.glob(f"slipring-*-cp3{minor}-cp3{minor}-*{arch}.whl")
        if tag not in made.name:
            sys.exit(f"{made.name} should be {tag}: see `auditwheel show`")
        print(f"{made.name}: {size(made)}", flush=True)


def size(wheel):
    """Return a wheel's size, packed and unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    return f"{wheel.stat().st_size / 1e6:.2f} MB, {unpacked / 1e6:.2f} MB unpacked"


# ---- check


def check():
    """Check that each wheel in dist/ has the tag that its symbols allow, and works without a compiler."""
    wheels = sorted(DIST.glob("slipring-*.whl"))
    if not wheels:
        sys.exit("dist/ has no wheels: run `make wheel` first")
    archives = sorted(DIST.glob("slipring-*.tar.gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", *wheels, *archives)
    pythons = interpreters()
    seen = []
    for wheel in wheels:
        version, tag, platforms = wheel.stem.split("-")[1:3] + wheel.stem.split("-")[4:]
        check_tag(wheel, platforms)
        minor = int(tag.removeprefix("cp3"))
        if not platforms.endswith(platform.machine()):
            print(f"{wheel.name}: the tag is right; it was not run, because this machine is {platform.machine()}")
        elif minor not in pythons:
            print(f"{wheel.name}: the tag is right; it was not run, because there is no Python 3.{minor} here")
        else:
            check_installed(wheel, version, minor, pythons[minor])
            seen.append(f"3.{minor}")
    if not seen:
        sys.exit("no wheel of dist/ is for a Python of this machine: run `make wheel` first")
    print(f"seen to work: {', '.join(seen)}")


def check_tag(wheel, platforms):
    """Ask auditwheel for the oldest system that the wheel's symbols allow, and compare with its name."""
    told = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel, quiet=True))
    if told["overall_tag"] not in platforms.split(".") or told["external_libs"]:
        sys.exit(f"{wheel.name}: auditwheel says otherwise:\n{json.dumps(told, indent=1)}")


def check_installed(wheel, version, minor, python):
    """Install a wheel without a compiler on PATH, and test it outside of the sources."""
    place = WORK / "check" / f"cp3{minor}"
    shutil.rmtree(place, ignore_errors=True)
    bare = {"CC": "/bin/false", "PATH": str(place / "bin"), "PYTHONPATH": ""}
    inside = environment(place, python, wheel, "pillow", env=bare)
    smoke = shutil.copy(ROOT / "tools" / "smoke.py", place / "smoke.py")
    told = json.loads(run(inside, "-m", "slipring", "--json", env=bare, cwd=place, quiet=True))
    if told["slipring"] != version or not told["place"].startswith(str(place)):
        sys.exit(f"{wheel.name}: another slipring was imported: {told['slipring']} in {told['place']}")
    run(inside, smoke, env=bare, cwd=place)
    print(f"{wheel.name}: {size(wheel)}; {told['check']['sentence']}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        arch = sys.argv[2] if len(sys.argv) > 2 else platform.machine()
        if arch not in ARCHITECTURES:
            sys.exit(f"slipring runs on {' and '.join(ARCHITECTURES)}, not on {arch!r}")
        build(arch)
    elif sys.argv[1:] == ["check"]:
        check()
    else:
        sys.exit(__doc__)
