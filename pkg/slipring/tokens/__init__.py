"""Samplers for documents of unequal length and cost: packs, padded batches, and their division among ranks."""

from slipring._public import publish
from slipring.tokens._planned import Piece, Plan, PlanReport
from slipring.tokens._samplers import PackedSampler, TokenBatchSampler

__all__ = ["PackedSampler", "Piece", "Plan", "PlanReport", "TokenBatchSampler"]

publish(__name__)
