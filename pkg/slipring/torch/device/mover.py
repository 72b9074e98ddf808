"""Batches on the way to a device: copied from pinned slots on a separate stream, guarded by events."""

import collections
import copy
import dataclasses
import types
import weakref
from collections.abc import Mapping

import numpy as np
import torch

from slipring._core.codec.pytree import is_namedtuple

_PLAIN = {str, bytes, int, float, bool, complex, type(None)}
# Delivered batches that the caller's stream may still use: their memory is free only after that. A stream can be many
# steps ahead, and hundreds if it replays graphs, which are quick to queue.
LAG = 4
_RANKS = {torch.channels_last: 4, torch.channels_last_3d: 5}


class Moved:
    """A batch that is on `device` when `event` has completed; None: it is there already."""

    __slots__ = ("device", "event", "tensors", "value")

    def __init__(self, value, device, tensors=(), event=None):
        # tensors: those in `value` that the copying stream has allocated
        self.value, self.device, self.tensors, self.event = value, device, tensors, event


class Mover:
    """Copy batches to `devices`, which are objects of `slipring.torch.device.cuda`.

    `memory_format` applies to leaves with the number of dimensions for it. `transform` receives the batch on the
    device. With `non_blocking`, a batch is delivered when the caller's stream is ordered after the copy, else when the
    copy is done. `count` is a `Counters`.
    """

    def __init__(self, devices, memory_format, transform, non_blocking, count):
        # pins: the RegisteredSlots of the segment that has the batches; None: the batches are in other memory
        self.devices, self.count, self.pins = devices, count, None
        # The device that registers memory; None if all are the CPU.
        self.host = next((device for device in devices if device.copies), None)
        self.n_copying = sum(device.copies for device in devices)
        self.memory_format, self.transform, self.non_blocking = memory_format, transform, non_blocking
        self.caller_events = {device: collections.deque() for device in devices}  # events of the callers' streams
        self.streams = [self._stream(device) if device.copies else None for device in devices]
        self.follow_caller()

    def _stream(self, device):
        """Take a stream for the lifetime of this object; a thread that refers to the object extends it."""
        stream = device.take_stream()
        weakref.finalize(self, device.give_stream, stream).atexit = False
        return stream

    def follow_caller(self):
        """Order later copies after the work that is now queued on the caller's streams."""
        for device, stream in zip(self.devices, self.streams, strict=True):
            if stream is not None:
                stream.wait_stream(device.current_stream())

    def copy_to_device(self, number, value, slot):
        """Return a batch as `Moved` to the device with that number; `slot` has the batch, or is -1."""
        device, stream = self.devices[number], self.streams[number]
        if not device.copies:
            if self.pins is not None and slot in self.pins.registered:
                value = each_leaf(value, _copied)
            value = each_leaf(value, self._in_format) if self.memory_format in _RANKS else value
            return Moved(value if self.transform is None else self.transform(value), device)
        pinned = self.pins.cover(slot) if slot >= 0 else range(0)
        event, staged = device.new_event(), []
        try:
            with device.on(stream):
                moved = each_leaf(value, lambda leaf: self._moved(leaf, device, stream, pinned, staged))
                if self.transform is not None:
                    moved = self.transform(moved)
        finally:  # also after an exception, when copies may be in flight
            event.record(stream)
            if pinned:
                self.pins.hold(event, value)
        self.count.moved_batches += 1
        self.count.staged_batches += bool(staged)
        tensors = [tensor for tensor in tensors_in(moved) if device.owns(tensor)]
        return Moved(moved, device, tensors, event)

    def _moved(self, leaf, device, stream, pinned, staged):
        if not isinstance(leaf, torch.Tensor):
            leaf = _copied(leaf)
            return leaf.to(device.device) if has_to(leaf) else leaf
        host = leaf.detach()
        if device.owns(host):
            device.mark_use(host, stream)  # a dataset in this process has made it on the device
        if _is_strided(host) and host.nbytes and host.data_ptr() not in pinned:
            host = device.stage(host)
            staged.append(True)
        moved = self._in_format(device.copy(host))
        return moved.requires_grad_() if leaf.requires_grad else moved

    def _in_format(self, leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.dim() != _RANKS.get(self.memory_format):
            return leaf
        return leaf.contiguous(memory_format=self.memory_format)

    def hand_over(self, moved):
        """Return a batch, ordered for the caller's current stream."""
        if moved.event is None:
            return moved.value
        current = moved.device.current_stream()
        current.wait_event(moved.event)
        for tensor in moved.tensors:
            moved.device.mark_use(tensor, current)
        if not self.non_blocking:
            moved.event.synchronize()
        self._hold_back(moved.device, current)
        return moved.value

    def _hold_back(self, device, current):
        """Wait until the caller's stream has finished with all but the last `LAG` batches."""
        event, events = device.new_event(), self.caller_events[device]
        event.record(current)
        events.append(event)
        if len(events) > LAG:
            events.popleft().synchronize()

    def make_room(self):
        """Release slots whose copies are done, before another batch is requested."""
        if self.pins is not None:
            self.pins.make_room(self.n_copying)

    def finish(self):
        """Wait for all copies, and release their slots."""
        if self.pins is not None:
            self.pins.finish()


def _copied(leaf):
    """Return a copy of a leaf of a pinned slot: the user's own copies from the slot would be unguarded."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    return leaf if type(leaf) in _PLAIN else copy.deepcopy(leaf)


def _is_strided(tensor):
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_nested


# ---- batches as structures


def has_to(value):
    """Return whether an object moves itself, as a PackedSequence or a tokenizer's batch does."""
    return callable(getattr(value, "to", None)) and not isinstance(value, type)


def each_leaf(value, function):
    """Return the same structure with `function` applied to each leaf; text and self-moving objects are leaves."""
    if isinstance(value, (torch.Tensor, str, bytes, np.ndarray)) or has_to(value):
        return function(value)
    kind = type(value)
    if isinstance(value, Mapping):
        made = {key: each_leaf(item, function) for key, item in value.items()}
        return made if kind is dict else _filled(value, made)
    if isinstance(value, (list, tuple)):
        made = [each_leaf(item, function) for item in value]
        if kind is list or kind is tuple:
            return kind(made)
        return kind(*made) if is_namedtuple(kind) else _filled(value, made)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            # This works for frozen ones too.
            object.__setattr__(made, field.name, each_leaf(getattr(value, field.name), function))
        return made
    return function(value)


def _filled(like, made):
    """Return `made` as the type of `like`, an unusual mapping or sequence, with the other attributes of `like`."""
    clone = copy.copy(like)
    if isinstance(made, dict) and hasattr(clone, "update"):
        clone.update(made)  # such as an OrderedDict or a defaultdict
        return clone
    if isinstance(clone, list):
        clone[:] = made
        return clone
    return type(like)(made)


_NO_DEVICE = (str, bytes, int, float, type(None), type, np.ndarray, types.ModuleType, types.FunctionType)


def tensors_in(value):
    """Return all tensors that a batch refers to, including those in the attributes of its objects."""
    found, seen, todo = [], set(), [value]
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, _NO_DEVICE):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, Mapping):
            todo.extend(item.values())
        elif isinstance(item, (list, tuple)):
            todo.extend(item)
        if not isinstance(item, torch.Tensor):
            todo.extend(getattr(item, "__dict__", {}).values())
            for kind in type(item).__mro__:
                slots = kind.__dict__.get("__slots__", ())
                todo.extend(getattr(item, n, None) for n in ((slots,) if isinstance(slots, str) else slots))
    return found
