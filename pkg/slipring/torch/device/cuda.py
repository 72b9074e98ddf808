"""Devices at the level of streams and events, for `slipring.torch.preload`.

Two classes serve all devices: `Cpu`, where a batch is used in its slot, and `Accelerator` for every other device of
torch. Tests put a third class in `KINDS`: it delays, and fails on demand.
"""

import collections
import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Sequence

import torch

from slipring.errors import message_of, shown
from slipring.options import Device

_idle = collections.defaultdict(list)  # device -> streams that are not in use


class Cpu:
    """The host itself, to which nothing is copied."""

    copies, pci_address = False, None

    def __init__(self, device):
        self.device = device

    def thread(self):
        """Return a context for the thread that copies."""
        return contextlib.nullcontext()


class Accelerator:
    """The device of `torch.accelerator`: CUDA, ROCm, XPU or another. Without an index in `device`, the current one.

    Streams and events come from the device's own module: `torch.Event` ignores ``blocking`` (torch 2.13), so a thread
    that waits for one spins.
    """

    copies = True

    def __init__(self, device):
        if device.index is None:
            device = torch.device(device.type, torch.accelerator.current_device_index())
        self.device = device
        self.module = torch.get_device_module(device)

    def thread(self):
        """Return a context for a slipring thread: its calls invalidate no graph captures of other threads."""
        return _relaxed_capture() if self.device.type == "cuda" else contextlib.nullcontext()

    def take_stream(self):
        """Return a stream to copy on, reserved until `give_stream`.

        A few streams are reused: torch keeps freed memory for the stream that it was allocated on, so that a new stream
        for each epoch would hold the memory of several batches permanently.
        """
        try:
            return _idle[self.device].pop()
        except IndexError:
            return self.module.Stream(self.device)

    def give_stream(self, stream):
        """Make this stream available again."""
        _idle[self.device].append(stream)

    def current_stream(self):
        """Return the calling thread's current stream."""
        return self.module.current_stream(self.device)

    def new_event(self):
        """Return an event; on CUDA, a thread that waits for it sleeps."""
        return self.module.Event(blocking=True) if self.device.type == "cuda" else self.module.Event()

    @contextlib.contextmanager
    def on(self, stream):
        """Return a context in which this device is the current one, and new work goes to `stream`."""
        # Leaving a stream restores the previous device. In a slipring thread that is device 0, on which CUDA then
        # makes a context of half a gigabyte per rank. Leaving a device avoids this.
        with self.module.device(self.device), self.module.stream(stream):
            yield

    def copy(self, tensor):
        """Queue a copy of a host tensor on the context's stream; the caller keeps `tensor` until the copy is done."""
        return tensor.to(self.device, non_blocking=True)

    def stage(self, tensor):
        """Return a copy in torch's own pinned memory; torch guards its reuse."""
        # tensor.pin_memory() refuses tensors that overlap themselves, and keeps gaps: the copy to the device would then
        # go through another, unpinned copy.
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def mark_use(self, tensor, stream):
        """Keep the memory of a tensor of this device until the work queued on `stream` so far is done."""
        for part in _memory_of(tensor):
            part.record_stream(stream)

    def owns(self, tensor):
        """Return whether a tensor is on this device."""
        return tensor.device == self.device

    @property
    def pci_address(self):
        """str or None: the device's address on the PCI bus, as in sysfs; None if torch does not know it."""
        if self.device.type != "cuda":
            return None
        found = torch.cuda.get_device_properties(self.device)
        return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"

    def register(self, address, nbytes):
        """Make host memory readable for the device; return None, or the reason why it is refused."""
        if self.device.type != "cuda":
            return f"{self.device.type} devices cannot register host memory"
        driver = _driver()
        if driver is None:
            return "no libcuda.so.1, whose cuMemHostRegister it takes"
        arguments = _pointer(address), _size(nbytes), _PORTABLE
        refused = _refusal(driver, _called(driver, self.device.index, driver.cuMemHostRegister_v2, *arguments))
        return None if refused is None else f"cuMemHostRegister: {refused}"

    def unregister(self, address):
        """Undo a registration; all copies from that memory must have finished."""
        driver = _driver()
        code = _called(driver, self.device.index, driver.cuMemHostUnregister, _pointer(address))
        refused = _refusal(driver, code)
        if refused is not None:
            raise RuntimeError(f"memory at {address:#x} could not be given back: {refused}")


