"""`slipring._platform.check` names the missing part and the remedy."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def platform(monkeypatch):
    """A fresh copy of the module on a machine without missing parts; it loads without the package."""
    spec = importlib.util.spec_from_file_location("slipring._platform", ROOT / "pkg/slipring/_platform.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "platform", "linux")
    pretend_uname(monkeypatch)
    pretend_built(monkeypatch, True)
    return module


def pretend_uname(monkeypatch, machine="x86_64", release="6.1.0-amd64"):
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine, release=release))


def pretend_built(monkeypatch, built):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if built else None)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("release", ["5.4.0", "5.15.0-91-generic", "6.8", "10.0.1", "custom-build"])
def test_supported_machines_pass(platform, monkeypatch, machine, release):
    pretend_uname(monkeypatch, machine, release)
    platform.check()


@pytest.mark.parametrize("system", ["darwin", "win32", "freebsd14"])
def test_another_system_is_told_to_use_linux(platform, monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delattr(os, "uname")  # Windows has no uname
    with pytest.raises(ImportError, match=rf"needs Linux .* this is {system}.*container"):
        platform.check()


@pytest.mark.parametrize("machine", ["i686", "armv7l", "ppc64le", "riscv64"])
def test_another_processor_is_named(platform, monkeypatch, machine):
    pretend_uname(monkeypatch, machine)
    with pytest.raises(ImportError, match=rf"x86_64 or aarch64 .* on {machine}"):
        platform.check()


def test_a_32_bit_python_on_a_64_bit_machine_is_refused(platform, monkeypatch):
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    with pytest.raises(ImportError, match="32-bit Python on x86_64"):
        platform.check()


@pytest.mark.parametrize("release", ["5.3.18", "4.18.0-553.el8_10.x86_64", "3.10.0"])
def test_the_error_on_an_old_kernel_names_the_one_that_is_needed(platform, monkeypatch, release):
    pretend_uname(monkeypatch, release=release)
    with pytest.raises(ImportError, match=rf"Linux 5\.4 or later .* this is {release}"):
        platform.check()


def test_a_missing_extension_comes_with_the_command_that_builds_it(platform, monkeypatch):
    pretend_built(monkeypatch, False)
    with pytest.raises(ImportError, match=r"not built .*`make build PYTHON=.*pip install"):
        platform.check()


def test_extensions_of_other_interpreters_are_listed(platform, monkeypatch):
    pretend_built(monkeypatch, False)
    monkeypatch.setattr(os, "listdir", lambda path: ["_ring.cpython-39-x86_64-linux-gnu.so", "_ring.pyx"])
    with pytest.raises(ImportError, match=r"built for other interpreters: _ring\.cpython-39-x86_64"):
        platform.check()


@pytest.mark.parametrize("version", ["2.4.0+cu121", "1.13.1"])
def test_a_torch_that_is_too_old_is_refused_by_its_version(version):
    pytest.importorskip("torch")
    code = f"import torch; torch.__version__ = {version!r}; import slipring.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"needs torch 2.6 or later (the tests run with 2.13) and this is {version}" in done.stderr
