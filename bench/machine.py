"""The machine and the versions of a run."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path

from bench.baselines import Baseline

ROOT = Path(__file__).resolve().parents[1]


def describe(baselines: Iterable[Baseline] = (), *packages: str) -> dict[str, object]:
    """Describe the machine, the versions of the baselines and of other packages, the time, the commit, the command."""
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command(),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions(baselines, packages),
    }


def module() -> str:
    """Return the name of the module that runs as a program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec else "bench"


def command() -> str:
    """Return the command of this program, without the options that say where the result goes."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if word != "--record" or not next(words)]
    return shlex.join(["python", "-m", module(), *(word for word in kept if not word.startswith("--record="))])


def commit() -> str | None:
    """Return the commit that is checked out, with a mark if files outside of docs/ differ; None without git."""
    try:
        head, changed = (
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for words in (
                ("rev-parse", "--short", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", ":(exclude)docs"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changed else head


def versions(baselines: Iterable[Baseline], packages: Iterable[str] = ()) -> dict[str, str]:
    """List the versions of numpy, slipring, the baselines and other packages; "-" if one is not installed."""
    names = ["numpy", "slipring", *packages, *(name for baseline in baselines for name in baseline.packages)]
    return {name: _version(name) for name in dict.fromkeys(names)}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
    try:
        # A package that is used from its source tree, like ours, has its version as an attribute.
        return str(import_module(name).__version__)
    except (ImportError, AttributeError):
        return "-"


def _field(path: str, name: str) -> str | None:
    """Find the first ``name : value`` line."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
