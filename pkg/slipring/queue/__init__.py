"""A queue of batches between any processes, over a queue segment."""

from slipring.queue._queue import Slot
from slipring.queue.queue import Queue, QueueStats

__all__ = ["Queue", "QueueStats", "Slot"]
