"""Each advice of a verdict is code that works: the code in backticks is executed.

Each advice comes from a rule that is applied to simulated jobs. If no job reaches a rule, or a piece of code in the
strings of the package `_observe`, a test fails: a new advice needs a job that leads to it.
"""

import ast
import importlib.util
import inspect
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy
import pytest

import slipring
import slipring.images
from tests.monitor.simulated import Job
from tests.monitor.test_ranks import judged, told
from tests.monitor.test_verdict import ALONE, CAUSES, NOT_AGAIN, THRESHOLDS
from tests.support.datasets import Into
from tests.support.inside import IF_BOUND, IF_NOT, READ_COUNTS, EmptySnapshot, Figures, observing, starting, verdict

ROOT = Path(__file__).parents[2]
OBSERVE = Path(slipring.__file__).parent / "_observe"
CODE = re.compile(r"`([^`]+)`")
# Code outside backticks: an argument, a call, a name with a dot or an underscore, or a command's option.
UNMARKED = re.compile(r"\w=|\w\(|\b[a-z]\w*\.[a-z]|\b[a-z]+_[a-z]|--\w")
CPUS = 4
MORE = [  # jobs for advice that the thresholds do not need
    (ALONE | {"workers": 1, "threads": True, "cpu": 1}, {}),
    ({"workers": 4, "fetch": 0.1, "step": 0.1, "wake": 1, "rows": 8}, {}),
]
HANGS = {
    "reading": Job(of=200, fetch=0.4, step=1, sleepy={401: 1e9}),
    "collating": Job(of=200, step=1, collate=lambda made: 1e9 if made.number == 100 else 1),
}
NO_READS = dict.fromkeys(READ_COUNTS, 0)


def of_rules():
    """Return {name of a rule: its advices}: what each rule says of each simulated job."""
    found = {rule.__name__: set() for rule in (*IF_BOUND, *IF_NOT)}
    for job, known in [*(row[:2] for row in (*THRESHOLDS, *CAUSES, *NOT_AGAIN)), *MORE]:
        made = Job(**job)
        figures, all_known = Figures(made.snapshot(), known.get("cpus", CPUS)), made.known(**known)
        for rule in (*IF_BOUND, *IF_NOT):
            answer = rule(figures, all_known)
            if answer is not None:
                found[rule.__name__].add(answer[2])
    for name in observing("causes").REPEATED:
        reads = NO_READS | {name: 3, "attempts": 9, "lost_ns": 10**12}
        stages = {"fetch": SimpleNamespace(total_s=1.0)}
        failing = SimpleNamespace(snapshot=SimpleNamespace(segment_info={"reads": reads}, stages=stages))
        found["retries"].add(observing("causes").retries(failing)[2])
    return found


def of_others():
    """Return {where: advice} of verdicts that come from no rule."""
    found = {name: job.verdict(later=1e6, waits=True).advice for name, job in HANGS.items()}
    meter = SimpleNamespace(batches=8, bytes=0, fetch_ns=9, collate_ns=0, wait_ns=9, spent_ns=10, reads=NO_READS)
    found["no segment"] = verdict(EmptySnapshot(meter)).advice
    found["ranks"] = judged(told(0, own=0.02), told(1, own=0.1), told(2, 0.03, own=0.018))[2]
    memory = {"memory_bytes": 1, "budget_bytes": None, "waits_for_memory": True, "pid": 10}
    found["ranks without memory"] = judged(told(0) | memory, told(1) | memory)[2]
    seen = Job(batches=9, of=20).snapshot(waits=True)
    seen.participants["pid"][1:] = os.getpid()
    seen.segment_info["pid_namespace"] = 0  # that of the test
    with mock.patch.object(observing("activity"), "state_of", lambda *process: "T"):
        found["stopped"] = observing("verdict").stopped(seen)[1]
    seen.participants["status"][1:] = 1
    found["not started"] = starting(seen)[2]
    seen.participants["pid"][1:] = 0
    found["not there"] = starting(seen)[2]
    return found


RULES, OTHERS = of_rules(), of_others()
# Without this process's number, so that all processes that run tests have the same parameters.
ADVICES = sorted(
    re.sub(rf"\b{os.getpid()}\b", "PID", advice)
    for advice in {*OTHERS.values(), *(advice for advices in RULES.values() for advice in advices)}
    if advice
)
PIECES = sorted({code for advice in ADVICES for code in CODE.findall(advice)})


def in_the_sources():
    """Return the code in the strings of `OBSERVE`, as patterns: {pattern: file and line}."""
    found = {}
    for path in OBSERVE.glob("*.py"):
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                texts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | parts:
                texts = (node.value,)
            else:
                continue
            for code in CODE.findall("".join(texts)):
                pattern = re.escape(code).replace("\0", ".+")  # a name in braces is a place for `str.format`
                found[re.sub(r"\\{\w+\\}", ".+", pattern)] = f"{path.name}:{node.lineno}"
    return found


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_advises_code_if_the_loop_waits(rule):
    assert RULES[rule], "no job here leads to this rule: add one to MORE"
    assert any(map(CODE.search, RULES[rule])) or rule not in {each.__name__ for each in IF_BOUND}


