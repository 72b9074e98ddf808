"""Documents of unequal length: collated without padding, straight into the slot."""

from slipring._public import publish
from slipring.tokens.collation import Jagged, Padded
from slipring.tokens.flat import Flat

__all__ = ["Flat", "Jagged", "Padded"]

publish(__name__)
