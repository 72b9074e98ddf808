"""Start one child per baseline, measure each in turn, and never wait forever."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.baselines import BASELINES, find
from bench.baselines.baseline import Baseline
from bench.collate import digest, numbered
from bench.libraries import search_path
from bench.measure import CHECKED
from bench.workload import Workload

START_S = 60.0
GRACE_S = 15.0


@dataclass(frozen=True)
class Plan:
    """The measurements and their durations."""

    workloads: tuple[Workload, ...]
    workers: int
    repeats: int
    warm_s: float
    window_s: float
    limit_s: float
    data: str | None = None
    budget_s: float | None = None
    only: tuple[str, ...] | None = None
    quick: bool = False

    def baselines_of(self, workload: Workload) -> tuple[Baseline, ...]:
        """Return the baselines of a workload: those given by name, or all except those that run only by name."""
        keys = workload.baselines or tuple(BASELINES)
        if self.only is None and self.quick and workload.quick_baselines:
            keys = workload.quick_baselines
        if self.only is None:
            return tuple(find(key) for key in keys if not find(key).by_name)
        return tuple(find(key) for key in keys if key in self.only)

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """All baselines that are measured for at least one workload."""
        asked = (baseline for workload in self.workloads for baseline in self.baselines_of(workload))
        return tuple({baseline.key: baseline for baseline in asked}.values())

    @property
    def steps(self) -> int:
        """How often `run` calls `step` if no baseline is missing and the budget suffices."""
        return 1 + len(self.baselines) + self.repeats * sum(len(self.baselines_of(q)) for q in self.workloads)

    def batch_size(self, workload: Workload) -> int:
        """Samples per batch."""
        return (self.quick and workload.quick_batch_size) or workload.batch_size


class Child:
    """The process of one baseline. Every answer is a dict, with ``error`` after a failure."""

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Child:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._errors.close()

    def start(self) -> None:
        """Start the process, without waiting for its imports."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", self.baseline.key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # so that Ctrl-C reaches it through stop(), once
            env=self._environment(),
            cwd=Path(__file__).parent.parent,
        )

    def _environment(self) -> dict[str, str]:
        lent = search_path(self.baseline.libraries_of) if self.baseline.libraries_of else None
        return {**os.environ, "LD_LIBRARY_PATH": lent} if lent else dict(os.environ)

    def missing(self) -> str | None:
        """Wait until the process has imported its baseline; return why the baseline is not available, or None."""
        answer = self._read(START_S)
        return answer.get("error", answer.get("missing"))

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make one measurement."""
        if self._process is None:
            self.start()
            if reason := self.missing():
                return {"error": reason}
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            return {"error": f"its process died: {self._last_words()}"}
        return self._read(request["limit_s"] + GRACE_S)

    def _read(self, limit_s: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        stdout = self._process.stdout
        ready = select.select([stdout], [], [], limit_s)[0]
        line = stdout.readline() if ready else b""
        if line:
            return json.loads(line)
        self.stop()
        if not ready:
            return {"error": f"no answer within {limit_s:.0f} s", "hung": True}
        return {"error": f"its process died: {self._last_words()}"}

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"

    def stop(self) -> None:
        """End the process: first by a request, so that it can end its forks, then by a kill."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def run(plan: Plan, step: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Carry out a plan.

    Parameters
    ----------
    plan
        The measurements.
    step
        Called before each measurement with its description, for a progress bar.

    Returns
    -------
    dict
        ``rounds``: for each workload and baseline a list with one answer per round; ``missing``: why baselines could
        not run; ``seconds``: the total time.
    """
    begin = time.monotonic()
    rounds: dict[str, dict[str, list[Any]]] = {
        workload.key: {baseline.key: [] for baseline in plan.baselines_of(workload)} for workload in plan.workloads
    }
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        children = [stack.enter_context(Child(baseline)) for baseline in plan.baselines]
        step("working out what the batches must be")
        requests = {workload.key: _request(plan, workload) for workload in plan.workloads}
        for child in children:
            step(f"importing {child.baseline.label}")
            if reason := child.missing():
                missing[child.baseline.key] = reason
        present = [child for child in children if child.baseline.key not in missing]
        took: dict[str, float] = {}
        for number in range(plan.repeats):
            for workload in plan.workloads:
                started = time.monotonic()
                if number and plan.budget_s and started - begin + took[workload.key] > plan.budget_s:
                    continue  # one round each in any case
                asked = [child for child in present if child.baseline.key in rounds[workload.key]]
                for child in _rotated(asked, number):
                    step(f"round {number + 1}  ({workload.key}) {child.baseline.label}")
                    answers = rounds[workload.key][child.baseline.key]
                    if answers and "hung" in answers[-1]:
                        answers.append(answers[-1])  # once is enough
                    else:
                        answers.append(child.ask(requests[workload.key]))
                took[workload.key] = time.monotonic() - started
    return {"rounds": rounds, "missing": missing, "seconds": time.monotonic() - begin}


def _request(plan: Plan, workload: Workload) -> dict[str, Any]:
    """Return a child's request, with the digests that the first batches may have."""
    dataset, size = workload.dataset(plan.data), plan.batch_size(workload)
    # Unordered baselines may deliver one worker's batches before another worker's first.
    count = plan.workers * (CHECKED + 1)
    if dataset.distinct % size == 0:
        count = min(count, dataset.distinct // size)
    return {
        "workload": workload.key,
        "data": plan.data,
        "batch_size": size,
        "workers": plan.workers,
        "warm_s": plan.warm_s,
        "window_s": plan.window_s,
        "limit_s": plan.limit_s + workload.window_scale * plan.window_s,
        "expected": None if workload.crops else [digest(numbered(dataset, size, number)) for number in range(count)],
    }


def _rotated(items: list[Child], by: int) -> Iterable[Child]:
    """Start each round with another baseline, so that none always runs after the same one."""
    by %= max(1, len(items))
    return items[by:] + items[:by]
