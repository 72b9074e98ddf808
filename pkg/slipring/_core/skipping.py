"""Count the samples that a dataset skips, for `stats()`."""

import threading

from slipring._core._ring import skip


class _Apart(threading.local):
    skipped = 0  # by this thread, outside of batches in slots


apart = _Apart()


def skipped():
    """Count a sample that the dataset skips; the batch that this thread makes reports it."""
    if not skip():
        apart.skipped += 1
