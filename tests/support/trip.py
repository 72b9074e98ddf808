"""One process that is both consumer and worker: it puts a value into a slot and takes it out again."""

import numpy as np

from tests.support.inside import BATCH, COPY_AUTO, COPY_NEVER, Encoder, Pickled, Ring, receive

NOT_INTS = 2**64 - 2  # dispatch() returns it instead of a generation


class Trip:
    """A segment, and a worker's encoder.

    Parameters
    ----------
    slots : int
    **options
        As `Ring`.
    """

    def __init__(self, slots=4, **options):
        self.ring = Ring(slots, 3, **options)
        self.encoder = Encoder()
        self.seq = 0

    def end(self):
        """Release the segment: pytest keeps a fixture's value for a while."""
        self.ring = self.encoder = None

    def dispatch(self, indices, range_rows=0, seq=0, addressee=0):
        """Put a task into a free slot; indices that are no ints are pickled. Return the slot."""
        slot = self.ring.pick_free()
        assert slot >= 0, "no slot is free"
        rest = 0, 0, seq, 0, 0, addressee, range_rows, False
        if self.ring.dispatch(slot, indices, *rest) == NOT_INTS:
            self.ring.dispatch(slot, Pickled(indices), *rest)
        return slot

    def claim(self, indices=(0,), range_rows=0, participant=1):
        """Dispatch a task and claim it (with `range_rows`: its first range); return the slot writer."""
        slot = self.dispatch(list(indices), range_rows, self.seq)
        self.seq += 1
        writer = self.ring.claim(participant, 5.0)
        assert writer is not None and writer.slot == slot
        writer.indices()
        return writer

    def put(self, value, indices=(0,), kind=BATCH, state=None):
        """Publish a value, or the result of a function that runs inside the slot writer; return the slot.

        `state` is the worker's state after the batch, as bytes.
        """
        writer = self.claim(indices)
        with writer:
            # Only the box refers to the value: an array that exists later is one that the worker kept.
            box = [value() if callable(value) else value]
            value = None
            self.encoder.publish(writer, box, kind, state=state)
        return writer.slot

    def take(self, slot, copy=COPY_AUTO):
        """Take the batch in `slot`; return its value."""
        assert self.ring.wait_ready(slot, 5.0) == slot
        kind, value = receive(self.ring, slot, copy)
        assert kind == BATCH
        return value

    def share(self, value, copy=COPY_NEVER):
        """Share a batch with the readers; return its value, with the consumer's own lease."""
        kind, got = receive(self.ring, self.put(value), copy, True)
        assert kind == BATCH
        return got

    def __call__(self, value, copy=COPY_AUTO):
        """Send a value through a slot; return the value that arrives."""
        return self.take(self.put(value), copy)

    def bytes_of(self, value):
        """Return how many bytes of the slot a value takes, records included."""
        before = self.ring.meter.bytes
        self(value)
        return self.ring.meter.bytes - before

    def pickled(self, value):
        """Return how many leaves of a value are pickled."""
        before = self.ring.meter.pickled_leaves
        self(value)
        return self.ring.meter.pickled_leaves - before

    @property
    def free(self):
        """Return how many slots circulate."""
        return self.ring.circulating


def same_array(sent, got):
    """Check that two arrays are equal in type, dtype, shape and bytes."""
    assert type(got) is np.ndarray
    assert got.dtype == sent.dtype and got.shape == sent.shape
    assert got.tobytes() == np.ascontiguousarray(sent).tobytes()
    return True


def address(array):
    """Return the address of an array's first byte."""
    return array.__array_interface__["data"][0]
