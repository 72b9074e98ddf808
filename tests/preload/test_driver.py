"""The calls of the CUDA driver and their order, recorded by a library that replaces it."""

import contextlib
import ctypes
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")

from slipring.torch.device import cuda as devices  # noqa: E402

STUB = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
char said[4096];
int answer, broken;
static int mode = 0;
#define SAY(...) (snprintf(said + strlen(said), sizeof said - strlen(said), __VA_ARGS__), 0)
int cuDeviceGet(int *device, int index) { *device = index + 7; return SAY("device %d;", index); }
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)0x1234567890abc;
    SAY("retain %d;", device);
    return broken;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return SAY("release %d;", device); }
int cuCtxPushCurrent_v2(void *context) { return SAY("push %p;", context); }
int cuCtxPopCurrent_v2(void **context) { *context = 0; return SAY("pop;"); }
int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    SAY("register %p %zu %u;", address, bytes, flags);
    return answer;
}
int cuMemHostUnregister(void *address) { return SAY("unregister %p;", address); }
int cuGetErrorName(int code, const char **name) { *name = code == 712 ? "ALREADY" : 0; return 0; }
int cuThreadExchangeStreamCaptureMode(int *new)
{
    int old = mode;
    mode = *new;
    *new = old;
    return SAY("mode %d;", mode);
}
"""
ADDRESS, BYTES = 0x7F0123456000, 5 << 32
BEGIN = "device 3;retain 10;push 0x1234567890abc;"
END = "pop;release 10;"


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    """The path of the compiled library."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    folder = tmp_path_factory.mktemp("stub")
    source, made = folder / "stub.c", folder / "stub.so"
    source.write_text(STUB)
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


@pytest.fixture
def driver(stub, tmp_path, monkeypatch):
    """The library; `said()` gives its calls since the last time."""
    library = ctypes.CDLL(shutil.copy(stub, tmp_path))  # of this test only, with new variables
    buffer = (ctypes.c_char * 4096).in_dll(library, "said")

    def said():
        text, buffer.value = buffer.value.decode(), b""
        return text

    library.said = said
    monkeypatch.setattr(devices, "_driver", lambda: library)
    return library


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", lambda device: torch.cuda)
    return devices.Accelerator(torch.device("cuda:3"))


def test_memory_is_registered_for_all_devices_with_the_devices_context(driver, device):
    assert device.register(ADDRESS, BYTES) is None
    assert driver.said() == f"{BEGIN}mode 2;register {ADDRESS:#x} {BYTES} 1;mode 0;{END}"
    device.unregister(ADDRESS)
    assert driver.said() == f"{BEGIN}mode 2;unregister {ADDRESS:#x};mode 0;{END}"


def test_a_refusal_has_the_drivers_name_for_it(driver, device):
    for code, text in ((712, "ALREADY (712)"), (5, "error (5)")):
        ctypes.c_int.in_dll(driver, "answer").value = code
        assert text in device.register(ADDRESS, BYTES)
        assert driver.said().endswith(END)


def test_a_device_without_a_context_is_reported_and_no_context_of_others_is_popped(driver, device):
    ctypes.c_int.in_dll(driver, "broken").value = 4
    assert "(4)" in device.register(ADDRESS, BYTES)
    with pytest.raises(RuntimeError, match=r"\(4\)"):
        device.unregister(ADDRESS)
    assert driver.said() == "device 3;retain 10;" * 2


def test_the_threads_capture_mode_is_relaxed_and_put_back(driver, device):
    with device.thread():
        assert driver.said() == "mode 2;"
    assert driver.said() == "mode 0;"


def test_without_the_driver_and_for_other_devices_nothing_is_registered_and_that_is_reported(device, monkeypatch):
    monkeypatch.setattr(devices, "_driver", lambda: None)
    assert "libcuda" in device.register(ADDRESS, BYTES)
    with device.thread():
        pass
    monkeypatch.setattr(torch, "get_device_module", lambda device: torch.xpu)
    device = devices.Accelerator(torch.device("xpu:0"))
    assert device.register(ADDRESS, BYTES) == "xpu devices cannot register host memory"


def test_a_staged_array_may_overlap_itself_and_gets_no_gaps(device, monkeypatch):
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor, pin_memory: empty_like(tensor))
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    for tensor in (torch.ones(1).expand(5), torch.arange(10)[::2], image.permute(0, 3, 1, 2)):
        staged = device.stage(tensor)
        assert torch.equal(staged, tensor) and staged.untyped_storage().nbytes() == tensor.nbytes
    assert staged.is_contiguous(memory_format=torch.channels_last)


class Module:
    """Contexts like torch.cuda's: leaving a stream sets a device, leaving a device need not."""

    def __init__(self):
        self.current, self.touched = 0, set()

    def set_device(self, index):
        self.current = index
        self.touched.add(index)

    @contextlib.contextmanager
    def device(self, device):
        before = self.current
        self.set_device(device.index)
        yield
        self.current = before

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current
        self.set_device(stream)
        yield
        self.set_device(before)


def test_work_for_one_device_touches_no_other(monkeypatch):
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    with devices.Accelerator(torch.device("cuda:3")).on(3):
        assert module.current == 3
    assert module.touched == {3} and module.current == 0


def test_a_torch_that_was_built_for_a_device_does_not_pass_for_one(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    for built_for in (None, torch.device("cuda")):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, found=built_for: found)
        assert devices.accelerator() is None
        for name in ("cuda", "cuda:0"):
            with pytest.raises(ValueError, match="finds no accelerator here"):
                devices.checked("device", name)
