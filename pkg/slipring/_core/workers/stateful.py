"""Query Stateful objects for their states, by torchdata's protocol: ``state_dict`` and ``load_state_dict``."""

import contextlib
import copy
import inspect
import pickle
import traceback

from slipring._core.ring._check import from_handler


def is_stateful(thing):
    """Return whether an object can save and load its position, as torchdata's Stateful protocol says."""
    save = getattr(thing, "state_dict", None)
    return callable(save) and callable(getattr(thing, "load_state_dict", None)) and not _needs_arguments(save)


def _needs_arguments(function):
    """Return whether a Python function or method cannot be called without arguments."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    needed = code.co_argcount - inspect.ismethod(function) - len(function.__defaults__ or ())
    return needed > 0 or code.co_kwonlyargcount > len(function.__kwdefaults__ or ())


def stateful_parts(dataset, iterator):
    """Return [(name, object)] of a dataset and its iterator, if they are Stateful; one that is both comes once."""
    parts = (("dataset", None if dataset is iterator else dataset), ("iterator", iterator))
    return [(name, part) for name, part in parts if is_stateful(part)]


def states_of(parts):
    """Return {name: state} of the objects that `stateful_parts` returned."""
    return {name: part.state_dict() for name, part in parts}


def copied(value):
    """Return a copy that does not change with the original, or `value` itself if it cannot be copied."""
    for copy_of in (lambda: pickle.loads(pickle.dumps(value)), lambda: copy.deepcopy(value)):
        with contextlib.suppress(Exception):
            return copy_of()
    return value


class StateError:
    """The text of an error that a worker sends in place of a state; it is raised when the state is needed.

    The worker could not query the state, or could not pickle it.
    """

    def __init__(self, text):
        self.text = text


def pickled_states(parts, last=False, generators=None):
    """Return the pickled states of the objects from `stateful_parts`, or None if there are none.

    If a state cannot be queried or pickled, return a pickled `StateError`. `last`: no batch follows, and the dataset
    may already be at its beginning again. `generators` returns the state of the generators, for `seeding.go_on`.
    """
    if not parts:
        return None
    try:
        states = states_of(parts)
        if last:
            states["last"] = True
        if generators is not None:
            states["generators"] = generators()
        return pickle.dumps(states)
    except Exception:  # this must not cost a batch
        return pickle.dumps(StateError(traceback.format_exc()))


class SnapshotInterval:
    """The choice of the batches with which a worker sends a state.

    These are the first batch of an iteration, then one in `n` of all workers' batches. With `n` = 0 it is only the
    first.
    """

    def __init__(self, n):
        self.n = n
        self.at = None

    def due(self, seq):
        """Return whether a state goes with this batch; if so, the next one is due `n` batches later."""
        at = self._group(seq)
        due, self.at = at != self.at, at
        return due

    def go_on(self, seq):
        """Continue after the last task that an earlier iteration delivered: states are due as in that iteration."""
        self.at = self._group(seq)

    def _group(self, seq):
        return (seq + 1) // self.n if self.n else 0


def attempt(function, *arguments):
    """Return (a function's result, None) or (None, its exception). The exception of a signal handler is raised."""
    try:
        return function(*arguments), None
    except Exception as error:
        if from_handler(error):
            raise
        return None, error
