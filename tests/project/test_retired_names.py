"""No identifier has a word that was given up for the field's own: those of retired_names.txt."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RETIRED = Path(__file__).with_name("retired_names.txt").read_text().split()
# Python says headroom for the speed that a faster loader would bring: report(headroom=).
NOT_IN_PYTHON = {"headroom"}
NO_CODE = {
    "c": re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.DOTALL),
    "python": re.compile(r'""".*?"""|#[^\n]*|"(?:[^"\\\n]|\\.)*"', re.DOTALL),
}
FOLDERS = {
    "c": (["csrc", "tests/c", "tests/model", "tests/steps"], (".c", ".h")),
    "python": (["pkg/slipring"], (".py", ".pyi", ".pyx", ".pxd")),
}


def retired(text, language, words):
    """The identifiers of a source that have one of the words as a part."""
    word = re.compile(rf"(?:^|_)(?:{'|'.join(words)})(?:_|$)", re.IGNORECASE)
    return sorted(
        name for name in set(re.findall(r"\b[A-Za-z_]\w*\b", NO_CODE[language].sub(" ", text))) if word.search(name)
    )


@pytest.mark.parametrize("language", FOLDERS)
def test_no_identifier_has_a_retired_word(language):
    folders, suffixes = FOLDERS[language]
    words = [word for word in RETIRED if language == "c" or word not in NOT_IN_PYTHON]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    found = {str(path.relative_to(ROOT)): retired(path.read_text(), language, words) for path in files}
    assert files and {path: names for path, names in found.items() if names} == {}
