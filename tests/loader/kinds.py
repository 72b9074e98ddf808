"""Kinds of loaders that can read the samples of a batch concurrently."""

import pytest

KINDS = {
    "processes": {"num_workers": 2},
    "spawn": {"num_workers": 1, "start_method": "spawn"},
    "threads": {"num_workers": 2, "start_method": "thread"},
    "none": {"num_workers": 0},
    "ranges": {"num_workers": 2, "chunk_size": 4},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
