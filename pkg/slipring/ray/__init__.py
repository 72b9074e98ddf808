"""The ingest of Ray Data into the training process."""

from slipring._public import publish
from slipring.ray._loader import Loader

__all__ = ["Loader"]

publish(__name__)
