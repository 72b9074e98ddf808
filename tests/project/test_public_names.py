"""The public names are exactly these."""

import importlib
import inspect
import pickle

import pytest

import slipring
from slipring import errors
from slipring._core.ring import text

NAMES = (
    "BatchSampler Broadcast Cache CacheStats Loader LoaderTimeout Memory Queue QueueStats SegmentFull SlipringError "
    "Stats Storage StringList WorkerDied WorkerError WorkerInfo Workers __version__ cached default_collate empty "
    "get_worker_info progress replay rng stream"
)


def test_the_public_names_are_these_and_documented():
    assert slipring.__all__ == NAMES.split() == sorted(slipring.__all__)
    for name in slipring.__all__:
        assert name == "__version__" or (getattr(slipring, name).__doc__ or "").strip(), name


PUBLIC = (
    "slipring", "slipring.arrow", "slipring.broadcast", "slipring.cache", "slipring.clips", "slipring.errors",
    "slipring.images",
    "slipring.images.functional", "slipring.monitor", "slipring.queue",
    "slipring.ray", "slipring.streams", "slipring.tokens", "slipring.torch", "slipring.typing",
    "slipring.adapters.di_engine", "slipring.adapters.megengine", "slipring.adapters.paddle",
    "slipring.adapters.torchdata", "slipring.adapters.webdataset",
)  # fmt: skip


# A compiled class names the module that defines it; a Slot is never pickled.
@pytest.mark.parametrize("module", PUBLIC)
def test_public_objects_have_public_places_and_are_pickled_by_them(module):
    if module in ("slipring.ray", "slipring.torch", "slipring.adapters.di_engine", "slipring.adapters.torchdata"):
        pytest.importorskip("torch")
    public = pytest.importorskip(module, exc_type=ImportError)
    for name in public.__all__:
        value = getattr(public, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            home = importlib.import_module(value.__module__)
            assert (value.__module__ in PUBLIC and name in home.__all__) or value is slipring.queue.Slot, (name, home)
            assert pickle.loads(pickle.dumps(value)) is value, name


def test_every_error_is_in_errors_and_drawn_in_its_tree():
    raised = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert set(errors.__all__) == raised
    assert errors.__all__ == sorted(errors.__all__)
    for name in raised - {"WorkerMemoryWarning"}:
        assert name in errors.__doc__, name


def test_a_name_that_never_was_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'slipring' has no attribute 'Lodaer'"):
        slipring.Lodaer  # noqa: B018


def test_the_exceptions_can_be_caught_by_the_classes_that_users_expect():
    assert issubclass(errors.LoaderTimeout, TimeoutError) and issubclass(errors.LoaderTimeout, RuntimeError)
    for name in ("LoaderTimeout", "WorkerError", "WorkerDied", "SlotsExhausted", "Closed"):
        assert issubclass(getattr(errors, name), RuntimeError), name
    assert issubclass(errors.BatchTooLarge, ValueError)
    for name in errors.__all__:
        kind = getattr(errors, name)
        if not issubclass(kind, Warning):
            assert issubclass(kind, errors.SlipringError), name


def test_both_ways_to_be_without_a_slot_are_caught_by_the_name_they_once_shared():
    assert issubclass(errors.SlotsHeld, errors.SlotsExhausted)
    assert issubclass(errors.SlotLost, errors.SlotsExhausted)
    assert not issubclass(errors.SlotLost, errors.SlotsHeld) and not issubclass(errors.SlotsHeld, errors.SlotLost)
    held = pickle.loads(pickle.dumps(text.slots_held(18, 0)))
    assert type(held) is errors.SlotsHeld and (held.slots, held.held) == (18, 18)
