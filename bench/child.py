"""The process of one baseline: ``python -m bench.child BASELINE``.

It imports the baseline once, then reads one request per line and answers with one line of JSON. Each measurement
runs in a fork of this process, in its own process group: it starts from a clean state, and anything that it
leaves behind, or that hangs, is killed without an effect on the next one.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from bench.baselines import find
from bench.baselines.baseline import Baseline
from bench.exact import error
from bench.measure import Timing, measure
from bench.memory import of_job
from bench.workloads import WORKLOADS

EXIT_S = 5.0
"""How long a measurement may take to end after it has reported."""


def main() -> None:
    # Baselines print; the answers need a separate channel.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    baseline = find(sys.argv[1])
    missing = baseline.missing()
    print(json.dumps({"missing": missing}), file=answers)
    if missing:
        return
    module = importlib.import_module(f"bench.baselines.{baseline.module}")
    for line in sys.stdin:
        request = json.loads(line)
        receiver, sender = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(receiver)
            os.write(sender, json.dumps(_measure(baseline, module, request)).encode())
            os.close(sender)
            # Like a normal exit, but without the end of every module, which takes torch most of a second.
            atexit._run_exitfuncs()
            os._exit(0)
        os.close(sender)
        with suppress(OSError):
            os.setpgid(pid, pid)
        try:
            answer = _await(receiver, request["limit_s"])
            if "hung" not in answer:
                answer |= _reap(pid)
        finally:
            _kill_group(pid)
            os.close(receiver)
        print(json.dumps(answer), file=answers)


def _measure(baseline: Baseline, module: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Measure, in the fork; errors become answers."""
    size, workers, expected = request["batch_size"], request["workers"], request["expected"]
    workload = replace(WORKLOADS[request["workload"]], batch_size=size)
    known = None if expected is None else set(expected)
    counts = getattr(module, "counts", None)
    try:
        dataset: Any = workload.dataset(request["data"])
        first, warm_s = 0, request["warm_s"]
        if workload.epochs:  # they warm up, too
            first, warm_s = -(-workload.epochs * dataset.distinct // size), 0.0
        timing = Timing(warm_s, request["window_s"] * workload.window_scale, workers, first)
        with closing(module.batches(workload, dataset, workers, **baseline.options)) as batches:
            answer = measure(batches, known, timing, size, counts)
            if workload.epochs:  # with this process's parent, too: PSS divides their shared pages between both
                answer["memory"] = of_job(os.getppid())
        if workload.crops and (decoder := module.decoder(**baseline.options)):
            answer["error_mean"], answer["error_max"] = error(decoder, dataset.files, whole=baseline.whole)
        return answer
    except Exception as failure:
        import traceback

        traceback.print_exc()
        return {"error": f"{type(failure).__name__}: {failure}"}


def _await(receiver: int, limit_s: float) -> dict[str, Any]:
    """Wait for the fork's answer."""
    if not select.select([receiver], [], [], limit_s)[0]:
        return {"error": f"no result within {limit_s:.0f} s", "hung": True}
    text = os.read(receiver, 1 << 16)
    return json.loads(text) if text else {"error": "died without a result"}


def _reap(pid: int) -> dict[str, Any]:
    """Wait a while for the fork to end; return an error if it does not, or dies."""
    give_up = time.monotonic() + EXIT_S
    while time.monotonic() < give_up:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {"exit": f"exit status {code}"} if code else {}
        time.sleep(0.01)
    return {"exit": f"still running {EXIT_S:.0f} s after its last batch"}


def _kill_group(pid: int) -> None:
    """Kill the remaining processes of the fork and its workers."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
