"""A fake device: streams and events whose work is delayed until a thread waits for it.

It is the slowest device that keeps the rules, and so shows each breach of them: a copy reads its source when
it is carried out, not when it is queued; a read that is not ordered after the copy gets rubbish. The device
keeps account of registrations, and of the streams that may use each memory. Tensors lie in host memory.
"""

import contextlib
import ctypes
import threading

import torch

from tests.support.processes import LONG_S

RUBBISH = 0xA5


class Stream:
    """Work in order. It runs only when a thread waits for it."""

    def __init__(self, lab):
        self.lab, self.work = lab, []

    def wait_stream(self, other):
        event = Event(self.lab)
        event.record(other)
        self.wait_event(event)

    def wait_event(self, event):
        self.work.append(event)  # later work waits for it

    def advance(self, until):
        """Do all work up to the event `until` (None: all), and the work that it waits for."""
        while self.work:
            piece = self.work.pop(0)
            if isinstance(piece, Event):
                if piece.stream is not self:
                    piece.complete()
                piece.reached = piece.reached or piece.stream is self
                if piece is until:
                    return
            else:
                piece()


class Event:
    """A mark in a stream."""

    def __init__(self, lab):
        self.lab, self.stream, self.reached = lab, None, False

    def record(self, stream):
        self.stream = stream
        stream.work.append(self)

    def complete(self):
        with self.lab.lock:
            if not self.reached:
                self.stream.advance(self)

    def query(self):
        self.lab.check_allowed()
        self.lab.queries += 1
        if self.lab.quick:
            self.complete()
        return self.reached

    def synchronize(self):
        self.lab.check_allowed()
        self.lab.synchronized += 1
        self.complete()


class Lab:
    """All devices of a test, and their behaviour.

    Attributes
    ----------
    quick : bool
        Work runs as soon as a thread queries it, not only when a thread waits.
    capturing : bool
        A thread captures a graph: a thread that is not in relaxed mode must not wait.
    fail_at : set of int
        Which copies of a leaf fail, counted from 0.
    refuse : str or None
        The reason why memory cannot be registered.
    pci_addresses : list of str or None
        By the devices' numbers.
    """

    def __init__(self):
        self.lock = threading.RLock()
        self.changed = threading.Condition()
        self.main = threading.local()
        self.quick, self.refuse, self.fail_at, self.pci_addresses = False, None, set(), [None]
        self.capturing = False
        self.broken = False  # copies in flight are lost
        self.copies = self.staged = self.queries = self.synchronized = self.streams = 0
        self.idle = []  # copy streams that are not in use
        self.registered, self.registrations = {}, []
        self.pending = []  # (address, bytes) of copies that have not run
        self.users = {}  # id of a tensor on the device -> (tensor, streams that record its use)

    def stream(self):
        """Return the calling thread's stream."""
        if not hasattr(self.main, "stream"):
            self.main.stream = Stream(self)
        return self.main.stream

    def read(self, tensor):
        """Return the contents of a tensor for a kernel of the calling thread: queue the read, and wait for it."""
        found = []
        stream = self.stream()
        assert stream in self.users[id(tensor)][1], "its memory may be given away before this stream is done"
        with self.lock:
            stream.work.append(lambda: found.append(tensor.clone()))
            stream.advance(None)
        return found[0]

    def check_allowed(self):
        """Assert that the calling thread may wait: while a graph is captured, only in relaxed mode."""
        assert not self.capturing or getattr(self.main, "relaxed", False), "the capture would fail"

    def check_readable(self, tensor):
        """Assert that a device could read a host tensor: one registration contains it."""
        first, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        inside = any(a <= first and end <= a + n for a, n in self.registered.items())
        assert inside or not tensor.nbytes, "not in one registration"

    def await_copies(self, n):
        """Wait until `n` copies have been queued in total."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.copies >= n, LONG_S), f"{self.copies} copies, not {n}"


class Double:
    """The counterpart of `slipring.torch.device.cuda.Accelerator`, over a `Lab`."""

    copies = True

    def __init__(self, lab, device):
        self.lab, self.device = lab, device

    @property
    def pci_address(self):
        return self.lab.pci_addresses[self.device.index or 0]

    @contextlib.contextmanager
    def thread(self):
        main = self.lab.main
        before, main.relaxed = getattr(main, "relaxed", False), True
        try:
            yield
        finally:
            main.relaxed = before

    def take_stream(self):
        if self.lab.idle:
            return self.lab.idle.pop()
        self.lab.streams += 1
        return Stream(self.lab)

    def give_stream(self, stream):
        self.lab.idle.append(stream)

    def current_stream(self):
        return self.lab.stream()

    def new_event(self):
        return Event(self.lab)

    @contextlib.contextmanager
    def on(self, stream):
        before, self.lab.main.stream = self.lab.stream(), stream
        try:
            yield
        finally:
            self.lab.main.stream = before

    def copy(self, tensor):
        lab, stream = self.lab, self.lab.stream()
        with lab.changed:
            number, lab.copies = lab.copies, lab.copies + 1
            lab.changed.notify_all()
        if number in lab.fail_at:
            raise MemoryError(f"the device has no memory for copy {number}")
        made = torch.empty_like(tensor)
        made.untyped_storage().fill_(RUBBISH)
        staged = getattr(tensor, "staged", False)
        if not staged:
            lab.check_readable(tensor)
        # By address: a device keeps no memory alive, but torch keeps its own pinned blocks.
        source, kept = (tensor.data_ptr(), tensor.nbytes), tensor if staged else None
        lab.pending.append(source)

        def carry_out():
            ctypes.memmove(made.data_ptr(), *source)
            lab.pending.remove(source)
            return kept

        stream.work.append(carry_out)
        lab.users[id(made)] = (made, {stream})
        return made

    def stage(self, tensor):
        self.lab.staged += 1
        made = tensor.clone()
        made.staged = True
        return made

    def mark_use(self, tensor, stream):
        assert self.owns(tensor), "record_stream is for tensors of the device only"
        self.lab.users[id(tensor)][1].add(stream)

    def owns(self, tensor):
        return id(tensor) in self.lab.users

    def register(self, address, nbytes):
        lab = self.lab
        if lab.refuse is not None:
            return lab.refuse
        end = address + nbytes
        assert not any(a < end and address < a + n for a, n in lab.registered.items()), "registered twice"
        lab.registered[address] = nbytes
        lab.registrations.append((address, nbytes))
        return None

    def unregister(self, address):
        ctypes.string_at(address, 1)  # a crash here means that it is no longer mapped
        end = address + self.lab.registered[address]
        in_flight = [1 for a, _ in self.lab.pending if address <= a < end]
        assert self.lab.broken or not in_flight, "a copy from there is in flight"
        del self.lab.registered[address]
