"""The ingest of Ray Data into the training process."""

from slipring.ray._loader import Loader

__all__ = ["Loader"]

Loader.__module__ = __name__  # pickles and texts use its public name
