"""Failures in slipring.torch, with torch's messages; tests/parity compares more of them with torch's own."""

import pytest

torch = pytest.importorskip("torch")

from slipring import LoaderTimeout, WorkerError  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import Numbers  # noqa: E402
from tests.support.scenes import Death, Gate, Once, Raise  # noqa: E402

pytestmark = pytest.mark.fault

ERRORS = {
    "KeyError": (KeyError("no\nsuch key"), KeyError, "Caught KeyError in DataLoader worker process 1"),
    # The error of a loader that the dataset itself uses.
    "LoaderTimeout": (LoaderTimeout("x"), LoaderTimeout, "Caught LoaderTimeout in DataLoader worker"),
    "StopIteration": (StopIteration(), RuntimeError, "Caught StopIteration in DataLoader"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_exception_has_torchs_class_and_text_and_iteration_continues(name):
    error, kind, text = ERRORS[name]
    with DataLoader(Numbers(24, {5: Raise(error)}), batch_size=4, num_workers=2) as loader:
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


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("SIGKILL", r"DataLoader worker \(pid \d+\) is killed by signal: Killed.*indices \[4, 5, 6, 7"),
        ("os._exit", r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly with exit code 3.*indices"),
    ],
)
def test_a_death_is_a_runtime_error_with_torchs_words_and_ours(tmp_path, how, text):
    with Gate(tmp_path / "gate") as gate:
        on = {4: Once(tmp_path / "waited", gate), 5: Once(tmp_path / "died", Death(how))}
        options = {"batch_size": 4, "num_workers": 2, "persistent_workers": how == "SIGKILL"}
        with DataLoader(Numbers(24, on), **options) as loader:
            iterator = iter(loader)
            assert next(iterator).tolist() == [0, 1, 2, 3]
            gate.open()
            with pytest.raises(RuntimeError, match=f"(?s){text}"):
                next(iterator)
            del iterator
            assert [batch[0].item() for batch in loader] == list(range(0, 24, 4))  # new workers are started
