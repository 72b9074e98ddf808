"""Intended leaks: the soak must notice each."""

import os
import threading

import numpy as np


class Plant:
    """A leak: `turn` is called once per turn, `batch` with each batch of the residents."""

    hoard = False  # the dataset leaks, in the worker

    def __init__(self):
        self.kept = []

    def turn(self):
        pass

    def batch(self, batch):
        pass

    def end(self):
        """Release all, so that the process can end."""
        self.kept.clear()


class Descriptor(Plant):
    def turn(self):
        self.kept.append(os.memfd_create("planted"))

    def end(self):
        for fd in self.kept:
            os.close(fd)


class Thread(Plant):
    def turn(self):
        gate = threading.Event()
        thread = threading.Thread(target=gate.wait)
        thread.start()
        self.kept.append((gate, thread))

    def end(self):
        for gate, thread in self.kept:
            gate.set()
            thread.join()


class Array(Plant):
    def batch(self, batch):
        self.kept.append(np.ones(512))


class Lease(Plant):
    at = 0

    def batch(self, batch):
        self.at += 1
        if self.at % 100 == 0:
            self.kept.append(batch)


class InWorker(Plant):
    hoard = True


PLANTS = {"descriptor": Descriptor, "thread": Thread, "array": Array, "lease": Lease, "worker": InWorker}
