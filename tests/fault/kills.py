"""The fault run: real workers are killed in every way at random instants, and every delivery is counted.

    python -m tests.fault.kills --kills 10000 [--seconds 40] [--seed 1] [--modes 'map;chunks'] [--jobs 4]

Each mode is a process of its own, so that its leaks can be seen and its hangs ended. A round is a loader
whose batches are compared with those of the same loader without kills. The exit code is 1 if a batch was lost,
delivered twice, out of order or changed, if a process hung, or if anything was left behind.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bench import machine, record

# mode -> (share of the kills, arguments of `rounds.Mode`)
MODES = {
    "map": (4, {}),
    "map, as completed": (3, {"in_order": False}),
    "map, not persistent": (3, {"persistent_workers": False}),
    "map, rng per worker": (5, {"rng": "worker", "exact": False}),
    "chunks": (4, {"chunk_size": 2}),
    "chunks, mixed": (2, {"chunk_size": 2, "data": "Mixed"}),
    "chunks, own collate_fn": (2, {"chunk_size": 2, "collate": True}),
    "map, spawn": (1, {"start_method": "spawn", "epochs": 1}),
    "map, forkserver": (1, {"start_method": "forkserver", "epochs": 1}),
    "stream, replay": (3, {"data": "Stream"}),
    "stream, by state": (4, {"data": "Stateful"}),
    "stream, as completed": (2, {"data": "Stateful", "in_order": False}),
    "stream, spawn": (1, {"data": "Stateful", "start_method": "spawn", "epochs": 1}),
    "torch, map": (3, {"adapter": "torch", "exact": False}),
    "torch, chunks": (2, {"adapter": "torch", "chunk_size": 2, "rng": "batch"}),
    "torch, stream, by state": (3, {"adapter": "torch", "data": "Stateful", "epochs": 1}),
    "torch, stream, replay": (2, {"adapter": "torch", "data": "Stream", "epochs": 1}),
    # Not workers of a loader, but processes that share a cache: see `cache_rounds`.
    "cache": (4, {"cache": True}),
    "cache, by name": (3, {"cache": True, "named": True}),
    # Readers of shared batches, or the consumer that shares them: see `share_rounds`.
    "shared, readers": (4, {"share": "readers"}),
    "shared, consumer": (3, {"share": "consumer"}),
    # Ranks whose loaders have one pool of workers, or share a stream: see `rank_rounds`.
    "pool, workers": (3, {"kill": "workers"}),
    "pool, ranks": (3, {"kill": "ranks"}),
    "pool, its process": (1, {"kill": "parent"}),
    "torch, share, workers": (2, {"kill": "workers", "share": True}),
    "torch, share, readers": (1, {"kill": "ranks", "share": True}),
    "torch, share, lead": (1, {"kill": "lead", "share": True}),
}
MODULES = {"cache": "cache_rounds", "kill": "rank_rounds", "share": "share_rounds"}
COLUMNS = (
    "kills", "stops", "batches", "respawns", "resumed", "replayed", "timeouts",
    "lost", "doubled", "reordered", "changed", "leaks",
)  # fmt: skip
MUST_BE_ZERO = ("lost", "doubled", "reordered", "changed", "leaks")
RECORDED = {name: name for name in ("kills", "stops", "batches", "respawns", "lost")}
RECORDED |= {"repeated": "doubled", "reordered": "reordered", "changed": "changed", "leaks": "leaks"}
HANG_S = 600  # for one round; a mode that ends itself says where it hung


def run_module(module, *args):
    """Run a module of this folder in its own process; return its counts, with "failure" if it did not finish."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.fault.{module}", *map(str, args)]
    env = {**os.environ, "SLIPRING_TEST_RUN": f"{os.getpid()} {args}"}  # to tell its orphans from those of other jobs
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return {"failure": f"ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"}


def line(name, counts, width, columns=COLUMNS):
    """Return one row of the summary."""
    return f"{name:{width}} " + " ".join(f"{counts.get(c, '-'):>9}" for c in columns)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fault.kills")
    parser.add_argument("--kills", type=int, default=1_000_000, help="in all modes together")
    parser.add_argument("--seconds", type=float, default=0, help="end each mode after its share of them")
    parser.add_argument("--seed", default=str(int.from_bytes(os.urandom(4), "little")))
    parser.add_argument("--modes", default=";".join(MODES), help="separated by ;")
    parser.add_argument("--jobs", type=int, default=4, help="modes at once: most of the time they wait")
    parser.add_argument("--json", action="store_true", help="the counts, on one line at the end")
    record.option(parser)
    asked = parser.parse_args()
    names = [name for name in MODES if name in asked.modes.split(";")]
    shares = sum(MODES[name][0] for name in names)
    print(f"seed {asked.seed}", flush=True)
    began = time.monotonic()
    results, width = {}, max(map(len, names))
    with ThreadPoolExecutor(asked.jobs) as pool:
        seconds, pending = asked.seconds * asked.jobs / len(names), {}
        for name in names:
            kills = max(1, round(asked.kills * MODES[name][0] / shares))
            module = next((MODULES[key] for key in MODULES if key in MODES[name][1]), "rounds")
            pending[name] = pool.submit(run_module, module, name, kills, seconds, asked.seed)
        print(line("", {c: c for c in COLUMNS}, width), flush=True)
        for name, future in pending.items():
            results[name] = future.result()
            print(line(name, results[name], width), flush=True)
    total = {c: sum(r.get(c, 0) for r in results.values()) for c in COLUMNS}
    print(line("all", total, width))
    failed = {name: r["failure"] for name, r in results.items() if "failure" in r}
    for name, why in failed.items():
        print(f"\n{name}: {why}")
    for name, counts in results.items():
        for what in counts.get("details", ()):
            print(f"{name}: {what}")
    print(f"{time.monotonic() - began:.0f} s, seed {asked.seed}")
    if asked.json:
        print(json.dumps({**total, "failed": sorted(failed)}))
    if asked.record:
        table = record.Table("mode", *RECORDED, quiet=True)
        for name, counts in {**results, "all": total}.items():
            table.add(name, *(counts.get(counted) for counted in RECORDED.values()))
        record.finish(asked.record, machine.describe((), "torch"), {"kills": table})
    return 1 if failed or any(total[c] for c in MUST_BE_ZERO) else 0


if __name__ == "__main__":
    sys.exit(main())
