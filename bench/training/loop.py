"""One measurement: a network learns from a loader's batches for some seconds."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np
import torch

from bench import cpu
from bench.training.loaders import LOADERS
from bench.training.networks import Training
from slipring.torch.device.cuda import accelerator

READS = 10  # steps between two readings of the loss, for which the host waits
BATCHES = {"cpu": 32}
BATCH = 256  # on an accelerator


class HostClock:
    """Moments of this process, for a CPU as the device."""

    def mark(self) -> Any:
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        return end - begin


class DeviceClock:
    """Moments of the current stream of an accelerator: events."""

    def __init__(self, device: torch.device) -> None:
        self.make = torch.get_device_module(device).Event

    def mark(self) -> Any:
        event = self.make(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1e3


def measured(network: str, loader: str, root: str, workers: int, seconds: float) -> dict[str, Any]:
    """Train for some seconds; return rates and times, or why that is not possible.

    The device waits from the end of a step to the beginning of the next, which includes a copy on its stream.
    """
    device = accelerator() or torch.device("cpu")
    clock = HostClock() if device.type == "cpu" else DeviceClock(device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    batch = BATCHES.get(device.type, BATCH)
    training = Training(network, device)
    try:
        batches = LOADERS[loader](root, device, workers, batch)
        training.step(*next(batches))
    except ModuleNotFoundError as error:
        return {"missing": str(error)}
    for _ in range(4 * workers + READS):
        training.step(*next(batches)).item()
    used, until, marks = cpu.of_job(os.getpid()), time.perf_counter() + seconds, [clock.mark()]
    for count in itertools.count(1):
        pixels, labels = next(batches)
        marks.append(clock.mark())
        loss = training.step(pixels, labels)
        marks.append(clock.mark())
        del pixels, labels
        if count % READS == 0:
            loss.item()
        if count % workers == 0 and time.perf_counter() > until:
            break
    loss.item()
    used = cpu.of_job(os.getpid()) - used
    return figures(marks, clock, batch) | {"cpu_s": 1000 * used / (count * batch)}


def figures(marks: list[Any], clock: Any, batch: int) -> dict[str, float]:
    """Return the rate, the share of waiting and the quantiles of steps; `marks`: an end, then each begin and end."""
    ends = marks[::2]
    waited = [clock.seconds(end, begin) for end, begin in zip(ends, marks[1::2])]
    periods = [clock.seconds(end, after) for end, after in itertools.pairwise(ends)]
    p50, p99 = np.percentile(periods, [50, 99])
    return {
        "per_s": batch * len(periods) / sum(periods),
        "waiting": sum(waited) / sum(periods),
        "p50": float(p50),
        "p99": float(p99),
    }
