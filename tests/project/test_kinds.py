"""The kinds of results: the header, Cython's declarations and the protocol page name the same ones."""

import re
from pathlib import Path

import pytest

from tests.support.inside import Position

ROOT = Path(__file__).resolve().parents[2]


def test_the_protocol_page_has_every_kind_of_result():
    text = (ROOT / "csrc" / "layout.h").read_text()
    kinds = re.search(r"enum sr_kind \{(.*?)\}", text, re.DOTALL).group(1)
    declared = {name: int(number) for name, number in re.findall(r"SR_(\w+) = (\d+)", kinds)}
    page = (ROOT / "docs" / "protocol.md").read_text()
    table = page.partition("### The kinds of results")[2].partition("### ")[0]
    described = {name: int(number) for number, name in re.findall(r"^\| (\d+) \| (\w+) \|", table, re.MULTILINE)}
    assert described == declared
    cring = (ROOT / "pkg" / "slipring" / "_core" / "ring" / "_cring.pxd").read_text()
    assert all(re.search(rf"\bSR_{name}\b", cring) for name in declared)


def test_only_commit_moves_the_position():
    core = ROOT / "pkg" / "slipring" / "_core" / "passes"
    sources = "".join(path.read_text() for path in sorted(core.glob("*.pyx")))
    for function in ("cdef object commit(", "def commit_upto("):
        body = sources.partition(function)[2].partition("\n    cdef ")[0].partition("\n    def ")[0]
        assert body.count("position.add(") == 1
    assert sources.count("position.add(") == 2
    position = Position()
    for name in ("epoch", "delivered", "beyond", "workers", "next_worker", "finished"):
        with pytest.raises(AttributeError):
            setattr(position, name, 1)
