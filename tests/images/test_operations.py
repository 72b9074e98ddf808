"""The classes of operations in Python and the header of the C code name the same operations with the same codes."""

import re
from pathlib import Path

from tests.support.inside import known_operations

HEADER = Path(__file__).resolve().parents[2] / "csrc" / "images" / "augment.h"


def codes_of(header):
    """Return {name: code} of ``enum sr_op_code``."""
    body = re.sub(r"/\*.*?\*/", "", re.search(r"enum sr_op_code \{(.*?)\n\};", header, re.S)[1], flags=re.S)
    found, code = {}, -1
    for name, value in re.findall(r"SR_OP_(\w+)(?: = (\d+))?,", body):
        code = int(value) if value else code + 1
        found[name.lower()] = code
    return found


def test_each_operation_has_the_name_and_the_code_of_the_header():
    codes = codes_of(HEADER.read_text())
    del codes["colors"]  # the number of colour operations
    assert {name: kind.code for name, kind in known_operations().items()} == codes
