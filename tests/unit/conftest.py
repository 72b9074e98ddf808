import pytest

from tests.trip import Trip


@pytest.fixture
def trip():
    """A segment of four slots, used by one process as consumer and worker."""
    trip = Trip()
    yield trip
    trip.end()
