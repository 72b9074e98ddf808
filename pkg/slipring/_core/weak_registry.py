"""A registry of living objects that must be ended at exit: iterations, engines and threads."""

import weakref


class WeakRegistry:
    """A set of weak references that runs no Python code when one of its objects goes.

    `weakref.WeakSet` does, and what a signal's handler raises there (Ctrl-C's KeyboardInterrupt) is lost: nobody
    can raise from a reference's callback. An iteration goes at each end of a loop over a loader.
    """

    def __init__(self):
        self._references = set()

    def add(self, thing):
        """Have it in the set for as long as it lives."""
        self._references.add(weakref.ref(thing, self._references.discard))

    def discard(self, thing):
        """Take it out, if it is there."""
        self._references.discard(weakref.ref(thing))

    def __contains__(self, thing):
        return weakref.ref(thing) in self._references

    def __iter__(self):
        """Go through those that live now; what comes or goes meanwhile does not matter."""
        return iter([thing for reference in list(self._references) if (thing := reference()) is not None])
