"""One process that is consumer and worker at once: a value goes into a slot and comes out again."""

import numpy as np

from tests.support.inside import BATCH, COPY_AUTO, Encoder, Pickled, Ring, receive

NOT_INTS = 2**64 - 2  # what dispatch() says in place of a generation


class Trip:
    """A segment and what a worker needs.

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
        """Let go of the segment: pytest itself keeps what a fixture gave for a while."""
        self.ring = self.encoder = None

    def dispatch(self, indices, chunk=0, seq=0, addressee=0):
        """Put a task into a free slot, its indices as a pickle where they are not ints; returns the slot."""
        slot = self.ring.pick_free()
        assert slot >= 0, "no slot is free"
        rest = 0, 0, seq, 0, 0, addressee, chunk, False
        if self.ring.dispatch(slot, indices, *rest) == NOT_INTS:
            self.ring.dispatch(slot, Pickled(indices), *rest)
        return slot

    def claim(self, indices=(0,), chunk=0, participant=1):
        """Dispatch a task and claim it (with `chunk`: its first range); returns the fill."""
        slot = self.dispatch(list(indices), chunk, self.seq)
        self.seq += 1
        fill = self.ring.claim(participant, 5.0)
        assert fill is not None and fill.slot == slot
        fill.indices()
        return fill

    def put(self, value, indices=(0,), kind=BATCH, state=None):
        """Publish a value, or what a function returns that is called inside the fill; returns the slot.

        `state` is the worker's state after it, as bytes.
        """
        fill = self.claim(indices)
        with fill:
            # Only the box refers to the value: an array that exists later is one that the worker kept.
            box = [value() if callable(value) else value]
            value = None
            self.encoder.publish(fill, box, kind, state=state)
        return fill.slot

    def take(self, slot, copy=COPY_AUTO):
        """Take what lies in `slot`; returns the value."""
        assert self.ring.wait_ready(slot, 5.0) == slot
        kind, value = receive(self.ring, slot, copy)
        assert kind == BATCH
        return value

    def __call__(self, value, copy=COPY_AUTO):
        """Send a value round; returns what arrives."""
        return self.take(self.put(value), copy)

    def bytes_of(self, value):
        """How many bytes of the slot a value takes, records included."""
        before = self.ring.meter.bytes
        self(value)
        return self.ring.meter.bytes - before

    def pickled(self, value):
        """How many leaves of a value are pickled."""
        before = self.ring.meter.pickled_leaves
        self(value)
        return self.ring.meter.pickled_leaves - before

    @property
    def free(self):
        """How many slots circulate."""
        return self.ring.circulating


def same_array(sent, got):
    """Whether two arrays are equal in dtype, shape and every bit pattern's meaning."""
    assert type(got) is np.ndarray
    assert got.dtype == sent.dtype and got.shape == sent.shape
    assert got.tobytes() == np.ascontiguousarray(sent).tobytes()
    return True


def address(array):
    """Where an array's bytes begin."""
    return array.__array_interface__["data"][0]
