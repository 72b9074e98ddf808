"""The list of commands, and how a command ends.

Exit codes: 0 it worked; 1 it did not, one line on stderr says why; 2 the arguments are wrong; 130 it was interrupted
(Ctrl-C); 141 the reader of its output has gone; 143, 129 it was ended by SIGTERM, SIGHUP.
"""

import argparse
import contextlib
import importlib
import inspect
import os
import signal
import sys
import traceback

from slipring.errors import SlipringError

# Name -> (module of this folder, description). The module has two functions, such as `bench_dataset` for bench-dataset:
# `bench_dataset` takes the parsed arguments and returns the exit code, `bench_dataset_arguments` takes the parser.
COMMANDS = {
    "ps": ("look", "list the jobs on this machine"),
    "top": ("look", "watch a job: its rate, its workers and slots, and what it waits for"),
    "trace": ("trace", "write a trace of a job for Perfetto"),
    "dump": ("dump", "print a job's last batches, and what its workers do, or did before a crash"),
    "bench-dataset": ("bench_dataset", "find out what limits a dataset, and how many workers are enough for it"),
}
RUNTIME, USAGE = 1, 2
SIGNALLED = 128  # plus the signal's number, as in a shell
INTERRUPTED, NOBODY_READS = 130, 141  # of SIGINT and SIGPIPE
EXIT_CODES = "exit codes: 0 it worked, 1 it did not (stderr says why), 2 wrong arguments, 130 interrupted"


class Failure(Exception):
    """The end of a command with one line and an exit code: `RUNTIME`, or `USAGE` if the arguments are wrong."""

    def __init__(self, reason, code=RUNTIME):
        super().__init__(reason)
        self.code = code


class Terminated(BaseException):
    """The end of a command by the signal `number`, after its cleanup."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def ended_by_signals():
    """Make SIGTERM and SIGHUP raise `Terminated`, so that a command cleans up what it has begun."""

    def end(number, frame):
        raise Terminated(number)

    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ours:  # an existing handler stays, such as nohup's
            signal.signal(number, end)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong arguments in one line."""

    def __init__(self, **options):
        super().__init__(epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message):
        """Raise a `Failure` with the message."""
        raise Failure(f"{message}; see {self.prog} --help", USAGE)


def parser_of(program, asked):
    """Return the parser. Only the command `asked` has its arguments, because its module must be imported for them."""
    parser = Parser(
        prog=program,
        usage=f"{program} [--json] [--torch] | {program} COMMAND ...",
        description="Without a command, print the versions, this machine's limits, and whether slipring works.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--torch", action="store_true", help="check slipring.torch.DataLoader: imports torch")
    about = f"`{program} COMMAND --help` describes one"
    commands = parser.add_subparsers(
        title="commands", description=about, dest="command", metavar="COMMAND", prog=program
    )
    for name, (home, text) in COMMANDS.items():
        if name != asked:
            commands.add_parser(name, help=text)
            continue
        module, function = importlib.import_module(f"slipring._cli.{home}"), name.replace("-", "_")
        run = getattr(module, function)
        command = commands.add_parser(name, help=text, description=inspect.getdoc(run))
        getattr(module, f"{function}_arguments")(command)
        command.set_defaults(run=run)
    return parser


def _run(arguments, asked, program):
    parser = parser_of(program, asked)
    try:
        args, others = parser.parse_known_args(arguments)
    except SystemExit as printed:  # --help
        return printed.code
    if args.command != asked:
        parser.error(f"options of {args.command} come after it: {program} {args.command} ...")
    if others:  # argparse names the whole command
        parser.prog = f"{program} {asked}" if asked else program
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return args.run(args) if asked else importlib.import_module("slipring._cli.self_check").main(args)


def main(arguments=None):
    """Run a command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    asked = arguments[0] if arguments and arguments[0] in COMMANDS else None
    program = "python -m slipring" if os.path.basename(sys.argv[0]) == "__main__.py" else "slipring"
    said = f"slipring {asked}" if asked else "slipring"
    if sys.stderr is None:
        # Python has no stderr here. Messages for it are dropped until the process ends.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        return _fail(said, "its standard output is closed: give it one", RUNTIME)
    try:
        try:
            code = _run(arguments, asked, program)
        finally:
            sys.stdout.flush()  # here, where a broken pipe is caught
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter's flush at its exit must not fail once more.
        with open(os.devnull, "w") as devnull:
            os.dup2(devnull.fileno(), sys.stdout.fileno())
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


def _fail(said, reason, code):
    line = " ".join(reason.split())
    print(f"{said}: {line}", file=sys.stderr)
    return code
