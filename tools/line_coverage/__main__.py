"""Print how many lines of csrc and of the Python modules the tests reached: the end of `make coverage`.

Usage: python -m tools.line_coverage

The missed lines of each file are written to build/coverage/missed.txt. Lines of Cython are not measured. A process
that a signal kills writes nothing: lines that only such processes reach count as missed.
"""

import itertools
import json
import os
import subprocess
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/coverage"


def lines_of_c(folder):
    """Return {source: (lines, lines that were reached)} from the counters of all objects below a folder."""
    found = {}
    for notes in sorted(folder.rglob("*.gcno")):
        command = ["gcov", "--json-format", "--stdout", notes]
        # Without stderr: it names each object that no process has used.
        output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
        report = json.loads(output)
        for file in report["files"]:
            source = Path(report["current_working_directory"], file["file"]).resolve()
            if source.is_relative_to(ROOT / "csrc") and source.exists():  # otherwise it belongs to an earlier build
                lines, reached = found.setdefault(source, (set(), set()))
                lines.update(line["line_number"] for line in file["lines"])
                reached.update(line["line_number"] for line in file["lines"] if line["count"])
    return found


def lines_of_python():
    """Return the same for the Python modules, including those that no test imports."""
    os.environ["COVERAGE_ROOT"] = str(ROOT)
    measured = coverage.Coverage(config_file=Path(__file__).with_name("coverage.ini"))
    measured.combine(keep=True)
    sources = sorted(ROOT.glob("pkg/slipring/**/*.py"))
    measured.get_data().touch_files(map(str, sources))
    found = {}
    for source in sources:
        _, statements, _, missing, _ = measured.analysis2(str(source))
        found[source] = set(statements), set(statements) - set(missing)
    return found


def row(name, lines, reached):
    """Return one line of the table."""
    share = 100 * reached / lines if lines else 100
    return f"{name:<44} {lines:>6} {lines - reached:>6} {share:>6.1f}%"


def table(title, found):
    """Yield a table's lines: each folder, its files, and the total."""
    yield f"\n{title:<44} {'lines':>6} {'missed':>6} {'reached':>7}"
    folders = {}
    for source in sorted(found):
        folders.setdefault(str(source.parent.relative_to(ROOT)), []).append(source)
    for folder, sources in folders.items():
        yield row(f"{folder}/", *total(found[source] for source in sources))
        for source in sources:
            yield row(f"    {source.name}", *map(len, found[source]))
    yield row("total", *total(found.values()))


def total(counts):
    """Return the sums of the lines and of the reached lines."""
    return (sum(map(len, sets)) for sets in zip(*counts))


def missed(lines, reached):
    """Return the missed lines as text, in ranges that skip lines without code."""
    parts = itertools.groupby(sorted(lines), key=reached.__contains__)
    parts = [list(part) for is_reached, part in parts if not is_reached]
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def main():
    in_c, python = lines_of_c(BUILT), lines_of_python()
    print(*table("C, by the tests in C alone", lines_of_c(BUILT / "c")), sep="\n")
    print(*table("C", in_c), sep="\n")
    print(*table("Python", python), sep="\n")
    texts = ((source, missed(*lines)) for source, lines in sorted({**in_c, **python}.items()))
    file = BUILT / "missed.txt"
    file.write_text("".join(f"{source.relative_to(ROOT)}: {text}\n" for source, text in texts if text))
    print(f"\nmissed lines: {file.relative_to(ROOT)}; lines of Cython are not measured")


if __name__ == "__main__":
    main()
