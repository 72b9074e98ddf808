"""A shared-memory, zero-copy data loader: batches from worker processes with no pickle and no second copy."""

from slipring import _platform

_platform.check()

from slipring._collate import default_collate
from slipring._encode import empty
from slipring._version import __version__
from slipring.errors import (
    BatchTooLarge,
    Closed,
    CorruptBatch,
    LoaderTimeout,
    SegmentFull,
    ShutDown,
    SlipringError,
    SlotsExhausted,
    TooManyProcesses,
    WorkerDied,
    WorkerError,
    WorkerMemoryWarning,
)
from slipring.info import WorkerInfo, get_worker_info
from slipring.loader import Loader
from slipring.queue import Queue
from slipring.sampler import BatchSampler
from slipring.seeding import rng
from slipring.stats import Stats
from slipring.strings import StringList

__all__ = [
    "BatchSampler",
    "BatchTooLarge",
    "Closed",
    "CorruptBatch",
    "Loader",
    "LoaderTimeout",
    "Queue",
    "SegmentFull",
    "ShutDown",
    "SlipringError",
    "SlotsExhausted",
    "Stats",
    "StringList",
    "TooManyProcesses",
    "WorkerDied",
    "WorkerError",
    "WorkerInfo",
    "WorkerMemoryWarning",
    "__version__",
    "default_collate",
    "empty",
    "get_worker_info",
    "rng",
]
