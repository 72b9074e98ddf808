"""States are compared with torchdata's if it is installed."""

import pytest

from tests.support.parts import slow


@pytest.fixture(params=[slow("torchdata"), "slipring"])
def stateful(request):
    """The class under test, of the loaders that have a state."""
    if request.param == "torchdata":
        module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")
        return module.StatefulDataLoader
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    return DataLoader
