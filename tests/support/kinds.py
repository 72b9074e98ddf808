"""Kinds of loaders by the workers that make their batches, as tables for tests."""

import pytest

from slipring import Loader
from tests.support.options import grouped

KINDS = {
    "inline": {"num_workers": 0},
    "fork": {"num_workers": 2, "start_method": "fork"},
    "thread": {"num_workers": 2, "start_method": "thread"},
    "spawn": {"num_workers": 2, "start_method": "spawn"},
    "forkserver": {"num_workers": 2, "start_method": "forkserver"},
    "one fork": {"num_workers": 1, "start_method": "fork"},
    "one thread": {"num_workers": 1, "start_method": "thread"},
    "one spawn": {"num_workers": 1, "start_method": "spawn"},
    "three forks": {"num_workers": 3, "start_method": "fork"},
    "ranges": {"num_workers": 2, "chunk_size": 4},
}


def kinds(*names):
    """Parametrize a test by `kind`: the options of each of these kinds of loaders."""
    return pytest.mark.parametrize("kind", [pytest.param(KINDS[name], id=name) for name in names])


def loading(dataset, *args, **options):
    """Return a `slipring.Loader`; options as in `tests.support.options`."""
    return Loader(dataset, *args, **grouped(**options))


def loaded(dataset, *args, **options):
    """Return all batches of one epoch of a `slipring.Loader`, and close it."""
    with loading(dataset, *args, **options) as loader:
        return list(loader)
