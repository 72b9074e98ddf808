"""Documents of unequal length: collated without padding, straight into the slot."""

from slipring._public import publish
from slipring.tokens._collation import Jagged, Padded
from slipring.tokens._flat import Flat

__all__ = ["Flat", "Jagged", "Padded"]

publish(__name__)
