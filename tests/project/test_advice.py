"""Advice of loaders: misspelt arguments, and arguments whose effect differs from their name.

What messages advise exists: arguments, their values, objects and commands. `tests/monitor/test_advice.py` executes the
advice of verdicts.
"""

import contextlib
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import slipring
from slipring import Loader


def test_far_more_workers_than_processors_are_warned_of():
    cpus = len(os.sched_getaffinity(0))
    with pytest.warns(UserWarning, match=f"num_workers={50 * cpus} for {cpus} processors") as told:
        Loader(range(9), num_workers=50 * cpus).close()
    assert told[0].filename == __file__
    Loader(range(9), num_workers=2 * cpus).close()


ANSWERS = {
    "num_worker": "Did you mean 'num_workers'", "generator": "Did you mean 'seed'",
    # Arguments of tf.data, Keras and Grain.
    "worker_count": "Did you mean 'num_workers'", "use_multiprocessing": ".*Workers\\(start_method=",
    "num_threads": ".*Workers\\(fetch_threads=", "drop_remainder": "Did you mean 'drop_last'",
    "max_queue_size": "Did you mean 'prefetch_factor'", "num_epochs": ".* once for each epoch",
    "repeat": ".* once for each epoch", "transforms": ".* in collate_fn", "shard_options": ".*slipring.BatchSampler",
    # Arguments that belong to a group, or have another name.
    "chunk_size": r".*workers=slipring\.Workers\(chunk_size=", "slots": r".*memory=slipring\.Memory\(slots=",
    "on_worker_death": r".*workers=slipring\.Workers\(on_death=", "min_workers": r".*num_workers=\(least, most\)",
    "multiprocessing_context": r".*workers=slipring\.Workers\(start_method=", "dispatch": ".*rng='worker'",
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_argument_that_is_not_there_is_answered_by_the_one_that_was_meant(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'. {ANSWERS[name]}"):
        Loader(range(9), **{name: None})


@pytest.mark.parametrize("name", ["preload", "devices"])
def test_options_of_a_device_are_refused_with_advice(adapter, name):
    with pytest.raises(TypeError, match=f"keyword argument '{name}'. Give device="):
        adapter.DataLoader(range(9), **{name: None})
    with pytest.raises(TypeError, match=f"keyword argument '{name}'$"):
        Loader(range(9), **{name: None})


def test_streams_answer_by_arguments_of_their_own():
    for name, meant in (("shuffle", "shuffle_buffer"), ("colums", "columns")):
        with pytest.raises(TypeError, match=f"argument '{name}'. Did you mean '{meant}'"):
            slipring.stream([{"x": np.arange(3)}], 2, **{name: True})


def test_a_batch_sampler_given_as_sampler_is_answered_by_batch_sampler():
    sampler = slipring.BatchSampler(10, batch_size=2)
    with pytest.raises(TypeError, match=r"sampler \(BatchSampler\) gives lists .* give it as batch_sampler="):
        Loader(range(10), 2, sampler=sampler)
    with Loader(np.arange(4), None, sampler=sampler) as loader:
        assert next(iter(loader)).tolist() == [0, 1]


def test_a_dict_of_arrays_is_no_dataset():
    with pytest.raises(TypeError, match=r"dict of \['x'\].*use slipring.stream\(\[dataset\]"):
        Loader({"x": np.arange(3)})
    with Loader({0: 5, 1: 6}, 2) as loader, Loader({"x": 7}, sampler=["x"]) as by_key:
        assert next(iter(loader)).tolist() == [5, 6] and next(iter(by_key)).tolist() == [7]


def test_a_tuple_of_arrays_of_as_many_rows_is_warned_of():
    with pytest.warns(UserWarning, match="tuple of 2 arrays of 9 rows each, which are 2 samples") as told:
        Loader((np.zeros((9, 3)), np.zeros(9)))
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for samples in ((np.zeros(9), np.zeros(8)), (np.zeros(2),) * 3, [np.zeros(9)] * 2, (1, 2)):
            Loader(samples)


def test_a_name_unlike_all_arguments_gets_no_suggestion():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zz'$"):
        Loader(range(9), zz=1)


# ---- under torch's drop-in


@pytest.fixture
def adapter():
    return pytest.importorskip("slipring.torch")


def test_torchs_drop_in_suggests_torchs_arguments(adapter):
    with pytest.raises(TypeError, match="Did you mean 'multiprocessing_context'"):
        adapter.DataLoader(range(9), start_method="spawn")


def test_an_object_that_cannot_be_sent_to_a_worker_causes_torchs_warning(adapter):
    data = pytest.importorskip("torch").utils.data
    options = {"num_workers": 1, "collate_fn": lambda samples: samples, "multiprocessing_context": "spawn"}
    texts = []
    for loader in data.DataLoader(range(9), **options), adapter.DataLoader(range(9), **options):
        with pytest.warns(UserWarning, match="^Got pickle error") as told, pytest.raises(Exception) as raised:
            next(iter(loader))
        texts.append((type(raised.value), str(told[0].message)))
    assert texts[0] == texts[1]
    assert "use multiprocessing_context='fork'" in str(raised.value)


def test_classes_that_install_does_not_reach_are_named_once(adapter):
    data = pytest.importorskip("torch").utils.data

    class MultiEpochs(data.DataLoader):
        pass

    with pytest.warns(UserWarning, match=r"derived from torch's .*MultiEpochs"):
        adapter.install()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with adapter.install():
            assert data.DataLoader is adapter.DataLoader
    adapter.uninstall()
    assert MultiEpochs.__mro__[1] is data.DataLoader


# ---- all messages

PACKAGE = Path(slipring.__file__).parent
SOURCES = sorted(path for ending in ("py", "pyx") for path in PACKAGE.rglob(f"*.{ending}"))
COMMENTS = re.compile(r'""".*?"""|^\s*#[^\n]*', re.S | re.M)
STRING = r"""[bfr]{0,2}("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
STRINGS = re.compile(rf"(?<![\w\"'])(?:{STRING}\s*)+", re.I)
# Arguments of others, which messages name.
FOREIGN = {
    "use_distributed_sampler": "Lightning", "antialias": "torchvision", "min_area": "torchvision",
    "num_layers": "timm", "num_splits": "timm", "ops": "timm", "depth": "timm", "m": "timm",
    "concurrency": "Ray", "override_num_blocks": "Ray", "style": "HTML", "daemon": "multiprocessing",
}  # fmt: skip


def messages():
    """Return (file, text) of each string with a space, whose replacement fields become "\0"; no docstrings."""
    for path in SOURCES:
        for found in STRINGS.finditer(COMMENTS.sub("", path.read_text())):
            text = "".join(part[1:-1] for part in re.findall(STRING, found[0], re.I))
            if " " in text:
                yield path.name, re.sub(r"\{[^{}]*\}", "\0", text.replace("\\", ""))


MESSAGES = list(messages())


def named(pattern):
    """Return {what `pattern` finds in the messages: the first of them}; a tuple if the pattern has several groups."""
    found = {}
    for file, text in MESSAGES:
        for name in re.findall(pattern, text):
            found.setdefault(name, f"{file}: {text}")
    return found


def public():
    """Return {name: public objects of that name}, of all public modules that can be imported here."""
    found = {}
    for info in pkgutil.walk_packages([str(PACKAGE)], "slipring."):
        if "._" not in info.name:
            with contextlib.suppress(ImportError):
                module = importlib.import_module(info.name)
                for name in getattr(module, "__all__", ()):
                    found.setdefault(name, []).append(getattr(module, name))
    for name in slipring.__all__:
        found.setdefault(name, []).append(getattr(slipring, name))
    return found


def parameters(made):
    with contextlib.suppress(TypeError, ValueError):
        return inspect.signature(made).parameters
    return {}


@pytest.fixture(scope="module")
def signatures():
    """Return {name of a class or function: its parameters}, methods included."""
    found = {}
    for name, made in public().items():
        for each in made:
            found.setdefault(name, {}).update(parameters(each))
            for method, function in vars(each).items() if inspect.isclass(each) else ():
                if not method.startswith("_"):
                    found.setdefault(f"{name}.{method}", {}).update(parameters(function))
    return found


def test_each_argument_that_a_message_names_exists(signatures):
    known = {name for each in signatures.values() for name in each} | set(FOREIGN)
    found = named(r"(?<![\w.])([a-z_]\w*)=(?!=)")
    assert len(found) > 80 and not {name: where for name, where in found.items() if name not in known}
    of_calls = named(r"\b([A-Z]\w+)\(([a-z_]\w*)=")
    ours = {call: where for call, where in of_calls.items() if call[0] in signatures and call[1] not in FOREIGN}
    assert len(ours) > 5 and not {call: where for call, where in ours.items() if call[1] not in signatures[call[0]]}


def test_each_value_that_a_message_gives_is_one_of_the_arguments_values(signatures):
    values = {}  # of arguments that take one of several words
    for each in signatures.values():
        for name, parameter in each.items():
            for words in re.findall(r"Literal\[([^\]]*)\]", str(parameter.annotation)):
                values.setdefault(name, set()).update(re.findall(r"'([^']*)'", words))
    found = named(r"""(?<![\w.])([a-z_]\w*)=["']([^"'\0/]*)["']""")
    wrong = {pair: where for pair, where in found.items() if pair[0] in values and pair[1] not in values[pair[0]]}
    assert sum(name in values for name, _ in found) > 10 and not wrong
    groups = named(r"\b((?:Workers|Memory)\([^()\0]*\))")
    assert [
        eval(code, {"Workers": slipring.Workers, "Memory": slipring.Memory}) for code in groups if "..." not in code
    ]


def test_each_object_and_command_that_a_message_names_exists():
    for name, where in named(r"\b(slipring(?:\.[A-Za-z]\w*)+)").items():
        try:
            pkgutil.resolve_name(name)
        except AttributeError:
            assert importlib.util.find_spec(name), where  # a module whose library is not installed
    commands = named(r"`slipring ([a-z-]+)")
    assert commands
    for command in commands:
        subprocess.run([sys.executable, "-m", "slipring", command, "--help"], check=True, stdout=subprocess.DEVNULL)
