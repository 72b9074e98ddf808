"""Loaders that live as long as the soak: small leaks of each epoch add up in them."""

import random
import time

import slipring
from slipring import Workers
from tests.fault.rounds import compare, kept_engine, pool_of, send
from tests.soak import samples
from tests.soak.lives import default_collate_of
from tests.soak.samples import Map, Sizes, digest, made, numbers, of_streams
from tests.support.options import grouped

SAMPLES = 500  # in an epoch of a map dataset; a fifth per worker of a stream
STREAM_BATCH = 10
BACK_S = 0.2  # until the slots of an abandoned epoch are free again


class Resident:
    """A loader and its epochs, each of which is checked.

    Parameters
    ----------
    kind : str
        The kind of samples.
    seed : str
    adapter, method, stream
        As in `lives.Life`.
    mortal : bool
        A worker is killed in each epoch.
    hoard : bool
        The dataset leaks on purpose.
    **options
        The loader's options.
    """

    exact = True

    def __init__(self, kind, seed, adapter="slipring", method="fork", stream=False, mortal=False, hoard=False,
                 **options):  # fmt: skip
        self.kind, self.adapter, self.stream, self.mortal = kind, adapter, stream, mortal
        self.watched = not mortal and method != "thread"
        self.in_order = options.get("in_order", True)
        self.rng = random.Random(seed)
        self.sizes = Sizes(self.rng, SAMPLES)
        self.batches = self.epochs = 0
        options = {"num_workers": 2, "persistent_workers": True, **options}
        options["collate_fn"] = samples.collate_of(kind)
        if mortal:
            options |= {"on_death": "respawn", "max_restarts": 1_000_000}
        options |= {"batch_size": STREAM_BATCH} if stream else {"batch_sampler": self.sizes}
        data = samples.Stream(kind, SAMPLES // 5) if stream else Map(kind, SAMPLES, hoard=hoard)
        if adapter == "slipring":
            self.loader = slipring.Loader(data, **grouped(start_method=method, **options))
        else:
            from slipring.torch import DataLoader

            self.loader = DataLoader(data, multiprocessing_context=method, **grouped(**options))

    def epoch(self, counts, plants):
        """Read an epoch; every fourth time after an abandoned one, whose slots become free in the next."""
        self.epochs += 1
        if self.epochs % 4 == 0:
            self._read(counts, plants, 5)
        self._read(counts, plants, None)

    def _read(self, counts, plants, stop):
        iterator = iter(self.loader)
        lists = of_streams(2, SAMPLES // 5, STREAM_BATCH) if self.stream else self.sizes.lists
        stop = stop or len(lists)
        got = []
        for batch in iterator:
            got.append((numbers(self.kind, batch), digest(batch)))
            for plant in plants:
                plant.batch(batch)
            del batch
            if self.mortal and len(got) == 3:
                processes = pool_of(self.loader).processes.values()
                send(self.rng.choice([process.pid for process in processes]), "SIGKILL")
            if len(got) == stop and stop < len(lists):
                break
        del iterator
        # The sampler of a map dataset is read ahead: it has yielded the whole epoch, or enough of it.
        lists = lists if self.stream else self.sizes.lists
        collate = default_collate_of(self.adapter)
        want = [(tuple(one), digest(made(self.kind, one, collate))) for one in lists]
        if stop < len(lists):
            these = {ids for ids, _ in got}
            want = want[:stop] if self.in_order else [one for one in want if one[0] in these]
        compare(got, want, self, counts)
        counts["batches"] += len(got)
        self.batches += len(got)

    def slots_out(self):
        """Return the number of slots in use although no epoch is running."""
        engine = kept_engine(self.loader)
        if engine is None:
            return 0
        end = time.monotonic() + BACK_S
        while (out := engine.ring.n_slots - engine.ring.circulating) and time.monotonic() < end:
            time.sleep(0.005)  # a worker still makes an abandoned batch
        return out

    def pids(self):
        """Return the pids of the long-lived workers."""
        pool = pool_of(self.loader) if self.watched else None
        return [] if pool is None else [process.pid for process in pool.processes.values()]


def residents(seed, torch, quick, hoard):
    """Return all residents; a few if `quick`."""
    found = [
        Resident("rows", f"{seed} a", hoard=hoard),
        Resident("dicts", f"{seed} b", in_order=False, workers=Workers(chunk_size=4)),
        Resident("ragged", f"{seed} c", method="thread"),
        Resident("pickled", f"{seed} d", mortal=True),
    ]
    if not quick:
        found.append(Resident("texts", f"{seed} e", method="forkserver", stream=True))
        found.append(Resident("keys", f"{seed} f", method="spawn", rng="worker"))
    if torch:
        found.append(Resident("dicts", f"{seed} g", adapter="torch", preload=2))
        found.append(Resident("texts", f"{seed} h", adapter="torch", in_order=False))
    return found
