"""The fault run of ranks that share a pool of workers or a stream, in its own process: some of them are killed.

python -m tests.fault.rank_rounds MODE KILLS SECONDS SEED

Each rank compares its batches, as they come, with those of a loader that shares nothing. A rank that is to die starts a
timer of the kernel, whose signal ends it at any instruction; the others must get every batch. If the pool's process
dies, each rank gets an error, and continues from its state with the next pool. If the rank dies that leads `share=`,
each reader must get the batches that it has shared, and then an error.
"""

import contextlib
import faulthandler
import json
import mmap
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import Counter
from pathlib import Path

import numpy as np

import slipring
from slipring.errors import LeadDied, WorkerDied
from tests.fault import mortal
from tests.fault.kills import HANG_S, MODES
from tests.fault.rounds import BY_SIGNAL, SEED, end_of, main, noted, send
from tests.support.leaks import Snapshot, parent
from tests.support.processes import alive

RANKS, WORKERS, EPOCHS, SAMPLES = 6, 3, 3, 320
KILLS = 40  # of workers, or of ranks that are replaced, per round
PAUSE_S = 0.02  # between two kills of workers, on average
MEAN_LIFE_S = 0.5  # of a rank that a timer ends
LONGEST_S = 90  # a pool waits a minute for the rank that has started it
LOST, DOUBLED, CHANGED, UNEXPECTED = 3, 4, 5, 6  # exit codes of a rank
WRONG = {LOST: "lost", DOUBLED: "doubled", CHANGED: "changed", UNEXPECTED: "lost"}


class Fault(Exception):
    """A rank has seen a fault: the arguments are its exit code and what it saw."""


class Registered(mortal.Mortal):
    """A worker_init_fn that makes a file for the worker in `folder`, named like its pid and its parent's."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, number):
        super().__call__(number)
        Path(self.folder, f"{os.getpid()} {os.getppid()}").touch()


def options_of(folder):
    """Return the options that all loaders have, whether they share or not."""
    return {"batch_size": 8, "shuffle": True, "worker_init_fn": Registered(folder), "num_workers": WORKERS}


def pooled(folder, **workers):
    """Return a loader; `workers` are options of `slipring.Workers`."""
    workers = slipring.Workers(**(workers or {"start_method": "fork"}))
    return slipring.Loader(mortal.Rows(SAMPLES), seed=SEED, workers=workers, **options_of(folder))


def shared(folder, **workers):
    """Return torch's loader of all ranks, or without `workers` one that does not share."""
    import torch

    from slipring.torch import DataLoader

    more = {"share": torch.distributed.group.WORLD} if workers else {}
    generator = torch.Generator().manual_seed(SEED)
    more |= {"workers": slipring.Workers(**workers), "multiprocessing_context": "fork", "persistent_workers": True}
    return DataLoader(mortal.Rows(SAMPLES), generator=generator, rng="batch", **options_of(folder), **more)


