"""Labels such as [P1] connect an access in csrc/ with its line in docs/protocol.md: each occurs in both."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LABEL = re.compile(r"\[([A-Z][0-9])\]")


def labels_in(*paths):
    return {label for path in paths for label in LABEL.findall(path.read_text())}


def test_each_label_in_the_c_code_is_explained_and_each_explained_one_is_there():
    code = labels_in(*(ROOT / "csrc").glob("*.[ch]"))
    page = labels_in(ROOT / "docs" / "protocol.md")
    assert len(code) > 20, "the labels look different now?"
    assert code == page, f"only in csrc: {sorted(code - page)}; only in protocol.md: {sorted(page - code)}"


def test_the_mutants_name_labels_that_exist():
    patches = sorted((ROOT / "tests" / "mutants").glob("*.patch"))
    named = {label for patch in patches for label in LABEL.findall(patch.read_text().splitlines()[0])}
    assert patches and named <= labels_in(*(ROOT / "csrc").glob("*.[ch]")), sorted(named)
