"""Options of a loader as tests write them: in one dictionary, so that scenes can be combined."""

import dataclasses

from slipring import Memory, Workers

_GROUPS = {"workers": Workers, "memory": Memory}
_OF_A_DEVICE = ("preload", "non_blocking", "memory_format", "transform")


def grouped(**options):
    """Return options for a loader: put those of `Workers`, `Memory` and `Device` into these groups.

    `memory` is the loader's own option, and not the one of `Workers`.
    Options of `Device` without `device` are for the CPU; if all of them are None, there is no device.
    """
    for argument, group in _GROUPS.items():
        names = [field.name for field in dataclasses.fields(group) if field.name in options.keys() - _GROUPS]
        if names:
            given = {name: options.pop(name) for name in names}
            options[argument] = dataclasses.replace(options.get(argument, group()), **given)
    given = {name: options.pop(name) for name in _OF_A_DEVICE if name in options}
    if given:
        from slipring.torch import Device

        device = options.get("device")
        if device is not None or any(value is not None for value in given.values()):
            options["device"] = Device("cpu" if device is None else device, **given)
    return options
