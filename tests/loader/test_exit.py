"""The interpreter's exit with loaders in use: exit code 0, nothing on stderr, no process left."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from slipring import Loader, Workers
from tests.support.datasets import Waiting
from tests.support.inside import engine, engine_of
from tests.support.processes import in_child, until

BEGIN = """
import gc, os, sys, threading
from slipring import Loader, Workers
from tests.support.datasets import Shard, Squares

KWARGS = dict({kwargs})

def main():
    global loader, iterator, batch, others, second, thread
"""

END = """

if __name__ == "__main__":
    main()
"""

# (kind of workers, actions of the program before it ends or exits)
SCENES = {
    "a cycle": ("fork", """
        loader = Loader(Squares(100), 4, **KWARGS)
        others = [iter(loader), iter(loader)]
        others.append(others)
        next(others[0])
        gc.disable()
    """),
    "kept by sys, which goes last": ("fork", """
        loader = Loader(Squares(100), 4, **KWARGS)
        sys.kept = iter(loader)
        next(sys.kept)
    """),
    "a function at exit that iterates": ("fork", """
        import atexit
        loader = Loader(Squares(100), 4, **KWARGS)
        next(iter(loader))
        atexit.register(list, loader)
    """),
    "a forked child that ends as its parent does": ("fork", """
        loader = Loader(Squares(100), 4, **KWARGS)
        iterator = iter(loader)
        batch = next(iterator)
        child = os.fork()
        if child == 0:
            second = iter(loader)
            next(second)
        else:
            assert os.waitpid(child, 0)[1] == 0
            assert len(list(iterator)) == 24
    """),
    **{
        f"a child of multiprocessing, {kind}": (kind, """
        import multiprocessing
        loader = Loader(Squares(100), 4, **KWARGS)
        iterator = iter(loader)
        batch = next(iterator)
        child = multiprocessing.get_context("fork").Process(target=list, args=(loader,))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert len(list(iterator)) == 24
        """)
        for kind in ("fork", "thread")
    },
    **{
        f"a live iterator of a stream, {kind}": (kind, """
        loader = Loader(Shard(1000), 4, **KWARGS)
        iterator = iter(loader)
        batch = next(iterator)
        """)
        for kind in ("0", "fork", "thread", "spawn", "forkserver")
    },
    **{
        f"a daemon thread in the loop, {kind}": (kind, """
        loader = Loader(Squares(1 << 40), 4, **KWARGS)
        there = threading.Event()
        def iterate():
            for _ in loader:
                there.set()
        thread = threading.Thread(target=iterate, daemon=True)
        thread.start()
        there.wait()
        """)
        for kind in ("0", "fork", "thread")
    },
}  # fmt: skip
KWARGS = "num_workers=2, workers=Workers(start_method={kind!r})"


@pytest.mark.parametrize("scene", SCENES)
def test_a_program_ends_without_a_word(tmp_path, scene):
    kind, code = SCENES[scene]
    begin = BEGIN.format(kwargs="" if kind == "0" else KWARGS.format(kind=kind))
    path = tmp_path / "program.py"
    path.write_text(begin + textwrap.indent(textwrap.dedent(code.strip("\n")), "    ") + END)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", str(path)],
        env={**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_at_exit_workers_end_by_themselves_and_are_not_terminated(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        """
from slipring import Loader, Workers

def begin(worker):  # what terminates a worker leaves its finalizers out
    import multiprocessing.util, os  # at the top, the first would register its end before slipring
    multiprocessing.util.Finalize(None, os.write, args=(1, b"ended\\n"), exitpriority=0)

if __name__ == "__main__":
    iterator = iter(Loader(range(1000), 4, num_workers=2, workers=Workers(start_method="fork"), worker_init_fn=begin,
                           rng="worker"))
    next(iterator), next(iterator)
"""
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\nended\n", "")


RANK = """
import multiprocessing, multiprocessing.util, signal, sys
from slipring import Loader, Workers

def rank(workers):
    global iterator
    signal.signal(signal.SIGTERM, lambda *_: None)
    iterator = iter(Loader(range(1000), 4, num_workers=2, workers=Workers(start_method=workers)))
    next(iterator)
    if workers == "thread":  # multiprocessing calls this after the loader's finalizer
        multiprocessing.util.Finalize(None, iterate, exitpriority=-1)

def iterate():
    print(len(list(iterator)), flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=rank, args=(sys.argv[2],))
    process.start()
    process.join(600)
    print(process.exitcode)
    process.kill()
    process.join()
"""


@pytest.mark.parametrize(("method", "workers", "batches"), [("spawn", "fork", []), ("fork", "thread", ["249"])])
def test_a_child_of_multiprocessing_ends_with_a_loader_in_use(tmp_path, method, workers, batches):
    path = tmp_path / "program.py"
    path.write_text(RANK)
    done = subprocess.run([sys.executable, str(path), method, workers], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [*batches, "0"], "")


def test_a_daemon_thread_in_the_loop_does_not_report_workers_that_the_exit_has_ended(tmp_path):
    def child():
        raised = []
        threading.excepthook = raised.append
        loader = Loader(Waiting(tmp_path / "never"), 4, num_workers=1, workers=Workers(start_method="fork"))
        iterator = iter(loader)
        thread = threading.Thread(target=next, args=(iterator,), daemon=True)
        thread.start()
        process = until(lambda: engine_of(loader) and engine_of(loader).pool.pids(), "the worker")[0][1]
        engine.exiting.__self__.set()  # as at the exit, before it ends the workers
        os.kill(process, signal.SIGKILL)
        stays = engine.stay_if_exiting.__code__

        def stayed():
            frame = sys._current_frames().get(thread.ident)
            while frame is not None and frame.f_code is not stays:
                frame = frame.f_back
            return frame is not None or raised

        until(stayed, "the thread")
        return len(raised)

    assert in_child(child) == 0
