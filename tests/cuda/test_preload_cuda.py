"""Preload on a real device: `make test-cuda`."""

import ctypes
import gc
import subprocess
import sys
import textwrap
import threading

import pytest

from slipring import Memory
from tests.support.options import grouped

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]

from slipring.torch import DataLoader, Device  # noqa: E402
from slipring.torch.device import cuda as devices  # noqa: E402
from tests.support.datasets import Values  # noqa: E402
from tests.support.inside import engines_of  # noqa: E402
from tests.support.torch_datasets import Made  # noqa: E402


def image(i, size=150_528):
    return torch.full((size,), i % 251, dtype=torch.uint8), i


def growing(i):
    return torch.full((1 + 99_991 * i,), i % 251, dtype=torch.uint8)


@pytest.mark.parametrize("options", [
    {}, {"preload": 4}, {"preload": 0}, {"slots": 4}, {"persistent_workers": True}, {"num_workers": 0},
    {"non_blocking": False}, {"in_order": False}, {"multiprocessing_context": "spawn"},
])  # fmt: skip
def test_every_byte_arrives_while_the_device_is_kept_busy(options):
    options = {"num_workers": 2, "batch_size": 32, **options}
    busy = torch.randn(2048, 2048, device="cuda")
    with DataLoader(Made(image, 640), device="cuda", **grouped(**options)) as loader:
        for _ in range(2):
            wrong, seen = torch.zeros((), dtype=torch.int64, device="cuda"), 0
            for images, labels in loader:
                assert images.device.type == labels.device.type == "cuda"
                for _ in range(5):
                    busy = busy @ busy * 1e-3  # later work on this stream is late
                wrong += (images != (labels % 251).to(torch.uint8)[:, None]).sum()
                seen += len(labels)
                del images, labels
            assert seen == 640 and wrong.item() == 0
        stats = loader.stats()
        assert stats.moved_batches == 40
        if options["num_workers"]:
            assert stats.staged_batches == 0 and stats.registration_refused is None


def test_the_slots_views_are_pinned_and_nothing_is_staged(monkeypatch):
    seen = []
    copy = devices.Accelerator.copy
    monkeypatch.setattr(
        devices.Accelerator, "copy", lambda self, host: (seen.append(host.is_pinned()), copy(self, host))[1]
    )
    with DataLoader(Made(image, 96), 32, num_workers=2, device="cuda") as loader:
        list(loader)
        assert loader.stats().staged_batches == 0
    assert seen and all(seen)


def test_slots_that_grow_are_registered_again():
    with DataLoader(Made(growing, 60), num_workers=2, device="cuda", memory=Memory(slots=4)) as loader:
        for i, batch in enumerate(loader):
            assert batch.shape == (1, 1 + 99_991 * i) and bool((batch == i % 251).all())
        assert loader.stats().staged_batches == 0


def test_a_refusal_is_reported_and_staged(monkeypatch):
    monkeypatch.setattr(devices.Accelerator, "register", lambda self, address, nbytes: "refused")
    with DataLoader(Made(image, 96), 32, num_workers=2, device="cuda") as loader:
        for images, labels in loader:
            assert bool((images == (labels % 251).to(torch.uint8)[:, None]).all())
        assert loader.stats().staged_batches == 3 and loader.stats().registration_refused == "refused"


def test_the_driver_refuses_memory_that_is_registered_already():
    device = devices.Accelerator(torch.device("cuda"))
    torch.zeros(1, device="cuda")
    host = torch.zeros(1 << 20, dtype=torch.uint8)
    address = (host.data_ptr() + 4095) & ~4095
    assert device.register(address, 1 << 16) is None
    assert "ALREADY_REGISTERED" in device.register(address, 1 << 16)
    device.unregister(address)
    assert torch.ones(3, device="cuda").sum().item() == 3  # no error is pending


def test_new_workers_are_forked_after_slots_were_registered():
    for persistent in (False, True):
        with DataLoader(Made(image, 96), 32, num_workers=2, device="cuda", persistent_workers=persistent) as loader:
            for _ in range(3):
                for images, labels in loader:
                    assert bool((images == (labels % 251).to(torch.uint8)[:, None]).all())


