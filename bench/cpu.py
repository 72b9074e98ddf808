"""The processor time of a job's processes."""

from __future__ import annotations

import os
from contextlib import suppress

from bench.memory import family

_TICKS = os.sysconf("SC_CLK_TCK")


def of_job(root: int) -> float:
    """Return the seconds that a process, its descendants and its reaped children have used, all their threads."""
    ticks = 0
    for process in family(root):
        with suppress(OSError):  # it has ended
            after_name = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, after_name[11:15]))  # user and system time, its own and that of reaped children
    return ticks / _TICKS
