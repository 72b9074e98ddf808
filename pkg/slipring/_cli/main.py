"""The commands: which there are, how they end.

Exit codes: 0 it worked; 1 it did not, one line on stderr says why; 2 the arguments are wrong; 130 it was interrupted
(Ctrl-C); 141 whoever read its output has gone; 143, 129 it was ended by SIGTERM, SIGHUP.
"""

import argparse
import importlib
import os
import sys
import traceback

from slipring._cli.failure import RUNTIME, USAGE, Failure, Terminated
from slipring.errors import SlipringError

# Name -> what it does. Each is a module of this folder, with - as _, that has add_arguments(parser) and
# main(args) -> exit code.
COMMANDS = {
    "ps": "list the jobs on this machine",
    "top": "watch a job: its rate, its workers and slots, and what it waits for",
    "trace": "write a trace of a job for Perfetto",
    "dump": "print a job's last batches, and what its workers do, or did before a crash",
    "bench-dataset": "find out what limits a dataset, and how many workers are enough for it",
}
SIGNALLED = 128  # and the signal's number, as a shell tells
INTERRUPTED, NOBODY_READS = 130, 141  # of SIGINT and SIGPIPE

EXIT_CODES = "exit codes: 0 it worked, 1 it did not (stderr says why), 2 wrong arguments, 130 interrupted"


def main(arguments=None):
    """Run a command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    name = arguments[0] if arguments and arguments[0] in COMMANDS else None
    program = "python -m slipring" if os.path.basename(sys.argv[0]) == "__main__.py" else "slipring"
    said = f"slipring {name}" if name else "slipring"
    if sys.stderr is None:
        # It stays for the rest of the process: what is said there is not to be printed elsewhere.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        return _fail(said, "its standard output is closed: give it one", RUNTIME)
    try:
        try:
            code = _run(name, arguments, program)
        finally:
            sys.stdout.flush()  # here, where a broken pipe is caught
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What the interpreter flushes at its exit must not fail once more.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return NOBODY_READS
    except Terminated as ended:
        return SIGNALLED + ended.number
    except Failure as failure:
        return _fail(said, str(failure), failure.code)
    except (SlipringError, ImportError, OSError) as error:
        return _fail(said, str(error) or type(error).__name__, RUNTIME)
    except Exception as error:
        *_, frame = traceback.extract_tb(error.__traceback__)
        where = f"{frame.filename}:{frame.lineno}"
        return _fail(said, f"{type(error).__name__}: {error} (at {where}; please report it)", RUNTIME)


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong with the arguments."""

    def error(self, message):
        """Raise a `Failure` with the message."""
        raise Failure(f"{message}; see {self.prog} --help", USAGE)


def _parsed(parse, arguments):
    """Return what `parse` makes of the arguments; None: it has printed the help."""
    try:
        return parse(arguments)
    except SystemExit:
        return None


def _run(name, arguments, program):
    if name is None:
        return _without_command(arguments, program)
    command = importlib.import_module(f"slipring._cli.{name.replace('-', '_')}")
    parser = Parser(
        prog=f"{program} {name}",
        description=command.__doc__,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    asked = _parsed(parser.parse_args, arguments[1:])
    return 0 if asked is None else command.main(asked)


def _without_command(arguments, program):
    listed = "\n".join(f"  {name:<15}{text}" for name, text in COMMANDS.items())
    parser = Parser(
        prog=program,
        usage=f"{program} [--json] [--torch] | {program} COMMAND ...",
        description="Without a command: what is installed here, within which limits, and whether it works.\n\n"
        f"commands:\n{listed}\n\n`{program} COMMAND --help` tells more.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--torch", action="store_true", help="check slipring.torch.DataLoader: imports torch")
    parsed = _parsed(parser.parse_known_args, arguments)
    if parsed is None:
        return 0
    asked, others = parsed
    if others:
        word = next((other for other in others if not other.startswith("-")), others[0])
        if word in COMMANDS:
            parser.error(f"options of {word} come behind it: {program} {word} ...")
        parser.error(f"there is no command or option {word!r}; commands: {', '.join(COMMANDS)}")
    self_check = importlib.import_module("slipring._cli.self_check")
    return self_check.main(asked)


def _fail(said, reason, code):
    line = " ".join(reason.split())
    print(f"{said}: {line}", file=sys.stderr)
    return USAGE if code == USAGE else RUNTIME
