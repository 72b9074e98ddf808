"""However an iteration ends, its thread ends, its slots are released, and the process exits."""

import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch")

from slipring.errors import Closed  # noqa: E402
from slipring.torch import DataLoader, Device  # noqa: E402
from tests.support import inside  # noqa: E402
from tests.support.inside import engines_of, preloader_of  # noqa: E402
from tests.support.parts import one_fast  # noqa: E402
from tests.support.torch_datasets import Made  # noqa: E402

DEVICE = "privateuseone"


def image(i):
    return torch.full((2000,), i % 251, dtype=torch.uint8)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "slipring-preload"]


def all_slots_free(loader):
    ring = engines_of(loader).engine.ring
    return ring.circulating == ring.n_slots


@pytest.mark.parametrize(("device", "persistent"), [("cpu", False), (DEVICE, True)])
def test_a_loop_that_is_broken_off_leaves_no_thread_and_no_slot(lab, device, persistent):
    with DataLoader(
        Made(image, 50), 2, num_workers=2, persistent_workers=persistent, device=Device(device, preload=2)
    ) as loader:
        for _ in range(3):
            for number, _batch in enumerate(loader):
                if number == 3:
                    break
            del _batch
            if not persistent:
                assert not threads()
        loader.close() if persistent else None
        gc.collect()
        assert not threads()
        assert len(list(loader)) == 25
        assert all_slots_free(loader)


@pytest.mark.usefixtures("forked")
def test_close_calls_back_a_thread_that_waits_for_a_worker(lab):
    gate = multiprocessing.Event()

    def waits(i):
        if i:
            gate.wait()
        return torch.tensor(i)

    loader = DataLoader(Made(waits, 9), num_workers=1, device=DEVICE, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    [thread] = threads()
    threading.Timer(0.2, gate.set).start()  # for the worker, which finishes its batch before it ends
    loader.close()
    assert not thread.is_alive()
    with pytest.raises(Closed):
        next(batches)


def test_an_exception_that_ends_the_thread_is_raised_in_the_waiting_call():
    def leave(batch):
        raise SystemExit("enough")

    with DataLoader(Made(image, 5), num_workers=1, device=Device("cpu", transform=leave)) as loader:
        batches = iter(loader)
        with pytest.raises(SystemExit, match="enough"):
            next(batches)


@pytest.mark.usefixtures("forked")
def test_close_from_another_thread_ends_a_next_that_waits(lab):
    gate, outcome = os.pipe(), []  # an Event would wait for its sleeping process, which may be dead by then

    def waits(i):
        os.read(gate[0], 1)
        return torch.tensor(i)

    loader = DataLoader(Made(waits, 9), num_workers=1, device="cpu")
    batches = iter(loader)

    def consume():
        try:
            outcome.append(next(batches))
        except Closed as error:
            outcome.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    preloader = preloader_of(batches)
    while not preloader.awaited:
        preloader.filled.acquire(timeout=0.01)
    batches.close()
    consumer.join()
    assert [type(one) for one in outcome] == [Closed]
    with pytest.raises(Closed):
        next(batches)
    os.write(gate[1], bytes(9))
    loader.close()
    os.close(gate[0]), os.close(gate[1])


def test_a_transform_that_does_not_return_is_waited_for_once_and_told(caplog, monkeypatch):
    monkeypatch.setattr(inside.prefetch, "TRANSFORM_S", 0.5)
    begun, gate = threading.Event(), threading.Event()

    def hangs(batch):
        begun.set()
        gate.wait()
        return batch

    loader = DataLoader(Made(image, 50), num_workers=1, device=Device("cpu", transform=hangs))
    batches = iter(loader)
    begun.wait()
    [thread] = threads()
    for end in (batches.close, loader.close, loader.close):
        end()
    assert thread.is_alive()
    [said] = [record.getMessage() for record in caplog.records if record.name == "slipring"]
    assert "has not ended in 0.5 s" in said and "the device's transform does not return" in said
    gate.set()
    thread.join()


ENDS = {
    "the iterator is closed": lambda loader, batches: batches.close(),
    "the loader is closed": lambda loader, batches: loader.close(),
    "both are dropped": lambda loader, batches: None,
}


@pytest.mark.parametrize("how", ENDS)
def test_an_end_in_the_midst_of_a_capture_does_not_disturb_it(lab, how):
    loader = DataLoader(Made(image, 50), 2, num_workers=1, device=DEVICE)
    batches = iter(loader)
    next(batches)
    lab.capturing = True
    ENDS[how](loader, batches)
    del loader, batches
    gc.collect()
    assert not lab.registered and not lab.pending


def test_registrations_end_with_the_loader_and_with_nothing_else(lab):
    loader = DataLoader(Made(image, 50), 2, num_workers=1, device=DEVICE)
    list(loader)
    first = dict(lab.registered)
    assert first and loader.stats().registered_bytes == sum(first.values())
    list(loader)
    assert set(first) <= set(lab.registered)
    del loader
    gc.collect()
    assert not lab.registered


def test_a_forked_child_is_told_that_the_iterator_is_its_parents(lab):
    with DataLoader(Made(image, 20), 2, num_workers=1, device="cpu") as loader:
        batches = iter(loader)
        next(batches)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                next(batches)
            except Closed as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert b"parent process" in os.read(reader, 1000)
        assert len(list(batches)) == 9
        os.close(reader), os.close(writer)


EXITS = {
    "with batches in flight": "next(batches)",
    "with batches kept": "kept = [next(batches) for _ in range(5)]",
    "before the first batch": "",
    "at the end of the epoch": "list(batches)",
    "by sys.exit in the loop": "next(batches); import sys; sys.exit(0)",
    "with the iterator in a cycle": "me = [batches]; me.append(me); del batches",
    "with the iterator in a global that outlives modules": "import builtins; builtins.kept = batches",
    "in a thread that goes on": (
        "import threading\nthreading.Thread(target=lambda: [time.sleep(0.01) for _ in batches], daemon=True).start()"
    ),
    "with a slow sample in flight": (
        "next(batches); another = DataLoader(Slow(), num_workers=1, device='cpu'); waiting = iter(another)"
    ),
}


@pytest.mark.parametrize("how", one_fast(EXITS))
def test_the_interpreter_exits_without_a_word(how):
    program = """
    import functools, multiprocessing, time, torch
    from slipring.torch import DataLoader, Device
    from slipring.torch.device import cuda as device
    from tests.preload.double import Double, Lab
    class Slow:
        def __len__(self): return 9
        def __getitem__(self, i): time.sleep(0.5); return torch.tensor(i)
    class Fast(Slow):
        def __len__(self): return 200
        def __getitem__(self, i): return torch.ones(1000)
    multiprocessing.set_start_method("fork")
    lab = Lab()
    device.KINDS["privateuseone"] = functools.partial(Double, lab)
    options = dict(num_workers=2, device=Device("privateuseone", preload=2), persistent_workers=True)
    loader = DataLoader(Fast(), 4, **options)
    batches = iter(loader)
    """
    code = textwrap.dedent(program) + EXITS[how]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
