"""A stream for the tests of MegEngine's adapter."""

from slipring.adapters.megengine import StreamDataset, get_worker_info


class Numbers(StreamDataset):
    """Each worker its share, by get_worker_info; with `act`, all, and then that."""

    def __init__(self, values=range(7), act=None):
        self.values, self.act = values, act

    def __iter__(self):
        info = get_worker_info() if self.act is None else None
        values = self.values if info is None else self.values[info.idx :: info.worker]
        yield from values
        if self.act is not None:
            self.act()
