import warnings

import pytest

from tests.trip import Trip


@pytest.fixture
def trip():
    """A segment of four slots, used by one process as consumer and worker."""
    trip = Trip()
    yield trip
    trip.end()


@pytest.fixture
def make():
    """Make slipring.torch's loaders, which are closed in the end."""
    from slipring.torch import DataLoader

    made = []

    def loader(*args, **kwargs):
        made.append(DataLoader(*args, **kwargs))
        return made[-1]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield loader
    for each in made:
        each.close()
