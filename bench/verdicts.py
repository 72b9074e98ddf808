"""Does a real loader with a planted cause get that verdict? ``python -m bench.verdicts --rounds 3``.

Purpose
    A loader's report names the cause of the loop's waits. How often does it name the planted cause?
Data
    One scene for each cause: samples that sleep or compute, a `collate_fn` or a step that takes long, few slots, a
    small cache, a slow copy to the device.
Machine, command, result
    Printed. Each scene runs once per round, in its own process. The table has the cause that each round found,
    and how many rounds agree with the planted one. The exit status is 1 if a scene could not run.
Bias
    The times in the scenes are far from the thresholds of the rules. They are set for two processors without other
    work: if other programs use the processors, another cause may be the true one. ``--load N`` adds such programs. The
    rules near their thresholds are tested by ``tests/monitor/test_verdict.py``, on a simulated clock.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import slipring
from bench.death import computing
from bench.machine import describe
from slipring import images

TEXTS: list[str] = []


class Data:
    """Reading a sample calls a function of its index."""

    def __init__(self, n: int, read: Callable[[int], object], shape: int = 100) -> None:
        self.n, self.read, self.shape = n, read, shape

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> np.ndarray:
        self.read(i)
        return np.zeros(self.shape, np.float32)


class Texts:
    """Samples made of a long list of Python strings, which forked workers copy as they count references."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, i: int) -> int:
        return sum(map(len, TEXTS[i * 1000 : (i + 1) * 1000]))


class Images(images.ImageDataset):
    """Small images of a format without compression."""

    def __len__(self) -> int:
        return 400

    def read(self, index: int) -> tuple[bytes, int]:
        return b"P6 64 64 255\n" + bytes(3 * 64 * 64), index


class Draws:
    """A sampler that takes 2 ms for each index."""

    def __iter__(self) -> Iterator[int]:
        for i in range(160):
            time.sleep(0.002)
            yield i


