"""The last mile of Ray Data into the training process."""

from slipring.ray.loader import Loader

__all__ = ["Loader"]
