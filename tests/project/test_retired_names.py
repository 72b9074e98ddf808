"""No identifier has a word that was given up for the field's own: those of retired_names.txt.

A line is a word, which may be no part of an identifier of any language, or a scope and a name: `c` or `python` limits
the word to that language; `class` and `def` only retire that name of a class or function.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RETIRED = [line.split() for line in Path(__file__).with_name("retired_names.txt").read_text().splitlines()]
NO_CODE = {
    "c": re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.DOTALL),
    "python": re.compile(r'""".*?"""|#[^\n]*|"(?:[^"\\\n]|\\.)*"', re.DOTALL),
}
FOLDERS = {
    "c": (["csrc", "tests/c", "tests/model", "tests/steps"], (".c", ".h")),
    "python": (["pkg/slipring"], (".py", ".pyi", ".pyx", ".pxd")),
}
# "In place" is the field's word for an operation without a copy, and a place is Paddle's for a device.
IN_PLACE, OF_PADDLE = re.compile(r"_?in_place"), re.compile("paddle")


def retired(text, language, lines):
    """The identifiers and definitions of a source that a line retires."""
    code = NO_CODE[language].sub(" ", text)
    parts = [line[-1] for line in lines if line[0] in (line[-1], language)]
    part = re.compile(rf"(?:^|_)(?:{'|'.join(parts)})(?:_|$)", re.IGNORECASE)
    names = [name for name in set(re.findall(r"\b[A-Za-z_]\w*\b", code)) if part.search(IN_PLACE.sub("", name))]
    definitions = [" ".join(line) for line in lines if line[0] in ("class", "def")]
    return sorted(names) + [each for each in definitions if re.search(rf"\b{each}\b", code)]


@pytest.mark.parametrize("language", FOLDERS)
def test_no_identifier_has_a_retired_word(language):
    folders, suffixes = FOLDERS[language]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    files = [path for path in files if not OF_PADDLE.match(path.name)]
    found = {str(path.relative_to(ROOT)): retired(path.read_text(), language, RETIRED) for path in files}
    assert files and {path: names for path, names in found.items() if names} == {}
