"""The form of a batch on its device, and the record of the batches that were returned."""

import collections
import dataclasses
import time

import numpy as np
import pytest

from slipring import Memory, Workers
from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.nn.utils import rnn  # noqa: E402

from slipring.torch import DataLoader, Device  # noqa: E402
from slipring.torch.device.mover import each_leaf, tensors_in  # noqa: E402
from tests.support.datasets import Values  # noqa: E402
from tests.support.torch_datasets import Made, Pair, Record, Stream  # noqa: E402

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


def test_objects_with_their_own_move_are_asked_to_move():
    packed = rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    got = each_leaf({"p": packed}, lambda leaf: leaf.to("meta"))
    assert got["p"].data.device.type == "meta" and got["p"].batch_sizes.device.type == "cpu"
    assert len(tensors_in(got)) == 2


def test_tensors_are_found_in_attributes_slots_and_cycles():
    class Slots:
        __slots__ = ("me", "x")

    thing = Slots()
    thing.x, thing.me = torch.ones(1), thing
    record = Record([thing, {"k": torch.ones(2)}, torch, as_made])  # modules and functions contain no tensors
    assert sorted(t.numel() for t in tensors_in((record, record))) == [1, 2]


class Opaque:
    """A user's object with a view of the slot."""

    def __init__(self, i):
        self.tensor = torch.full((50_000,), i)


def opaque(i):
    return Opaque(i)


def test_a_value_that_passes_through_is_no_view_of_a_slot(lab):
    with DataLoader(
        Made(opaque, 12), 1, collate_fn=as_made, num_workers=1, device=DEVICE, memory=Memory(slots=3)
    ) as loader:
        kept = list(loader)
        assert [int(one.tensor[-1]) for one in kept] == list(range(12))
        assert loader.stats().copied_batches == 0  # no batch keeps a slot


def pack(samples):
    return rnn.pack_sequence(sorted(samples, key=len, reverse=True))


def ragged(i):
    return torch.full((1 + i % 3, 2), float(i))


def test_a_packed_sequence_is_handed_out(lab, monkeypatch):
    # The object's own `to` does not know the stand-in: use the host's memory as the device's.
    monkeypatch.setattr("tests.preload.double.Double.device", torch.device("cpu"), raising=False)
    monkeypatch.setattr("tests.preload.double.Double.__init__", lambda self, lab, device: setattr(self, "lab", lab))
    with DataLoader(Made(ragged, 6), 3, collate_fn=pack, num_workers=1, device=DEVICE) as loader:
        for batch in loader:
            assert batch.batch_sizes.tolist() == [3, 2, 1] and len(tensors_in(batch)) >= 2


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


def test_a_user_collate_fn_and_registered_slots_go_together(lab):
    def collate(samples):
        return {"x": torch.stack(samples), "n": len(samples)}

    with DataLoader(Made(torch.tensor, 9), 2, collate_fn=collate, num_workers=2, device=DEVICE) as loader:
        assert [(lab.read(b["x"]).tolist(), b["n"]) for b in loader] == [
            ([0, 1], 2), ([2, 3], 2), ([4, 5], 2), ([6, 7], 2), ([8], 1),
        ]  # fmt: skip
        assert loader.stats().staged_batches == 0


def test_pin_memory_adds_nothing_to_a_device(lab):
    options = {"num_workers": 1, "device": DEVICE, "pin_memory": True}
    told = pytest.warns(UserWarning, match="pin_memory")  # torch's own warning: there is no accelerator
    with told, DataLoader(Made(torch.tensor, 4), **grouped(**options)) as loader:
        assert [lab.read(b).item() for b in loader] == [0, 1, 2, 3]
    assert loader.stats().staged_batches == 0


# ---- the device of an iteration


@pytest.mark.parametrize("options", [{"preload": 5}, {"in_order": False, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("dataset", [Made(torch.tensor, 30), Stream(30)], ids=["map", "stream"])
def test_a_state_counts_delivered_batches_and_not_made_ones(dataset, options):
    options = {"num_workers": 2, "device": "cpu", "preload": 3, **options}
    loader = DataLoader(dataset, 2, **grouped(**options))
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(4)]
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    loader.close()
    anew = DataLoader(dataset, 2, **grouped(**options))
    if isinstance(dataset, Stream):
        with pytest.warns(UserWarning, match="reads again"):
            anew.load_state_dict(state)
    else:
        anew.load_state_dict(state)
    resumed = [batch.tolist() for batch in anew]
    anew.close()
    if options.get("in_order", True):
        assert resumed == rest
    assert sorted(i for batch in seen + resumed for i in batch) == list(range(30))


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
            assert left(iter(restored)) == left(batches)


def test_the_state_after_a_dropped_remainder_is_the_end_of_the_epoch():
    with DataLoader(Made(torch.tensor, 5), num_workers=1, device=["cpu", "cpu"]) as loader:
        steps = [[b.item() for b in step] for step in loader]
        assert steps == [[0, 1], [2, 3]]
        assert loader.state_dict()["finished"]
        loader.load_state_dict(loader.state_dict())
        assert len(list(loader)) == 2


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


def test_a_loader_with_a_device_that_is_not_here_still_has_figures():
    """For example if it was unpickled on another machine."""
    loader = DataLoader(Made(torch.tensor, 5), num_workers=1)
    loader.device = "cuda:99"
    assert loader.stats().batches == 0
    with pytest.raises(ValueError, match="device='cuda:99'"):
        next(iter(loader))


def test_impossible_numbers_of_workers_are_refused_between_epochs_too():
    with DataLoader(Made(torch.tensor, 5), num_workers=1) as loader:
        loader.workers = 3
        with pytest.raises(TypeError, match=r"workers must be a slipring.Workers, not 3"):
            iter(loader)
        loader.workers = Workers(start_method="spawn")
        with pytest.raises(ValueError, match="torch has multiprocessing_context="):
            iter(loader)


def test_batches_ready_ahead_take_no_slots_from_the_program():
    with DataLoader(
        Made(torch.tensor, 60), num_workers=1, memory=Memory(copy="never"), device=Device("cpu", preload=40)
    ) as loader:
        assert sum(len(batch) for batch in loader) == 60
        assert loader.memory.slots is None


@pytest.mark.parametrize("options, kind, text", [
    ({"device": []}, ValueError, "at least one device"),
    ({"device": {"cpu"}}, TypeError, "device=.* is no device"),
    ({"device": ["cpu", "meta"]}, ValueError, "device='meta'.* finds .* here"),
    ({"device": "gpu"}, ValueError, "device=.gpu. is no device"),
    ({"device": object()}, TypeError, "device"),
    ({"device": "meta"}, ValueError, "device='meta'.* finds .* here"),
    ({"device": "cpu", "preload": -1}, ValueError, "preload must be from 0"),
    ({"preload": 65}, ValueError, "preload must be from 0 to 64"),
    ({"preload": True}, TypeError, "preload must be an int"),
    ({"preload": 1.0}, TypeError, "preload must be an int"),
    ({"device": "cpu", "memory_format": "channels_last"}, TypeError, "torch.memory_format"),
    ({"device": "cpu", "transform": 3}, TypeError, "callable"),
])  # fmt: skip
def test_a_wrong_argument_is_reported_at_construction(options, kind, text):
    with pytest.raises(kind, match=text):
        DataLoader([1, 2], **grouped(**options))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_a_device_that_is_not_here_is_reported_at_construction():
    with pytest.raises(ValueError, match=r"device='cuda'.* finds no accelerator here"):
        DataLoader([1, 2], device="cuda")
