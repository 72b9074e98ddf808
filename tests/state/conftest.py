"""States are compared with torchdata's, where it is installed."""

import pytest

from tests.support.parts import slow


@pytest.fixture(params=[slow("torchdata"), "slipring"])
def stateful(request):
    """The class under test, of those that have a state."""
    if request.param == "torchdata":
        module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")
        return module.StatefulDataLoader
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    return DataLoader
