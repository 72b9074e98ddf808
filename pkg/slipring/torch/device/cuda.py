"""Devices at the level of stream and event: what `slipring.torch.preload` needs of one, and no more.

Two kinds serve everything: the CPU, where a batch is ready as it lies in its slot, and torch's accelerator,
whatever it is. Tests put a third in `KINDS`: one that delays, and fails on demand.
"""

import collections
import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Sequence

import torch

from slipring.errors import shown, told
from slipring.options import Device

_idle = collections.defaultdict(list)  # device -> streams that nobody copies on


class Cpu:
    """The host itself: nothing is copied, nothing has to be waited for."""

    copies = False

    def __init__(self, device):
        self.device = device

    def thread(self):
        """Return a context for the thread that copies."""
        return contextlib.nullcontext()


class Accelerator:
    """What `torch.accelerator` speaks for: CUDA, ROCm, XPU, ...

    Streams and events are those of the device's own module: `torch.Event` ignores ``blocking`` (torch 2.13),
    so that who waits for one spins.

    Parameters
    ----------
    device : torch.device
        Without an index: the current one.
    """

    copies = True

    def __init__(self, device):
        if device.index is None:
            device = torch.device(device.type, torch.accelerator.current_device_index())
        self.device = device
        self.module = torch.get_device_module(device)

    def thread(self):
        """Return a context for a thread of ours: captures of others stand, whatever it does."""
        return _relaxed_capture() if self.device.type == "cuda" else contextlib.nullcontext()

    def take_stream(self):
        """Return a stream to copy on, that nobody else copies on until it is given back.

        A few go round: torch keeps freed memory for the stream that it was allocated on. Another stream for
        each epoch would hold batches' worth of it for ever.
        """
        try:
            return _idle[self.device].pop()
        except IndexError:
            return self.module.Stream(self.device)

    def give_stream(self, stream):
        """Let others copy on it."""
        _idle[self.device].append(stream)

    def current_stream(self):
        """Return the stream that the calling thread works on."""
        return self.module.current_stream(self.device)

    def new_event(self):
        """Return an event; whoever waits for it sleeps."""
        return self.module.Event(blocking=True) if self.device.type == "cuda" else self.module.Event()

    @contextlib.contextmanager
    def on(self, stream):
        """Return a context in which the device is the current one, and work goes to `stream`."""
        # Leaving a stream sets the device of before: in a thread of ours the first one, on which CUDA then
        # makes a context, half a gigabyte for each rank. Leaving a device does so only where there is one.
        with self.module.device(self.device), self.module.stream(stream):
            yield

    def copy(self, tensor):
        """Queue a copy of a host tensor, on the stream whose context this is; it is to outlive the copy."""
        return tensor.to(self.device, non_blocking=True)

    def stage(self, tensor):
        """Return a copy in pinned memory of torch's own, which guards its reuse."""
        # Not tensor.pin_memory(): it refuses what overlaps itself, and keeps gaps, for which the copy
        # from there would take another one, unpinned.
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def mark_use(self, tensor, stream):
        """Keep the memory of a tensor of this device until what `stream` has been given by then is done."""
        for part in _memory_of(tensor):
            part.record_stream(stream)

    def owns(self, tensor):
        """Whether a tensor lies on this device."""
        return tensor.device == self.device

    def register(self, address, nbytes):
        """Make host memory readable for the device; None, or why it is refused."""
        if self.device.type != "cuda":
            return f"{self.device.type} devices cannot register host memory"
        driver = _driver()
        if driver is None:
            return "no libcuda.so.1, whose cuMemHostRegister it takes"
        arguments = _pointer(address), _size(nbytes), _PORTABLE
        refused = _refusal(
            driver, _called(driver, self.device.index, driver.cuMemHostRegister_v2, *arguments)
        )
        return None if refused is None else f"cuMemHostRegister: {refused}"

    def unregister(self, address):
        """Take a registration back; the copies from there are done."""
        driver = _driver()
        code = _called(driver, self.device.index, driver.cuMemHostUnregister, _pointer(address))
        refused = _refusal(driver, code)
        if refused is not None:
            raise RuntimeError(f"memory at {address:#x} could not be given back: {refused}")


def _memory_of(tensor):
    """The strided tensors that a tensor of any layout consists of."""
    if tensor.is_nested:
        return [tensor.values()]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


# ---- the CUDA driver, asked directly: torch's cudart has no capture modes, and an error that the runtime
# remembers would be raised by the next kernel

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
    """While another thread captures a graph, allocations and registrations of this one are no mistake."""
    driver, mode = _driver(), ctypes.c_int(_RELAXED)
    if driver is None:
        yield
        return
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))  # it has been given what was before


def _called(driver, index, function, *arguments):
    """Return the code of a call for which torch's context of that device is the calling thread's.

    Which may have used no device yet; and whatever thread it is (that of a close(), of a garbage collection),
    captures of others stand.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    code = driver.cuDeviceGet(ctypes.byref(device), index)
    code = code or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if code:
        return code
    try:
        code = driver.cuCtxPushCurrent_v2(context)
        if code:
            return code  # and there is nothing to pop but what somebody else has pushed
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


# ---- which one

KINDS = {"cpu": Cpu}  # device type -> class; all others are torch's accelerator


def checked(name, value):
    """Return the `torch.device` that an argument names.

    Raises
    ------
    TypeError, ValueError
        It names none, in torch's words, or none that is here.
    """
    try:
        device = torch.device(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}={shown(value)} is no device: {told(error)}") from error
    if device.type in KINDS:
        return device
    here, count = accelerator(), torch.accelerator.device_count()
    if here is not None and here.type == device.type and (device.index or 0) < count:
        return device
    there = "no accelerator" if here is None else f"{count} of type {here.type!r}"
    raise ValueError(f"{name}={shown(value)}: torch {torch.__version__} finds {there} here, and the CPU")


def accelerator():
    """Return the `torch.device` of this machine's accelerator, or None.

    torch's own answer is what it was built for: "cuda", also where there is none.
    """
    return torch.accelerator.current_accelerator() if torch.accelerator.device_count() else None


def open_device(device):
    """Return the object that speaks for a `torch.device`."""
    return KINDS.get(device.type, Accelerator)(device)


def checked_device(given):
    """Return the `Device` that the argument `device` of a loader stands for, with `torch.device` in it; None for None.

    Raises
    ------
    TypeError, ValueError
        See `checked`; and each names the argument, the value and the rule.
    """
    if given is None:
        return None
    wanted = given if isinstance(given, Device) else Device(given)
    if wanted.memory_format is not None and not isinstance(wanted.memory_format, torch.memory_format):
        raise TypeError(
            f"memory_format must be a torch.memory_format or None, not {shown(wanted.memory_format)}"
        )
    place = wanted.device
    if isinstance(place, Sequence) and not isinstance(place, str):
        return dataclasses.replace(wanted, device=_checked_all(place))
    return dataclasses.replace(wanted, device=checked("device", place))


def _checked_all(devices):
    found = [checked("device", one) for one in devices]
    if not found:
        raise ValueError(f"device must name at least one device, not {shown(devices)}")
    kinds = {one.type for one in found} - {"cpu"}
    if len(kinds) > 1:
        raise ValueError(f"device must name devices of one type, besides the CPU, not {sorted(kinds)}")
    return found
