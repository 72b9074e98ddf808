"""File systems that fill."""

import contextlib
import subprocess

import pytest


@pytest.fixture
def small(tmp_path):
    """A function that mounts a tmpfs of so many bytes and returns where."""
    with contextlib.ExitStack() as stack:

        def mount(size, name="small"):
            place = tmp_path / name
            place.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "-l", str(place)], check=True)
            return str(place)

        yield mount
