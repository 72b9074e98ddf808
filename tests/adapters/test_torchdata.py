"""slipring.adapters.torchdata: behaviour that users of torchdata 0.11 rely on; torchdata's own class is tested too."""

import dataclasses
import inspect

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring import Memory, Workers  # noqa: E402
from slipring.adapters import torchdata as adapter  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.adapters.stateful import Drawing, Numbers, Own, made  # noqa: E402
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
    loader = adapter.StatefulDataLoader(Numbers())
    assert isinstance(loader, data.DataLoader) and isinstance(loader, DataLoader)
    assert isinstance(loader, adapter.Stateful) and isinstance(Drawing(), adapter.Stateful)
    assert not isinstance(Numbers(), adapter.Stateful)


def test_the_signature_names_every_argument_for_clients_that_make_loaders_again():
    ours, torchs = (dict(inspect.signature(one).parameters) for one in (adapter.StatefulDataLoader, DataLoader))
    assert ours.pop("snapshot_every_n_steps").default == 1 and list(ours.items()) == list(torchs.items())
    parameters = inspect.signature(adapter.StatefulDataLoader).parameters
    workers = Workers(on_death="respawn", max_restarts=7)
    loader = adapter.StatefulDataLoader(Numbers(), 4, shuffle=True, workers=workers, snapshot_every_n_steps=3)
    given = {name: getattr(loader, name) for name in parameters if name not in ("shuffle", "batch_sampler")}
    again = adapter.StatefulDataLoader(**given)
    assert again.workers == dataclasses.replace(workers, snapshot_every_n_steps=3)
    assert again.sampler is loader.sampler


def test_slipring_arguments_follow_by_name():
    with adapter.StatefulDataLoader(
        Numbers(), 4, num_workers=2, workers=Workers(on_death="respawn"), memory=Memory(slots=9)
    ) as loader:
        assert [b.tolist() for b in loader] == [list(range(i, i + 4)) for i in range(0, 24, 4)]
        assert (loader.workers.on_death, loader.stats().slots) == ("respawn", 9)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((Numbers(),), {"no_such": 1}),
        ((Numbers(),), {"dataset": Numbers()}),
        ((Numbers(), 4), {"batch_size": 4}),
        ((Numbers(), *[None] * 13), {}),
    ],
)
def test_wrong_arguments_are_reported_in_the_words_of_any_function(args, kwargs):
    with pytest.raises(TypeError) as ours:
        adapter.StatefulDataLoader(*args, **kwargs)
    with pytest.raises(TypeError) as theirs:
        DataLoader(*args, **grouped(**kwargs))
    assert str(ours.value) == str(theirs.value) and "__init__()" in str(ours.value)


@pytest.mark.parametrize("wrong", [{"bath_size": 3}, {"on_worker_death": "respawn"}])
def test_torchdatas_own_argument_is_not_blamed_for_a_wrong_one(wrong):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(wrong))}'"):
        adapter.StatefulDataLoader(Numbers(), snapshot_every_n_steps=2, **wrong)
    with pytest.raises(TypeError, match=r"workers must be a slipring.Workers, not 5; num_workers= is their number"):
        adapter.StatefulDataLoader(Numbers(), snapshot_every_n_steps=2, workers=5)


def test_the_number_of_steps_is_an_attribute_that_may_be_set():
    loader = adapter.StatefulDataLoader(Numbers(), 4, snapshot_every_n_steps=None, workers=Workers(max_restarts=7))
    assert loader.snapshot_every_n_steps is None
    loader.snapshot_every_n_steps = 3
    assert loader.workers == Workers(max_restarts=7, snapshot_every_n_steps=3)


def test_shuffle_excludes_what_it_excludes_in_torch():
    with pytest.raises(ValueError, match="sampler option is mutually exclusive with shuffle"):
        adapter.StatefulDataLoader(Numbers(), shuffle=True, sampler=range(3))
    with pytest.raises(ValueError, match="expected unspecified shuffle option"):
        adapter.StatefulDataLoader(Own(), shuffle=True)


# ---- torchdata's order


@pytest.mark.parametrize("batch_size", [None, 5])
def test_three_shuffled_epochs_are_torchdatas_to_the_bit(batch_size):
    theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")

    def epochs(cls):
        loader = made(cls, Drawing(), seed=5, shuffle=True, batch_size=batch_size)
        return [list(loader) for _ in range(3)]

    ours = epochs(adapter.StatefulDataLoader)
    assert ours == epochs(theirs.StatefulDataLoader)
    assert ours[0] != ours[1] != ours[2]


@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_workers_draw_the_same_as_torchdatas_workers(setting):
    theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")

    def epochs(cls):
        loader = made(cls, Drawing(), setting, seed=5, shuffle=True, batch_size=5)
        return [[drawn for batch in loader for _, drawn in batch] for _ in range(3)]

    assert epochs(adapter.StatefulDataLoader) == epochs(theirs.StatefulDataLoader)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("n", [0, 3, 8])
def test_without_a_generator_the_order_of_later_epochs_is_in_the_state_too(stateful, setting, n):
    loader = made(stateful, Numbers(), setting, seed=5, shuffle=True, batch_size=3)
    state, rest = after(loader, n)
    expected = [rest, list(loader), list(loader)]
    other = made(stateful, Numbers(), setting, seed=6, shuffle=True, batch_size=3)
    other.load_state_dict(state)
    epochs = [list(other) for _ in range(3)]
    # (At the end, torchdata's state is that of a finished epoch, or of one without remaining batches.)
    assert epochs == expected or (n == 8 and epochs[:2] == expected[1:])


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize(
    "arguments", [{}, {"replacement": True}, {"replacement": True, "num_samples": 70}, {"num_samples": 50}]
)
def test_a_random_sampler_takes_torchdatas_arguments_and_gives_its_order(arguments, batch_size):
    theirs = pytest.importorskip("torchdata.stateful_dataloader.sampler", reason="torchdata is compared with")

    def epochs(kind):
        torch.manual_seed(4)
        sampler = kind(range(20), **arguments)
        return [list(sampler) for _ in range(3)], len(sampler)

    assert epochs(adapter.RandomSampler) == epochs(theirs.RandomSampler)
    generator = torch.Generator().manual_seed(9)
    again = torch.Generator().manual_seed(9)
    assert list(adapter.RandomSampler(range(9), generator=generator)) == list(
        theirs.RandomSampler(range(9), generator=again)
    )
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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
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
