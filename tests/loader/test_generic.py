"""A loader's class takes the type of its batches in brackets, for type checkers only."""

import copy
import importlib
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


def test_a_loader_made_by_a_class_with_its_batchs_type_is_of_that_class(kind):
    loader = kind[np.ndarray](Squares(6), 3, num_workers=2)
    assert type(loader) is kind and isinstance(loader, kind)
    assert lists(loader) == lists(kind(Squares(6), 3))


def test_it_is_pickled_and_copied_as_any_other(kind):
    loader = kind[tuple[np.ndarray, int]](Squares(6), 3)
    for made in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
        assert type(made) is kind
        assert lists(made) == lists(loader)


def test_a_class_is_derived_with_a_type_and_without(kind):
    class Typed(kind[np.ndarray]):
        pass

    class Plain(kind):
        pass

    for derived in (Typed, Plain):
        assert issubclass(derived, kind)
        assert lists(derived(Squares(6), 3)) == lists(kind(Squares(6), 3))


def test_an_iterator_knows_nothing_of_types(kind):
    assert type(iter(kind[int](Squares(2)))) is type(iter(kind(Squares(2))))
