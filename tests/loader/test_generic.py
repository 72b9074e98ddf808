"""What all classes of loaders share: the type of batches in brackets; any default of multiprocessing."""

import copy
import importlib
import multiprocessing
import pickle

import numpy as np
import pytest

from tests.support.datasets import Squares

CLASSES = ["slipring.Loader", "slipring.torch.DataLoader", "slipring.adapters.torchdata.StatefulDataLoader"]


@pytest.fixture(params=CLASSES)
def kind(request):
    """Each generic class."""
    module, _, name = request.param.rpartition(".")
    if module != "slipring":
        pytest.importorskip("torch")
    return getattr(importlib.import_module(module), name)


def lists(loader):
    """Return the sample numbers of one pass, batch by batch."""
    return [which.tolist() for _, which in loader]


def test_a_class_with_its_batchs_type_makes_loaders_that_are_copied_and_derived_as_any_other(kind):
    class Typed(kind[np.ndarray]):
        pass

    loader = kind[tuple[np.ndarray, int]](Squares(6), 3)
    assert type(loader) is kind and isinstance(loader, kind) and issubclass(Typed, kind)
    for made in (loader, pickle.loads(pickle.dumps(loader)), copy.copy(loader), Typed(Squares(6), 3)):
        assert lists(made) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_start_method_that_multiprocessing_does_not_have_is_ignored(kind, num_workers, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "loky")
    with kind(Squares(4), 2, num_workers=num_workers) as loader:
        assert lists(loader) == [[0, 1], [2, 3]]
