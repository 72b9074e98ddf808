"""slipring.compat.torchdata: what users of torchdata 0.11 rely on, asked of torchdata's own class too."""

import copy
import inspect
import json
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring.compat import torchdata as face  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402

# torchdata's own use of torch warns, and so does fast-forwarding, there as here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

SETTINGS = [(0, False), (2, False), (2, True)]


@pytest.fixture(params=["torchdata", "slipring"])
def stateful(request):
    if request.param == "slipring":
        return face.StatefulDataLoader
    reason = "torchdata is compared with: pip install -r requirements-clients.txt"
    return pytest.importorskip("torchdata.stateful_dataloader", reason=reason).StatefulDataLoader


class Drawing(data.Dataset):
    """Sample i is (i, what torch's generator draws); its state is that generator's."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return i, torch.rand(()).item()

    def state_dict(self):
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["generator"])


class Own(data.IterableDataset):
    """Its own iterator, which exists only while it is iterated."""

    def __init__(self, n=24):
        self.n = n

    def __iter__(self):
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self.left = list(range(worker, self.n, workers))
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def state_dict(self):
        return {"left": list(self.left)}

    def load_state_dict(self, state):
        assert hasattr(self, "left"), "told before it was iterated"
        self.left = list(state["left"])


class CountsEpochs(data.IterableDataset):
    """Yields (number of the pass, number)."""

    def __init__(self, n=6):
        self.n, self.epoch, self.at = n, 0, 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            yield self.epoch, self.at
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


class Numbers(data.Dataset):
    def __init__(self, n=24):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


def as_is(samples):
    return samples


def made(cls, dataset, setting=(0, False), seed=None, **options):
    if seed is not None:
        torch.manual_seed(seed)
    options.setdefault("collate_fn", as_is)
    return cls(dataset, num_workers=setting[0], persistent_workers=setting[1], **options)


def after(loader, n):
    """(the state after `n` batches, the batches that follow)."""
    iterator = iter(loader)
    for _ in range(n):
        next(iterator)
    state = loader.state_dict()
    return state, list(iterator)


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


# ---- what a state says


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_stateful_map_dataset_goes_on_with_or_without_batching(stateful, setting, n, batch_size):
    state, rest = after(made(stateful, Drawing(), setting, seed=5, batch_size=batch_size), n)
    other = made(stateful, Drawing(), setting, seed=6, batch_size=batch_size)
    other.load_state_dict(state)
    assert [s[0] if batch_size is None else [i for i, _ in s] for s in other] == (
        [s[0] if batch_size is None else [i for i, _ in s] for s in rest]
    )
    if setting == (0, False):  # with workers, what was read ahead has drawn too
        other.load_state_dict(state)
        assert list(other) == rest


class Whole(Numbers):
    """Makes whole batches in the slot, and counts them."""

    made = 0

    def fetch_into(self, indices, empty):
        self.made += 1
        out = empty((len(indices), 2), np.int64)
        out[:, 0], out[:, 1] = indices, self.made
        return out

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_a_stateful_dataset_that_makes_whole_batches_goes_on(setting):
    state, rest = after(face.StatefulDataLoader(Whole(), 4, num_workers=2, persistent_workers=setting[1]), 3)
    other = face.StatefulDataLoader(Whole(), 4, num_workers=2, persistent_workers=setting[1])
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in rest]
    assert [int(batch[0, 1]) for batch in rest] == [2, 3, 3]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_dataset_that_is_its_own_iterator_is_told_once_it_iterates(stateful, setting, n):
    state, rest = after(made(stateful, Own(), setting), n)
    other = made(stateful, Own(), setting)
    other.load_state_dict(state)
    assert list(other) == rest
    assert json.dumps(state).count('"left"') <= max(1, setting[0])  # once, and not as the dataset's as well


def test_a_state_at_once_brings_back_a_dataset_that_was_read_to_its_end_since(stateful):
    dataset = Own(8)
    state, rest = after(made(stateful, dataset), 0)
    other = made(stateful, dataset)
    other.load_state_dict(state)
    assert list(other) == rest


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
    # Workers that are started anew begin with the dataset as the loader has it.
    assert counted == ([0, 0, 0] if setting == (2, False) else [0, 1, 2])


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_iterator_is_told_of_the_epoch_that_has_ended(stateful, setting):
    def loader(seed):
        generator = torch.Generator().manual_seed(seed)
        return made(stateful, DrawingStream(), setting, batch_size=2, generator=generator)

    one = loader(4)
    list(one)
    state = one.state_dict()
    expected = list(one)
    other = loader(4)
    other.load_state_dict(state)
    assert list(other) == expected


class DrawingStream(data.IterableDataset):
    """Its iterator's state is torch's generator's."""

    def __iter__(self):
        return Drawer()