def compute(seconds: float) -> None:
    """Use a processor for so much processor time, whatever its load."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def sleeping(seconds: float) -> Callable[[int], None]:
    """Return a function that reads a sample in about so many seconds."""
    return lambda i: time.sleep(seconds)


def loader(data: Any, **options: Any) -> Any:
    """Return a loader whose workers are forked, because the scenes are functions of this process."""
    forked = slipring.Workers(start_method="fork")
    return slipring.Loader(data, **{"batch_size": 4, "num_workers": 2, "workers": forked, **options})


def found(loader: Any, step_s: float, epochs: int = 1, keep: int = 0) -> tuple[str, str]:
    """Run a loop over a loader; return the cause that its verdict names, and the sentence."""
    kept: list[Any] = []
    with loader:
        for _ in range(epochs):
            for batch in loader:
                time.sleep(step_s)
                kept = [*kept, batch][-keep:] if keep else []
        verdict = loader.report().verdict
    return verdict.cause, verdict.sentence


# ---- scenes


def nothing() -> tuple[str, str]:
    return found(loader(Data(400, sleeping(0.001))), 0.004)


def slow_step() -> tuple[str, str]:
    return found(loader(Data(300, sleeping(0.0002))), 0.01)


def compute_samples() -> tuple[str, str]:
    return found(loader(Data(1000, lambda i: compute(0.001))), 0.0005)


def storage() -> tuple[str, str]:
    return found(loader(Data(400, sleeping(0.004))), 0.001)


def augment() -> tuple[str, str]:
    """Resize the image ten times: each resize after the first one is an operation on the decoded image."""
    steps = [images.Resize(64), *[images.Resize(size) for size in (480, 64)] * 5]
    return found(loader(Images(steps)), 0.0005)


def slow_function() -> tuple[str, str]:
    return found(loader(Images([images.Resize(64), lambda image: compute(0.002)])), 0.0005)


def waiting_function() -> tuple[str, str]:
    return found(loader(Images([images.Resize(64), lambda image: time.sleep(0.004)])), 0.0005)


def slow_beginning() -> tuple[str, str]:
    return found(loader(Data(600, lambda i: time.sleep(0.02 if i < 100 else 0.0002))), 0.003)


def memory_of_their_own() -> tuple[str, str]:
    tables: list[np.ndarray] = []
    options = {"worker_init_fn": lambda number: tables.append(np.ones(20_000_000))}  # 160 MB
    return found(loader(Data(200, sleeping(0.003)), **options), 0.001)


def sample() -> tuple[str, str]:
    return found(loader(Data(800, lambda i: time.sleep(0.3 if i in (77, 400) else 0.0002))), 0.001)


def collate() -> tuple[str, str]:
    def stack(samples: list[np.ndarray]) -> np.ndarray:
        time.sleep(0.006)
        return np.stack(samples)

    return found(loader(Data(400, sleeping(0.0002)), collate_fn=stack), 0.0005)


def pickled() -> tuple[str, str]:
    def objects(samples: list[np.ndarray]) -> list[set[int]]:
        return [set(range(5000)) for _ in samples]

    return found(loader(Data(2000, lambda i: None), collate_fn=objects), 0.0)


def sampler() -> tuple[str, str]:
    return found(loader(Data(160, lambda i: None), sampler=Draws()), 0.002)


def epoch_start() -> tuple[str, str]:
    options = {"persistent_workers": False, "worker_init_fn": lambda number: time.sleep(0.6)}
    return found(loader(Data(160, sleeping(0.0002)), **options), 0.006, epochs=3)


def slots() -> tuple[str, str]:
    return found(loader(Data(600, sleeping(0.002)), num_workers=4, memory=slipring.Memory(slots=2)), 0.001)


def kept() -> tuple[str, str]:
    return found(loader(Data(600, sleeping(0.001)), memory=slipring.Memory(slots=16)), 0.001, keep=18)


def gil() -> tuple[str, str]:
    def read(i: int) -> None:
        n = 0
        for k in range(300_000):
            n += k

    return found(loader(Data(100, read), num_workers=4, workers=slipring.Workers(start_method="thread")), 0.0005)


def tiny() -> tuple[str, str]:
    return found(slipring.Loader(range(8000), batch_size=4, num_workers=1, prefetch_factor=1), 0)


def memory() -> tuple[str, str]:
    TEXTS.extend(f"some text {i}" for i in range(2_000_000))
    return found(loader(Texts()), 0.004)


def cache() -> tuple[str, str]:
    cached = slipring.cached(Data(300, lambda i: compute(0.002), 600), "300KiB")
    return found(loader(cached), 0.0002, epochs=3)


def cache_of_new_workers() -> tuple[str, str]:
    import slipring.torch

    cached = slipring.cached(Data(100, sleeping(0.006), 600), "100KiB")
    made = slipring.torch.DataLoader(cached, batch_size=4, num_workers=2, multiprocessing_context="fork")
    return found(made, 0.0002, epochs=3)


def copy() -> tuple[str, str]:
    import torch

    import slipring.torch

    def onto(batch: Any) -> Any:
        time.sleep(0.006)
        return batch

    data = torch.utils.data.TensorDataset(torch.zeros(800, 100))
    made = slipring.torch.DataLoader(
        data, batch_size=4, num_workers=2, device=slipring.torch.Device("cpu", preload=1, transform=onto)
    )
    return found(made, 0.001)


def no_workers() -> tuple[str, str]:
    return found(loader(Data(200, sleeping(0.001)), num_workers=0), 0.001)


def fast_without_workers() -> tuple[str, str]:
    return found(loader(Data(80, lambda i: None), num_workers=0), 0.02)


def no_workers_of_torch() -> tuple[str, str]:
    import slipring.torch

    return found(slipring.torch.DataLoader(Data(200, sleeping(0.001)), batch_size=4), 0.001)


def too_early() -> tuple[str, str]:
    return found(loader(Data(8, lambda i: None)), 0)


def rank() -> tuple[str, str]:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    out = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=one_rank, args=(number, f"{folder}/meet", out)) for number in range(2)]
        for each in ranks:
            each.start()
        told = dict(out.get(timeout=60) for _ in ranks)
        for each in ranks:
            each.join()
    both = {cause for cause, _ in told.values()}
    return told[0] if len(both) == 1 else ("/".join(sorted(both)), "The ranks disagree.")


def one_rank(number: int, file: str, out: Any) -> None:
    """Be a rank of the job: rank 1 reads slowly."""
    import torch.distributed

    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=number, world_size=2)
    with loader(Data(200, sleeping(0.004 if number == 1 else 0.0001))) as mine:
        for _ in mine:
            time.sleep(0.004)
        verdict = mine.report(ranks=True).verdict
    out.put((number, (verdict.cause, verdict.sentence)))
    torch.distributed.destroy_process_group()


Scene = Callable[[], tuple[str, str]]
# (planted cause, description, scene)
SCENES: tuple[tuple[str, str, Scene], ...] = (
    ("ok", "nothing", nothing),
    ("ok", "batches made by the loop, which cost little", fast_without_workers),
    ("unknown", "two batches", too_early),
    ("ok", "a slow step", slow_step),
    ("compute", "samples that compute", compute_samples),
    ("compute", "many operations on each image", augment),
    ("compute", "a function of the list that computes", slow_function),
    ("storage", "a function of the list that waits", waiting_function),
    ("storage", "samples that are waited for", storage),
    ("storage", "a slow beginning", slow_beginning),
    ("storage", "workers with memory of their own", memory_of_their_own),
    ("sample", "two slow samples", sample),
    ("storage", "a collate_fn that waits", collate),
    ("pickled", "objects in each batch", pickled),
    ("sampler", "a slow sampler", sampler),
    ("epoch_start", "workers that begin slowly", epoch_start),
    ("slots", "two slots for four workers", slots),
    ("slots", "a loop that keeps batches", kept),
    ("compute", "threads that compute in Python", gil),
    ("tiny", "batches that cost next to nothing", tiny),
    ("memory", "two million strings of the parent", memory),
    ("cache", "a small cache", cache),
    ("cache", "a small cache, new workers", cache_of_new_workers),
    ("copy", "a slow copy to the device", copy),
    ("rank", "one slow rank of two", rank),
    ("no_workers", "batches made by the loop", no_workers),
    ("no_workers", "batches made by torch's loop", no_workers_of_torch),
)
NEED_PILLOW = augment, slow_function, waiting_function
NEED_TORCH = cache_of_new_workers, copy, rank, no_workers_of_torch


# ---- rounds


def end(pid: int) -> None:
    """End a process of `computing`."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def once(scene: Scene) -> tuple[str, str]:
    """Run a scene in its own process; return (cause, sentence), or ("", the error) if it could not run."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.verdicts", "--scene", scene.__name__]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return "", lines[-1] if lines else f"exit status {done.returncode}"
    cause, sentence = json.loads(done.stdout.splitlines()[-1])
    return cause, sentence


def run(scenes: list[tuple[str, str, Scene]], rounds: int) -> int:
    """Run the scenes round after round and print the table; return how many runs failed."""
    causes: dict[Scene, list[str]] = {scene: [] for _, _, scene in scenes}
    failed, others = 0, []
    for number in range(rounds):
        for cause, text, scene in scenes:
            if sys.stderr.isatty():
                print(f"\rround {number + 1}: {text:<50}", end="", file=sys.stderr)
            got, sentence = once(scene)
            causes[scene].append(got or "failed")
            failed += not got
            if got != cause:
                others.append(f"{cause} ({text}): {sentence}")
    if sys.stderr.isatty():
        print(f"\r{'':<62}\r", end="", file=sys.stderr)
    width = max(len(text) for _, text, _ in scenes)
    print(f"{'planted':<12} {'what':<{width}}  agree  found in each round")
    agree = 0
    for cause, text, scene in scenes:
        right = causes[scene].count(cause)
        agree += right
        print(f"{cause:<12} {text:<{width}}  {right:>2}/{rounds:<2}  {', '.join(causes[scene])}")
    print(f"\n{agree} of {len(scenes) * rounds} verdicts name the planted cause.")
    if others:
        print("The others:", *others, sep="\n  ")
    return failed


def main() -> int:
    """Run the scenes, print a table."""
    parser = argparse.ArgumentParser("python -m bench.verdicts", description=__doc__.splitlines()[0])
    planted = sorted({cause for cause, _, _ in SCENES})
    parser.add_argument("--only", choices=planted, action="append", help="scenes of this cause; may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--scene", choices=[scene.__name__ for _, _, scene in SCENES], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.scene:
        (scene,) = (scene for _, _, scene in SCENES if scene.__name__ == asked.scene)
        print(json.dumps(scene()))
        return 0
    scenes = [each for each in SCENES if not asked.only or each[0] in asked.only]
    for name, value in describe((), "bench.verdicts").items():
        print(f"{name}: {value}")
    print(f"load: {asked.load} processes that compute\n")
    for module, needing in (("torch", NEED_TORCH), ("PIL", NEED_PILLOW)):
        if importlib.util.find_spec(module) is None:
            without = [text for _, text, scene in scenes if scene in needing]
            scenes = [each for each in scenes if each[2] not in needing]
            print(f"Without {module} these do not run: {', '.join(without) or 'none'}\n")
    if not scenes:
        return 0
    with contextlib.ExitStack() as stack:
        for _ in range(asked.load):
            stack.callback(end, computing())
        return int(run(scenes, asked.rounds) > 0)


if __name__ == "__main__":
    sys.exit(main())
