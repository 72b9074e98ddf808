"""Check at import that slipring can run on this machine, before its other modules are loaded."""

import importlib.machinery
import importlib.util
import os
import re
import sys

MACHINES = ("x86_64", "aarch64")
KERNEL = (5, 4)  # pidfd_open is 5.3, waiting on a pidfd with waitid 5.4
FALLBACK = "SLIPRING_FALLBACK"  # the environment variable
SYSTEMS = {"darwin": "macOS", "win32": "Windows"}
# Modules that can be imported where slipring cannot run.
PORTABLE = re.compile(
    r"slipring\.(_public|_version|errors|options|redaction|torch|torch\.(context|fallback)"
    r"|_core|_core\.(options(\..*)?|codec|codec\.pytree|ring|ring\.(process|ring_limits)))"
)

fallback: str | None = None  # with SLIPRING_FALLBACK=1, where slipring cannot run: the reason


def unavailable(name: str) -> ImportError:
    """Return the error about a name that slipring lacks where it cannot run."""
    return ImportError(
        f"{name} cannot be used here, only slipring.torch.DataLoader as torch's own loader: {fallback}", name=name
    )


class _Portable:
    """A finder that refuses the other modules of the package, with the reason."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.startswith("slipring.") and not PORTABLE.fullmatch(name):
            raise unavailable(name)


def check() -> None:
    """Raise ImportError, with the problem and the remedy, if slipring cannot run here.

    With SLIPRING_FALLBACK=1, set `fallback` in place of that if the system or the machine is the problem.
    """
    global fallback
    problem = _system_problem()
    if problem and os.environ.get(FALLBACK, "0") not in ("", "0"):
        fallback = problem
        sys.meta_path.insert(0, _Portable)  # type: ignore[arg-type]
    elif problem:
        raise ImportError(
            f"slipring cannot run here: {problem} Or set {FALLBACK}=1: slipring.torch.DataLoader is then torch's own "
            "loader, with a warning."
        )
    else:
        problem = _extension_problem()
        if problem:
            raise ImportError(f"slipring cannot run here: {problem}")


def _system_problem():
    if sys.platform != "linux":
        return (
            f"it needs Linux (futex, pidfd, fallocate) and this is {SYSTEMS.get(sys.platform, sys.platform)}. "
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
            f"and this is {system.release}. Use a newer kernel."
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
