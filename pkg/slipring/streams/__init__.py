"""Streams of blocks, rebatched: for programs that read them with `slipring.stream`, or with a loader of torch's."""

from slipring.streams.loader import stream
from slipring.streams.shards import ShardStream
from slipring.streams.source import Stream

__all__ = ["ShardStream", "Stream", "stream"]
