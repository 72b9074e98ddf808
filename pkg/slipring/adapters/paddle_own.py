"""The adapter's link to Paddle, if it is installed: tensors, places, workers and figures."""

import contextlib
import importlib.util
import sys

import numpy as np

from slipring import default_collate, get_worker_info
from slipring._core.codec.pytree import leaves_of, map_leaves
from slipring.errors import shown


def installed():
    """Return the package; None if it is not installed."""
    return importlib.import_module("paddle") if importlib.util.find_spec("paddle") else None


def places(paddle, wanted):
    """Return a list of the places in an argument; without paddle, 'cpu' is the only place."""
    listed = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    if not listed:
        raise ValueError(f"places must be one place or more, not {shown(wanted)}")
    if paddle is None:
        if any(place not in (None, "cpu") for place in listed):
            raise ValueError(f"places must be 'cpu' where paddle is not installed, not {shown(wanted)}")
        return listed
    from paddle.base.framework import _current_expected_place, _get_paddle_place

    return [_current_expected_place() if place is None else _get_paddle_place(place) for place in listed]


def is_tuned():
    """Return whether `paddle.incubate.autotune.set_config` has turned the tuning of workers on."""
    return bool(getattr(sys.modules.get("paddle.io.reader"), "USE_AUTOTUNE", False))


def tensor(paddle, leaf, place):
    """Return an array as a tensor, which shares its memory if `place` is the CPU; other leaves as given.

    In static mode an eager tensor would abort the process, so that the tensor is one that an executor is fed with.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    if not paddle.in_dynamic_mode():
        return _fed(paddle, leaf, place)
    if not isinstance(place, paddle.CPUPlace) or leaf.dtype.kind not in "biufc":
        return paddle.to_tensor(leaf, place=place)
    try:
        # paddle 2's from_dlpack copies, and fails for bool; this way keeps the array and its slot alive.
        make = paddle.base.core.eager.Tensor
        return make(value=leaf, place=place, persistable=False, zero_copy=True, name="", stop_gradient=True)
    except (AttributeError, TypeError):
        return paddle.utils.dlpack.from_dlpack(leaf)


def _fed(paddle, leaf, place):
    made = paddle.base.core.LoDTensor()
    # The tensor keeps the array and its slot alive if the array has paddle's layout.
    shared = isinstance(place, paddle.CPUPlace) and leaf.flags.c_contiguous and leaf.flags.writeable
    made.set(leaf, place, shared)
    return made


@contextlib.contextmanager
def noted(paddle, iterator):
    """Give each step a range in paddle's profiler, and tell paddle's timer how long the reader takes."""
    if paddle is None:
        yield
        return
    kind = paddle.profiler.TracerEventType.Dataloader
    timer = paddle.profiler.timer.benchmark()
    with paddle.profiler.RecordEvent("slipring.DataLoader", kind):
        timer.check_if_need_record(iterator)
        timer.before_reader()
        yield
        timer.after_reader()


# ---- in workers


def begin(function, number):
    """Make a worker process known to paddle, before the user's own function."""
    theirs = sys.modules.get("paddle.io.dataloader.worker")
    if theirs is not None:
        info = theirs._worker_info = get_worker_info()
        sys.modules["paddle"].seed(info.seed & 0x7FFFFFFF)
    if function is not None:
        function(number)


def collate(function, whole, samples):
    """Collate samples (`whole`) or convert one sample, by `function` if given, with tensors as arrays."""
    if function is None and whole:
        if any(_is_tensor(leaf) for leaf in leaves_of(samples[0])):
            samples = [_as_arrays(sample) for sample in samples]
        return default_collate(samples)
    return _as_arrays(samples if function is None else function(samples))


def _as_arrays(value):
    return map_leaves(value, lambda leaf: leaf.numpy() if _is_tensor(leaf) else leaf)


def _is_tensor(leaf):
    return "paddle" in sys.modules and isinstance(leaf, sys.modules["paddle"].Tensor)
