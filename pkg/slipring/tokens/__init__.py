"""Documents of unequal length and cost: packs and padded batches, their division among ranks, and their collation."""

from slipring._public import publish
from slipring.tokens._collation import Jagged, Padded
from slipring.tokens._flat import Flat
from slipring.tokens._mixed import MixedSampler
from slipring.tokens._planned import Piece, Plan, PlanReport
from slipring.tokens._samplers import PackedSampler, TokenBatchSampler

__all__ = [
    "Flat",
    "Jagged",
    "MixedSampler",
    "PackedSampler",
    "Padded",
    "Piece",
    "Plan",
    "PlanReport",
    "TokenBatchSampler",
]

publish(__name__)
