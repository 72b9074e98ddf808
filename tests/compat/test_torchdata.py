"""slipring.compat.torchdata: what users of torchdata 0.11 rely on, asked of torchdata's own class too."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring.compat import torchdata as face  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.compat.stateful import Drawing, Numbers, Own, after, made  # noqa: E402

# torchdata's own use of torch warns, and so does fast-forwarding, there as here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

SETTINGS = [(0, False), (2, False), (2, True)]


# ---- the face


def test_the_arguments_stand_where_torchdata_has_them():
    theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")
    wanted = list(inspect.signature(theirs.StatefulDataLoader.__init__).parameters.values())
    ours = list(inspect.signature(face.StatefulDataLoader.__init__).parameters.values())
    assert [(p.name, p.kind, p.default) for p in ours[: len(wanted)]] == [
        (p.name, p.kind, p.default) for p in wanted
    ]
    assert set(theirs.__all__) <= set(face.__all__)


def test_a_loader_is_torchs_ours_and_stateful():
    loader = face.StatefulDataLoader(Numbers())
    assert isinstance(loader, data.DataLoader) and isinstance(loader, DataLoader)
    assert isinstance(loader, face.Stateful) and isinstance(Drawing(), face.Stateful)
    assert not isinstance(Numbers(), face.Stateful)


def test_the_signature_names_every_argument_for_clients_that_make_loaders_anew():
    assert inspect.signature(face.StatefulDataLoader) == inspect.signature(DataLoader)
    parameters = inspect.signature(face.StatefulDataLoader).parameters
    loader = face.StatefulDataLoader(Numbers(), 4, shuffle=True, on_worker_death="respawn", max_restarts=7)
    given = {name: getattr(loader, name) for name in parameters if name not in ("shuffle", "batch_sampler")}
    again = face.StatefulDataLoader(**given)
    assert (again.max_restarts, again.sampler) == (7, loader.sampler)


def test_slipring_arguments_follow_by_name():
    with face.StatefulDataLoader(Numbers(), 4, num_workers=2, on_worker_death="respawn", slots=9) as loader:
        assert [b.tolist() for b in loader] == [list(range(i, i + 4)) for i in range(0, 24, 4)]
        assert (loader.on_worker_death, loader.stats().slots) == ("respawn", 9)


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
def test_wrong_arguments_are_told_in_the_words_of_any_function(args, kwargs):
    with pytest.raises(TypeError) as ours:
        face.StatefulDataLoader(*args, **kwargs)
    with pytest.raises(TypeError) as theirs:
        DataLoader(*args, **kwargs)
    assert str(ours.value) == str(theirs.value) and "__init__()" in str(ours.value)


def test_shuffle_excludes_what_it_excludes_in_torch():
    with pytest.raises(ValueError, match="sampler option is mutually exclusive with shuffle"):
        face.StatefulDataLoader(Numbers(), shuffle=True, sampler=range(3))
    with pytest.raises(ValueError, match="expected unspecified shuffle option"):
        face.StatefulDataLoader(Own(), shuffle=True)


# ---- torchdata's order


@pytest.mark.parametrize("batch_size", [None, 5])
def test_three_shuffled_epochs_are_torchdatas_to_the_bit(batch_size):
    theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")

    def epochs(cls):
        loader = made(cls, Drawing(), seed=5, shuffle=True, batch_size=batch_size)
        return [list(loader) for _ in range(3)]

    ours = epochs(face.StatefulDataLoader)
    assert ours == epochs(theirs.StatefulDataLoader)
    assert ours[0] != ours[1] != ours[2]


@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_workers_draw_what_torchdatas_workers_draw(setting):
    theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is compared with")

    def epochs(cls):
        loader = made(cls, Drawing(), setting, seed=5, shuffle=True, batch_size=5)
        return [[drawn for batch in loader for _, drawn in batch] for _ in range(3)]

    assert epochs(face.StatefulDataLoader) == epochs(theirs.StatefulDataLoader)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("n", [0, 3, 8])
def test_without_a_generator_the_order_of_later_epochs_is_in_the_state_too(stateful, setting, n):
    loader = made(stateful, Numbers(), setting, seed=5, shuffle=True, batch_size=3)
    state, rest = after(loader, n)
    expected = [rest, list(loader), list(loader)]
    other = made(stateful, Numbers(), setting, seed=6, shuffle=True, batch_size=3)
    other.load_state_dict(state)
    epochs = [list(other) for _ in range(3)]
    # (At the end, torchdata's state is of an epoch that is over, or of one that has nothing left.)
    assert epochs == expected or (n == 8 and epochs[:2] == expected[1:])
