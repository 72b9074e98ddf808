"""A cache of values in shared memory: one per machine, for workers, loaders and ranks."""

from slipring._public import publish
from slipring.cache.cache import Cache, CacheStats
from slipring.cache.dataset import Cached, cached

__all__ = ["Cache", "CacheStats", "Cached", "cached"]

publish(__name__)
