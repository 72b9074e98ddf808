"""Each test runs with torch's own class, too, to show that the test expects torch's behaviour.

These runs do not test slipring, so only `make test-all` includes them.
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
