"""`slipring bench-dataset`: measure what limits a dataset, and how many workers are enough for it."""

import argparse
import dataclasses
import importlib
import json
import os
import sys
import textwrap

from slipring._cli.main import USAGE, Failure
from slipring._core.options.values import START_METHODS
from slipring._core.ring._ring import MAX_WORKERS
from slipring._core.ring.text import millis
from slipring.errors import WorkerError


def bench_dataset_arguments(parser):
    """Add the arguments of `slipring bench-dataset`."""
    parser.add_argument(
        "dataset",
        metavar="module:factory",
        help="a function that returns the dataset when it is called without arguments, or the dataset itself; searched "
        "from the current directory; also path/to/file.py:factory",
    )
    parser.add_argument(
        "--workers",
        type=_workers,
        metavar="LIST|MAX",
        help="numbers of workers, as 0,2,8; or a maximum, up to which 0, 1, 2, 4, ... are measured (default: one per "
        "processor)",
    )
    parser.add_argument(
        "--start-method", nargs="+", choices=START_METHODS, metavar="METHOD",
        help=f"of {', '.join(START_METHODS)}; the first is measured with each number of workers "
        "(default: this Python's own, and thread)",
    )  # fmt: skip
    parser.add_argument("--batch-size", nargs="+", type=_positive(int), default=[32], metavar="N", help="default 32")
    parser.add_argument("--collate", metavar="module:function", help="puts samples together (default: the loader's)")
    parser.add_argument("--torch", action="store_true", help="measure slipring.torch.DataLoader, which makes tensors")
    parser.add_argument("--seconds", type=_positive(float), default=1.0, help="for each case, after its first batches")
    parser.add_argument("--batches", type=_positive(int), help="at most so many for each case")
    parser.add_argument("--full", action="store_true", help="each number of workers with each method and size")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _positive(kind):
    def convert(text):
        value = kind(text)
        if not 0 < value < 1e9:
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        return value

    convert.__name__ = "number"
    return convert


def _workers(text):
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or max(numbers) > MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"must be numbers from 0 to {MAX_WORKERS}, as 0,2,8, or one, not {text!r}")
    return sorted(set(numbers)) if "," in text else up_to(numbers[0])


def up_to(most):
    """Return 0, 1, 2, 4, ... and `most`."""
    return sorted({0, most, *(1 << bit for bit in range(most.bit_length()) if 1 << bit <= most)})


def bench_dataset(args):
    """Find out what limits a dataset, and how many workers are enough for it, by measuring.

    The consumer takes batches and does nothing with them. Other start methods and batch sizes are measured at the
    number of workers that was best.
    """
    from slipring._cli import limits, sweep

    if not args.json:  # before the measurement: rich may be missing
        importlib.import_module("slipring._cli.view")
    processors = len(os.sched_getaffinity(0))
    methods = args.start_method or _default_methods(args.torch)
    if args.torch and "thread" in methods:
        raise Failure("--torch: torch's loader has no thread workers; leave --start-method thread out", USAGE)
    dataset = _dataset(args.dataset)
    collate = None if args.collate is None else _find(args.collate, "--collate")
    if collate is not None and not callable(collate):
        raise Failure(f"--collate: {args.collate} is of type {type(collate).__name__}, and cannot be called", USAGE)
    try:
        maker = sweep.Maker(dataset, collate, args.torch)
        _check(maker, args.dataset)
        rows = sweep.sweep(
            maker,
            up_to(processors) if args.workers is None else args.workers,
            list(dict.fromkeys(methods)),
            list(dict.fromkeys(args.batch_size)),
            args.seconds,
            args.batches,
            args.full,
            _say,
        )
        steps = maker.dataset.step_times() if hasattr(maker.dataset, "step_times") else {}
    except Failure:
        raise
    except (Exception, SystemExit) as error:  # also a dataset that ends its process
        raise Failure(_of_dataset(args.dataset, error)) from error
    verdict = limits.judge(rows, processors)
    if verdict is None:
        raise Failure(f"no case could be measured: {next(row.error for row in rows if row.error)}")
    if args.json:
        found = {
            "dataset": args.dataset,
            "processors": processors,
            "rows": [row.dict() for row in rows],
            "verdict": dataclasses.asdict(verdict),
            "step_s": steps,
        }
        print(json.dumps(found, indent=1))
    else:
        _print_table(rows)
        print(f"\n{textwrap.fill(verdict.sentence, 100)}")
        if steps:
            print(textwrap.fill(f"Steps, by CPU time per image: {shares_text(steps)}.", 100))
    return 0


