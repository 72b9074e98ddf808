"""Markers of the cases of a costly test that only `make test-all` runs."""

import pytest


def slow(*values):
    """Return a case that only `make test-all` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def one_fast(cases):
    """Mark all cases but the first as slow: they take mostly the same code paths, and as much time."""
    first, *others = cases
    return [first, *map(slow, others)]


def fast(cases, *chosen):
    """Mark all cases as slow except the chosen ones."""
    return [case if case in chosen else slow(case) for case in cases]