def _memory_of(tensor):
    """Return the strided tensors in a tensor of any layout."""
    if tensor.is_nested:
        return [tensor.values()]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


# ---- the CUDA driver, called directly: torch's cudart has no capture modes, and the next kernel would raise an error
# that the runtime remembers

_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: for every device
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_pointer, _size = ctypes.c_void_p, ctypes.c_size_t


@functools.cache
def _driver():
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:  # ROCm
        return None


@contextlib.contextmanager
def _relaxed_capture():
    """Let this thread allocate and register memory while another thread captures a graph."""
    driver, mode = _driver(), ctypes.c_int(_RELAXED)
    if driver is None:
        yield
        return
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))  # the exchange has put the previous mode here


def _called(driver, index, function, *arguments):
    """Return the code of a driver call, made with torch's context of that device.

    The thread may not have used a device before: close() or the garbage collector can run in any thread. Graph captures
    of other threads stay valid.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    code = driver.cuDeviceGet(ctypes.byref(device), index)
    code = code or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if code:
        return code
    try:
        code = driver.cuCtxPushCurrent_v2(context)
        if code:
            return code  # nothing was pushed, so there is nothing to pop
        try:
            with _relaxed_capture():
                return function(*arguments)
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _refusal(driver, code):
    if code == 0:
        return None
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    return f"{(name.value or b'error').decode()} ({code})"


# ---- choice of the device

KINDS = {"cpu": Cpu}  # device type -> class; all others are torch's accelerator


def checked(name, value):
    """Return the `torch.device` in an argument.

    Raise TypeError or ValueError, in torch's words, if it is not a device, or is one that this machine lacks.
    """
    try:
        device = torch.device(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}={shown(value)} is no device: {message_of(error)}") from error
    if device.type in KINDS:
        return device
    here, count = accelerator(), torch.accelerator.device_count()
    if here is not None and here.type == device.type and (device.index or 0) < count:
        return device
    there = "no accelerator" if here is None else f"{count} of type {here.type!r}"
    raise ValueError(f"{name}={shown(value)}: torch {torch.__version__} finds {there} here, and the CPU")


def accelerator():
    """Return the `torch.device` of this machine's accelerator, or None.

    torch itself names the type that it was built for: "cuda", even if the machine has no such device.
    """
    return torch.accelerator.current_accelerator() if torch.accelerator.device_count() else None


def open_device(device):
    """Return the `Cpu` or `Accelerator` for a `torch.device`."""
    return KINDS.get(device.type, Accelerator)(device)


def checked_device(given):
    """Return the `Device` for a loader's argument `device`, with `torch.device` objects in it; None for None.

    Raise TypeError or ValueError as `checked` does; the message names the argument, the value and the rule.
    """
    if given is None:
        return None
    wanted = given if isinstance(given, Device) else Device(given)
    if wanted.memory_format is not None and not isinstance(wanted.memory_format, torch.memory_format):
        raise TypeError(f"memory_format must be a torch.memory_format or None, not {shown(wanted.memory_format)}")
    device = wanted.device
    if isinstance(device, Sequence) and not isinstance(device, str):
        return dataclasses.replace(wanted, device=_checked_all(device))
    return dataclasses.replace(wanted, device=checked("device", device))


def _checked_all(devices):
    found = [checked("device", one) for one in devices]
    if not found:
        raise ValueError(f"device must name at least one device, not {shown(devices)}")
    kinds = {one.type for one in found} - {"cpu"}
    if len(kinds) > 1:
        raise ValueError(f"device must name devices of one type, besides the CPU, not {sorted(kinds)}")
    return found
