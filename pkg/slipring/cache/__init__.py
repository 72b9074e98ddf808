"""What has been made once is kept in shared memory: one cache per machine, for workers, loaders and ranks."""

from slipring.cache.cache import Cache, CacheStats
from slipring.cache.dataset import Cached, cached

__all__ = ["Cache", "CacheStats", "Cached", "cached"]
