"""A worker whose dataset makes whole batches."""

import itertools

from slipring._core._codec import BATCH, END
from slipring._core._ring import from_handler, now
from slipring._core._rng_guard import AsWorker
from slipring._core.worker import Worker
from slipring._core.worker_info import WorkerInfo


class StreamWorker(Worker):
    """A `Worker` that makes batches with the program's own generators if there are no workers.

    The source belongs to the program, and draws where it would draw without a loader. To save and restore the
    generators of numpy and Python costs 0.3 ms, many times what a small batch takes. This class keeps no reference to
    a batch that it has published: if code still has an array in the slot, publish() copies the batch.
    """

    def _introduce(self, base_seed):
        super()._introduce(base_seed)
        self.info = WorkerInfo(self.number, max(1, self.job.num_workers), base_seed + self.number, self.job.dataset)

    def _stream(self, fill, begun):
        if self.kind != "inline":
            super()._stream(fill, begun)
            return
        self._turn_to(fill)
        if self.stream is None:
            with self._guard():
                self.stream = self._begin_stream(fill)
        made = box = []
        try:
            # No call comes between the batch and the list: a handler cannot raise there.
            with AsWorker(self, self.info):
                made.extend(itertools.islice(self.stream.iterator, 1))
            if not made:
                self.encoder.publish(fill, [None], END)
                return
            if self.stream.iterator.has_rest:
                box = [*made]  # pyarrow's code encodes it, in which a handler can raise: that costs a copy
            self.encoder.publish(fill, box, BATCH, begun, now())
        except BaseException as error:
            if made and not fill.done and (not isinstance(error, Exception) or from_handler(error)):
                self.stream.iterator.take_back(made.pop())
            raise
