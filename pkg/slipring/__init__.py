"""A shared-memory, zero-copy data loader: batches from worker processes with no pickle and no second copy."""

from typing import TYPE_CHECKING

from slipring import _platform

_platform.check()

from slipring._public import publish
from slipring._version import __version__
from slipring.errors import LoaderTimeout, SegmentFull, SlipringError, WorkerDied, WorkerError
from slipring.options import Memory, Workers

if TYPE_CHECKING or not _platform.fallback:
    from slipring._core.codec._codec import empty
    from slipring._core.codec._collate import default_collate
    from slipring._core.ring.worker_info import WorkerInfo, get_worker_info
    from slipring._core.workers.seeding import rng
    from slipring.broadcast import Broadcast
    from slipring.cache import Cache, CacheStats, cached
    from slipring.loader import Loader
    from slipring.queue import Queue, QueueStats
    from slipring.sampler import BatchSampler
    from slipring.stats import Stats
    from slipring.strings import StringList

# The names that programs use most. Other errors are in slipring.errors.
__all__ = [
    "BatchSampler", "Broadcast", "Cache", "CacheStats", "Loader", "LoaderTimeout", "Memory", "Queue", "QueueStats",
    "SegmentFull", "SlipringError", "Stats", "Storage", "StringList", "WorkerDied", "WorkerError", "WorkerInfo",
    "Workers", "__version__", "cached", "default_collate", "empty", "get_worker_info", "progress", "replay", "rng",
    "stream",
]  # fmt: skip

publish(__name__)

# Seldom used: imported at first use.
_SELDOM = {
    "Storage": "_files.storage",
    "progress": "monitor._progress",
    "replay": "monitor._replay",
    "stream": "streams",
}

if TYPE_CHECKING:
    from slipring._files.storage import Storage
    from slipring.monitor._progress import progress
    from slipring.monitor._replay import replay
    from slipring.streams import stream
else:

    def __getattr__(name):
        if _platform.fallback and name in __all__:
            raise _platform.unavailable(f"slipring.{name}")
        if name in _SELDOM:
            import importlib

            return getattr(importlib.import_module(f"slipring.{_SELDOM[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
