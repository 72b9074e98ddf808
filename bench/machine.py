"""The machine and the versions of a run."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path

from bench.baselines import BASELINES, Baseline


def describe(baselines: Iterable[Baseline] = tuple(BASELINES.values()), module: str = "bench") -> dict[str, object]:
    """Describe the machine, the baselines' versions, the time and the command."""
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions(baselines),
    }


def versions(baselines: Iterable[Baseline]) -> dict[str, str]:
    """List the versions of numpy, Pillow and the baselines; "-" if a package is not installed."""
    names = ["numpy", "pillow", *(name for baseline in baselines for name in baseline.packages)]
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
