"""Registries of living objects: those that must be ended at exit, and the loaders whose figures are exported."""

import itertools
import weakref


class WeakRegistry:
    """A set of weak references that runs no Python code when one of its objects is freed.

    `weakref.WeakSet` does, and an exception that a signal handler raises there (such as KeyboardInterrupt) is lost: a
    reference's callback cannot raise. An iteration is freed at each end of a loop over a loader.
    """

    def __init__(self):
        self._references = set()

    def add(self, thing):
        """Include an object as long as it lives."""
        self._references.add(weakref.ref(thing, self._references.discard))

    def discard(self, thing):
        """Remove an object if it is included."""
        self._references.discard(weakref.ref(thing))

    def __contains__(self, thing):
        return weakref.ref(thing) in self._references

    def __iter__(self):
        """Iterate over the objects that live now; concurrent changes do not matter."""
        return iter([thing for reference in list(self._references) if (thing := reference()) is not None])


_numbers = itertools.count()
_loaders = {}  # number -> weak reference, in the order in which the loaders were made


def register(loader):
    """Include a loader in `loaders` as long as it lives."""
    # Neither a callback (an exception that a signal handler raises in one is lost) nor a lock (a fork would leave it
    # locked).
    for number, reference in list(_loaders.items()):
        if reference() is None:
            _loaders.pop(number, None)
    _loaders[next(_numbers)] = weakref.ref(loader)


def loaders():
    """Return {number: loader} of the loaders of this process that live now."""
    return {number: loader for number, reference in list(_loaders.items()) if (loader := reference()) is not None}


def number_of(loader):
    """Return a loader's number; a new one if it is not registered."""
    found = [number for number, each in loaders().items() if each is loader]
    return found[0] if found else next(_numbers)
