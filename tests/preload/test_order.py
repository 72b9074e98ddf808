"""The order of events: copies come before the release of their slots, and before their readers."""

import functools
import gc
import multiprocessing
import threading

import pytest

from slipring import Memory
from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.utils.data._utils import pin_memory  # noqa: E402

from slipring.torch import DataLoader, Device  # noqa: E402
from slipring.torch.device.mover import LAG  # noqa: E402
from slipring.torch.device.registered import COPIES  # noqa: E402
from tests.support.inside import engines_of  # noqa: E402
from tests.support.processes import LONG_S  # noqa: E402
from tests.support.torch_datasets import Made  # noqa: E402

DEVICE = "privateuseone"


def image(i, size=5000):
    return torch.full((size,), i % 251, dtype=torch.uint8), i


def growing(i):
    # Slots grow in steps of 64 KiB: any slots that the worker takes grow again after ten batches.
    return torch.full((1 + 9973 * i,), i % 251, dtype=torch.uint8)


def read_all(lab, loader):
    """Return the contents of an epoch's batches in a training loop."""
    for images, labels in loader:
        yield lab.read(images)[:, 0].tolist(), lab.read(labels).tolist()


@pytest.mark.parametrize(("options", "quick"), [
    ({}, True), ({"preload": 3}, False), ({"preload": 0}, True), ({"slots": 3, "preload": 2}, False),
    ({"slots": 2, "copy": "never"}, False), ({"persistent_workers": True}, False), ({"num_workers": 0}, False),
    ({"in_order": False}, True), ({"non_blocking": False}, False),
])  # fmt: skip
def test_every_byte_is_that_of_its_sample_however_late_the_copies_are_done(lab, options, quick):
    lab.quick = quick
    options = {"num_workers": 2, "batch_size": 4, **options}
    with DataLoader(Made(image, 60), **grouped(device=DEVICE, **options)) as loader:
        for _ in range(2):
            seen = []
            for firsts, labels in read_all(lab, loader):
                assert firsts == [i % 251 for i in labels]
                seen += labels
            assert sorted(seen) == list(range(60))
            if options.get("in_order", True):
                assert seen == sorted(seen)
        assert loader.stats().moved_batches == 30


def test_a_slot_is_not_given_back_before_its_copy_is_done(lab):
    with DataLoader(Made(image, 40), 4, num_workers=2, device=DEVICE) as loader:
        batches = iter(loader)
        for step in range(1, LAG + 1):
            batch = next(batches)
            lab.await_copies(2 * (step + 1))  # the batch ahead is queued, too: two leaves each
            ring = engines_of(loader).engine.ring
            assert lab.synchronized == step - 1 and lab.queries  # only older ones are awaited
            del batch
            gc.collect()
            assert ring.n_slots - ring.circulating == COPIES
        del batches


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 0}], ids=str)
def test_a_caller_that_waits_for_nothing_is_only_a_few_batches_ahead_of_its_stream(lab, options):
    done = []
    with DataLoader(Made(image, 80), 4, **grouped(device=DEVICE, **options)) as loader:
        for number, _ in enumerate(loader):
            # Work that was queued before this batch was requested has finished, except that of the last batches.
            assert number - len(done) <= LAG
            lab.stream().work.append(functools.partial(done.append, number))
        assert number == 19 and len(done) < 20


def test_with_non_blocking_false_the_copy_is_done_when_the_batch_is_there(lab):
    with DataLoader(Made(image, 12), 4, num_workers=1, device=Device(DEVICE, non_blocking=False)) as loader:
        for images, labels in loader:
            assert images[:, 0].tolist() == [i % 251 for i in labels.tolist()]  # no stream reads it


def test_next_does_not_wait_for_the_batch_after(lab):
    gate = multiprocessing.Event()

    def sample(i):
        if i == 1:
            gate.wait()
        return torch.tensor([i])

    for device in (DEVICE, "cpu"):
        gate.clear()
        with DataLoader(Made(sample, 3), num_workers=1, device=device) as loader:
            batches = iter(loader)
            assert next(batches).shape == (1, 1)
            gate.set()
            assert len(list(batches)) == 2


def test_the_next_steps_are_made_before_they_are_asked_for(lab):
    with DataLoader(Made(growing, 10), num_workers=2, device=Device(DEVICE, preload=3)) as loader:
        batches = iter(loader)
        lab.await_copies(3)
        next(batches)
        lab.await_copies(4)
        assert lab.copies == 4
        del batches


def test_a_slot_is_registered_once_and_again_when_it_has_grown(lab):
    with DataLoader(Made(image, 80), 4, num_workers=2, device=DEVICE) as loader:
        for _ in range(2):
            list(read_all(lab, loader))
        stats = loader.stats()
        assert stats.staged_batches == 0 and stats.registration_refused is None
    for address in {a for a, _ in lab.registrations}:
        sizes = [n for a, n in lab.registrations if a == address]
        assert sizes == sorted(set(sizes))  # each size occurs once
    assert len(lab.registrations) <= 24


