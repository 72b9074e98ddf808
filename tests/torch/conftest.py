"""Each test runs with torch's own class too: passing there shows that it asks for torch's behaviour."""

import pytest


@pytest.fixture(params=["torch", "slipring"])
def make(request):
    """The class under test."""
    if request.param == "torch":
        return pytest.importorskip("torch").utils.data.DataLoader
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    return DataLoader


@pytest.fixture(params=["torchdata", "slipring"])
def stateful(request):
    """The class under test, of those that have a state."""
    if request.param == "torchdata":
        module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")
        return module.StatefulDataLoader
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    return DataLoader
