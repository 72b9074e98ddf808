"""Each test runs with torch's own class too: passing there shows that it asks for torch's behaviour.

Ours has no part in that, so it is for `make test-all`.
"""

import pytest

from tests.support.parts import slow


@pytest.fixture(params=[slow("torch"), "slipring"])
def make(request):
    """The class under test."""
    if request.param == "torch":
        return pytest.importorskip("torch").utils.data.DataLoader
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    return DataLoader
