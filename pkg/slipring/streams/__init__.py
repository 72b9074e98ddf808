"""Streams of blocks, rebatched: for programs that read them with `slipring.stream`, or with a loader of torch's."""

from slipring.streams._loader import stream
from slipring.streams._shards import ShardStream
from slipring.streams._source import Stream

__all__ = ["ShardStream", "Stream", "stream"]

for _public in (ShardStream, Stream, stream):
    _public.__module__ = __name__  # it is pickled, and shown, by its public place
