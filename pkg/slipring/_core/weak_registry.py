"""A registry of living objects that must be ended at exit: iterations, engines and threads."""

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
