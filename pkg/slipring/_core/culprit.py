"""Record which of the requested samples raised an exception.

The position is an attribute of the exception until the worker takes it. A table of exceptions would keep the frames of
their tracebacks, which may have arrays in a slot.
"""

_NAME = "_slipring_position"


def failed_at(position, error):
    """Record that the sample at this position, among those that were requested, raised `error`."""
    BaseException.__setattr__(error, _NAME, position)  # its class may have a __setattr__ of its own


def failed_among(positions, error):
    """Translate the position recorded by an inner call, which read only the samples at these `positions`."""
    position = take_position(error)
    if position is not None and position < len(positions):
        failed_at(positions[position], error)


def take_position(error):
    """Return the recorded position and remove it, or return None if there is none."""
    return getattr(error, "__dict__", {}).pop(_NAME, None)
