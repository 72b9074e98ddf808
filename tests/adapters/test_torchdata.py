"""slipring.adapters.torchdata: behaviour that users of torchdata 0.11 rely on; torchdata's own class is tested too."""

import dataclasses
import inspect
import json

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring import Workers  # noqa: E402
from slipring.adapters import torchdata as adapter  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.adapters.stateful import CountsEpochs, Drawing, Own, made  # noqa: E402
from tests.support.datasets import after  # noqa: E402

# torchdata's own use of torch causes warnings, and so does fast-forwarding in both classes.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

SETTINGS = [(0, False), (2, False), (2, True)]


# ---- the adapter


def test_the_arguments_stand_where_torchdata_has_them():
    theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")
    wanted = list(inspect.signature(theirs.StatefulDataLoader.__init__).parameters.values())
    ours = list(inspect.signature(adapter.StatefulDataLoader.__init__).parameters.values())
    assert [(p.name, p.kind, p.default) for p in ours[: len(wanted)]] == [(p.name, p.kind, p.default) for p in wanted]
    assert set(theirs.__all__) <= set(adapter.__all__)


def test_a_loader_is_torchs_ours_and_stateful():
    loader = adapter.StatefulDataLoader(range(24))
    assert isinstance(loader, data.DataLoader) and isinstance(loader, DataLoader)
    assert isinstance(loader, adapter.Stateful) and isinstance(Drawing(), adapter.Stateful)
    assert not isinstance(range(24), adapter.Stateful)


def test_the_signature_names_every_argument_for_clients_that_make_loaders_again():
    ours, torchs = (dict(inspect.signature(one).parameters) for one in (adapter.StatefulDataLoader, DataLoader))
    assert ours.pop("snapshot_every_n_steps").default == 1 and list(ours.items()) == list(torchs.items())
    parameters = inspect.signature(adapter.StatefulDataLoader).parameters
    workers = Workers(on_death="respawn", max_restarts=7)
    loader = adapter.StatefulDataLoader(range(24), 4, shuffle=True, workers=workers, snapshot_every_n_steps=3)
    given = {name: getattr(loader, name) for name in parameters if name not in ("shuffle", "batch_sampler")}
    again = adapter.StatefulDataLoader(**given)
    assert again.workers == dataclasses.replace(workers, snapshot_every_n_steps=3)
    assert again.sampler is loader.sampler
    again.snapshot_every_n_steps = 5
    assert again.workers == dataclasses.replace(workers, snapshot_every_n_steps=5)


# ---- torchdata's order


@pytest.mark.parametrize(("setting", "batch_size"), [((0, False), None), ((0, False), 5), ((2, True), 5)])
def test_three_shuffled_epochs_and_their_draws_are_torchdatas_to_the_bit(setting, batch_size):
    theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")

    def epochs(cls):
        loader = made(cls, Drawing(), setting, seed=5, shuffle=True, batch_size=batch_size)
        found = [list(loader) for _ in range(3)]
        # With workers, torchdata draws an order that it does not use.
        return [[drawn for batch in epoch for _, drawn in batch] for epoch in found] if setting[0] else found

    assert epochs(adapter.StatefulDataLoader) == epochs(theirs.StatefulDataLoader)


@pytest.mark.parametrize(("setting", "n"), [((0, False), 3), ((2, False), 8), ((2, True), 0)])
def test_without_a_generator_the_order_of_later_epochs_is_in_the_state_too(stateful, setting, n):
    loader = made(stateful, range(24), setting, seed=5, shuffle=True, batch_size=3)
    state, rest = after(loader, n)
    expected = [rest, list(loader), list(loader)]
    other = made(stateful, range(24), setting, seed=6, shuffle=True, batch_size=3)
    other.load_state_dict(state)
    epochs = [list(other) for _ in range(3)]
    # (At the end, torchdata's state is that of a finished epoch, or of one without remaining batches.)
    assert epochs == expected or (n == 8 and epochs[:2] == expected[1:])


