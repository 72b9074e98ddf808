"""Print versions and limits, and check that batches arrive: ``python -m slipring``.

Packages are imported only if the user asks for it: versions come from the installed packages' metadata.
"""

import importlib.metadata
import json
import os
import platform
import resource
import time

import numpy as np

from slipring import Loader, SlipringError, __version__
from slipring._core.ring._ring import MAX_SLOTS, MAX_WORKERS
from slipring._core.ring._segment import build, memory_available
from slipring._core.ring.text import megabytes

PACKAGES = ("numpy", "torch", "pyarrow", "pillow")
SAMPLES, BATCH, WORKERS, PATIENCE_S = 64, 4, 2, 60


def describe():
    """Return a dict of plain values: versions, build, limits, memory, kernel."""
    left = memory_available()
    return {
        "slipring": __version__,
        "folder": os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        "build": dict(zip(("kind", "compiler"), build())),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "limits": {
            "slots": MAX_SLOTS,
            "workers": MAX_WORKERS,
            "open_files": _limit(resource.RLIMIT_NOFILE),
            "address_space": _limit(resource.RLIMIT_AS),
            "file_size": _limit(resource.RLIMIT_FSIZE),
        },
        "shm": _space("/dev/shm"),
        "memory": _memory(),
        "left": None if left is None else dict(zip(("bytes", "of", "limit", "file"), left)),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
    }


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _limit(resource_name):
    """Return the soft limit of this process; None: there is none."""
    soft, _ = resource.getrlimit(resource_name)
    return None if soft == resource.RLIM_INFINITY else soft


def _space(path):
    """Return the size and the free bytes of a file system; None if it does not exist."""
    try:
        fs = os.statvfs(path)
    except OSError:
        return None
    return {"size": fs.f_blocks * fs.f_frsize, "free": fs.f_bavail * fs.f_frsize}


def _memory():
    """Return the machine's memory, as the kernel counts it; None if /proc does not report it."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return {
            "total": int(fields["MemTotal"].split()[0]) << 10,
            "available": int(fields["MemAvailable"].split()[0]) << 10,
        }
    except (OSError, KeyError):
        return None


# ---- the check


class Numbers:
    """Samples that follow from their index: an array, a number and a text."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return np.arange(i, i + 1000), i, f"sample {i}"


def check(torch=False):
    """Let a loader with two worker processes deliver batches, and compare each of them.

    Return a dict: ok, sentence (the result, and the remedy if it is not ok), seconds.
    """
    begun = time.monotonic()
    try:
        ok, sentence = _deliver(torch)
    except Exception as error:
        ok, sentence = False, f"{type(error).__name__}: {error}"
        if not isinstance(error, SlipringError):  # slipring's own errors name the remedy
            sentence += "; if that names nothing you can change, report it and what `python -m slipring --json` prints"
    return {"ok": ok, "sentence": sentence, "seconds": round(time.monotonic() - begun, 3)}


def _deliver(torch):
    if torch:
        from slipring.torch import DataLoader

        loader = DataLoader(Numbers(), BATCH, num_workers=WORKERS, timeout=PATIENCE_S)
        wrong, seen = _compare((a.numpy(), n.numpy(), t) for a, n, t in loader)
        where = "slipring.torch.DataLoader"
    else:
        with Loader(Numbers(), BATCH, num_workers=WORKERS, timeout=PATIENCE_S) as loader:
            wrong, seen = _compare(loader)
            stats = loader.stats()
        where = f"{stats.backing}: {stats.backing_reason}"
    if wrong or seen * BATCH != SAMPLES:
        return False, (
            f"{wrong} of {seen} batches are not what the dataset has, and {SAMPLES // BATCH} were to come: "
            "this installation is broken; run `pip install --force-reinstall slipring`"
        )
    return True, f"{seen} batches from {WORKERS} worker processes, each as it must be ({where})"


def _compare(batches):
    """Return how many batches are wrong, and how many there are."""
    wrong = seen = 0
    for arrays, numbers, texts in batches:
        rows = range(seen * BATCH, (seen + 1) * BATCH)
        right = (
            np.array_equal(arrays, [np.arange(i, i + 1000) for i in rows])
            and np.array_equal(numbers, rows)
            and list(texts) == [f"sample {i}" for i in rows]
        )
        wrong, seen = wrong + (not right), seen + 1
    return wrong, seen


# ---- output


def _limit_text(n):
    """Return `n` bytes in readable form; None: there is no limit."""
    return "unlimited" if n is None else megabytes(n)


def lines(found):
    """Yield (name, text) of each line of the report."""
    build, limits, shm, memory, left = (found[name] for name in ("build", "limits", "shm", "memory", "left"))
    yield "slipring", f"{found['slipring']} in {found['folder']}"
    yield "build", f"{build['kind']}, compiler {build['compiler']}"
    yield "Python", found["python"]
    for name, version in found["packages"].items():
        yield name, version or "not installed"
    yield "kernel", f"{found['kernel']} on {found['machine']}, {found['processors']} processors for this process"
    yield "limits", f"{limits['slots']:,} slots and {limits['workers']:,} workers per loader"
    yield "", f"{limits['open_files'] or 'any number of'} open files (ulimit -n)"
    yield "", f"address space {_limit_text(limits['address_space'])} (ulimit -v)"
    yield "", f"file size {_limit_text(limits['file_size'])} (ulimit -f)"
    if shm is None:
        yield "/dev/shm", "not there: batches lie in a memfd"
    else:
        yield "/dev/shm", f"{_limit_text(shm['size'])}, {_limit_text(shm['free'])} free"
    if memory is not None:
        yield "memory", f"{_limit_text(memory['total'])}, {_limit_text(memory['available'])} available"
    if left is not None:
        yield "", f"{_limit_text(left['bytes'])} may be taken, within {left['limit']} ({left['file']})"


def main(asked):
    """Print the report; return 1 if the check fails."""
    found = describe()
    if not asked.json:
        for name, text in lines(found):
            print(f"{name:<11}{text}", flush=True)
    found["check"] = check(asked.torch)
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{'check':<11}{'ok' if found['check']['ok'] else 'FAILED'}: {found['check']['sentence']}")
    return 0 if found["check"]["ok"] else 1