def test_two_loaders_and_another_thread():
    found = []

    def consume(loader):
        for images, labels in loader:
            found.append(bool((images == (labels % 251).to(torch.uint8)[:, None]).all()))

    loaders = [DataLoader(Made(image, 320), 32, num_workers=2, device="cuda") for _ in range(2)]
    threads = [threading.Thread(target=consume, args=(loader,)) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for loader in loaders:
        loader.close()
    assert found == [True] * 20


def test_a_graph_capture_of_the_training_thread_stands():
    static = torch.zeros(64, 150_528, dtype=torch.uint8, device="cuda")
    out = torch.zeros(64, dtype=torch.int64, device="cuda")
    with DataLoader(
        Made(image, 6400), 64, num_workers=2, memory=Memory(slots=40), device=Device("cuda", preload=4)
    ) as loader:
        batches = iter(loader)
        for _ in range(5):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.sum(static.long(), 1, out=out)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # mode "global": any unsafe call of any thread would end the capture
                for _ in range(200):
                    torch.sum(static.long(), 1, out=out)
            for _ in range(8):
                images, labels = next(batches)
                static.copy_(images)
                graph.replay()
                assert torch.equal(out, labels % 251 * 150_528)
        del batches


def test_another_stream_than_the_default_one_is_ordered_after_the_copy():
    stream = torch.cuda.Stream()
    with DataLoader(Made(image, 640), 32, num_workers=2, device="cuda") as loader, torch.cuda.stream(stream):
        for images, labels in loader:
            assert bool((images == (labels % 251).to(torch.uint8)[:, None]).all())


def test_a_transform_runs_beside_the_training_stream():
    def normalized(batch):
        images, labels = batch
        return (images.to(torch.bfloat16) / 255).view(-1, 3, 224, 224), labels

    device = Device("cuda", transform=normalized, memory_format=torch.channels_last)
    with DataLoader(Made(image, 128), 32, num_workers=2, device=device) as loader:
        for images, labels in loader:
            assert images.dtype is torch.bfloat16 and images.shape == (32, 3, 224, 224)
            assert torch.equal(images[:, 0, 0, 0], ((labels % 251).to(torch.uint8).bfloat16() / 255))
        assert loader.stats().bytes < 128 * 150_528 * 1.1


def test_out_of_memory_comes_in_its_turn_and_the_iteration_continues():
    def hungry(batch):
        if int(batch[0, 0]) == 3:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return batch

    values = [torch.full((8,), i, dtype=torch.uint8) for i in range(6)]
    with DataLoader(Values(values), num_workers=1, device=Device("cuda", transform=hungry)) as loader:
        batches, seen = iter(loader), []
        while True:
            try:
                seen.append(int(next(batches)[0, 0]))
            except StopIteration:
                break
            except torch.OutOfMemoryError:
                seen.append("oom")
        assert seen == [0, 1, 2, "oom", 4, 5]


def test_strings_and_nested_structures_pass():
    sample = {"a": [torch.ones(2), "text"], "b": (torch.zeros(1), b"bytes")}
    with DataLoader(Values([sample] * 8), 4, num_workers=1, device="cuda") as loader:
        for batch in loader:
            assert batch["a"][0].is_cuda and batch["b"][0].is_cuda and batch["a"][1] == ("text",) * 4  # as in torch


EXITS = {
    "in flight": "next(batches)",
    "kept": "kept = [next(batches) for _ in range(6)]",
    "before the first": "",
    "over": "list(batches)",
}


@pytest.mark.parametrize("how", EXITS)
def test_the_interpreter_exits_without_a_word(how):
    program = """
    import torch
    from slipring.torch import DataLoader, Device
    class Images:
        def __len__(self): return 640
        def __getitem__(self, i): return torch.ones(150528, dtype=torch.uint8)
    loader = DataLoader(Images(), 32, num_workers=2, device=Device("cuda", preload=2), persistent_workers=True)
    batches = iter(loader)
    """
    code = textwrap.dedent(program) + EXITS[how]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_registered_memory_is_given_back(monkeypatch):
    ranges = []
    register = devices.Accelerator.register

    def noted(self, address, nbytes):
        ranges.append((address, nbytes))
        return register(self, address, nbytes)

    monkeypatch.setattr(devices.Accelerator, "register", noted)
    loader = DataLoader(Made(image, 320), 32, num_workers=2, device="cuda")
    batches = iter(loader)
    kept = next(batches)
    ring = engines_of(loader).engine.ring  # it keeps the memory mapped
    views = [as_tensor(ring, slot) for slot in range(ring.n_slots)]
    assert any(view.is_pinned() for view in views)
    del batches, kept
    loader.close()
    assert ranges and not any(view.is_pinned() for view in views)


def as_tensor(ring, slot):
    address, nbytes = ring.slot_memory(slot)
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


def test_memory_of_the_device_does_not_grow_from_epoch_to_epoch():
    with DataLoader(Made(image, 320), 32, num_workers=2, device="cuda") as loader:
        held = []
        for _ in range(6):
            list(loader)
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_reserved())
    assert held[-1] <= held[1]


def test_a_loop_that_waits_for_nothing_keeps_few_batches():
    busy = torch.randn(2048, 2048, device="cuda")
    busy = busy @ busy * 1e-3  # allocates its own memory first
    before = torch.cuda.memory_stats()["active_bytes.all.current"]  # memory that streams still use counts
    torch.cuda.reset_peak_memory_stats()
    with DataLoader(Made(image, 3200), 32, num_workers=2, device="cuda") as loader:
        for images, _ in loader:
            for _ in range(20):
                busy = busy @ busy * 1e-3
            size = images.nbytes
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before < 16 * size + (128 << 20)


OTHER_DEVICE = """
import torch
from slipring.torch import DataLoader
torch.cuda.set_device(1)
with DataLoader(torch.zeros(64, 1000), 8, num_workers=1, device="cuda") as loader:
    assert all(batch.device.index == 1 for batch in loader)
assert torch._C._cuda_hasPrimaryContext(1) and not torch._C._cuda_hasPrimaryContext(0)
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two devices")
def test_a_rank_makes_no_context_on_another_ranks_device():
    subprocess.run([sys.executable, "-c", OTHER_DEVICE], check=True)


def test_a_worker_is_not_ended_by_garbage_on_the_device():
    def collecting(i):
        gc.collect()
        return torch.tensor(i)

    with DataLoader(Made(image, 96), 32, num_workers=1, device="cuda") as loader:
        batch = [next(iter(loader))]
    batch.append(batch)
    del batch
    with DataLoader(Made(collecting, 8), num_workers=2, device="cuda") as loader:
        assert len(list(loader)) == 8
