"""One mode of the fault run, in its own process: rounds of a loader whose workers are killed.

python -m tests.fault.rounds MODE KILLS SECONDS SEED
"""

import contextlib
import dataclasses
import faulthandler
import json
import logging
import os
import queue
import random
import resource
import signal
import sys
import threading
import time
import zlib
from collections import Counter

import numpy as np

import slipring
from slipring.errors import LoaderTimeout
from tests.fault import mortal
from tests.fault.kills import HANG_S, MODES
from tests.support.inside import engine_of, process_pool
from tests.support.leaks import Snapshot
from tests.support.options import grouped
from tests.support.processes import alive

BY_SIGNAL = ("SIGKILL", "SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT")
BY_HANDLER = ("SIGUSR1", "SIGUSR2")  # os._exit, out of memory: see `mortal.Mortal`
SEED = 7  # every loader's seed
TIMEOUT_S = 0.5  # the loader's: how long it waits for a stopped worker


@dataclasses.dataclass
class Mode:
    """A kind of loader, and the requirements on its batches."""

    data: str = "Rows"
    adapter: str = "slipring"
    epochs: int = 3
    workers: int = 3
    batches: int = 40
    exact: bool = True  # compare the bytes too, not only the sample numbers
    collate: bool = False
    options: dict = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, described):
        """Make a mode of the arguments that name a field; pass the rest to the loader."""
        fields = {f.name for f in dataclasses.fields(cls)}
        own = {k: v for k, v in described.items() if k in fields}
        return cls(**own, options={k: v for k, v in described.items() if k not in fields})

    def loader(self, seed, **more):
        """Return a loader; loaders with the same seed make the same batches."""
        options = {
            "batch_size": 8,
            "num_workers": self.workers,
            "worker_init_fn": mortal.Mortal(),
            "collate_fn": slipring.default_collate if self.collate else None,
            **self.options,
            **more,
        }
        samples = 8 * self.batches
        if self.data != "Rows":  # the last batches of a stream are short
            samples = samples // self.workers + 3
        if self.adapter == "slipring":
            options.setdefault("start_method", "fork")
            return slipring.Loader(getattr(mortal, self.data)(samples), seed=seed, **grouped(**options))
        import torch

        from slipring.torch import DataLoader
        from tests.fault import mortal_torch

        module = mortal if self.data == "Rows" else mortal_torch
        options.setdefault("persistent_workers", self.epochs > 1)
        options["generator"] = torch.Generator().manual_seed(seed)
        data = getattr(module, self.data)(samples)
        return DataLoader(data, multiprocessing_context="fork", **grouped(**options))

    @property
    def in_order(self):
        """bool: whether the order matters."""
        return self.options.get("in_order", True)


def noted(batch):
    """Return a batch as (its sample numbers, a checksum of its contents)."""
    ids, values = (np.asarray(part) for part in batch)
    return ids.tobytes(), zlib.crc32(values.tobytes())


def kept_engine(loader):
    """Return the engine that a loader of either adapter keeps; None if it has none yet."""
    return engine_of(loader)


def pool_of(loader):
    """Return the processes of a loader of either adapter; None if it has none yet."""
    engine = kept_engine(loader)
    return None if engine is None else engine.pool


class Killer:
    """A thread that hits a random worker, a random time after a request."""

    def __init__(self, rng):
        self.rng = rng
        self.asked = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.loader = None
        self.killed = set()
        self.stopped = []
        self.kills = self.stops = 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def ask(self):
        """Request a hit."""
        self.asked.put(self.rng.random() * 0.003)

    def _run(self):
        while (delay := self.asked.get()) is not None:
            time.sleep(delay)  # for a random instant
            with self.lock:
                self._strike()

    def _strike(self):
        pool = None if self.loader is None else pool_of(self.loader)
        pids = [] if pool is None else [p.pid for p in list(pool.processes.values())]
        pids = [pid for pid in pids if pid not in self.killed and pid not in self.stopped and alive(pid)]
        if not pids:
            return
        pid = self.rng.choice(pids)
        how = self.rng.random()
        if how < 0.04:
            self.stopped.append(pid)
            self.stops += 1
            send(pid, "SIGSTOP")
        elif how < 0.2:
            self.kills += send(pid, self.rng.choice(BY_HANDLER))
        else:
            self.killed.add(pid)
            self.kills += send(pid, self.rng.choice(BY_SIGNAL))

    def release(self):
        """Let stopped workers continue, or kill them."""
        with self.lock:
            for pid in self.stopped:
                if self.rng.random() < 0.5:
                    self.killed.add(pid)
                    self.kills += send(pid, "SIGKILL")
                else:
                    send(pid, "SIGCONT")
            self.stopped.clear()

    def rest(self):
        """Stop hitting workers."""
        with self.lock:
            self.loader = None
        self.release()
        self.killed.clear()

    def end(self):
        """End the thread."""
        self.asked.put(None)
        self.thread.join()