class Drawer(Drawing):
    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.i == 6:
            raise StopIteration
        self.i += 1
        return self[self.i]

    def state_dict(self):
        return {"i": self.i, **super().state_dict()}

    def load_state_dict(self, state):
        self.i = state["i"]
        super().load_state_dict(state)


def test_loading_a_state_starts_persistent_workers_anew_with_its_seeds(stateful):
    torch.manual_seed(5)
    loader = made(stateful, Drawing(), (2, True))
    state = loader.state_dict()
    expected = list(loader)
    other = made(stateful, Drawing(), (2, True))
    iterator = iter(other)
    for _ in range(3):
        next(iterator)
    del iterator
    other.load_state_dict(state)
    assert list(other) == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_state_does_not_change_when_the_iteration_goes_on(stateful, setting):
    loader = made(stateful, Own(), setting)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    before = copy.deepcopy(state)
    for _ in range(4):
        next(iterator)
    assert state == before
    assert loader.state_dict() != state


def test_two_loaders_at_once_do_not_disturb_each_other(stateful):
    def pair():
        return [made(stateful, Own(), (2, False)) for _ in range(2)]

    state, rest = after(pair()[0], 3)
    one, other = pair()
    one.load_state_dict(state)
    together = list(zip(other, one))
    assert [b for _, b in together] == rest
    assert [a for a, _ in together] == list(other)[: len(rest)]


@pytest.mark.parametrize(("saved", "loads"), [(0, 2), (2, 0), (2, 3)])
def test_a_place_of_other_workers_is_an_assertion_error(stateful, saved, loads):
    state, _ = after(made(stateful, Own(), (saved, False)), 3)
    other = made(stateful, Own(), (loads, False))
    with pytest.raises(AssertionError):
        other.load_state_dict(state)
        iter(other)


class Held(data.Dataset):
    """Sample 0 waits until others have been delivered."""

    def __init__(self):
        self.go = torch.multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == 0:
            self.go.wait()
        return i


def test_out_of_order_a_slow_sample_holds_up_only_its_own_worker(stateful):
    dataset = Held()
    # With two workers the one that has sample 0 has been given one more: seven can come without it.
    release = threading.Timer(60, dataset.go.set)  # for when the test fails: a worker would wait for ever
    release.start()
    try:
        loader = made(stateful, dataset, (2, False), in_order=False, multiprocessing_context="fork")
        iterator = iter(loader)
        early = [next(iterator)[0] for _ in range(7)]
        assert not dataset.go.is_set()
        assert 0 not in early
        state = loader.state_dict()
        dataset.go.set()
        assert sorted([*early, *(b[0] for b in iterator)]) == list(range(10))
        if stateful is not face.StatefulDataLoader:
            return  # torchdata warns that its state may not hold out of order
        other = made(stateful, dataset, (2, False), in_order=False, multiprocessing_context="fork")
        other.load_state_dict(state)
        assert sorted([*early, *(b[0] for b in other)]) == list(range(10))
    finally:
        dataset.go.set()
        release.cancel()
        release.join()
