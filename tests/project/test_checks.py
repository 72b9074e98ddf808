"""`make` runs all checks, and its last lines name those that failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).resolve().parents[2] / "tools" / "checks.py"
MAKEFILE = f"""
fine:
	@echo this is fine
broken:
	@echo this is broken; exit 3
tells:
	@test "$(WHAT)" = "a value"
several:
	@{sys.executable} {CHECKS} --jobs 2 fine broken
"""


@pytest.fixture
def checks(tmp_path):
    """A function that runs checks of a small Makefile and returns (exit status, lines)."""
    (tmp_path / "Makefile").write_text(MAKEFILE)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "SLIPRING_CHECKS"))
    }

    def run(*arguments, **more):
        done = subprocess.run(
            [sys.executable, CHECKS, *arguments], cwd=tmp_path, env={**environment, **more},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout.splitlines()

    return run


@pytest.mark.parametrize("jobs", [[], ["--jobs", "2"]], ids=["one at a time", "two at a time"])
def test_all_parts_run_and_the_failed_one_is_named_at_the_end(checks, jobs):
    code, lines = checks(*jobs, "broken", "fine")
    assert code == 1
    assert "this is broken" in lines
    assert "1 passed, 1 failed" in lines
    assert lines[-1] == "== failed; repeat it alone with: make broken"


def test_the_failed_part_of_a_part_is_named_in_its_place_with_the_variables_of_makes_command_line(checks):
    code, lines = checks("several", "fine", MAKEFLAGS=" -- TORCH=0")
    assert code == 1
    assert "1 passed, 1 failed" in lines
    repeat = "== failed; repeat it alone with: make broken TORCH=0"
    assert [line for line in lines if "alone" in line] == [repeat]


def test_variables_of_a_target_and_of_makes_command_line_reach_it(checks):
    code, lines = checks("tells WHAT='a value'")
    assert code == 0 and lines[-2] == "1 passed, 0 failed"
    assert checks("tells", MAKEFLAGS=r"kw -j2 --jobserver-auth=3,4 -- WHAT=a\ value")[0] == 0
    assert checks("tells")[0] == 1
