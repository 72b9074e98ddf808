"""Streams of blocks, rebatched: read them with `slipring.stream` or with a torch loader."""

from slipring._public import publish
from slipring.streams._loader import stream
from slipring.streams._shards import ShardStream
from slipring.streams._source import Stream

__all__ = ["ShardStream", "Stream", "stream"]

publish(__name__)