def test_memory_that_cannot_be_registered_is_staged_and_reported(lab):
    lab.refuse = "locked memory is limited"
    with DataLoader(Made(image, 24), 4, num_workers=2, device=DEVICE) as loader:
        assert [labels for _, labels in read_all(lab, loader)] == [list(range(i, i + 4)) for i in range(0, 24, 4)]
        stats = loader.stats()
    assert stats.staged_batches == stats.moved_batches == 6 and lab.staged == 12
    assert stats.registration_refused == "locked memory is limited" and stats.registered_bytes == 0


def test_a_refusal_while_slots_grow_leaves_the_others_pinned(lab):
    with DataLoader(Made(growing, 40), num_workers=1, device=DEVICE, memory=Memory(slots=4)) as loader:
        for i, batch in enumerate(loader):
            if i == 10:
                lab.refuse = "no more"
            assert lab.read(batch)[0, 0] == i % 251
        assert 0 < loader.stats().staged_batches < 40


def test_all_epochs_copy_on_one_stream_and_two_at_once_on_two(lab):
    loaders = [DataLoader(Made(image, 20), 4, num_workers=n, device=DEVICE) for n in (1, 0)]
    for _ in range(3):
        for loader in loaders:
            assert len(list(read_all(lab, loader))) == 5
    assert lab.streams == 1
    both = [iter(loader) for loader in loaders]
    assert lab.streams == 2
    del both
    for loader in loaders:
        loader.close()


def test_each_device_gets_a_batch_per_step_and_too_few_are_dropped(lab):
    devices = [f"{DEVICE}:0", f"{DEVICE}:1", "cpu"]
    for workers in (0, 2):
        with DataLoader(Made(image, 44), 4, num_workers=workers, device=devices) as loader:
            steps = []
            for step in loader:
                assert type(step) is list and len(step) == 3
                labels = [lab.read(step[0][1]).tolist(), lab.read(step[1][1]).tolist(), step[2][1].tolist()]
                steps.append(labels)
        assert steps == [[list(range(i + j, i + j + 4)) for j in (0, 4, 8)] for i in (0, 12, 24)]


def is_registered(lab, tensor):
    return any(a <= tensor.data_ptr() < a + n for a, n in lab.registered.items())


def test_no_view_of_a_registered_slot_is_handed_out_beside_a_device(lab):
    options = {"num_workers": 2, "slots": 4, "device": [DEVICE, "cpu"], "copy": "never"}
    with DataLoader(Made(image, 80), 4, **grouped(**options)) as loader:
        seen = []
        for there, (images, labels) in loader:
            assert not is_registered(lab, images) and not is_registered(lab, labels)
            assert images[:, 0].tolist() == [i % 251 for i in labels.tolist()]
            seen += lab.read(there[1]).tolist() + labels.tolist()
        assert lab.registered and seen == list(range(80))


def test_no_view_of_a_registered_slot_is_handed_out_after_a_device(lab):
    with DataLoader(Made(image, 40), 4, num_workers=1, device=DEVICE, persistent_workers=True) as loader:
        list(read_all(lab, loader))
        assert lab.registered
        for device in (None, "cpu", Device("cpu", preload=0)):
            loader.device = device
            for images, _labels in loader:
                assert not is_registered(lab, images)
        loader.device = DEVICE
        assert len(list(read_all(lab, loader))) == 10 and lab.registered


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_callers_earlier_work_comes_before_the_copies(lab, num_workers):
    scale = torch.zeros(1)
    lab.stream().work.append(lambda: scale.fill_(10))

    def scaled(batch):
        stream, made = lab.stream(), torch.empty(batch.shape)
        stream.work.append(lambda: made.copy_(batch * scale))
        lab.users[id(made)] = (made, {stream})
        return made

    with DataLoader(Made(torch.tensor, 6), num_workers=num_workers, device=Device(DEVICE, transform=scaled)) as loader:
        assert [lab.read(batch).item() for batch in loader] == [0, 10, 20, 30, 40, 50]


def test_a_copy_in_flight_is_waited_for_although_the_next_of_its_batch_has_failed(lab):
    lab.fail_at = {5}  # the second leaf of the third batch
    with DataLoader(Made(image, 40), 4, num_workers=2, device=DEVICE, memory=Memory(slots=4)) as loader:
        batches, firsts = iter(loader), []
        while True:
            try:
                images, labels = next(batches)
                firsts.append((lab.read(images)[:, 0] == lab.read(labels) % 251).all().item())
            except MemoryError:
                assert len(engines_of(loader).engine.pinned_slots.in_flight) >= 1
            except StopIteration:
                break
        assert firsts == [True] * 9


