"""The memory of an epoch of large batches: torch's loader, ours, and ours with ``rng="batch"``.

    python -m bench.batches_held [prefetch_factor]

Two workers make batches of 38.5 MB. PSS does not include batches that torch's workers have sent but no process maps,
so each shared file counts once, with its blocks, and each process with its private memory. The maximum of an epoch.
"""

import os
import subprocess
import sys
import time

import torch
from torch.utils import data

from slipring.torch import DataLoader

MAKE = {
    "torch": data.DataLoader,
    "slipring": DataLoader,
    "rng=batch": lambda *args, **kwargs: DataLoader(*args, rng="batch", **kwargs),
}


class Images(data.Dataset):
    """64 of them are 38.5 MB."""

    def __len__(self):
        return 64 * 20

    def __getitem__(self, i):
        return torch.full((3, 224, 224), float(i))


def tree(pid):
    """Return a process and all its descendants."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [pid, *(found for child in file.read().split() for found in tree(int(child)))]


def own(pid):
    """Return the bytes of anonymous memory; shared pages count by their share."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss_Anon:"))


def shared(pids):
    """Return the bytes of each file in shared memory that one of the processes has open or mapped."""
    found = {}
    for pid in pids:
        for folder in f"/proc/{pid}/fd", f"/proc/{pid}/map_files":
            for entry in os.scandir(folder):
                to = os.readlink(entry.path)
                if to.startswith(("/memfd:", "/dev/shm")):
                    status = os.stat(entry.path)
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return list(found.values())


def measure(kind, prefetch_factor):
    """Print the maximum of an epoch."""
    most = (0, 0, [])
    for n, _ in enumerate(MAKE[kind](Images(), 64, num_workers=2, prefetch_factor=prefetch_factor)):
        if 6 <= n < 14:
            time.sleep(0.4)  # a training step
            pids = tree(os.getpid())
            files, processes = shared(pids), sum(own(pid) for pid in pids)
            most = max(most, (processes + sum(files), processes, files))
    total, processes, files = (most[0], most[1], sum(most[2]))
    print(f"{kind:10} {total / 1e6:6.0f} MB: processes {processes / 1e6:.0f}, batches {files / 1e6:.0f}")


if __name__ == "__main__":
    factor = sys.argv[1] if len(sys.argv) > 1 else "2"
    if len(sys.argv) > 2:
        measure(sys.argv[2], int(factor))
    else:
        for kind in MAKE:
            subprocess.run([sys.executable, "-m", "bench.batches_held", factor, kind], check=True)
