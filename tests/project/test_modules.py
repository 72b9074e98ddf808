"""Modules are short enough to read in one sitting, and class names are unique."""

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "pkg" / "slipring"
MOST_LINES = {".py": 480, ".pyx": 1000, ".pxi": 1000}
SOURCES = [path for path in PACKAGE.rglob("*") if path.suffix in MOST_LINES]
# Longer modules. Only ever shorten this list.
LONGER = {"sampler.py"}
# Public classes named as in the libraries that they replace, or after one concept in several frontends.
OF_FRONTENDS = {
    "BatchSampler",
    "DataLoader",
    "DataMonitor",
    "Loader",
    "Parquet",
    "RandomSampler",
    "Transform",
    "WorkerInfo",
}
# Other modules that ask whether a signal handler raised an exception. Only ever shorten this list.
ASKING = {
    "_core/_codec_encode.pxi",
    "_core/_collate_rows.pxi",
    "_core/_rebatch.pyx",
    "_core/_rng_guard.pyx",
    "_core/worker.py",
}


def test_a_module_can_be_read_in_one_sitting():
    lines = {path: len(path.read_text().splitlines()) for path in SOURCES}
    longer = {str(path.relative_to(PACKAGE)) for path, n in lines.items() if n > MOST_LINES[path.suffix]}
    assert longer == LONGER


def test_only_code_that_substitutes_something_for_an_exception_asks_whether_a_handler_raised_it():
    asking = {
        str(path.relative_to(PACKAGE)) for path in SOURCES if re.search(r"(?<!def )\bfrom_handler\(", path.read_text())
    }
    assert {name for name in asking if not name.startswith(("images/", "_files/"))} == {
        "_core/_cache.pyx",
        "_core/stateful.py",
        "_core/fetch.py",
        *ASKING,
    }


# The places that catch BaseException and do not raise it again: threads that pass it on, and code that must end first.
# Only ever shorten this list.
PASS_ON = {
    "_core/_ring_check.pxi",  # the first exception of several handlers is raised when all have run
    "_core/_rng_guard.pyx",  # likewise
    "_core/ahead.py",  # two threads
    "_core/event_loop.py",  # a coroutine's result
    "_core/fetch_threads.py",
    "_core/worker.py",  # a thread worker
    "_files/systems.py",  # a read in a thread
    "ray/_blocks.py",  # likewise
}


HANDLER = re.compile(r"^( *)except BaseException.*\n((?:\1 +.*\n|\n)*)", re.MULTILINE)


def passes_on(text):
    """Return how many handlers of BaseException in a module do not raise it again at their end."""
    found = HANDLER.findall(text)
    return sum(not body.rstrip().endswith(f"\n{indent}    raise") and body.strip() != "raise" for indent, body in found)


def test_exceptions_that_end_a_program_are_passed_on_in_few_places():
    found = {str(path.relative_to(PACKAGE)): passes_on(path.read_text()) for path in SOURCES}
    assert {path for path, count in found.items() if count} == PASS_ON
    assert sum(found.values()) <= 10


def test_one_module_asks_which_process_this_is_and_makes_reentrant_locks():
    found = {str(path.relative_to(PACKAGE)) for path in SOURCES if re.search(r"os\.getpid|RLock\(", path.read_text())}
    assert found == {"_core/process.py"}


# An f-string that converts bytes or times to another unit, and code that shortens a repr or survives one that raises.
CONVERTING = re.compile(r"\{[^{}\"]*(?:/ ?1e[369]|\* ?1e[369]|<< ?20|>> ?20|/ ?60)[^{}]*:[^{}]*\}")
SHOWING = re.compile(r"reprlib\.|whose repr raises")
# MegEngine's log format; modules of the lowest layer. Only ever shorten this list.
FORMATTING_TOO = {"_core/pytree.py", "adapters/megengine.py", "errors.py"}


def test_one_module_formats_bytes_and_seconds_and_shows_objects():
    found = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        if SHOWING.search(text := path.read_text()) or CONVERTING.search(text)
    }
    assert found == {"_core/text.py"} | FORMATTING_TOO
    assert CONVERTING.search('f"{n / 1e6:,.1f} MB"') and not CONVERTING.search("{n: n / 1e6}")


def test_no_two_classes_have_one_name():
    files = defaultdict(set)
    for path in SOURCES:
        for name in re.findall(r"^(?:cdef )?class ([A-Z]\w*)", path.read_text(), re.M):
            files[name].add(str(path.relative_to(PACKAGE)))
    assert {name: sorted(found) for name, found in files.items() if len(found) > 1}.keys() == OF_FRONTENDS
