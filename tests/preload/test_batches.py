"""The form of a batch on its device, and the record of the batches that were returned."""

import collections
import dataclasses
import time

import numpy as np
import pytest

from slipring import Memory
from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.nn.utils import rnn  # noqa: E402

from slipring.torch import DataLoader, Device  # noqa: E402
from slipring.torch.device.mover import each_leaf, tensors_in  # noqa: E402
from tests.support.datasets import Values  # noqa: E402
from tests.support.inside import preloader_of  # noqa: E402
from tests.support.processes import until  # noqa: E402
from tests.support.torch_datasets import Made, Pair, Record  # noqa: E402

DEVICE = "privateuseone"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object
    y: object


class Attributes(collections.OrderedDict):
    """A mapping with an attribute."""


def as_made(batch):
    return batch[0]


def deep():
    default = collections.defaultdict(list, a=torch.ones(2))
    own = Attributes(b=torch.ones(3))
    return {
        "text": "a string is no sequence of strings",
        "bytes": b"1234",
        "numbers": [1, 2.5, True, None],
        "pair": Pair(torch.zeros(1), (torch.zeros(2),)),
        "default": default,
        "own": own,
        "frozen": Frozen(torch.arange(3), "y"),
        "array": np.arange(4),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "set": {1, 2},
    }


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_structure_arrives_as_it_was_with_its_tensors_on_the_device(lab, num_workers):
    dataset = Values([deep()] * 2)
    with DataLoader(dataset, 1, collate_fn=as_made, num_workers=num_workers, device=DEVICE) as loader:
        batches = iter(loader)
        got = next(batches)
        tensors = tensors_in(got)
        assert len(tensors) == 7
        values = [lab.read(tensor) for tensor in tensors]
        assert sorted(v.numel() for v in values) == [0, 1, 1, 2, 2, 3, 3]
        expected = deep()
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert type(got[key]) is type(value)
        assert got["text"] == expected["text"] and got["numbers"] == expected["numbers"]
        assert got["default"].default_factory is list
        assert got["array"].base is None  # not a view of a slot that a device may still read
        assert torch.equal(lab.read(got["frozen"].x), torch.arange(3)) and got["frozen"].y == "y"
        del batches


def test_tensors_are_found_in_attributes_slots_and_cycles():
    class Slots:
        __slots__ = ("me", "x")

    thing = Slots()
    thing.x, thing.me = torch.ones(1), thing
    record = Record([thing, {"k": torch.ones(2)}, torch, as_made])  # modules and functions contain no tensors
    assert sorted(t.numel() for t in tensors_in((record, record))) == [1, 2]


def test_objects_with_their_own_move_are_asked_to_move():
    packed = rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    got = each_leaf({"p": packed}, lambda leaf: leaf.to("meta"))
    assert got["p"].data.device.type == "meta" and got["p"].batch_sizes.device.type == "cpu"
    assert len(tensors_in(got)) == 2


class Opaque:
    """A user's object, whose tensor a worker writes to a slot."""

    def __init__(self, i):
        self.tensor = torch.full((50_000,), i)


def test_a_value_that_passes_through_is_no_view_of_a_slot(lab):
    options = {"num_workers": 1, "device": DEVICE, "memory": Memory(slots=3)}
    with DataLoader(Made(Opaque, 12), 1, collate_fn=as_made, **options) as loader:
        kept = list(loader)
        assert [int(one.tensor[-1]) for one in kept] == list(range(12))
        assert loader.stats().copied_batches == 0  # no batch keeps a slot


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_four_dimensions_are_laid_out_as_asked_for(lab, device):
    sample = {"image": torch.arange(24.0).reshape(2, 3, 4), "vector": torch.arange(3.0)}
    options = {"memory_format": torch.channels_last, "device": device, "num_workers": 1}
    with DataLoader(Values([sample] * 4), 2, **grouped(**options)) as loader:
        for batch in loader:
            assert batch["image"].is_contiguous(memory_format=torch.channels_last)
            assert batch["vector"].is_contiguous()
            if device == "cpu":
                assert torch.equal(batch["image"][1], sample["image"])


def test_batches_ready_ahead_take_no_slots_from_the_program():
    options = {"num_workers": 1, "memory": Memory(copy="never"), "device": Device("cpu", preload=40)}
    with DataLoader(Made(torch.tensor, 60), **options) as loader:
        batches = iter(loader)
        until(lambda: len(preloader_of(batches).ready) == 40, "40 batches are ready")
        assert [batch.item() for batch in batches] == list(range(60))


def test_an_endless_timeout_is_no_error():
    with DataLoader(Made(torch.tensor, 2), num_workers=1, device="cpu", timeout=1e10) as loader:
        assert len(list(loader)) == 2


# ---- the device of an iteration


class Odd:
    """Sample 3 fails."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == 3:
            raise KeyError(i)
        return torch.tensor(i)


@pytest.mark.parametrize(("devices", "num_workers"), [(["cpu"], 0), (["cpu", "cpu"], 2), ([DEVICE, DEVICE, "cpu"], 0)])
def test_a_resume_after_an_error_loses_no_batch(lab, devices, num_workers):
    def step(batches):
        try:
            return [(lab.read(b) if id(b) in lab.users else b).item() for b in next(batches)]
        except StopIteration:
            return "end"
        except KeyError:
            return KeyError

    def left(batches):
        return [s for s in iter(lambda: step(batches), "end") if s is not KeyError]

    options = {"num_workers": num_workers, "device": devices}
    for taken in range(1, 5):
        with DataLoader(Odd(), **grouped(**options)) as loader, DataLoader(Odd(), **grouped(**options)) as restored:
            batches = iter(loader)
            for _ in range(taken):
                step(batches)
            restored.load_state_dict(loader.state_dict())
            rest = left(batches)
            assert left(iter(restored)) == (rest or left(iter(loader)))


class Drawn:
    """Each sample is a number from the worker's generator; it takes `seconds`."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 60

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return torch.rand(1)


@pytest.mark.parametrize("options", [{"preload": 20}, {"device": ["cpu", "cpu"]}], ids=str)
def test_the_effects_of_an_abandoned_epoch_do_not_depend_on_speed(options):
    def next_epoch(seconds, pause):
        torch.manual_seed(1)
        options_ = {"device": "cpu", "persistent_workers": True, **options}
        with DataLoader(Drawn(seconds), num_workers=2, **grouped(**options_)) as loader:
            for number, _ in enumerate(loader):
                time.sleep(pause)
                if number == 3:
                    break
            return [str(batch) for batch in loader]

    assert next_epoch(0, 0.02) == next_epoch(0.005, 0) == next_epoch(0, 0)


# ---- arguments


def test_a_value_that_is_no_device_here_is_reported_at_construction():
    for device, error, text in (
        ([], ValueError, "at least one device"),
        ({"cpu"}, TypeError, "device=.* is no device"),
        ("gpu", ValueError, "device=.gpu. is no device"),
        (["cpu", "meta"], ValueError, "device='meta'.* finds .* here"),
    ):
        with pytest.raises(error, match=text):
            DataLoader([1, 2], device=device)
