"""The fault run of a cache, in its own process: rounds of processes that share a cache and are killed.

python -m tests.fault.cache_rounds MODE KILLS SECONDS SEED

Each process asks for random keys, makes missing entries, and compares every byte. At the end of a round all
keys must be found or made again; then the cache must leave nothing behind.
"""

import contextlib
import faulthandler
import mmap
import os
import random
import signal
import time
from collections import Counter

import numpy as np

import slipring
from tests.fault.kills import HANG_S, MODES
from tests.fault.rounds import BY_SIGNAL, main
from tests.support.inside import find, label_of
from tests.support.leaks import Snapshot

KEYS = 200
PROCESSES = 4
KILLS = 40  # per round
WRONG, UNABLE = 3, 4  # exit codes of a process that found wrong bytes, or could not continue


def value_of(key):
    """Return a key's value: its size is from 0 to some hundred kilobytes."""
    draw = np.random.RandomState(key)
    pixels = draw.randint(0, 256, draw.randint(0, 200_000), np.uint8)
    return {"pixels": pixels, "key": key, "name": str(key) * draw.randint(1, 9)}


def is_right(found, key):
    want = value_of(key)
    return found["key"] == key and found["name"] == want["name"] and np.array_equal(found["pixels"], want["pixels"])


class Round:
    """One cache, and the processes that share it until enough of them have been killed."""

    def __init__(self, options, rng, counts):
        self.rng, self.counts = rng, counts
        self.name = f"fault-{os.getpid()}-{rng.getrandbits(40):x}" if options.get("named") else None
        budget = rng.choice([100_000, 2_000_000, 64_000_000])
        self.cache = slipring.Cache(budget, name=self.name)
        # The number of lookups of each process, and its position: the values of a process that hangs stay the same.
        self.beats = np.frombuffer(mmap.mmap(-1, 8 * PROCESSES), np.int64)
        self.pids = {}

    def start(self, number):
        seed = self.rng.getrandbits(32)
        pid = os.fork()
        if pid:
            self.pids[pid] = number
            return
        code = UNABLE
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # One process opens the cache by its name, another has inherited it.
            cache = slipring.Cache(1, name=self.name) if self.name and number % 2 else self.cache
            code = self.work(cache, number, random.Random(seed))
        os._exit(code)

    def work(self, cache, number, rng):
        held = []
        while True:
            key = rng.randrange(KEYS)
            found = cache.get_or_make(key, lambda key=key: value_of(key))
            if not is_right(found, key):
                return WRONG
            held = [*held[-3:], (key, found)]
            if any(not is_right(value, which) for which, value in held):
                return WRONG
            self.beats[number] += 1

    def run(self, kills):
        """Kill `kills` processes, one at a time; return how many died of it."""
        for number in range(PROCESSES):
            self.start(number)
        killed = 0
        while killed < kills:
            time.sleep(self.rng.expovariate(1 / 0.004))  # a random instant, not a wait for an event
            pid = self.rng.choice(list(self.pids))
            if self.rng.random() < 0.1:  # it is stopped for a while: the others do not wait forever
                os.kill(pid, signal.SIGSTOP)
                self.counts["stops"] += 1
                self.await_progress(but=self.pids[pid])
            os.kill(pid, getattr(signal, self.rng.choice(BY_SIGNAL)))
            os.kill(pid, signal.SIGCONT)
            number = self.buried(pid)
            killed += 1
            self.start(number)
        self.end()
        return killed

    def await_progress(self, but):
        """Wait until another process has made a lookup; the run's watchdog ends a hang."""
        before = self.beats.copy()
        while not any(self.beats[n] != before[n] for n in range(PROCESSES) if n != but):
            time.sleep(0.001)

    def buried(self, pid):
        number = self.pids.pop(pid)
        status = os.waitpid(pid, 0)[1]
        if os.WIFEXITED(status):
            self.counts["changed"] += os.WEXITSTATUS(status) == WRONG
            self.counts["lost"] += os.WEXITSTATUS(status) != WRONG
        return number

    def end(self):
        for pid in list(self.pids):
            os.kill(pid, signal.SIGKILL)
            self.buried(pid)
        room = self.cache.stats().refused == 0
        for key in range(KEYS):
            self.counts["changed"] += not is_right(self.cache.get_or_make(key, lambda key=key: value_of(key)), key)
            self.counts["lost"] += room and key not in self.cache
        stats = self.cache.stats()
        self.counts["batches"] += int(self.beats.sum())
        self.counts["replayed"] += stats.recovered
        self.cache.close()
        self.counts["leaks"] += self.name is not None and find(label_of(self.name)) is not None


def run(name, kills, seconds, seed):
    """Run rounds until there were so many kills, or the time is over; return the counts."""
    options, counts, rng = MODES[name][1], Counter(), random.Random(f"{seed} {name}")
    slipring.Cache(1).close()  # the first cache imports modules and opens files that stay
    before, deadline = Snapshot.take(), time.monotonic() + seconds if seconds else None
    details = []
    while counts["kills"] < kills and (deadline is None or time.monotonic() < deadline):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        counts["kills"] += Round(options, rng, counts).run(min(KILLS, kills - counts["kills"]))
        counts["respawns"] = counts["kills"]
    faulthandler.cancel_dump_traceback_later()
    if left := before.leaks(10):
        details, counts["leaks"] = left, counts["leaks"] + len(left)
    return {**counts, "details": details}


if __name__ == "__main__":
    main(run)
