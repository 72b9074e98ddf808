"""Start one child per rival, measure each in turn, and never wait for ever."""

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

from bench.collate import digest, numbered
from bench.libraries import search_path
from bench.measure import CHECKED
from bench.question import Question
from bench.rivals import RIVALS, find
from bench.rivals.rival import Rival

START_S = 60.0
GRACE_S = 15.0


@dataclass(frozen=True)
class Plan:
    """The measurements and their durations."""

    questions: tuple[Question, ...]
    workers: int
    repeats: int
    warm_s: float
    window_s: float
    limit_s: float
    data: str | None = None
    budget_s: float | None = None
    only: tuple[str, ...] | None = None
    quick: bool = False

    def rivals_of(self, question: Question) -> tuple[Rival, ...]:
        """Return the rivals of a question: those given by name, or all except those that run only by name."""
        keys = question.rivals or tuple(RIVALS)
        if self.only is None and self.quick and question.quick_rivals:
            keys = question.quick_rivals
        if self.only is None:
            return tuple(find(key) for key in keys if not find(key).by_name)
        return tuple(find(key) for key in keys if key in self.only)

    @property
    def rivals(self) -> tuple[Rival, ...]:
        """All rivals that are measured for at least one question."""
        asked = (rival for question in self.questions for rival in self.rivals_of(question))
        return tuple({rival.key: rival for rival in asked}.values())

    @property
    def steps(self) -> int:
        """How often `run` calls `step` if no rival is missing and the budget suffices."""
        return 1 + len(self.rivals) + self.repeats * sum(len(self.rivals_of(q)) for q in self.questions)

    def batch_size(self, question: Question) -> int:
        """Samples per batch."""
        return (self.quick and question.quick_batch_size) or question.batch_size


class Child:
    """The process of one rival. Every answer is a dict, with ``error`` after a failure."""

    def __init__(self, rival: Rival) -> None:
        self.rival = rival
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
            [sys.executable, "-m", "bench.child", self.rival.key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # so that Ctrl-C reaches it through stop(), once
            env=self._environment(),
            cwd=Path(__file__).parent.parent,
        )

    def _environment(self) -> dict[str, str]:
        lent = search_path(self.rival.libraries_of) if self.rival.libraries_of else None
        return {**os.environ, "LD_LIBRARY_PATH": lent} if lent else dict(os.environ)

    def missing(self) -> str | None:
        """Wait until the process has imported its rival; return why the rival is not available, or None."""
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
        ``rounds``: for each question and rival a list with one answer per round; ``missing``: the reasons why rivals
        could not run; ``seconds``: the total time.
    """
    begin = time.monotonic()
    rounds: dict[str, dict[str, list[Any]]] = {
        question.key: {rival.key: [] for rival in plan.rivals_of(question)} for question in plan.questions
    }
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        children = [stack.enter_context(Child(rival)) for rival in plan.rivals]
        step("working out what the batches must be")
        requests = {question.key: _request(plan, question) for question in plan.questions}
        for child in children:
            step(f"importing {child.rival.label}")
            if reason := child.missing():
                missing[child.rival.key] = reason
        present = [child for child in children if child.rival.key not in missing]
        took: dict[str, float] = {}
        for number in range(plan.repeats):
            for question in plan.questions:
                started = time.monotonic()
                if number and plan.budget_s and started - begin + took[question.key] > plan.budget_s:
                    continue  # one round each in any case
                asked = [child for child in present if child.rival.key in rounds[question.key]]
                for child in _rotated(asked, number):
                    step(f"round {number + 1}  ({question.key}) {child.rival.label}")
                    answers = rounds[question.key][child.rival.key]
                    if answers and "hung" in answers[-1]:
                        answers.append(answers[-1])  # once is enough
                    else:
                        answers.append(child.ask(requests[question.key]))
                took[question.key] = time.monotonic() - started
    return {"rounds": rounds, "missing": missing, "seconds": time.monotonic() - begin}


def _request(plan: Plan, question: Question) -> dict[str, Any]:
    """Return a child's request, with the digests that the first batches may have."""
    dataset, size = question.dataset(plan.data), plan.batch_size(question)
    # Unordered rivals may deliver one worker's batches before another worker's first.
    count = plan.workers * (CHECKED + 1)
    if dataset.distinct % size == 0:
        count = min(count, dataset.distinct // size)
    return {
        "question": question.key,
        "data": plan.data,
        "batch_size": size,
        "workers": plan.workers,
        "warm_s": plan.warm_s,
        "window_s": plan.window_s,
        "limit_s": plan.limit_s + question.window_scale * plan.window_s,
        "expected": None if question.crops else [digest(numbered(dataset, size, number)) for number in range(count)],
    }


def _rotated(items: list[Child], by: int) -> Iterable[Child]:
    """Start each round with another rival, so that none always runs after the same one."""
    by %= max(1, len(items))
    return items[by:] + items[:by]
