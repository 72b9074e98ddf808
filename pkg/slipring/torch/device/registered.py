"""Slots as pinned memory: registered with the device, and kept while it reads from them."""

import collections
import contextlib

from slipring._core.ring.process import ForkLock

# Copies queued per device before a wait for the oldest: one that runs, and the next.
COPIES = 2


class RegisteredSlots:
    """The slots of one segment that devices copy from; it lives as long as the segment.

    No view of a registered slot is delivered: torch guards ``x.to(device, non_blocking=True)`` only for memory that it
    has pinned itself, so that the slot could be refilled during the copy. `host` is the object of
    `slipring.torch.device.cuda` that registers memory, which every device of its type can then read.
    """

    def __init__(self, ring, host):
        self.ring, self.host = ring, host
        self.registered = {}  # slot -> (address, bytes)
        self.refused = None  # the reason why a slot could not be registered
        self.in_flight = collections.deque()  # (event, batch in slots), oldest first
        self.closed = False
        # A thread that hangs in a transform at the end of an epoch is abandoned, but may return later.
        self.lock = ForkLock()

    @property
    def registered_bytes(self):
        """int: registered bytes of all slots."""
        return sum(nbytes for _, nbytes in list(self.registered.values()))

    def cover(self, slot):
        """Register all memory that a slot has now; return its addresses as a range, empty if it is refused.

        The slot has just been taken, so no copy reads from it.
        """
        address, nbytes = self.ring.slot_memory(slot)
        with self.lock.here():
            known = self.registered.get(slot)
            if known != (address, nbytes) and not self.closed and (self.refused is None or known is not None):
                self._take_back(slot)  # the slot has grown, and a copy must not span two registrations
                self.ring.pin(slot)
                self.refused = self.host.register(address, nbytes)
                if self.refused is None:
                    self.registered[slot] = address, nbytes
            return range(address, address + nbytes) if slot in self.registered else range(0)

    def _take_back(self, slot):
        address, _ = self.registered.pop(slot, (None, 0))
        if address is not None:
            self.host.unregister(address)

    def hold(self, event, value):
        """Keep a batch and the leases of its slots until the copies before `event` are done."""
        with self.lock.here():
            self.in_flight.append((event, value))
            if self.closed:
                self.release(0)

    def make_room(self, devices):
        """Before a batch is taken, release finished copies, and wait if free slots would become few."""
        self.release(min(COPIES * devices - 1, max(0, self.ring.n_slots - 3)))

    def release(self, keep):
        """Release finished copies; wait until at most `keep` batches are in flight."""
        with self.lock.here():
            while self.in_flight and (len(self.in_flight) > keep or self.in_flight[0][0].query()):
                self.in_flight[0][0].synchronize()
                self.in_flight.popleft()

    def finish(self):
        """Wait for all copies and release their batches. Any thread may call it: graph captures stay valid."""
        with self.host.thread():
            self.release(0)

    def close(self):
        """Wait for the copies, and undo all registrations; the segment may then be unmapped."""
        with self.lock.here():
            self.closed = True
            # A failed device raises at every call, and the first error has been raised already.
            with contextlib.suppress(RuntimeError):
                self.finish()
            self.in_flight.clear()
            for slot in list(self.registered):
                with contextlib.suppress(RuntimeError):
                    self._take_back(slot)
