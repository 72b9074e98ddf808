"""Datasets that one rank makes for all: how they are given, and their placeholder in the other ranks."""

import numbers

from torch.utils.data import Dataset, IterableDataset

from slipring._core.workers.stateful import attempt, is_stateful

READABLE = ("__getitem__", "__getitems__", "__iter__", "fetch_into")


def is_factory(given):
    """Return whether an argument is a function or class that makes a dataset or sampler, and is none itself."""
    return callable(given) and not any(hasattr(type(given), name) for name in READABLE)


def facts_of(dataset):
    """Return the facts of a dataset that a loader needs if other processes read it, as a dict that pickles."""
    kind, length = type(dataset), attempt(len, dataset)[0]
    methods = ["state_dict", "load_state_dict"] if is_stateful(dataset) else []
    methods += [name for name in ("set_epoch", "rest_of") if callable(getattr(dataset, name, None))]
    values = {name: getattr(dataset, name, None) for name in ("rank", "world_size")}
    return {
        "class": (kind.__name__, kind.__module__, kind.__qualname__),
        "is_stream": isinstance(dataset, IterableDataset),
        "length": length,
        "methods": methods,
        "values": {name: int(value) for name, value in values.items() if isinstance(value, numbers.Integral)},
    }


def placeholder(facts, maker):
    """Return a dataset with these facts and the name of the original class, but without samples.

    `maker` names the rank that has the samples.
    """
    name, module, qualname = facts["class"]

    def why(what):
        return (
            f"{name}.{what} is not in this process, because {maker} has made the dataset for all ranks of share=: "
            "compute it there, or give share= the dataset itself in each rank, not a function that makes it"
        )

    def lacks(what):
        def method(self, *args):
            raise RuntimeError(why(what))

        return method

    def missing(self, what):
        raise AttributeError(why(what))

    methods = [*facts["methods"], "__iter__" if facts["is_stream"] else "__getitem__"]
    members = {what: lacks(what) for what in methods}
    if "set_epoch" in members:
        members["set_epoch"] = lambda self, epoch: None  # the original's counts
    if facts["length"] is not None:
        members["__len__"] = lambda self: facts["length"]
    members |= {"__getattr__": missing, "__module__": module, "__qualname__": qualname, **facts["values"]}
    return type(name, (IterableDataset if facts["is_stream"] else Dataset,), members)()
