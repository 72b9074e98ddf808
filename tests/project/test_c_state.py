"""C code with state of its own, such as handlers of forks, must exist once in a process."""

import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "pkg" / "slipring"
WITH_STATE = {"sr_attach", "sr_after_fork", "sr_copy_rows"}  # of segment.c, fork.c and copy.c


def test_c_code_with_state_of_its_own_is_in_one_extension_module():
    having = {}
    for module in PACKAGE.rglob("*.so"):
        symbols = subprocess.run(["nm", "--defined-only", module], capture_output=True, text=True, check=True)
        having[module.name.split(".")[0]] = WITH_STATE & set(symbols.stdout.split())
    assert {name: found for name, found in having.items() if found} == {"_segment": WITH_STATE}
