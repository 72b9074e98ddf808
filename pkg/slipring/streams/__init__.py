"""Streams of blocks, rebatched: read them with `slipring.stream` or with a torch loader."""

from slipring.streams._loader import stream
from slipring.streams._shards import ShardStream
from slipring.streams._source import Stream

__all__ = ["ShardStream", "Stream", "stream"]

for _public in (ShardStream, Stream, stream):
    _public.__module__ = __name__  # pickles and texts use its public name
