"""The start of workers if a library has changed multiprocessing's default."""

import multiprocessing

import pytest

from slipring.loader import Loader


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_ignores_a_start_method_that_multiprocessing_does_not_have(num_workers, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "loky")
    with Loader(range(4), 2, num_workers=num_workers) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_loader_ignores_a_start_method_that_multiprocessing_does_not_have(num_workers, monkeypatch):
    torch_loader = pytest.importorskip("slipring.torch").DataLoader
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "loky")
    with torch_loader(range(4), 2, num_workers=num_workers) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
