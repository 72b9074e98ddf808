"""The ingest of Ray Data compared with Ray's own: ``python -m bench.ray_data``.

Purpose
    How many batches a second reach a training process, what do they cost it, and how full does Ray's store become?
Data
    Ready: 4,000 rows of 224 x 224 x 3 uint8 and a number, 250 per block, in the store; batches of 64. Large:
    3,400 of them, 850 per block: 128 MB, Ray's own size. Made: 1,500 of the same, 250 per block, made by Ray's tasks
    meanwhile. Decode: 1,500 JPEGs of 500 x 375, 250 per block, in the store; a random crop of each is scaled to
    224 x 224. Short images, short text: epochs of 94 batches, each 64 x 96 x 96 x 3 uint8 (1.8 MB) or 64 lines of text,
    in 12 blocks in the store.
Machine, command, result
    Printed: each way in its own process on one cluster, in turn; median and range of the rounds.
Bias
    Short epochs count from ``iter()`` to the end, except the first one. Other epochs count from their
    first batch. The training sums a pixel of each row, and requests
    the next batch. ``slipring`` has one worker for ready arrays and two to decode; Ray's tasks may use as many
    processors as there are. The figures are those of the training's whole process: with Ray's executor threads and
    ``iter_torch_batches``, and slipring's preload thread.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.machine import describe
from bench.record import Cell, Table, finish, option, spread

BLOCKS = {
    "ready": (16, 250),
    "large": (4, 850),
    "made": (6, 250),
    "decode": (6, 250),
    "short images": (12, 94 * 64 // 12),
    "short text": (12, 94 * 64 // 12),
}  # their number, and rows of each
BATCH, SIDE = 64, 224
STORE = 1200 << 20  # bytes


def ready(rows: dict[str, Any]) -> dict[str, Any]:
    ids = rows["id"]
    return {
        "image": np.broadcast_to(ids[:, None, None, None], (len(ids), SIDE, SIDE, 3)).astype(np.uint8),
        "id": ids,
    }


def small(rows: dict[str, Any]) -> dict[str, Any]:
    return {"image": np.zeros((len(rows["id"]), 96, 96, 3), np.uint8), "id": rows["id"]}


def lines(rows: dict[str, Any]) -> dict[str, Any]:
    return {"text": np.array([f"line {number} of a text, {'word ' * 20}" for number in rows["id"]], object), **rows}


MADE_BY = {"decode": "encoded", "short images": "small", "short text": "lines"}


def encoded(rows: dict[str, Any]) -> dict[str, Any]:
    """Return JPEGs of noise over a ramp, as large as photographs of that size."""
    from PIL import Image

    made = []
    for number in rows["id"].tolist():
        noise = np.random.default_rng(number).integers(0, 40, (375, 500, 3))
        ramp = np.add.outer(np.arange(375), np.arange(500))[..., None] * 215 // 873
        file = io.BytesIO()
        Image.fromarray((ramp + noise).astype(np.uint8)).save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return {"image": np.array(made, object), "id": rows["id"]}


def by_pillow(rows: dict[str, Any]) -> dict[str, Any]:
    """Decode and crop as torchvision does, with Pillow."""
    from PIL import Image

    from slipring.images import RandomResizedCrop
    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe

    crop, out = RandomResizedCrop(SIDE), np.empty((len(rows["id"]), SIDE, SIDE, 3), np.uint8)
    for row, data, number in zip(out, rows["image"], rows["id"].tolist()):
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        recipe = Recipe(picture.height, picture.width)
        crop.apply(recipe, Draws(number))
        view = recipe.view
        top, left, height, width = view.box
        part = picture.crop((left, top, left + width, top + height)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        row[...] = np.asarray(part)[:, :: -1 if view.flip else 1]
    return {"image": out, "id": rows["id"]}


def by_slipring(rows: dict[str, Any]) -> dict[str, Any]:
    """Do the same with slipring's decoder in Ray's tasks."""
    from slipring.images import RandomResizedCrop, decode_into
    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe

    crop, out = RandomResizedCrop(SIDE), np.empty((len(rows["id"]), SIDE, SIDE, 3), np.uint8)
    for row, data, number in zip(out, rows["image"], rows["id"].tolist()):
        recipe = Recipe(375, 500)
        crop.apply(recipe, Draws(number))
        view = recipe.view
        decode_into(data, row, box=view.box, flip=view.flip)
    return {"image": out, "id": rows["id"]}


def rays(data: Any, decode: Callable[..., Any] | None = None) -> Iterator[Any]:
    """Iterate over an epoch of ``iter_torch_batches`` with its defaults."""
    if decode is not None:
        data = data.map_batches(decode, batch_size=BATCH)
    while True:
        yield iter(data.iter_torch_batches(batch_size=BATCH))


def rays_arrays(data: Any) -> Iterator[Any]:
    """Iterate over an epoch of ``iter_batches``: text is no tensor."""
    while True:
        yield iter(data.iter_batches(batch_size=BATCH))


def ours(data: Any, device: str | None = "cpu", **way: Any) -> Iterator[Any]:
    """Iterate over an epoch of slipring's loader, with tensors."""
    import slipring.ray

    with slipring.ray.Loader(data, BATCH, device=device, timeout=300, **way) as loader:
        while True:
            yield iter(loader)


