"""Documents of unequal length and cost: packs and padded batches, their division among ranks, and their collation."""

from slipring._public import publish
from slipring.tokens._chunks import Chunk, Chunks, ChunkSampler
from slipring.tokens._collation import Jagged, Padded
from slipring.tokens._corpus import Corpus
from slipring.tokens._flat import Flat
from slipring.tokens._mixed import MixedSampler
from slipring.tokens._planned import Piece, Plan, PlanReport
from slipring.tokens._samplers import PackedSampler, TokenBatchSampler
from slipring.tokens._streams import PackedStream, equal_steps, pack

__all__ = [
    "Chunk", "ChunkSampler", "Chunks", "Corpus", "Flat", "Jagged", "MixedSampler", "PackedSampler", "PackedStream",
    "Padded", "Piece", "Plan", "PlanReport", "TokenBatchSampler", "equal_steps", "pack",
]  # fmt: skip

publish(__name__)