@pytest.mark.parametrize("advice", ADVICES)
def test_an_advice_has_code_and_all_of_it_stands_in_backticks(advice):
    assert CODE.search(advice) and not UNMARKED.search(CODE.sub("", advice))


def test_all_code_of_the_sources_is_executed():
    patterns = in_the_sources()
    missing = [where for code, where in patterns.items() if not any(re.fullmatch(code, piece) for piece in PIECES)]
    assert len(patterns) > 30 and not missing


# ---- the code


def number_of(batch):
    return batch


def pictures(**options):
    pytest.importorskip("PIL")
    from tests.support.pictures import encoded, pixels

    return slipring.images.Bytes([(encoded(pixels(60, 80)), 0)] * 2, slipring.images.Resize(24), **options)


def names(code, tmp_path):
    """Return the names that a piece of code may use: modules, and what users have."""
    found = {name: pytest.importorskip(name) for name in ("jax", "torch") if f"{name}." in code}
    importlib.import_module("slipring.torch" if "slipring.torch" in code else "slipring.images")
    dataset = pictures() if "step_times" in code else range(1000)
    if "map_batches" in code or "ray." in code:  # Ray's signatures: a call would start a cluster
        data = pytest.importorskip("ray.data")
        dataset = mock.create_autospec(data.Dataset, instance=True)
        found["ray"] = SimpleNamespace(data=SimpleNamespace(read_parquet=mock.create_autospec(data.read_parquet)))
    return found | {
        "slipring": slipring, "numpy": numpy, "logging": logging, "dataset": dataset, "budget": "1MiB",
        "folder": tmp_path / "kept", "path": "rows.parquet", "device": "cpu", "normalize": number_of,
        "function": number_of, "texts": ["a", "b"], "numbers": [1, 2], "values": [1, 2], "sample": numpy.zeros(3),
        "shape": (2, 3), "dtype": "uint8", "batch": numpy.zeros(3), "outputs": numpy.zeros(3),
    }  # fmt: skip


def takers():
    """Return the loaders and datasets that users give arguments to, each with the arguments it needs."""
    found = [partial(slipring.Loader, range(1000), num_workers=1)]
    if importlib.util.find_spec("torch"):
        found.append(partial(importlib.import_module("slipring.torch").DataLoader, range(1000), num_workers=1))
    return [*found, pictures] if importlib.util.find_spec("PIL") else found


def parameters(taker):
    taker = getattr(taker, "func", taker)
    return inspect.signature(slipring.images.ImageDataset if taker is pictures else taker).parameters


def give(name, value):
    """Give an argument to each loader and dataset that has it."""
    pytest.importorskip("torch" if name == "device" else "PIL" if name in ("cache", "side", "what") else "slipring")
    having = [taker for taker in takers() if name in parameters(taker)]
    assert having, f"nothing has an argument {name}"
    for taker in having:
        if isinstance(value, slipring.Workers) and value.start_method and "DataLoader" in str(taker):
            continue  # the advice is for threads, which torch's loader does not have
        made = taker(**{name: value})
        getattr(made, "close", bool)()


def exists(name):
    """Check a name alone: of a parameter, of an option in a group, or of a dataset's method."""
    groups = [slipring.Workers, slipring.Memory, importlib.import_module("slipring.ray").Loader]
    having = [*(parameters(taker) for taker in takers()), *(inspect.signature(group).parameters for group in groups)]
    assert any(name in each for each in having) or hasattr(Into, name)


def run(code, tmp_path):
    """Run a command, `slipring dump` with a job that this process has."""
    command = shlex.split(code)
    if command[0] == "py-spy":
        if not shutil.which("py-spy"):
            assert re.fullmatch(r"py-spy dump (--subprocesses )?--pid \d+", code)
            return
        done = subprocess.run(command, capture_output=True, text=True)
        assert "Usage" not in done.stderr  # there is no such process, or it must not be traced
        return
    if command[0] == "slipring":
        command[:1] = [sys.executable, "-m", "slipring"]
    if "module:factory" in command:
        (tmp_path / "module.py").write_text("factory = list(range(64))\n")
        command += ["--workers", "0", "--batches", "2", "--seconds", "0.1"]
    with slipring.Loader(range(100), num_workers=1) as job:
        next(iter(job))
        subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)


@pytest.mark.filterwarnings("ignore:.*worker")  # the simulated machine may have more processors than this one
@pytest.mark.parametrize("code", PIECES)
def test_the_code_of_an_advice_works(code, tmp_path):
    code = code.replace("PID", str(os.getpid()))
    argument = re.match(r"(\w+)=(?!=)", code)
    if code.endswith(".md"):
        assert "| the largest share |" in (ROOT / code).read_text()
    elif code.split()[0] in ("kill", "py-spy", "slipring"):
        run(code, tmp_path)
    elif argument:
        give(argument[1], eval(code[argument.end() :], names(code, tmp_path)))
    elif code.isidentifier():
        exists(code)
    else:
        exec(code, names(code, tmp_path))
