"""What an iteration has dispatched and not yet delivered.

A chain through the slots: a dict of tickets costs a batch some forty lines of code that nobody else has in
the caches.
"""

cimport cython
from libc.stdint cimport uint32_t


@cython.final
@cython.no_gc
@cython.freelist(16)
@cython.auto_pickle(False)
cdef class Task:
    """One dispatched ticket."""


@cython.final
@cython.auto_pickle(False)
cdef class InFlight:
    """Tasks, in the order in which they were dispatched; `n` of them.

    Parameters
    ----------
    slots : int
        Of the segment.
    """

    def __init__(self, slots):
        self.by_slot = [None] * slots
        self.first = self.last = -1

    cdef int add(self, Task task) except -1:
        """Add what has just been dispatched."""
        task.before, task.behind = self.last, -1
        if self.last < 0:
            self.first = <int> task.slot
        else:
            (<Task> self.by_slot[self.last]).behind = <int> task.slot
        self.last = <int> task.slot
        self.by_slot[task.slot] = task
        self.n += 1
        return 0

    cdef Task remove(self, uint32_t slot):
        """Take out, and return, the task that lies in a slot; None: there is none."""
        cdef Task task = <Task> self.by_slot[slot]
        if task is None:
            return None
        if task.before < 0:
            self.first = task.behind
        else:
            (<Task> self.by_slot[task.before]).behind = task.behind
        if task.behind < 0:
            self.last = task.before
        else:
            (<Task> self.by_slot[task.behind]).before = task.before
        self.by_slot[slot] = None
        self.n -= 1
        return task

    cdef Task oldest(self):
        """The one that was dispatched first; None if there is none."""
        return None if self.first < 0 else <Task> self.by_slot[self.first]

    cdef list all(self):
        """All of them; a list of its own."""
        cdef list found = []
        cdef int slot = self.first
        while slot >= 0:
            found.append(self.by_slot[slot])
            slot = (<Task> self.by_slot[slot]).behind
        return found
