"""The only place where tests reach into private names of slipring.

A test imports a private class, function or module from here, and asks a loader for its parts with the functions below.
So a change of the private modules changes this file and no test.
"""

import importlib
import struct

# Module -> the names that tests use. The import happens when a test asks for a name: torch may be missing, and
# tests/fault/points.py replaces a module before anything imports it.
_NAMES = {
    "slipring._core.ring": "_check _ring numa process rates ring_limits sample_marks text",
    "slipring._core.codec": "_codec cache_names pytree tensors",
    "slipring._core.workers": "deaths heap memory pickling pool_client process_pool seeding thread_pool worker "
    "worker_main",
    "slipring._core.passes": "engine prefetch reporting sharing tuning",
    "slipring._core.codec._codec": "COPY_ALWAYS COPY_AUTO COPY_NEVER empty probe receive",
    "slipring._core.codec._collate": "default_collate",
    "slipring._core.codec._encode": "BATCH ERROR Encoder layout view",
    "slipring._core.codec._rows": "NO_SAMPLES NUMPY TORCH RowWriter",
    "slipring._core.codec._shared": "SharedReader attached_ring",
    "slipring._core.passes._inflight": "Position",
    "slipring._core.ring._fd": "Event Poll",
    "slipring._core.ring._order": "IndexOrder Slices",
    "slipring._core.ring._ring": "FINISH MAX_RANGES SERVING Pickled Ring ServedRings mix pickled",
    "slipring._core.ring._segment": "READ_COUNTS copy_bytes copy_ways memory_available now",
    "slipring._core.ring._slot": "Lease",
    "slipring._core.ring._watch": "NO_SLOT PARTICIPANT RECORD SLOT STAGES STATES NoSegment Watch",
    "slipring._core.passes.prefetch": "Prefetcher",
    "slipring._core.passes.frontend": "Frontend",
    "slipring._core.passes.loader": "LoaderCore",
    "slipring._core.options.checks": "function instance integer seconds worker_count",
    "slipring._core.codec.cache_names": "find label_of",
    "slipring._core.workers.deaths": "manner",
    "slipring._core.options.rule": "Group entries rules",
    "slipring._core.workers.fetch": "Fetcher",
    "slipring._core.options.values": "Options",
    "slipring._core.workers.pickling": "SharedPickle",
    "slipring._core.codec.pytree": "BadTreeDef parse",
    "slipring._core.passes.reporting": "look",
    "slipring._core.ring.signals": "no_interrupt",
    "slipring._core.passes.tuning": "BATCHES LONG_WINDOW NEVER WINDOW Tuner Tuning",
    "slipring._core.workers.worker_pool": "WorkerPool",
    "slipring._observe.causes": "IF_BOUND IF_NOT",
    "slipring._observe.activity": "Activity activities at_work",
    "slipring._observe.jobs": "NoJob attach environ_of jobs",
    "slipring._observe.peers": "rank_of",
    "slipring._observe.ranks": "gather",
    "slipring._observe.rates": "Figures",
    "slipring._observe.recording": "Recording",
    "slipring._observe.snapshot": "PARTS RETIRED EmptySnapshot Snapshot bucket_of durations states",
    "slipring._observe.verdict": "Known starting verdict",
    "slipring._cli": "bench_dataset limits main sweep view",
    "slipring._cli.sweep": "Case Row",
    "slipring._files.answers": "check",
    "slipring._files.attempts": "Damaged is_transient",
    "slipring._files.disk": "DiskCache",
    "slipring.clips": "_reader",
    "slipring.images": "_decode",
    "slipring.images._render": "backend ops recipe",
    "slipring.images._render.decode": "EncodedImage ImageReading write",
    "slipring.images._render.draws": "Draws",
    "slipring.images._render.parts": "Boxes",
    "slipring.images._decode": "Target",
    "slipring.images._render.recipe": "Recipe apply",
    "slipring.images._render.view": "WHOLE Placement",
    "slipring.monitor._callbacks": "loaders_in",
    "slipring.ray": "_cluster",
    "slipring.ray._blocks": "Coming join",
    "slipring.tokens._plan": "TokenLengths",
    "slipring.torch": "share",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"{__name__} has no {name!r}: add it to _NAMES")
    home = importlib.import_module(_HOME[name])
    return getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{_HOME[name]}.{name}")


def observing(name):
    """Return a module of slipring._observe: `report` and others have functions of the same name."""
    return importlib.import_module(f"slipring._observe.{name}")


def progress_module():
    """Return the module of slipring.progress."""
    return importlib.import_module("slipring.monitor._progress")


def engine_of(loader):
    """Return the engine (segment and workers) that a loader keeps, or that an iterator uses."""
    engines = getattr(loader, "_engines", None)
    return loader.engine if engines is None else engines.engine


def ingest_of(loader):
    """Return a Ray loader's part in the cluster."""
    return loader._ingest


def engines_of(loader):
    """Return the object that keeps a loader's engine and counters from epoch to epoch."""
    return loader._engines


def coordinator_of(loader):
    """Return the actor that hands out blocks to the workers of a slipring.ray.Loader."""
    return loader._ingest.coordinator


def preloader_of(iterator):
    """Return the part of an iterator that moves its batches to a device before they are requested."""
    return iterator.preloader


def count_of(queue):
    """Return the method of a slipring.Queue that counts its slots: (READY, FREE)."""
    return queue._count


def queue_of(collate_fn):
    """Return the queue through which torch's own workers send batches (slipring.torch.RingCollate)."""
    return collate_fn._queue


def read_of(storage):
    """Return the method of a slipring.Storage that reads bytes of a file."""
    return storage._read


def info_of(storage):
    """Return the method of a slipring.Storage that asks for a file's size and identity."""
    return storage._info


def token_of(storage):
    """Return the token by which a cache recognizes storages with the same options."""
    return storage._token


class Numbers:
    """An operation with any numbers, as augment.h describes them."""

    moves = per_pixel = False
    layout = struct.Struct("<i7i12d")

    def __init__(self, code, n=(), v=()):
        numbers = *n, *(0,) * (7 - len(n)), *v, *(0.0,) * (12 - len(v))
        self.packed = self.layout.pack(code, *numbers)

    def pack(self):
        return self.packed


def known_operations():
    """Return {name: class} of all operations on images."""
    found, kinds = {}, [importlib.import_module("slipring.images._render.ops").Operation]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__dict__.get("code", -1) >= 0:
            found[kind.name] = kind
    return found


def augmented(pixels, *operations, size=None):
    """Return a copy of an image after operations: (name, whole numbers, floats); `size` is that of the result."""
    recipes = importlib.import_module("slipring.images._render.recipe")
    recipe, known = recipes.Recipe(*pixels.shape[:2]), known_operations()
    for name, n, v in operations:
        recipe.op(Numbers(known[name].code, n, v))
    recipe.height, recipe.width = size or pixels.shape[:2]
    return recipes.apply(pixels, recipe)


def operate(pixels, name, n=(), v=(), size=None):
    """Return an image after one operation."""
    return augmented(pixels, (name, n, v), size=size)
