"""Slots as pinned memory: registered with the device, and not released while it reads from them."""

import collections
import contextlib

from slipring._core.process import ForkLock

# Copies queued per device before the oldest is waited for: one that runs, and one behind it.
COPIES = 2


class RegisteredSlots:
    """The slots of one segment that devices copy from; it lives as long as the segment.

    No view of a registered slot is handed out. torch guards ``x.to(device, non_blocking=True)`` only if it has pinned
    the memory itself, so the slot would be refilled during the copy. `host` is the object of
    `slipring.torch.device.cuda` that registers; every device of its type can read what it has registered.
    """

    def __init__(self, ring, host):
        self.ring, self.host = ring, host
        self.registered = {}  # slot -> (address, bytes)
        self.refused = None  # why a slot is not
        self.in_flight = collections.deque()  # (event, what lies in slots), oldest first
        self.closed = False
        # A thread that hangs in a transform at an epoch's end is left behind, and may come back.
        self.lock = ForkLock()

    @property
    def registered_bytes(self):
        """int: bytes registered, of all slots."""
        return sum(nbytes for _, nbytes in list(self.registered.values()))

    def cover(self, slot):
        """Register all memory that a slot has now; return its addresses as a range, an empty one if refused.

        No copy reads from there, because the slot has just been taken.
        """
        address, nbytes = self.ring.slot_memory(slot)
        with self.lock.here():
            known = self.registered.get(slot)
            if known != (address, nbytes) and not self.closed and (self.refused is None or known is not None):
                self._take_back(slot)  # it has grown; a copy must not span two registrations
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
        """Keep a batch, whose slots are leased, until the copies before `event` are done."""
        with self.lock.here():
            self.in_flight.append((event, value))
            if self.closed:
                self.release(0)

    def make_room(self, devices):
        """Before a batch is taken, release what has been copied, and wait if free slots would become few."""
        self.release(min(COPIES * devices - 1, max(0, self.ring.n_slots - 3)))

    def release(self, keep):
        """Release what has been copied; wait until no more than `keep` batches are in flight."""
        with self.lock.here():
            while self.in_flight and (len(self.in_flight) > keep or self.in_flight[0][0].query()):
                self.in_flight[0][0].synchronize()
                self.in_flight.popleft()

    def finish(self):
        """Wait for all copies, and release what they read. Any thread may call it: captures of graphs stay valid."""
        with self.host.thread():
            self.release(0)

    def close(self):
        """Wait for the copies, and undo all registrations: afterwards the segment may be unmapped."""
        with self.lock.here():
            self.closed = True
            # A device that has failed says so at every call; what it was told last has been raised already.
            with contextlib.suppress(RuntimeError):
                self.finish()
            self.in_flight.clear()
            for slot in list(self.registered):
                with contextlib.suppress(RuntimeError):
                    self._take_back(slot)