@pytest.mark.parametrize(
    ("arguments", "batch_size"), [({}, 5), ({"replacement": True, "num_samples": 70}, 1), ({"num_samples": 50}, 5)]
)
def test_a_random_sampler_takes_torchdatas_arguments_and_gives_its_order(arguments, batch_size):
    theirs = pytest.importorskip("torchdata.stateful_dataloader.sampler", reason="torchdata is compared with")

    def epochs(kind):
        torch.manual_seed(4)
        sampler = kind(range(20), **arguments)
        return [list(sampler) for _ in range(3)], len(sampler)

    assert epochs(adapter.RandomSampler) == epochs(theirs.RandomSampler)
    for wrong in ({"replacement": 1}, {"num_samples": 0}):
        for kind in (adapter.RandomSampler, theirs.RandomSampler):
            with pytest.raises((TypeError, ValueError), match="should be a"):
                kind(range(9), **wrong)

    def loader():
        sampler = adapter.RandomSampler(range(20), **arguments, generator=torch.Generator().manual_seed(3))
        return adapter.StatefulDataLoader(range(20), batch_size, sampler=sampler)

    one, other = loader(), loader()
    iterator = iter(one)
    next(iterator), next(iterator)
    other.load_state_dict(one.state_dict())
    assert [b.tolist() for b in other] == [b.tolist() for b in iterator]


@pytest.mark.parametrize(("num_workers", "taken"), [(0, 3), (2, 0), (2, 1), (2, 5)])
def test_a_distributed_sampler_continues_as_torchdatas(num_workers, taken):
    theirs = pytest.importorskip("torchdata.stateful_dataloader.sampler", reason="torchdata is compared with")
    sampler = adapter.StatefulDistributedSampler(range(20), num_replicas=2, rank=1)
    original = theirs.StatefulDistributedSampler(range(20), num_replicas=2, rank=1)
    assert list(sampler) == list(original)
    assert sampler.state_dict() == original.state_dict() == {"yielded": 10}
    for one in (sampler, original):
        one.load_state_dict({"yielded": 4})
        with pytest.raises(ValueError):
            one.load_state_dict({})
        with pytest.raises(ValueError):
            one.load_state_dict({"yielded": -1})
    assert list(sampler) == list(original) and len(list(sampler)) == 10

    def loader():
        sampler = adapter.StatefulDistributedSampler(range(20), num_replicas=2, rank=1)
        return adapter.StatefulDataLoader(range(20), 2, sampler=sampler, num_workers=num_workers)

    first, second = loader(), loader()
    iterator = iter(first)
    for _ in range(taken):
        next(iterator)
    second.load_state_dict(first.state_dict())
    assert [b.tolist() for b in second] == [b.tolist() for b in iterator]
    assert len(list(second)) == 5


# ---- states


@pytest.mark.parametrize(
    ("setting", "n", "batch_size"),
    [((0, False), 1, None), ((0, False), 5, 2), ((2, False), 0, 2), ((2, True), 5, None)],
)
def test_a_stateful_map_dataset_continues_with_or_without_batching(stateful, setting, n, batch_size):
    state, rest = after(made(stateful, Drawing(), setting, seed=5, batch_size=batch_size), n)
    other = made(stateful, Drawing(), setting, seed=6, batch_size=batch_size)
    other.load_state_dict(state)
    assert [s[0] if batch_size is None else [i for i, _ in s] for s in other] == (
        [s[0] if batch_size is None else [i for i, _ in s] for s in rest]
    )
    if setting == (0, False):  # with workers, prefetched samples have drawn too
        other.load_state_dict(state)
        assert list(other) == rest


@pytest.mark.parametrize(("setting", "n"), [((0, False), 7), ((2, False), 1), ((2, True), 0)])
def test_a_dataset_that_is_its_own_iterator_is_reported_once_it_iterates(stateful, setting, n):
    state, rest = after(made(stateful, Own(), setting), n)
    other = made(stateful, Own(), setting)
    other.load_state_dict(state)
    assert list(other) == rest
    assert json.dumps(state).count('"left"') <= max(1, setting[0])  # once, and not also as the dataset's state


@pytest.mark.parametrize(("saved", "loads"), [(0, 2), (2, 0), (2, 3)])
def test_a_state_of_another_number_of_workers_is_an_assertion_error(stateful, saved, loads):
    state, _ = after(made(stateful, Own(), (saved, False)), 3)
    other = made(stateful, Own(), (loads, False))
    with pytest.raises(AssertionError):
        other.load_state_dict(state)
        iter(other)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_dataset_that_counts_its_epochs_goes_on_counting_where_it_lives_on(stateful, setting):
    loader = made(stateful, CountsEpochs(), setting, batch_size=2)
    first = list(loader)
    state = loader.state_dict()
    expected = [list(loader), list(loader)]
    other = made(stateful, CountsEpochs(), setting, batch_size=2)
    next(iter(other))
    other.load_state_dict(state)
    assert [list(other), list(other)] == expected
    counted = [epoch[0][0][0] for epoch in (first, *expected)]
    # New workers start with the loader's dataset.
    assert counted == ([0, 0, 0] if setting == (2, False) else [0, 1, 2])
