"""Check at import that slipring can run on this machine, before its other modules are loaded."""

import importlib.machinery
import importlib.util
import os
import re
import sys

MACHINES = ("x86_64", "aarch64")
KERNEL = (5, 4)  # pidfd_open is 5.3, waiting on a pidfd with waitid 5.4


def check() -> None:
    """Raise ImportError, with the problem and the remedy, if slipring cannot run here."""
    problem = _system_problem() or _extension_problem()
    if problem:
        raise ImportError(f"slipring cannot run here: {problem}")


def _system_problem():
    if sys.platform != "linux":
        return (
            f"it needs Linux (futex, pidfd, fallocate) and this is {sys.platform}. "
            "Run it in a Linux machine, virtual machine or container."
        )
    system = os.uname()
    if system.machine not in MACHINES or sys.maxsize < 2**32:
        bits = 64 if sys.maxsize > 2**32 else 32
        return (
            f"it needs a 64-bit Python on {' or '.join(MACHINES)} (lock-free 64-bit atomics) "
            f"and this is a {bits}-bit Python on {system.machine}."
        )
    found = re.match(r"(\d+)\.(\d+)", system.release)
    if found and (int(found[1]), int(found[2])) < KERNEL:
        return (
            f"it needs Linux {KERNEL[0]}.{KERNEL[1]} or later (pidfd_open, to see workers die) "
            f"and this is {system.release}. Use a newer kernel, or torch's own loader on this machine."
        )
    return None


def _extension_problem():
    if importlib.util.find_spec(f"{__package__}._core.ring._ring"):
        return None
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_core", "ring")
    wanted = f"_ring{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    others = sorted(name for name in os.listdir(here) if name.startswith("_ring.") and name.endswith(".so"))
    built = f"; built for other interpreters: {', '.join(others)}" if others else ""
    in_venv = sys.prefix != sys.base_prefix
    venv = sys.prefix if in_venv else f".venv-{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"its extension modules are not built for this Python (no {wanted} in {here}{built}). "
        f"In a checkout run `make build PYTHON={sys.executable} VENV={venv}`; elsewhere run "
        f"`{sys.executable} -m pip install --force-reinstall slipring`."
    )
