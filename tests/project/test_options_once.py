"""An option is declared once, in slipring/options.py, and reaches every loader: signature, help() and the loader."""

import contextlib
import dataclasses
import importlib
import inspect
from typing import get_args

import numpy as np
import pytest

import slipring
from slipring import options
from tests.support.inside import Group, rules

COMMON = options.CommonOptions.__annotations__


def loaders():
    """Return {name of a loader: (the loader, the options that it declares)}."""
    found = {
        "Loader": (slipring.Loader, options.LoaderOptions),
        "stream": (slipring.stream, options.StreamOptions),
    }
    for name, module, loader, declared in (
        ("torch.DataLoader", "slipring.torch", "DataLoader", options.TorchOptions),
        ("ray.Loader", "slipring.ray", "Loader", options.RayOptions),
    ):
        with contextlib.suppress(ImportError):
            found[name] = getattr(importlib.import_module(module), loader), declared
    return found


LOADERS = loaders()
REFUSED = {"ray.Loader": {"worker_init_fn", "persistent_workers"}}  # options that a loader cannot have


@pytest.mark.parametrize("loader", LOADERS)
def test_each_declared_option_is_in_the_signature_and_in_the_documentation_unless_it_is_refused(loader):
    made, declared = LOADERS[loader]
    parameters = inspect.signature(made).parameters
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    assert set(COMMON) <= set(declared.__annotations__) <= set(parameters)
    for name, (_, rule) in rules(declared).items():
        assert (f"\n    {name} : " in made.__doc__) == (name not in REFUSED.get(loader, ())), name
        assert parameters[name].default == rule.default or loader in ("torch.DataLoader", "ray.Loader"), name


def test_torchs_parameters_are_torchs():
    torch = pytest.importorskip("torch")
    theirs = inspect.signature(torch.utils.data.DataLoader).parameters
    ours = inspect.signature(LOADERS["torch.DataLoader"][0]).parameters
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    assert list(ours)[: len(theirs)] == list(theirs)


VALUES = {
    slipring.Workers: slipring.Workers(on_death="respawn", max_restarts=7, snapshot_every_n_steps=5),
    slipring.Memory: slipring.Memory(slots=40, slot_bytes=1 << 20, backing="memfd", copy="always"),
}


def another(declared, rule):
    """Return a value of an option that is not its default."""
    if declared is bool:
        return not rule.default
    if declared is float:
        return rule.default + 2.5
    if isinstance(rule.default, Group):
        return VALUES[type(rule.default)]
    return next(word for word in get_args(declared) if word != rule.default)  # of a Literal


@pytest.mark.parametrize("name", rules(options.CommonOptions))
def test_the_options_arrive(name):
    wanted = another(*rules(options.CommonOptions)[name])
    value = {name: wanted}
    assert getattr(slipring.Loader([1, 2], num_workers=1, **value).options, name) == wanted
    stream = slipring.stream(lambda worker, workers: [{"x": np.arange(3)}], 2, num_workers=1, **value)
    assert getattr(stream.options, name) == wanted
    if "torch.DataLoader" in LOADERS:
        loader = LOADERS["torch.DataLoader"][0]([1, 2], num_workers=1, **{"rng": "batch", **value})
        assert getattr(loader, name) == wanted
        reached = loader._core_options()
        workers = dataclasses.replace(reached.workers, start_method=None)  # multiprocessing_context sets it
        assert getattr(dataclasses.replace(reached, workers=workers), name) == wanted


def test_positional_arguments_end_after_batch_size_and_the_error_says_so():
    with pytest.raises(TypeError, match="takes dataset, batch_size by position, and all other arguments by name"):
        slipring.Loader([1, 2], 2, True)