def _default_methods(torch):
    import multiprocessing

    return [multiprocessing.get_start_method(), *([] if torch else ["thread"])]


# ---- the objects that the user names


def _find(name, what):
    """Return the object that `module:name` or `file.py:name` names."""
    source, colon, path = name.rpartition(":")
    if not colon or not source or not path:
        raise Failure(f"{what} must be module:name or path/to/file.py:name, not {name!r}", USAGE)
    if source.endswith(".py"):
        file = os.path.abspath(source)
        if not os.path.isfile(file):
            raise Failure(f"{what}: there is no file {source}", USAGE)
        folder, module = os.path.dirname(file), os.path.basename(file)[:-3]
    else:
        file, folder, module = None, os.getcwd(), source
    if folder not in sys.path:
        sys.path.insert(0, folder)  # spawned workers get it, too
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name))
        why = f"there is no module {error.name}" if missing else f"importing {module} raised {_said(error)}"
        raise Failure(f"{what} {name}: {why}", USAGE if missing else 1) from error
    if file is not None and os.path.realpath(found.__file__ or "") != os.path.realpath(file):
        raise Failure(f"{what}: {source} has the name of another module, {found.__file__}: rename it", USAGE)
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise Failure(f"{what} {name}: {module} has no {path!r}", USAGE) from None
    return found


def _dataset(name):
    found = _find(name, "module:factory")
    reads = any(hasattr(found, method) for method in ("__getitem__", "__getitems__", "fetch_into", "__iter__"))
    if isinstance(found, type) or not reads:
        if not callable(found):
            raise Failure(
                f"{name} is of type {type(found).__name__}: give a dataset, or a function that returns one", USAGE
            )
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise Failure(f"{name}() raised {_said(error)}") from error
    return found


def _check(maker, name):
    kind = type(maker.dataset).__name__
    if maker.is_stream:
        if not hasattr(maker.dataset, "__iter__"):
            raise Failure(f"{name} gives a {kind}, which has neither __getitem__ nor __iter__: no dataset", USAGE)
        return
    if not hasattr(maker.dataset, "__len__"):
        raise Failure(f"{name} gives a {kind} without __len__: give it one", USAGE)
    if len(maker.dataset) == 0:
        raise Failure(f"{name} gives a {kind} that is empty")


def _said(error):
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _of_dataset(name, error):
    # It comes from the dataset, the collation, or a loader that refuses its arguments.
    cause = error if isinstance(error, WorkerError) else error.__cause__
    if isinstance(cause, WorkerError):
        index = "" if cause.index is None else f" at index {cause.index!r}"
        return f"{name}: in worker {cause.worker}{index}: {_said(error)}"
    return f"{name}: {_said(error)}"


# ---- output


def _say(case):
    if sys.stderr.isatty():
        print(f"\r\x1b[K{case}", end="", file=sys.stderr, flush=True)


HEAD = (
    "workers", "started by", "batch", "samples/s", "MB/s", "first s", "fetch ms", "collate ms", "CPU", "busy",
)  # fmt: skip


def cells(row):
    """Return the texts of a table line; with an error as the last one if there are no figures."""
    case = row.case
    begin = (str(case.workers), case.start_method if case.workers else "-", str(case.batch_size))
    if row.error:
        return (*begin, row.error)
    batches, busy = max(1, row.batches), row.busy_s / row.seconds / max(1, case.workers)
    return (
        *begin,
        f"{row.samples_per_s:,.0f}",
        f"{row.mb_per_s:,.1f}",
        f"{row.first_batch_s:.2f}",
        millis(row.fetch_s / batches * 1e9),
        millis(row.collate_s / batches * 1e9),
        "?" if row.on_cpu is None else f"{row.on_cpu * busy:.0%}",
        f"{busy:.0%}",
    )


def shares_text(times):
    """Return each step's share of the time of all, as "decode + crop 62%, RandAugment 38%"."""
    total = sum(times.values()) or 1.0
    return ", ".join(f"{name} {took / total:.0%}" for name, took in times.items())


def _print_table(rows):
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    lines = list(map(cells, rows))
    whole = [line for line in lines if len(line) == len(HEAD)]
    if whole:
        importlib.import_module("slipring._cli.view").print_table(HEAD, whole)
    for line in lines:
        if len(line) < len(HEAD):
            print(f"{line[0]} workers by {line[1]}, batches of {line[2]}: {line[3]}")