def decoding(data: Any) -> Iterator[Any]:
    from slipring.images import RandomResizedCrop

    return ours(data, images={"image": RandomResizedCrop(SIDE)}, num_workers=2)


LYING: dict[str, Callable[[Any], Iterator[Any]]] = {
    "iter_torch_batches": rays,
    "slipring": ours,
    "slipring, 2 workers": lambda data: ours(data, num_workers=2),
}
BASELINES: dict[str, dict[str, Callable[[Any], Iterator[Any]]]] = {
    "ready": LYING,
    "large": LYING,
    "made": {"iter_torch_batches": rays, "slipring": ours},
    "decode": {
        "iter_torch_batches, Pillow in tasks": lambda data: rays(data, by_pillow),
        "iter_torch_batches, slipring.images in tasks": lambda data: rays(data, by_slipring),
        "slipring": decoding,
    },
    "short images": {"iter_torch_batches": rays, "slipring": ours},
    "short text": {"iter_batches": rays_arrays, "slipring": lambda data: ours(data, None)},
}


def used() -> int:
    """Return the bytes in the store, which its node reports ten times a second."""
    import ray

    return int(STORE - ray.available_resources().get("object_store_memory", 0))


class Peak:
    """A thread that records the largest use of the store."""

    def __enter__(self) -> Peak:
        self.most = used()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self) -> None:
        while not self.over.wait(0.05):
            self.most = max(self.most, used())

    def __exit__(self, *exc: object) -> None:
        self.over.set()
        self.thread.join()


def measure(workload: str, baseline: str, epochs: int) -> dict[str, float]:
    """Return batches/s, ms of the process's CPU per batch, and the peak of the store in MB, for some epochs."""
    import ray
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    make = globals()[MADE_BY.get(workload, "ready")]
    blocks, base = BLOCKS[workload][0], 0
    rows = blocks * BLOCKS[workload][1]
    data = ray.data.range(rows, override_num_blocks=blocks).map_batches(make, batch_size=None)
    if workload != "made":
        data = data.materialize()
        base = data.size_bytes()
    seconds = busy = 0.0
    batches, most = 0, 0
    passes = BASELINES[workload][baseline](data)
    for epoch in range(epochs + 1):
        # A separate epoch measures the store: the queries take this process's time.
        if epoch == 0:
            with Peak() as peak:
                assert sum(step(batch) for batch in next(passes)) == rows
            most = max(peak.most - base, 0)
            continue
        began, before = time.perf_counter(), time.process_time()
        iterator = next(passes)
        if not workload.startswith("short"):
            step(next(iterator))
            began, before = time.perf_counter(), time.process_time()
        for batch in iterator:
            step(batch)
            batches += 1
        seconds += time.perf_counter() - began
        busy += time.process_time() - before
    passes.close()  # type: ignore[attr-defined]
    return {"rate": batches / seconds, "cpu_ms": busy / batches * 1e3, "store_mb": most / 1e6}


def step(batch: Any) -> int:
    """Read the batch, and return its number of rows."""
    if "image" in batch:
        int(batch["image"][:, 0, 0, 0].sum())
    return len(batch["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", choices=BASELINES, nargs="+", default=list(BASELINES), help="these workloads")
    parser.add_argument("--one", nargs=3, metavar=("WORKLOAD", "BASELINE", "ADDRESS"), help=argparse.SUPPRESS)
    option(parser)
    asked = parser.parse_args()
    import ray

    if asked.one:
        workload, baseline, address = asked.one
        ray.init(address, log_to_driver=False, logging_level="error")
        print(json.dumps(measure(workload, baseline, asked.epochs)))
        return
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        workload: {baseline: [] for baseline in baselines}
        for workload, baselines in BASELINES.items()
        if workload in asked.only
    }
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        context = ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=STORE, _temp_dir=folder)
        address = context.address_info["gcs_address"]
        for _ in range(asked.rounds):
            for workload, answers in found.items():
                for baseline, answer in answers.items():
                    command = [sys.executable, "-m", "bench.ray_data", "--epochs", str(asked.epochs)]
                    command += ["--one", workload, baseline, address]
                    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                    answer.append(json.loads(told.splitlines()[-1]))
        ray.shutdown()
    columns = ("batches/s", "rate ÷ Ray's", "CPU, ms per batch", "CPU ÷ Ray's", "store, MB")
    table = Table("data", "iterator of the training process", *columns, labels=2)
    for workload, answers in found.items():
        first = next(iter(answers.values()))
        for baseline, answer in answers.items():
            row: list[Cell] = []
            for what in ("rate", "cpu_ms"):
                ratio = [one[what] / max(base[what], 1e-9) for one, base in zip(answer, first)]
                row += [spread(one[what] for one in answer), None if answer is first else spread(ratio)]
            table.add(workload, baseline, *row, spread(one["store_mb"] for one in answer))
    finish(asked.record, describe((), "pillow", "ray"), {"ray": table})


if __name__ == "__main__":
    main()
