"""slipring's arguments in the table from which Accelerate recreates loaders, while `install` is in effect."""

import functools
import sys
import threading

from slipring.torch.drop_in.replacement import ReplacementMeta
from slipring.torch.loader import DataLoader

# Accelerate's own loaders have an argument of the same name: the device to which they send batches.
ALIASES = {"device": "slipring_device"}

_lock = threading.Lock()
_undo = None  # undoes the changes of `extend`


def extend():
    """Make Accelerate keep slipring's arguments, if it has been imported."""
    global _undo
    client = sys.modules.get("accelerate.data_loader")
    table = getattr(client, "_PYTORCH_DATALOADER_KWARGS", None)
    adapter = getattr(client, "DataLoaderAdapter", None)
    if _undo is not None or not isinstance(table, dict) or adapter is None:
        return
    with _lock:
        if _undo is None and ReplacementMeta.installed:
            added = {ALIASES.get(name, name): default for name, default in DataLoader.extras().items()}
            added = {name: default for name, default in added.items() if name not in table}
            init = adapter.__init__
            adapter.__init__ = ours = _for_torchdatas_too(init, added)
            table.update(added)
            _undo = functools.partial(_take_back, table, added, adapter, init, ours)


def restore():
    """Undo `extend`, except for later changes by other code."""
    global _undo
    with _lock:
        if _undo is not None:
            _undo()
        _undo = None


def _take_back(table, added, adapter, init, ours):
    for name, default in added.items():
        if name in table and table[name] is default:
            del table[name]
    if adapter.__init__ is ours:
        adapter.__init__ = init


def _for_torchdatas_too(init, added):
    """Return the adapter's `init`, wrapped so that it can make torchdata's loader from the same arguments.

    torchdata's loader gets none of slipring's arguments; slipring's loader gets them under their own names.
    """

    @functools.wraps(init)
    def adapted(self, dataset, use_stateful_dataloader=False, batch_sampler=None, **kwargs):
        if use_stateful_dataloader:
            kwargs = {name: value for name, value in kwargs.items() if name not in added}
        for name, alias in ALIASES.items():
            if alias in kwargs:
                kwargs[name] = kwargs.pop(alias)
        init(self, dataset, use_stateful_dataloader, batch_sampler, **kwargs)

    return adapted
