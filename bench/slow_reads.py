"""How much faster concurrent slow reads are: ``python -m bench.slow_reads --ms 50 --at-once 16``.

Purpose
    A dataset whose samples take 50 ms each, asleep, in one worker. How many samples per second are read one
    after the other, with ``fetch_threads=16``, and as coroutines, 16 or a whole batch at a time?
    With ``--http``: the same for slipring's own datasets over HTTP, from a server that waits 50 ms before each answer.
Data
    Samples of a few bytes, in batches of 64; each row runs for about the same time. With ``--http``,
    images of 64 × 48 pixels: a tar shard, single files, and tables in row groups of 4 rows, in random order.
Machine, command, result
    Printed.
Bias
    The waits are `time.sleep` and `asyncio.sleep`, without server and decoding: this measures slipring's overhead.
    With ``--http``, the server is a Python program on the same machine, and uses its processors.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import pathlib
import statistics
import tarfile
import tempfile
import time
from typing import TYPE_CHECKING, Any

import slipring
from bench.machine import describe
from bench.record import Table, finish, option, rounded
from slipring import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 64


class Waits:
    """Numbers that take a while each, asleep."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        time.sleep(self.seconds)
        return i


class Awaits(Waits):
    """The same as coroutines."""

    async def __getitem__(self, i: int) -> int:
        await asyncio.sleep(self.seconds)
        return i


def rate(dataset: Any, batches: int, fetch_threads: int | None, shuffle: bool = False) -> float:
    """Return the samples/s of one worker, without its start and its first batch."""
    with slipring.Loader(
        dataset,
        BATCH,
        shuffle=shuffle,
        seed=1,
        num_workers=1,
        prefetch_factor=1,
        workers=Workers(fetch_threads=fetch_threads),
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        begun = time.perf_counter()
        for _ in range(batches):
            next(iterator)
        return batches * BATCH / (time.perf_counter() - begun)


def waits(kind: type[Waits], seconds: float, batches: int, fetch_threads: int | None) -> float:
    """Measure samples that only sleep."""
    return rate(kind((batches + 1) * BATCH, seconds), batches, fetch_threads)


def write(folder: pathlib.Path, n: int) -> None:
    """Write `n` images as a shard, as files of one class, and as a table."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    draw, pictures = np.random.default_rng(0), []
    (folder / "classes" / "one").mkdir(parents=True)
    with tarfile.open(folder / "shard.tar", "w") as shard:
        for number in range(n):
            file = io.BytesIO()
            Image.fromarray(draw.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(file, "JPEG")
            pictures.append(file.getvalue())
            (folder / "classes" / "one" / f"{number}.jpg").write_bytes(pictures[-1])
            for name, data in ((f"{number}.jpg", pictures[-1]), (f"{number}.cls", b"1")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))
    table = pa.table({"image": pictures, "label": np.arange(n)})
    pq.write_table(table, folder / "rows.parquet", row_group_size=4)


def over_http(seconds: float, n: int, batches: int, rounds: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield (dataset, samples/s in sequence, samples/s with `n` threads, median of the rounds' ratios)."""
    from slipring import images
    from slipring.arrow import TableDataset
    from tests.support.http_server import Running

    crop = images.CenterCrop(32)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write(folder, (batches * n + 1) * BATCH)
        with Running(folder, latency=seconds) as server:
            for what, data in (
                ("images.Tar", images.Tar(f"{server.url}/shard.tar", crop)),
                ("images.Folder", images.Folder(f"{server.url}/classes", crop)),
                ("images.Parquet", images.Parquet(f"{server.url}/rows.parquet", crop)),
                ("TableDataset", TableDataset(f"{server.url}/rows.parquet", columns=["label"])),
            ):
                pairs = [
                    (rate(data, batches, None, shuffle=True), rate(data, batches * n, n, shuffle=True))
                    for _ in range(rounds)
                ]
                one, many = (statistics.median(values) for values in zip(*pairs))
                yield what, one, many, statistics.median(b / a for a, b in pairs)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow_reads", description=__doc__)
    parser.add_argument("--ms", type=float, default=50.0, help="of a sample")
    parser.add_argument("--at-once", type=int, default=16, help="threads, and coroutines")
    parser.add_argument("--batches", type=int, default=4, help="one sample after the other; the other rows read more")
    parser.add_argument("--http", action="store_true", help="slipring's datasets over HTTP")
    parser.add_argument("--rounds", type=int, default=3, help="with --http: both ways in turn, so often")
    option(parser)
    args = parser.parse_args()
    about = describe()
    seconds, n = args.ms / 1e3, args.at_once
    if args.http:
        table = Table("samples/s", "one after the other", f"`fetch_threads={n}`", "ratio")
        for what, *figures in over_http(seconds, n, args.batches, args.rounds):
            table.add(what, *map(rounded, figures))
        finish(args.record, about, {"http": table})
        return
    one = waits(Waits, seconds, args.batches, None)
    rows = [
        ("one after the other", one),
        (f"`fetch_threads={n}`", waits(Waits, seconds, args.batches * n, n)),
        (f"`async def`, `fetch_threads={n}`", waits(Awaits, seconds, args.batches * n, n)),
        ("`async def`, a whole batch concurrently", waits(Awaits, seconds, args.batches * BATCH, None)),
    ]
    table = Table("one worker", "samples/s", "ratio")
    for name, value in rows:
        table.add(name, rounded(value), rounded(value / one))
    finish(args.record, about, {"waits": table})


if __name__ == "__main__":
    main()
