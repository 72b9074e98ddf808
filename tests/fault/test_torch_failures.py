"""Failures in slipring.torch, with torch's messages; and interpreters that exit at any moment."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

from slipring import LoaderTimeout, WorkerDied, WorkerError  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import patiently  # noqa: E402
from tests.support.parts import one_fast  # noqa: E402
from tests.support.processes import LONG_S  # noqa: E402
from tests.support.scenes import Once  # noqa: E402

pytestmark = pytest.mark.fault


class At(torch.utils.data.Dataset):
    """Calls an action at sample 5."""

    def __init__(self, action):
        self.action = action

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if i == 5:
            self.action()
        return i


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Named(Exception):
    """Its constructor takes its text as a keyword argument only."""

    message = "yes"

    def __init__(self, *, message):
        super().__init__(message)


def raises(error):
    def action():
        raise error

    return action


def local_class():
    class Local(Exception):
        pass

    raise Local("made in the worker")


ERRORS = {
    "KeyError": (raises(KeyError("no\nsuch key")), KeyError, "Caught KeyError in DataLoader worker process 1"),
    "ValueError": (raises(ValueError("bad")), ValueError, "Caught ValueError in DataLoader worker process 1"),
    "odd": (raises(Odd(1, 2)), RuntimeError, "Caught Odd in DataLoader worker process 1"),
    "named": (raises(Named(message="x")), Named, "Caught Named in DataLoader worker process 1"),
    "local": (local_class, RuntimeError, "Caught Local in DataLoader worker process 1"),
    # The error of a loader that the dataset itself uses.
    "LoaderTimeout": (raises(LoaderTimeout("x")), LoaderTimeout, "Caught LoaderTimeout in DataLoader worker"),
    "WorkerDied": (raises(WorkerDied("x", pid=1)), WorkerDied, "Caught WorkerDied in DataLoader worker"),
    "StopIteration": (raises(StopIteration()), RuntimeError, "Caught StopIteration in DataLoader"),
    "OSError": (raises(FileNotFoundError(2, "gone")), FileNotFoundError, "Caught FileNotFoundError in DataLoader"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_exception_has_torchs_class_and_text_and_iteration_continues(name):
    action, kind, text = ERRORS[name]
    with DataLoader(At(action), batch_size=4, num_workers=2) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(kind) as caught:
            next(iterator)
        said = str(caught.value)
        assert type(caught.value) is kind or kind is KeyError
        assert said.startswith(text) and "\nOriginal Traceback (most recent call last):\n" in said
        assert "in __getitem__" in said
        cause = caught.value.__cause__
        assert isinstance(cause, WorkerError) and cause.indices == [4, 5, 6, 7] and cause.seq == 1
        assert [batch[0].item() for batch in iterator] == [8, 12, 16, 20]


def test_a_failing_worker_init_fn_is_raised_as_torch_does():
    loader = DataLoader(At(print), batch_size=4, num_workers=2, worker_init_fn=fails)
    with loader, pytest.raises(ZeroDivisionError, match="Caught ZeroDivisionError in DataLoader worker process 0"):
        list(loader)


def fails(number):
    raise ZeroDivisionError(number)


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def leaves():
    os._exit(3)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (dies, r"DataLoader worker \(pid \d+\) is killed by signal: Killed.*indices \[4, 5, 6, 7"),
        (leaves, r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly with exit code 3.*indices"),
    ],
)
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_death_is_a_runtime_error_with_torchs_words_and_ours(tmp_path, action, text, persistent_workers):
    options = {"batch_size": 4, "num_workers": 2, "persistent_workers": persistent_workers}
    os.mkfifo(tmp_path / "gate")
    dataset = At(Once(tmp_path / "once", Waits(tmp_path / "gate", action)))
    with DataLoader(dataset, **options) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        (tmp_path / "gate").write_text("go")
        with pytest.raises(RuntimeError, match=f"(?s){text}"):
            next(iterator)
        del iterator
        assert [batch[0].item() for batch in loader] == list(range(0, 24, 4))  # new workers are started


def test_a_timeout_is_a_runtime_error_with_torchs_words(tmp_path):
    os.mkfifo(tmp_path / "gate")
    with DataLoader(At(Waits(tmp_path / "gate")), batch_size=4, num_workers=2, timeout=0.3) as loader:
        iterator = iter(loader)
        patiently(iterator)
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.3 seconds"):
            next(iterator)
        (tmp_path / "gate").write_text("go")
        assert [patiently(iterator)[0].item() for _ in range(5)][-1] == 20


class Waits:
    """Waits until a process writes to `path`."""

    def __init__(self, path, then=None):
        self.path, self.then = path, then

    def __call__(self):
        self.path.read_text()
        if self.then is not None:
            self.then()


# ---- interpreters that exit with live iterators. (Not here: a daemon thread that is in torch's own code at that
# ---- moment; torch then aborts the process, with any loader.)

BEGIN = """
    import os, sys, threading
    from slipring.torch import DataLoader

    def make(**options):
        return DataLoader(range(1000), batch_size=2, num_workers=2, **options)
"""
ENDS = {
    "an iterator alive": "loader = make(); iterator = iter(loader); next(iterator)",
    "an iterator without its loader": "iterator = iter(make()); next(iterator)",
    "a loader without its iterator": "loader = make(); next(iter(loader))",
    "persistent workers": "loader = make(persistent_workers=True); next(iter(loader))",
    "two iterators": "loader = make(); a = iter(loader); b = iter(loader); next(a); next(b); del a",
    "never asked": "loader = make(); iterator = iter(loader)",
    "in a cycle": "loader = make(); iterator = iter(loader); loader.me = loader; loader.it = iterator",
    "batches kept": "loader = make(); iterator = iter(loader); kept = [next(iterator) for _ in range(30)]",
    "an exception": "loader = make(); iterator = iter(loader); next(iterator); sys.exit('told')",
    "os._exit": "loader = make(); iterator = iter(loader); next(iterator); sys.stdout.flush(); os._exit(0)",
    "a state loaded": """
    loader = make()
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    iterator = iter(loader)
    """,
}


@pytest.mark.parametrize("how", one_fast(ENDS))
def test_an_interpreter_ends_cleanly_with(how, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(ENDS[how]))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == (1 if how == "an exception" else 0), done.stderr
    assert done.stderr.strip() == ("told" if how == "an exception" else "")
