"""A measurement in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

LIMIT_S = 600.0  # only a measurement that hangs takes so long


def answer(command: Sequence[str], limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Return the JSON in the last line of a command's output; {"missing": reason} if it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"missing": f"no result within {limit_s:.0f} s"}
    if done.returncode:
        return {"missing": f"exit status {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
