"""Batches on a device: ``python -m bench.device``, or ``make bench-device``.

Purpose
    How close is the rate of copies from registered slots to that from pinned memory, how long
    does a training step wait for data, and what does preload cost without a device?
Data
    Ready uint8 images of 3 × 224 × 224 (a batch of 256: 38.5 MB; of 1,024: 154 MB), one sample at a time, and
    vectors of 32 float32.
Baselines
    torch's DataLoader with ``pin_memory=True`` and ``.to(device, non_blocking=True)`` in the loop, as its
    documentation has it; and for the rate of copies the same bytes in memory that torch has pinned.
Machine, command, result
    Printed.
Bias
    Each measurement has its own process, baselines take turns, figures are medians of the rounds. Copies
    are timed by the host, with a synchronization. The step is a chain of matrix products on the caller's
    stream, of about the requested time (on the CPU: a sleep). A device waits for data from the end of
    a step to the start of the next, by its own events; if the host is late for other reasons (it
    reads a loss every tenth step), this counts, too. On the CPU the wait is the time outside of steps.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from bench import record
from bench.machine import describe
from bench.record import Table
from slipring import Memory

SHAPE = (3, 224, 224)
STEPS_MS = (5, 20, 50)


class Images:
    """Ready images, in order, forever."""

    def __init__(self, torch: Any, shape: tuple[int, ...] = SHAPE) -> None:
        made = np.random.default_rng(0).integers(0, 255, (512, *shape), np.uint8)
        self.images = list(torch.from_numpy(made))

    def __len__(self) -> int:
        return 1 << 26

    def __getitem__(self, index: int) -> Any:
        return self.images[index % 512], index % 1000


class Vectors(Images):
    """Ready vectors of 32 float32."""

    def __init__(self, torch: Any) -> None:
        self.images = list(torch.rand(512, 32))


# ---- one measurement, in its own process


def copy_rate(torch: Any, options: argparse.Namespace) -> dict[str, float]:
    """Copy a batch to the device repeatedly: from registered slots, or from torch's pinned blocks."""
    from slipring.torch.device.cuda import Accelerator

    device = torch.device(options.device)
    pins = None
    if options.baseline == "slots":
        from slipring import Loader
        from slipring.torch.device.registered import RegisteredSlots

        torch.zeros(1, device=device)
        loader = Loader(Images(torch), options.batch, num_workers=2, memory=Memory(slots=8, copy="never"))
        sources = [batch[0] for batch, _ in zip(loader, range(4), strict=False)]
        ring = loader._engines.engine.ring
        pins = RegisteredSlots(ring, Accelerator(device))
        for slot in range(ring.n_slots):
            pins.cover(slot)
        if pins.refused or not all(source.is_pinned() for source in sources):
            raise RuntimeError(f"slots are not pinned: {pins.refused or 'torch does not see it'}")
    else:
        shape = (options.batch, *SHAPE)
        sources = [torch.ones(shape, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
    targets = [torch.empty_like(source, device=device) for source in sources]

    def once(times: int) -> float:
        torch.accelerator.synchronize()
        begin = time.perf_counter()
        for number in range(times):
            targets[number % 4].copy_(sources[number % 4], non_blocking=True)
        torch.accelerator.synchronize()
        return time.perf_counter() - begin

    once(8)
    times = 4 * max(4, int(2e9 / sources[0].nbytes))
    rate = statistics.median(sources[0].nbytes * times / once(times) / 1e9 for _ in range(5))
    if pins is not None:
        pins.close()
    return {"gb_per_s": rate}


def make_step(torch: Any, device: Any, milliseconds: float) -> Callable[[], None]:
    """Return a function that gives the device about so much work; the CPU sleeps."""
    if not milliseconds or device.type == "cpu":
        return lambda: time.sleep(milliseconds / 1e3)
    matrix = torch.randn(2048, 2048, device=device)

    def work(times: int) -> None:
        x = matrix
        for _ in range(times):
            x = torch.mm(x, matrix)

    def timed(times: int) -> float:
        torch.accelerator.synchronize()
        begin = time.perf_counter()
        work(times)
        torch.accelerator.synchronize()
        return (time.perf_counter() - begin) * 1e3

    timed(20)
    times = max(1, round(200 * milliseconds / timed(200)))
    return lambda: work(times)


def loop(torch: Any, options: argparse.Namespace) -> dict[str, float | None]:
    """Train for a while; return images/s, the share of time outside of steps, and CPU of process and thread."""
    device = torch.device(options.device)
    dataset = (Vectors if options.vectors else Images)(torch)
    shared = {"batch_size": options.batch, "num_workers": options.workers, "persistent_workers": True}
    batches = iter(_batches(torch, options.baseline, dataset, device, shared))
    step = make_step(torch, device, options.step)
    on_device = device.type != "cpu"
    make_event = functools.partial(torch.get_device_module(device).Event, enable_timing=True)

    def run(seconds: float) -> tuple[int, float, list[tuple[Any, Any]]]:
        steps = []
        if on_device:
            torch.accelerator.synchronize()
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            images, _ = next(batches)
            if on_device and options.step:
                steps.append((make_event(), make_event()))
                steps[-1][0].record()
            step()
            images.reshape(-1)[:1].add(1)  # work on the caller's stream uses the batch
            del images
            if on_device and options.step:
                steps[-1][1].record()
            count += 1
            if on_device and options.step and count % 10 == 0:
                torch.accelerator.synchronize()  # a real loop reads its loss sometimes
        if on_device:
            torch.accelerator.synchronize()
        return count, time.perf_counter() - begin, steps

    run(1.5)
    cpu, thread = time.process_time(), _preload_cpu()
    count, seconds, steps = run(options.seconds)
    waiting = _between(steps) if on_device else max(0.0, 1 - count * options.step / 1e3 / seconds)
    return {
        "images_per_s": count * options.batch / seconds,
        "waiting": waiting if options.step else None,
        "per_batch_us": seconds / count * 1e6,
        "cpu_us": (time.process_time() - cpu) / count * 1e6,
        "thread_cpu_us": (_preload_cpu() - thread) / count * 1e6,
    }


def _between(steps: list[tuple[Any, Any]]) -> float | None:
    """Return the share of time between the end of a step and the start of the next."""
    if len(steps) < 2:
        return None
    idle = sum(end.elapsed_time(begin) for (_, end), (begin, _) in itertools.pairwise(steps))
    return idle / steps[0][1].elapsed_time(steps[-1][1])


def _preload_cpu() -> float:
    for thread in threading.enumerate():
        if thread.name == "slipring-preload":
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


def _batches(torch: Any, baseline: str, dataset: Any, device: Any, shared: dict[str, Any]) -> Iterator[Any]:
    if baseline == "torch":
        for batch in torch.utils.data.DataLoader(dataset, pin_memory=device.type != "cpu", **shared):
            yield [leaf.to(device, non_blocking=True) for leaf in batch]
        return
    from slipring.torch import DataLoader

    extras = {"none": {}, "preload": {"device": device}}[baseline]
    yield from DataLoader(dataset, **shared, **extras)


# ---- the whole measurement


def measure(**options: Any) -> dict[str, float]:
    """Run one measurement in its own process."""
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "bench.device", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}; see above")
    return json.loads(done.stdout.splitlines()[-1])


def rounds(console: Console, title: str, n: int, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measure every setting in turn, `n` times; return the medians, with lowest and highest."""
    found: list[list[dict[str, float]]] = [[] for _ in settings]
    for _ in track(range(n), title, console=console):
        for setting, results in zip(settings, found, strict=True):
            results.append(measure(**setting))
    return [
        {
            key: tuple(f(one[key] for one in results) for f in (statistics.median, min, max))
            for key in results[0]
            if None not in [one[key] for one in results]
        }
        for results in found
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.device", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    record.option(parser)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    inner = parser.add_argument_group("one measurement, in this process")
    inner.add_argument("--what", choices=["copy", "loop"])
    inner.add_argument("--baseline")
    inner.add_argument("--device", default="cpu")
    inner.add_argument("--batch", type=int, default=256)
    inner.add_argument("--step", type=float, default=0.0, help="milliseconds")
    inner.add_argument("--vectors", type=int, default=0)
    options = parser.parse_args()
    import torch

    if options.what:
        function = {"copy": copy_rate, "loop": loop}[options.what]
        print(json.dumps(function(torch, options)))
        sys.stdout.flush()
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    from slipring.torch.device.cuda import accelerator

    here = accelerator()
    machine = describe((), "torch")
    if here is None:
        console.print("torch finds no device here: only what preload costs on the CPU is measured.")
    else:
        machine["device"] = _name(torch, here)
    parts = [part for part in options.parts if here is not None or part == "cpu"]
    tables = {part: PARTS[part](console, options, str(here)) for part in parts}
    record.finish(options.record, machine, tables)


def _name(torch: Any, device: Any) -> str:
    module = torch.get_device_module(device)
    name = getattr(module, "get_device_name", None)
    return name() if name is not None else str(device)


def _copies(console: Console, options: argparse.Namespace, device: str) -> Table:
    table = Table("one copy", "pinned by torch, GB/s", "registered slots, GB/s", "slots ÷ pinned, %")
    for batch in (256, 1024):
        shared = {"what": "copy", "device": device, "batch": batch}
        settings = [{**shared, "baseline": baseline} for baseline in ("pinned", "slots")]
        limit, ours = (r["gb_per_s"] for r in rounds(console, f"copies of {batch}", options.rounds, settings))
        share = record.rounded(ours[0] / limit[0] * 100)
        table.add(f"{batch * 150528 / 1e6:.3g} MB", _figure(limit), _figure(ours), share)
    return table


def _loops(console: Console, options: argparse.Namespace, device: str) -> Table:
    columns = ("images/s", "× torch", "waiting for data, %", "CPU, ms per batch", "preloading thread, ms")
    table = Table("step", "loader", *columns, labels=2)
    for step in (0, *STEPS_MS):
        shared = {"what": "loop", "device": device, "step": step, "workers": options.workers}
        settings = [{**shared, "seconds": options.seconds, "baseline": baseline} for baseline in ("torch", "preload")]
        both = rounds(console, f"a step of {step} ms", options.rounds, settings)
        for name, result in zip(("torch", "slipring, `device=`"), both, strict=True):
            table.add(
                f"{step} ms" if step else "none",
                name,
                _figure(result["images_per_s"]),
                record.rounded(result["images_per_s"][0] / both[0]["images_per_s"][0]),
                _figure(result["waiting"], 100) if "waiting" in result else None,
                _figure(result["cpu_us"], 1e-3),
                _figure(result["thread_cpu_us"], 1e-3),
            )
    return table


def _cpu(console: Console, options: argparse.Namespace, _: str) -> Table:
    """Measure preload's cost without copies: batches at full speed, and with a step."""
    columns = [f"{what}, {how}" for what in ("µs per batch", "CPU, µs") for how in ("without preload", "with preload")]
    table = Table("batches", *columns, "preloading thread, µs")
    for title, setting in (
        ("64 × 32 float32, no step", {"batch": 64, "vectors": 1, "step": 0}),
        ("the same, a step of 1 ms", {"batch": 64, "vectors": 1, "step": 1}),
        ("38.5 MB of uint8, no step", {"batch": 256, "vectors": 0, "step": 0}),
        ("the same, a step of 20 ms", {"batch": 256, "vectors": 0, "step": 20}),
    ):
        shared = {"what": "loop", "workers": options.workers, "seconds": options.seconds, **setting}
        settings = [{**shared, "baseline": baseline} for baseline in ("none", "preload")]
        both = rounds(console, title, options.rounds, settings)
        figures = [_figure(found[what]) for what in ("per_batch_us", "cpu_us") for found in both]
        table.add(title, *figures, _figure(both[1]["thread_cpu_us"]))
    return table


PARTS = {"copies": _copies, "loops": _loops, "cpu": _cpu}


def _figure(found: tuple[float, float, float], scale: float = 1.0) -> list[float]:
    """Return a median with lowest and highest, as a cell."""
    return [record.rounded(one * scale) for one in found]


if __name__ == "__main__":
    main()
