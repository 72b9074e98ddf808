"""`python -m slipring` describes the installation, and fails with a sentence if batches do not arrive."""

import functools
import json
import re
import subprocess
import sys

import pytest

import slipring
from slipring._cli import self_check


def command(*arguments, limit=""):
    """Run `python -m slipring`, under a limit of the shell's if one is given."""
    script = f'{limit or ":"} && exec "$0" -m slipring "$@"'
    return subprocess.run(["sh", "-c", script, sys.executable, *arguments], capture_output=True, text=True)


def test_the_command_reports_versions_limits_and_memory_and_that_batches_arrive():
    done = command()
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    wanted = "slipring build Python numpy torch pyarrow pillow kernel limits /dev/shm memory check"
    assert names == wanted.split()
    assert slipring.__version__ in done.stdout
    assert re.search(r"^check +ok: 16 batches from 2 worker processes", done.stdout, re.M)


def test_with_torch_the_drop_in_is_checked_and_one_object_is_printed_for_machines():
    pytest.importorskip("torch")
    done = command("--torch", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["slipring"] == slipring.__version__
    assert told["check"]["ok"] is True and "slipring.torch.DataLoader" in told["check"]["sentence"]
    assert told["build"]["kind"] in ("release", "debug", "asan", "tsan", "fuzz", "coverage")
    assert told["limits"]["workers"] == 4093 and told["limits"]["slots"] == 65536
    assert told["packages"].keys() == {"numpy", "torch", "pyarrow", "pillow"}
    assert told["packages"]["numpy"]


def test_without_memory_the_command_fails_with_the_remedy():
    done = command(limit="ulimit -f 8")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "check      FAILED: SegmentFull" in done.stdout and "raise that limit" in done.stdout
    assert "Traceback" not in done.stderr
    told = json.loads(command("--json", limit="ulimit -f 8").stdout)
    assert told["check"]["ok"] is False and told["limits"]["file_size"] is not None


@pytest.mark.parametrize(
    ("name", "function", "said"),
    [
        ("__getitem__", lambda self, i: (self_check.np.zeros(1000), i, ""), "16 of 16 batches are not"),
        ("__len__", lambda self: 60, "0 of 15 batches are not"),
    ],
)
def test_a_batch_that_differs_or_is_missing_is_a_failure_with_the_remedy(monkeypatch, name, function, said):
    monkeypatch.setattr(self_check.Numbers, name, function)
    forked = functools.partial(self_check.Loader, workers=slipring.Workers(start_method="fork"))
    monkeypatch.setattr(self_check, "Loader", forked)
    told = self_check.check()
    assert not told["ok"]
    assert told["sentence"].startswith(said) and "pip install" in told["sentence"]


def test_an_error_that_is_not_ours_is_to_be_reported(monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(self_check, "Loader", fail)
    told = self_check.check()
    assert not told["ok"]
    assert "Operation not permitted; if that names nothing you can change, report it" in told["sentence"]
