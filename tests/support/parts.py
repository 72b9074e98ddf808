"""Which cases of a costly test `make test` runs, and which are left to `make test-all`."""

import pytest


def slow(*values):
    """A case for `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.slow)


def one_fast(cases):
    """The first for `make test`; the others take the same way in the main, and as long."""
    first, *others = cases
    return [first, *map(slow, others)]


def fast(cases, *chosen):
    """Mark all cases as slow except the chosen ones."""
    return [case if case in chosen else slow(case) for case in cases]