def test_all_slots_are_given_back_when_the_epoch_is_over(lab):
    with DataLoader(Made(image, 20), 4, num_workers=1, persistent_workers=True, device=DEVICE) as loader:
        for _ in range(2):
            list(loader)
            ring = engines_of(loader).engine.ring
            assert ring.circulating == ring.n_slots
            batches = iter(loader)
            next(batches)
            batches.close()
            assert ring.circulating == ring.n_slots


def test_a_transform_works_on_the_copying_stream_and_leaves_uint8_in_the_slots(lab):
    def normalized(batch):
        images, labels = batch
        stream, made = lab.stream(), torch.empty(images.shape, dtype=torch.bfloat16)
        stream.work.append(lambda: made.copy_(images.float() / 255))
        lab.users[id(made)] = (made, {stream})
        return {"x": made, "y": labels}

    with DataLoader(Made(image, 20), 4, num_workers=2, device=Device(DEVICE, transform=normalized)) as loader:
        for batch in loader:
            x, y = lab.read(batch["x"]), lab.read(batch["y"])
            assert torch.equal(x[:, 0], (y.float() / 255).bfloat16())
        assert loader.stats().bytes < 20 * 5000 * 1.2


class Bag:
    """A user's own type of batch, with a pin_memory method."""

    def __init__(self, samples):
        self.samples, self.pinned_by = samples, None

    def pin_memory(self):
        self.pinned_by = threading.current_thread().name
        return self


@pytest.fixture
def pinned(monkeypatch):
    """The accelerator is a stand-in, which notes each tensor that is pinned, and the thread that pins it."""
    noted, third = [], threading.Event()

    def pin_tensor(batch, device):
        if not isinstance(batch, torch.Tensor):
            return pin(batch, device)
        if batch.min() < 0:
            raise MemoryError("nothing left to pin")
        noted.append((threading.current_thread().name, device, batch.tolist()))
        if len(noted) == 3:
            third.set()
        return batch.clone()

    noted_by = type("Noted", (), {"batches": noted, "third": third})()
    pin = pin_memory.pin_memory
    monkeypatch.setattr(pin_memory, "pin_memory", pin_tensor)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    return noted_by


def test_batches_are_pinned_ahead_and_without_preload_in_next(pinned):
    with DataLoader(range(12), 4, num_workers=1, pin_memory=True) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist(), next(iterator).tolist()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert pinned.third.wait(LONG_S)  # before it was requested
        assert next(iterator).tolist() == [8, 9, 10, 11]
        assert list(iterator) == []
    assert pinned.batches == [("slipring-preload", "meta", list(range(i, i + 4))) for i in (0, 4, 8)]
    with DataLoader(range(4), 4, num_workers=1, pin_memory=True, device=Device("cpu", preload=0)) as loader:
        assert len(list(loader)) == 1
    assert pinned.batches[3:] == [(threading.current_thread().name, "meta", [0, 1, 2, 3])]


def test_pin_memory_adds_nothing_to_a_device(lab, pinned):
    with DataLoader(Made(torch.tensor, 4), num_workers=1, device=DEVICE, pin_memory=True) as loader:
        assert [lab.read(batch).item() for batch in loader] == [0, 1, 2, 3]
    assert pinned.batches == []


def test_a_batch_that_cannot_be_pinned_raises_in_its_turn_and_the_rest_comes(pinned):
    with DataLoader([0, 1, -1, 3], None, num_workers=2, pin_memory=True, collate_fn=torch.tensor) as loader:
        iterator = iter(loader)
        assert [next(iterator).item(), next(iterator).item()] == [0, 1]
        with pytest.raises(MemoryError, match="nothing left to pin"):
            next(iterator)
        assert [batch.item() for batch in iterator] == [3]


def test_batches_that_are_no_tensors_are_pinned_as_by_torch(pinned):
    samples = [{"x": torch.tensor(i), "name": f"sample {i}", "n": None} for i in range(4)]
    with DataLoader(samples, None, num_workers=1, pin_memory=True) as loader:
        assert list(loader) == samples
    assert [batch for _, _, batch in pinned.batches] == [0, 1, 2, 3]
    with DataLoader(range(4), 2, num_workers=1, pin_memory=True, collate_fn=Bag) as loader:
        assert [(bag.samples, bag.pinned_by) for bag in loader] == [
            ([0, 1], "slipring-preload"),
            ([2, 3], "slipring-preload"),
        ]


def test_no_accelerator_is_asked_for_before_the_first_epoch(pinned, monkeypatch):
    """The query may initialize a driver, which then does not work in forked children."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: pytest.fail("asked"))
    DataLoader(range(12), 4, num_workers=1, pin_memory=True)