class Round:
    """Ranks, some of which die, or whose workers or pool die."""

    def __init__(self, mode, want, rng, counts, details):
        self.mode, self.want, self.rng, self.counts, self.details = mode, want, rng, counts, details
        self.folder = tempfile.mkdtemp(prefix="slipring-ranks-")
        self.name = f"kills-{uuid.uuid4().hex}"
        self.pids = {}
        self.read = np.frombuffer(mmap.mmap(-1, 8 * RANKS), np.int64)  # the number of batches that each rank has read

    def run(self, kills):
        """Do the round; return the number of kills."""
        try:
            return getattr(self, self.mode["kill"])(kills)
        finally:
            for name in os.listdir(self.folder):
                os.unlink(os.path.join(self.folder, name))
            os.rmdir(self.folder)

    # ---- the ranks

    def start(self, number, *, dies=False):
        """Start a rank, which a timer ends if it `dies`."""
        life = max(1e-6, self.rng.expovariate(1 / MEAN_LIFE_S)) if dies else 0
        self.pids[number] = pid = os.fork()
        if pid:
            return
        code = 1
        try:
            self.rank(number, life)
            code = 0
        except Fault as fault:
            code = fault.args[0]
            print(f"rank {number}: {fault.args[1]}", file=sys.stderr, flush=True)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def rank(self, number, life):
        """Make a rank's loader and read all epochs; a timer ends the rank after `life` seconds, if these are not 0."""
        self.read[number] = 0
        if "share" in self.mode:
            import torch.distributed as dist

            dist.init_process_group("gloo", init_method=f"file://{self.folder}/meet", rank=number, world_size=RANKS)
            loader = shared(self.folder, on_death="respawn", max_restarts=1_000_000)
            dist.barrier()  # gloo's operations do not survive a rank
            signal.setitimer(signal.ITIMER_REAL, life)
        else:
            signal.setitimer(signal.ITIMER_REAL, life)
            loader = pooled(self.folder, pool=self.name, on_death="respawn", max_restarts=1_000_000)
        with loader:
            for due in self.want:
                with contextlib.suppress(LeadDied if self.mode["kill"] == "lead" else ()):
                    self.epoch(number, loader, due)
                    continue
                return

    def epoch(self, number, loader, due):
        """Read an epoch and compare it with the one that is `due`."""
        at = 0
        while True:
            try:
                for batch in loader:
                    self.compare(noted(batch), due, at)
                    at += 1
                    self.read[number] += 1
                break
            except WorkerDied as error:
                if self.mode["kill"] != "parent" or "the process of pool=" not in str(error):
                    raise
                loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        if at < len(due):
            raise Fault(LOST, f"the epoch ended after {at} of {len(due)} batches")

    def compare(self, got, due, at):
        if at == len(due):
            raise Fault(DOUBLED, "a batch came after the last one")
        if got[0] != due[at][0]:
            repeated = got[0] in [ids for ids, _ in due[:at]]
            raise Fault(DOUBLED if repeated else LOST, f"batch {at} has other samples")
        if got != due[at]:
            raise Fault(CHANGED, f"batch {at} has other bytes")

    def ended(self, number, options=0):
        """Wait for a rank's end, and count its fault; return whether its timer killed it; None: it still runs."""
        found = end_of(self.pids[number], options)
        if found is None:
            return None
        del self.pids[number]
        killed, code = found
        if code:
            self.wrong(WRONG.get(code, "lost"), f"rank {number} ended with {code}")
        self.counts["batches"] += int(self.read[number])
        return killed

    def wrong(self, counted, what):
        self.counts[counted] += 1
        self.details.append(what)

    def registered(self):
        """Return (pid, its parent's) of the living workers."""
        found = [tuple(map(int, name.split())) for name in os.listdir(self.folder) if name != "meet"]
        return [(pid, its) for pid, its in found if alive(pid) and parent(pid) == its]

    # ---- ways to kill

    def workers(self, kills):
        """Kill workers until all ranks have ended."""
        for number in range(RANKS):
            self.start(number)
        return self.hit(kills, lambda pid, its: send(pid, self.rng.choice(BY_SIGNAL)))

    def parent(self, kills):
        """Kill the process of the pool until all ranks have ended."""
        for number in range(RANKS):
            self.start(number)
        return self.hit(kills, lambda pid, its: send(its, "SIGKILL"))

    def hit(self, kills, strike):
        """Kill at random instants, at most `kills` times; wait for the ranks' ends; return the number of kills."""
        killed, instant = 0, threading.Event()
        while self.pids:
            instant.wait(self.rng.expovariate(1 / self.pause()))
            if killed < kills and (found := self.registered()):
                killed += strike(*self.rng.choice(found))
            for number in list(self.pids):
                self.ended(number, os.WNOHANG)
        return killed

    def pause(self):
        return PAUSE_S * (10 if self.mode["kill"] == "parent" else 1)

    def ranks(self, kills):
        """Kill ranks; those of a pool are replaced while rank 0 lives. Return the number of kills."""
        killed = 0
        for number in range(RANKS):
            self.start(number, dies=0 < number < RANKS - 1)
        while self.pids:
            number = self.any_end()
            if self.died(number):
                killed += 1
                if "share" not in self.mode and 0 in self.pids and killed < kills:
                    self.counts["respawns"] += 1
                    self.start(number, dies=True)
        return killed

    def any_end(self):
        """Wait until a rank has ended; return its number."""
        pid = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid
        return next(number for number, its in self.pids.items() if its == pid)

    def died(self, number):
        return bool(self.ended(number))

    def lead(self, kills):
        """Kill the rank that leads: all readers must have read the same batches."""
        for number in range(RANKS):
            self.start(number, dies=number == 0)
        killed = self.died(0)
        for number in range(1, RANKS):
            self.ended(number)
        if len(set(self.read[1:].tolist())) > 1:
            self.wrong("lost", f"the readers got {self.read[1:].tolist()} batches")
        return killed


def undisturbed(mode):
    """Return the batches of each epoch of a loader that shares nothing."""
    make = shared if "share" in mode else pooled
    with tempfile.TemporaryDirectory() as folder, make(folder) as loader:
        return [[noted(batch) for batch in loader] for _ in range(EPOCHS)]


def run(name, kills, seconds, seed):
    """Run rounds until there were so many kills, or the time is over; return the counts."""
    mode, counts, rng, details = MODES[name][1], Counter(), random.Random(f"{seed} {name}"), []
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    want = undisturbed(mode)
    before, deadline = Snapshot.take(), time.monotonic() + seconds if seconds else None
    while counts["kills"] < kills and not details and (deadline is None or time.monotonic() < deadline):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        counts["kills"] += Round(mode, want, rng, counts, details).run(min(KILLS, kills - counts["kills"]))
    faulthandler.cancel_dump_traceback_later()
    if left := before.leaks(LONGEST_S):
        details, counts["leaks"] = [*details, *left], counts["leaks"] + len(left)
    return {**counts, "details": details[:20]}


if __name__ == "__main__":
    main(run)
