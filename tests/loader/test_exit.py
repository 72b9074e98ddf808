"""The interpreter's exit with loaders in use: exit code 0, nothing on stderr, no process left."""

import os
import subprocess
import sys

import pytest

BEGIN = """
import gc, os, sys, threading
from slipring import Loader, Workers
from tests.support.datasets import Random, Shard, Squares, leave_be

KWARGS = dict({kwargs})

def main():
    global loader, iterator, batch, others, second, thread
"""

END = """

if __name__ == "__main__":
    main()
"""

# Actions of the program before it ends or exits.
SCENES = {
    "closed": """
        with Loader(Squares(100), 4, **KWARGS) as loader:
            batch = list(loader)[3]
    """,
    "an idle loader": """
        loader = Loader(Squares(100), 4, **KWARGS)
        for batch in loader:
            pass
    """,
    "a live iterator": """
        loader = Loader(Squares(100), 4, **KWARGS)
        iterator = iter(loader)
        batch = next(iterator)
    """,
    "a live iterator of a stream": """
        loader = Loader(Shard(1000), 4, **KWARGS)
        iterator = iter(loader)
        batch = next(iterator)
    """,
    "an iterator alone": "iterator = iter(Loader(Squares(100), 4, **KWARGS)); batch = next(iterator)",
    "two live iterators": """
        loader = Loader(Squares(100), 4, **KWARGS)
        iterator, second = iter(loader), iter(loader)
        batch = next(iterator), next(second)
    """,
    "sys.exit in the loop": """
        loader = Loader(Squares(100), 4, **KWARGS)
        for batch in loader:
            sys.exit()
    """,
    "a cycle": """
        loader = Loader(Squares(100), 4, **KWARGS)
        others = [iter(loader)]
        others.append(others)
        next(others[0])
        gc.disable()
    """,
    "kept by sys, which goes last": """
        loader = Loader(Squares(100), 4, **KWARGS)
        sys.kept = iter(loader)
        next(sys.kept)
    """,
    "many loaders": """
        others = [Loader(Squares(100), 4, **KWARGS) for _ in range(3)]
        iterator = [iter(loader) for loader in others]
        batch = [next(i) for i in iterator]
    """,
    "a daemon thread in the loop": """
        loader = Loader(Squares(1 << 40), 4, **KWARGS)
        there = threading.Event()
        def iterate():
            for _ in loader:
                there.set()
        thread = threading.Thread(target=iterate, daemon=True)
        thread.start()
        there.wait()
    """,
    "a forked child that ends as its parent does": """
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
    """,
    "a child of multiprocessing": """
        import multiprocessing
        loader = Loader(Squares(100), 4, **KWARGS)
        iterator = iter(loader)
        batch = next(iterator)
        child = multiprocessing.get_context("fork").Process(target=list, args=(loader,))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert len(list(iterator)) == 24
    """,
}

KINDS = {
    "0": "",
    "fork": "num_workers=2, workers=Workers(start_method='fork')",
    "thread": "num_workers=2, workers=Workers(start_method='thread')",
    "spawn": "num_workers=2, workers=Workers(start_method='spawn')",
    "forkserver": "num_workers=2, workers=Workers(start_method='forkserver')",
}
ALL = [("fork", scene) for scene in SCENES]
OF_THREADS = [
    "a live iterator",
    "a live iterator of a stream",
    "an idle loader",
    "a cycle",
    "a daemon thread in the loop",
]
SOME = [
    *[("thread", scene) for scene in (*OF_THREADS, "a child of multiprocessing")],
    *[("0", scene) for scene in ("a live iterator of a stream", "a cycle", "a daemon thread in the loop")],
    *[(kind, "a live iterator") for kind in ("spawn", "forkserver")],
]


def program(kind, scene):
    lines = SCENES[scene].strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return BEGIN.format(kwargs=KINDS[kind]) + "\n".join("    " + line[margin:] for line in lines) + END


@pytest.mark.parametrize(("kind", "scene"), ALL + SOME)
def test_a_program_ends_without_a_word(tmp_path, kind, scene):
    path = tmp_path / "program.py"
    path.write_text(program(kind, scene))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", str(path)],
        env={**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_at_exit_workers_end_by_themselves_and_are_not_terminated(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        """
from slipring import Loader, Workers

def begin(worker):  # what terminates a worker leaves its finalizers out
    import multiprocessing.util  # at the top it would register its end before slipring
    multiprocessing.util.Finalize(None, print, args=("ended",), kwargs={"flush": True}, exitpriority=0)

if __name__ == "__main__":
    iterator = iter(Loader(range(1000), 4, num_workers=2, workers=Workers(start_method="fork"), worker_init_fn=begin,
                           rng="worker"))
    next(iterator), next(iterator)
"""
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=220)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\nended\n", "")


def test_a_function_that_runs_at_exit_can_use_a_loader(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        """
import atexit
from slipring import Loader, Workers

def use():  # registered behind slipring's own end, and so called before
    print(sum(int(batch.sum()) for batch in loader))

if __name__ == "__main__":
    atexit.register(use)
    loader = Loader(range(12), 4, num_workers=2, persistent_workers=True)
    next(iter(loader))
"""
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=220)
    assert (done.returncode, done.stdout, done.stderr) == (0, "66\n", "")


RANK = """
import multiprocessing, multiprocessing.util, signal, sys, threading
from slipring import Loader, Workers

ending = threading.Event()

def rank(workers):
    global iterator
    signal.signal(signal.SIGTERM, lambda *_: None)
    iterator = iter(Loader(range(1000), 4, num_workers=2, workers=Workers(start_method=workers)))
    next(iterator)
    if workers == "thread":  # it iterates when multiprocessing has called its finalizers
        multiprocessing.util.Finalize(None, ending.set, exitpriority=-1)
        threading.Thread(target=iterate).start()

def iterate():
    ending.wait()
    print(len(list(iterator)), flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=rank, args=(sys.argv[2],))
    process.start()
    process.join(60)
    print(process.exitcode)
    process.kill()
    process.join()
"""


def outcome_of_rank(path, method, workers):
    path.write_text(RANK)
    done = subprocess.run([sys.executable, str(path), method, workers], capture_output=True, text=True, timeout=220)
    return done.returncode, done.stdout.split(), done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_with_a_handler_for_sigterm_ends_with_a_loader_in_use(tmp_path, method):
    assert outcome_of_rank(tmp_path / "program.py", method, "fork") == (0, ["0"], "")


def test_a_thread_can_iterate_with_thread_workers_while_a_child_of_multiprocessing_ends(tmp_path):
    assert outcome_of_rank(tmp_path / "program.py", "fork", "thread") == (0, ["249", "0"], "")
