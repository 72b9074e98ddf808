"""An error comes in its batch's turn, and loses no other batch."""

import contextlib
import multiprocessing
import os
import random
import signal
import threading

import pytest

from slipring import Memory, Workers

torch = pytest.importorskip("torch")

from slipring.errors import Closed, LoaderTimeout, SlotsHeld  # noqa: E402
from slipring.torch import DataLoader, Device  # noqa: E402
from tests.support.datasets import patiently  # noqa: E402
from tests.support.inside import engines_of  # noqa: E402
from tests.support.signals import Raised  # noqa: E402
from tests.support.torch_datasets import Made  # noqa: E402

DEVICE = "privateuseone"
DEVICES = ["cpu", DEVICE]


def outcomes(lab, batches, ask=12):
    """Return the first number of each batch, or the exception's type, in order of arrival."""
    found = []
    for _ in range(ask):
        try:
            batch = next(batches)
        except StopIteration:
            found.append("end")
            return found
        except Exception as error:
            found.append(type(error))
        else:
            found.append((lab.read(batch) if id(batch) in lab.users else batch)[0].item())
    return found


def patient(batches):
    """Return the next batch, however late."""
    with contextlib.suppress(StopIteration):
        while True:
            yield patiently(batches)


def failing(i):
    if i in (3, 4):
        raise KeyError(i)
    return torch.tensor(i)


@pytest.mark.parametrize(
    ("device", "preload", "num_workers"), [("cpu", 0, 2), ("cpu", 4, 2), (DEVICE, 1, 2), (DEVICE, 1, 0)]
)
def test_a_samples_exception_comes_in_its_turn_and_the_next_batch_after_it(lab, device, preload, num_workers):
    with DataLoader(Made(failing, 7), num_workers=num_workers, device=Device(device, preload=preload)) as loader:
        for _ in range(2):
            assert outcomes(lab, iter(loader)) == [0, 1, 2, KeyError, KeyError, 5, 6, "end"]


@pytest.mark.parametrize("preload", [0, 4])
def test_errors_of_a_device_and_of_a_transform_come_in_their_turn(lab, preload):
    def bad(batch):
        if lab.copies == 4:
            raise ArithmeticError("the fourth")
        return batch

    lab.fail_at = {2, 5}
    device = Device(DEVICE, transform=bad, preload=preload)
    with DataLoader(Made(torch.tensor, 7), num_workers=2, device=device) as loader:
        assert outcomes(lab, iter(loader)) == [0, 1, MemoryError, ArithmeticError, 4, MemoryError, 6, "end"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_timeout_is_raised_while_next_waits_and_the_batch_comes_when_it_is_asked_again(lab, device):
    gate = multiprocessing.Event()

    def slow(i):
        if i == 2:
            gate.wait()
        return torch.tensor(i)

    with DataLoader(Made(slow, 4), num_workers=1, device=device, timeout=0.3) as loader:
        batches = iter(loader)
        assert outcomes(lab, patient(batches), 2) == [0, 1]
        assert outcomes(lab, batches, 1) == [LoaderTimeout]
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.3 seconds"):
            next(batches)
        gate.set()
        assert outcomes(lab, patient(batches)) == [2, 3, "end"]


def kill_itself(i):
    if i == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.tensor(i)


def test_a_workers_death_is_reported_after_the_ready_batches(lab):
    with DataLoader(Made(kill_itself, 6), num_workers=1, device=DEVICE) as loader:
        batches = iter(loader)
        assert outcomes(lab, batches, 3) == [0, 1, 2]
        with pytest.raises(RuntimeError, match=r"(?s)DataLoader worker \(pid \d+\) is killed by signal: Killed"):
            next(batches)
        with pytest.raises(Closed):
            next(batches)


def test_a_killed_worker_is_replaced_beside_the_preload_thread(lab, tmp_path):
    mark = tmp_path / "killed"

    def once(i):
        if i == 3 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(i)

    with DataLoader(
        Made(once, 8), num_workers=2, device="privateuseone", workers=Workers(on_death="respawn")
    ) as loader:
        assert outcomes(lab, iter(loader)) == [*range(8), "end"]
        assert loader.stats().respawns == 1


def test_a_loop_that_keeps_all_batches_of_the_host_gets_an_error_and_continues():
    options = {"num_workers": 1, "memory": Memory(slots=8, copy="never"), "device": Device("cpu", preload=4)}
    with DataLoader(Made(torch.tensor, 20), **options) as loader:
        batches, kept, seen = iter(loader), [], []
        with pytest.raises(SlotsHeld):
            for batch in batches:
                kept.append(batch)
                seen.append(batch.item())
        kept.clear()
        del batch
        assert seen + [one.item() for one in batches] == list(range(20))


@pytest.mark.parametrize("device", DEVICES)
def test_a_kept_exception_keeps_no_slot(lab, device):
    def bad(batch):
        raise ArithmeticError

    with DataLoader(Made(torch.tensor, 9), num_workers=1, device=Device(device, transform=bad)) as loader:
        batches, kept = iter(loader), []
        for _ in range(9):
            with pytest.raises(ArithmeticError) as caught:
                next(batches)
            kept.append(caught.value.with_traceback(None) if device == "cpu" else caught.value)
            del caught
        with pytest.raises(StopIteration):
            next(batches)
        ring = engines_of(loader).engine.ring
        assert ring.circulating == ring.n_slots
        lab.users.clear()


def test_a_device_that_has_failed_does_not_keep_the_loader_from_ending(lab, monkeypatch):
    def broken(self):
        raise RuntimeError("device-side assert")

    loader = DataLoader(Made(torch.tensor, 40), num_workers=1, device="privateuseone")
    batches = iter(loader)
    next(batches)
    lab.await_copies(2)
    lab.broken = True
    monkeypatch.setattr("tests.preload.double.Event.query", broken)
    monkeypatch.setattr("tests.preload.double.Event.synchronize", broken)
    with pytest.raises(RuntimeError, match="device-side assert"):
        while True:
            next(batches)
    loader.close()
    assert not lab.registered
    with pytest.raises((Closed, StopIteration)):
        next(batches)


@pytest.mark.filterwarnings("ignore:unclosed file")  # a handler may raise between open() and its `with`
def test_interrupts_at_any_instant_stop_nothing(lab):
    """Ctrl-C may lose the batch that next() is returning; the iteration continues."""

    armed = over = False

    def handler(*_):
        nonlocal armed
        if armed:  # once in each next(), at any point of it; not in this test's own code
            armed = False
            raise Raised

    def send(stop, main):
        pause = random.Random(3)
        while not stop.wait(pause.uniform(0, 0.004)):
            signal.pthread_kill(main, signal.SIGUSR1)

    stop, seen, interrupts = threading.Event(), [], 0
    sender = threading.Thread(target=send, args=(stop, threading.main_thread().ident))
    with DataLoader(Made(torch.tensor, 2000), num_workers=1, device=Device("cpu", preload=1)) as loader:
        batches = iter(loader)
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            sender.start()
            while not over:
                try:
                    armed = True
                    try:
                        seen.append(next(batches).item())
                    except StopIteration:
                        over = True
                    armed = False
                except Raised:
                    interrupts += 1
        finally:
            armed = False
            stop.set()
            sender.join()
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.signal(signal.SIGUSR1, before)
    assert interrupts and sorted(set(seen)) == seen
    assert 2000 - len(seen) <= interrupts