def send(pid, name):
    """Return whether the signal was sent."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, getattr(signal, name))
        return True
    return False


def deliveries(loader, killer, timeouts):
    """Return the batches of one epoch in which workers are killed."""
    came, it = [], iter(loader)
    killer.loader = loader
    while True:
        try:
            batch = next(it)
        except LoaderTimeout:
            timeouts.append(1)
            killer.release()
            continue
        except StopIteration:
            return came
        came.append(noted(batch))
        del batch
        if killer.rng.random() < 0.3:
            killer.ask()
        elif killer.stopped and killer.rng.random() < 0.1:
            killer.release()


def compare(got, want, mode, counts):
    """Count the differences between an epoch's batches and the expected ones."""
    came, due = Counter(ids for ids, _ in got), Counter(ids for ids, _ in want)
    counts["lost"] += (due - came).total()
    counts["doubled"] += (came - due).total()
    if came == due and mode.in_order:
        counts["reordered"] += sum(g[0] != w[0] for g, w in zip(got, want))
    if mode.exact:
        right = dict(want)
        counts["changed"] += sum(right.get(ids) != value for ids, value in got)


def peaceful(mode):
    """Return the batches of each epoch of a mode without kills."""
    with mode.loader(SEED) as loader:
        return [[noted(batch) for batch in loader] for _ in range(mode.epochs)]


def one_round(mode, want, killer, counts, timeouts, details):
    """Use a loader while its workers are killed: compare its epochs with those of `peaceful`."""
    more = {"on_death": "respawn", "max_restarts": 1_000_000, "timeout": TIMEOUT_S}
    with mode.loader(SEED, **more) as loader:
        for epoch in range(mode.epochs):
            got = deliveries(loader, killer, timeouts)
            previous = dict(counts)
            compare(got, want[epoch], mode, counts)
            counts["batches"] += len(got)
            wrong = {k: counts[k] for k in counts if counts[k] != previous.get(k, 0) and k != "batches"}
            if wrong:
                details.append(f"epoch {epoch} after {killer.kills} kills: {wrong}")
        killer.rest()
        stats = loader.stats()
        counts["respawns"] += stats.respawns
        counts["resumed"] += stats.resumed_streams
        counts["replayed"] += stats.replayed_batches


def run(name, kills, seconds, seed):
    """Return the counts of a mode's rounds."""
    mode = Mode.of(MODES[name][1])
    rng = random.Random(f"{seed} {name}")
    counts = Counter(batches=0, respawns=0, resumed=0, replayed=0, lost=0, doubled=0, reordered=0, changed=0)
    timeouts, details = [], []
    end = time.monotonic() + seconds if seconds else float("inf")
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    want = peaceful(mode)
    before = Snapshot.take()
    killer = Killer(rng)
    while True:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        one_round(mode, want, killer, counts, timeouts, details)
        if killer.kills >= kills or time.monotonic() >= end:
            break
    killer.end()
    leaks = before.leaks(wait_s=10)
    faulthandler.cancel_dump_traceback_later()
    return {
        **counts,
        "kills": killer.kills,
        "stops": killer.stops,
        "timeouts": len(timeouts),
        "leaks": len(leaks),
        "details": details[:20] + leaks[:20],
    }


def end_of(pid, options=0):
    """Wait for a child; return (whether its timer killed it, its exit code if that is a fault), or None: it runs."""
    found, status = os.waitpid(pid, options)
    if not found:
        return None
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    return killed, None if killed else os.waitstatus_to_exitcode(status) or None


def expect_deaths():
    """Prepare for intended crashes: no core dumps, no message for each one, and short waits for stopped workers."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    logging.getLogger("slipring").setLevel(logging.ERROR)
    process_pool.GRACE_S = 0.5  # at the end of an epoch


def main(run):
    """Do the rounds that the command line names, and print their counts as JSON."""
    name, kills, seconds, seed = sys.argv[1:]
    expect_deaths()
    print(json.dumps(run(name, int(kills), float(seconds), seed)))


if __name__ == "__main__":
    main(run)
