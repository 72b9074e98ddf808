"""Make a loader's report, from its segment and from data that only its own process has."""

import logging
from collections import Counter

from slipring._core.ring import numa, process
from slipring._core.ring._segment import memory_available
from slipring._core.ring._watch import Watch
from slipring._core.ring.text import megabytes, seconds
from slipring._core.workers.memory import ROOT, caches_of, copied_bytes, private_bytes
from slipring._observe.activity import at_work, sentence_of
from slipring._observe.report import Report
from slipring._observe.snapshot import EmptySnapshot, Snapshot
from slipring._observe.verdict import Known


def look(ring):
    """Return the `Snapshot` of a segment."""
    return Snapshot(Watch(ring.controls))


def log_wait(ring, seq, waited):
    """Log that the loop has waited so many seconds for a batch, and which worker has been busy for longest."""
    busy = at_work(look(ring))
    who = sentence_of(busy[0]) if busy else "No worker is making a batch."
    logging.getLogger("slipring").warning(
        "the loop has waited %s for batch %d. %s `slipring dump %d` shows all workers.",
        *(seconds(waited), seq, who, process.pid()),
    )


def report(loader, name, headroom):
    """Return the `Report` of a loader under that name. `headroom`: the seconds of a step without loading.

    If the dataset's attribute ``cache`` is a `Cache`, the report has its figures.
    """
    engines, stats, tuning = loader._engines, loader.stats(), loader.tuning
    engine = engines.engine
    alive = engine is not None and engine.alive
    snapshot = look(engine.ring) if alive else engines.counters.seen or EmptySnapshot(engines.local)
    cache = next(caches_of(loader.dataset), None)
    cache = None if cache is None else cache.stats()
    pool, options = (engine.pool, engine.options) if alive else (None, None)
    forks = bool(getattr(pool, "forks", False))
    waits, known_of_waits = loader._waits(snapshot)
    known = Known(
        copied_share=stats.copied_batches / max(1, stats.batches),
        pickled=stats.pickled_leaves / max(1, stats.batches),
        unpickle_ns=engine.ring.meter.unpickle_ns / max(1, engine.ring.meter.batches) if alive else None,
        private_bytes=stats.worker_private_bytes,
        free_bytes=(memory_available(ROOT) or (None,))[0],
        copied_bytes=_copied(pool) if forks else (),
        parent_bytes=private_bytes(process.pid()) if forks else None,
        cache_full=_why_full(cache),
        cache_bytes=None if cache is None else cache.bytes_for_all,
        cached_images=_comes_from(loader.dataset, "slipring.images"),
        clips=_comes_from(loader.dataset, "slipring.clips"),
        forked=forks,
        own_collate=_own_collate(pool.job.options.collate_fn) if alive else None,
        persistent=options.persistent_workers if alive else None,
        in_order=options.in_order if alive else None,
        tuned=tuning is not None,
        saturated=None if tuning is None else loader._tuner.saturated,
        **known_of_waits,
    )
    said = "" if tuning is None else f"{tuning.workers}: {tuning.reason}."
    nodes = _numa_nodes(engine.ring) if alive else {}
    return Report(name, snapshot, stats, known, cache=cache, tuning=said, headroom=headroom, waits=waits, numa=nodes)


def _comes_from(dataset, module):
    return any(kind.__module__ == module for kind in type(dataset).__mro__)


def _numa_nodes(ring):
    """Return `Report.numa` of a segment."""
    if ring.node is None and len(numa.nodes()) < 2:
        return {}
    return {"node": ring.node, "slots": dict(sorted(Counter(ring.slot_nodes).items()))}


def _copied(pool):
    """Return the bytes of this process's memory that each worker has copied, where /proc reports them."""
    found = [copied_bytes(pid, process.pid()) for _, pid, _ in pool.pids()]
    return tuple(copied for copied in found if copied is not None)


def _own_collate(function):
    """Return whether a `collate_fn` is the user's own."""
    return function is not None and str(getattr(function, "__module__", "")).partition(".")[0] != "slipring"


def _why_full(cache):
    if cache is None or not cache.refused:
        return ""
    if cache.refused_budget:
        return f"its budget of {megabytes(cache.budget)} is used up"
    return "the machine has too little memory left" if cache.refused_memory else "entries were refused"
