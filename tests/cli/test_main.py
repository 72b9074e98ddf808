"""The command line: its text without a subcommand, and the exit codes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipring.errors import SegmentFull
from tests.support import warm
from tests.support.inside import main as cli
from tests.support.watched import watched


def command(*arguments, **options):
    return warm.run([sys.executable, "-m", "slipring", *arguments], capture_output=True, text=True, **options)


def test_the_help_lists_the_commands_and_exit_codes_and_every_command_has_a_help():
    done = command("--help")
    assert done.returncode == 0 and not done.stderr
    said = " ".join(done.stdout.split())
    for name, (_, text) in cli.COMMANDS.items():
        assert f" {name} {text}" in said
    assert "exit codes: 0" in done.stdout
    for name in cli.COMMANDS:
        done = command(name, "--help")
        assert done.returncode == 0 and not done.stderr
        assert f"python -m slipring {name}" in done.stdout and "exit codes: 0" in done.stdout
        assert "--json" in done.stdout


def test_help_imports_no_command():
    code = (
        "import sys; from slipring._cli.main import main; assert main(['--help']) == 0; "
        "print([m for m in sys.modules if m.startswith('slipring._cli.')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "['slipring._cli.main']\n"
    assert "usage: slipring " in done.stdout


def test_wrong_words_are_usage_errors():
    done = command("bench-datset")
    assert done.returncode == 2 and "invalid choice: 'bench-datset'" in done.stderr
    assert "bench-dataset" in done.stderr and "Traceback" not in done.stderr
    done = command("--json", "bench-dataset", "x:y")
    assert done.returncode == 2 and "options of bench-dataset come after it" in done.stderr
    done = command("bench-dataset", "x:y", "--secnods", "3")
    assert done.returncode == 2 and "--secnods" in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1 and "bench-dataset --help" in done.stderr


@pytest.fixture
def planted(monkeypatch):
    """A function that makes a command from a main function."""

    def plant(main):
        module = type(sys)("slipring._cli.planted")
        module.planted_arguments = lambda parser: None
        module.planted = main
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "planted", ("planted", "does what a test wants"))

    return plant


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (cli.Failure("no such\n  thing"), 1, "slipring planted: no such thing"),
        (cli.Failure("not so", cli.USAGE), 2, "slipring planted: not so"),
        (SegmentFull("no memory"), 1, "slipring planted: no memory"),
        (FileNotFoundError(2, "No such file", "x"), 1, "slipring planted: [Errno 2] No such file: 'x'"),
        (ImportError("needs rich: pip install slipring[monitor]"), 1, "slipring planted: needs rich: pip install"),
        (ZeroDivisionError("x"), 1, "slipring planted: ZeroDivisionError: x (at "),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(planted, capsys, error, code, said):
    def fail(args):
        raise error

    planted(fail)
    assert cli.main(["planted"]) == code
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == (1 if said else 0)
    assert ("test_main.py" in err and "please report it" in err) == isinstance(error, ZeroDivisionError)


SLOW = """
import time, pathlib
class Slow:
    def __len__(self): return 1000
    def __getitem__(self, i):
        pathlib.Path("begun").touch()
        time.sleep(0.05)
        return i
"""


def test_ctrl_c_ends_a_command_quietly_with_130(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "slipring", "bench-dataset", "slow:Slow", "--seconds", "100", "--workers", "2,"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all processes
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("arguments", [(), ("top", "PID"), ("dump", "PID")])
def test_a_broken_pipe_is_quiet(arguments):
    with watched("held", num_workers=1) if arguments else contextlib.nullcontext() as program:
        said = [str(program.pid) if word == "PID" else word for word in arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "slipring", *said], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() == 141


@pytest.mark.parametrize("arguments", ["", "top 1"])
def test_a_closed_output_is_reported_in_one_line(arguments):
    line = f"exec {sys.executable} -m slipring {arguments} >&-"
    done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True)
    said = f"slipring {arguments.split()[0]}" if arguments else "slipring"
    assert (done.returncode, done.stderr) == (1, f"{said}: its standard output is closed: give it one\n")


def test_the_script_that_pip_installs_is_the_same_main():
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    (entry_point,) = re.findall(r'^slipring = "([\w.]+:\w+)"$', text, re.M)
    module, _, name = entry_point.partition(":")
    assert getattr(sys.modules[module], name) is cli.main
