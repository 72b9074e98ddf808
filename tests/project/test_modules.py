"""Modules are short enough to read in one sitting, and class names are unique."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "pkg" / "slipring"
MOST_LINES = {".py": 480, ".pyx": 1000}
SOURCES = [path for path in PACKAGE.rglob("*") if path.suffix in MOST_LINES]
# Public classes named as in the libraries that they replace, or after one concept in several frontends.
OF_FRONTENDS = {
    *("BatchSampler", "DataLoader", "DataMonitor", "Loader", "Parquet", "RandomSampler", "Transform", "WorkerInfo")
}
TEXTS = {str(path.relative_to(PACKAGE)): path.read_text() for path in SOURCES}

# What only these modules do. Only ever shorten these lists.
CONVERTING = r"\{[^{}\"]*(?:/ ?1e[369]|\* ?1e[369]|<< ?20|>> ?20|/ ?60)[^{}]*:[^{}]*\}"
ONLY_IN = {
    "asking which process this is, and making reentrant locks": (r"os\.getpid|RLock\(", "_core/ring/process.py"),
    # Text of bytes and seconds, and of objects. MegEngine has its own log format; two modules are of the lowest layer.
    "formatting": (
        rf"reprlib\.|whose repr raises|{CONVERTING}",
        "_core/ring/text.py _core/codec/pytree.py adapters/megengine.py errors.py",
    ),
    # Code that substitutes something for an exception asks whether a signal handler raised it.
    "asking for a handler's exception": (
        r"(?<!def )\bfrom_handler\(",
        "_core/codec/_cache.pyx _core/workers/stateful.py _core/codec/_rows.pyx "
        "_core/passes/_rebatch.pyx _core/workers/_rng_guard.pyx clips/_pyav.py",
    ),
}


@pytest.mark.parametrize("what", ONLY_IN)
def test_few_modules_do_what_others_get_from_them(what):
    pattern, modules = ONLY_IN[what]
    found = {name for name, text in TEXTS.items() if re.search(pattern, text)}
    if what == "asking for a handler's exception":
        found = {name for name in found if not name.startswith(("images/", "_files/"))}
    assert found == set(modules.split())


def test_no_file_is_included_as_text():
    """It would hide where a name comes from, and evade the limit on a module's length."""
    assert not list(PACKAGE.rglob("*.pxi"))
    assert not {name for name, text in TEXTS.items() if name.endswith(".pyx") and re.search(r"^include ", text, re.M)}


def test_a_module_can_be_read_in_one_sitting():
    longer = {name for name, text in TEXTS.items() if len(text.splitlines()) > MOST_LINES[Path(name).suffix]}
    assert not longer


# The places that catch BaseException and do not raise it again: threads that pass it on, and code that must end first.
# Only ever shorten this list.
PASS_ON = {
    "_core/ring/_check.pyx",  # the first exception of several handlers is raised when all have run
    "_core/workers/_rng_guard.pyx",  # likewise
    "_core/passes/prefetch.py",  # two threads
    "_core/workers/concurrency.py",  # the result of a coroutine, and of a thread
    "_core/workers/worker.py",  # a thread worker
    "_files/systems.py",  # a read in a thread
    "ray/_blocks.py",  # likewise
}


HANDLER = re.compile(r"^( *)except BaseException.*\n((?:\1 +.*\n|\n)*)", re.MULTILINE)


def passes_on(text):
    """Return how many handlers of BaseException in a module do not raise it again at their end."""
    found = HANDLER.findall(text)
    return sum(not body.rstrip().endswith(f"\n{indent}    raise") and body.strip() != "raise" for indent, body in found)


def test_exceptions_that_end_a_program_are_passed_on_in_few_places():
    found = {name: passes_on(text) for name, text in TEXTS.items()}
    assert {path for path, count in found.items() if count} == PASS_ON
    assert sum(found.values()) <= 10


def test_no_two_classes_have_one_name():
    files = defaultdict(set)
    for path, text in TEXTS.items():
        for name in re.findall(r"^(?:cdef )?class ([A-Z]\w*)", text, re.M):
            files[name].add(path)
    assert {name: sorted(found) for name, found in files.items() if len(found) > 1}.keys() == OF_FRONTENDS


# ---- what all loaders share

ELSEWHERE = {"sampler.py"}  # it has another state, with keys of the same name
# Words that mean something else in other modules, too.
COMMON = "batch_size epoch kind num_workers order ranks rng sampler seed slipring workers"


def test_the_keys_of_a_state_stand_in_one_module():
    keys = set(json.loads((PACKAGE.parents[1] / "docs" / "state.schema.json").read_text())["properties"]) - set(
        COMMON.split()
    )
    assert {"beyond", "drawn", "rng_before_iter"} <= keys
    quoted = re.compile(rf"""["'](?:{"|".join(sorted(keys))})["']""")
    found = {name for name, text in TEXTS.items() if quoted.search(text)}
    assert found - ELSEWHERE == {"_core/passes/state.py"}
