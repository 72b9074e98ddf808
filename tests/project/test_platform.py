"""`slipring._platform.check` names the missing part and the remedy."""

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import setuptools

from tests.support import inside

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


@pytest.mark.parametrize(
    ("machine", "release"),
    [("x86_64", "5.4.0"), ("aarch64", "5.15.0-91-generic"), ("x86_64", "10.0.1"), ("x86_64", "custom-build")],
)
def test_supported_machines_pass(platform, monkeypatch, machine, release):
    pretend_uname(monkeypatch, machine, release)
    platform.check()


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows"), ("freebsd14", "freebsd14")])
def test_another_system_is_told_to_use_linux_or_torchs_loader(platform, monkeypatch, system, name):
    monkeypatch.delenv("SLIPRING_FALLBACK", raising=False)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delattr(os, "uname")  # Windows has no uname
    with pytest.raises(ImportError, match=rf"needs Linux .* this is {name}\..*container.*SLIPRING_FALLBACK=1"):
        platform.check()


def test_another_system_installs_the_python_modules_alone(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.chdir(ROOT)
    for system, compiled in (("darwin", False), ("linux", True)):
        monkeypatch.setattr(sys, "platform", system)
        runpy.run_path("setup.py")
        assert bool(given["ext_modules"]) == bool(given["libraries"]) == compiled


def test_the_limits_of_the_options_are_those_of_the_ring():
    for name in ("EPOCH_BITS", "MAX_SLOTS", "MAX_WORKERS"):
        assert getattr(inside.ring_limits, name) == getattr(inside._ring, name), name


@pytest.mark.parametrize(
    ("machine", "release", "bits", "said"),
    [
        ("armv7l", "6.1.0", 64, r"x86_64 or aarch64 .* on armv7l"),
        ("x86_64", "6.1.0", 32, "32-bit Python on x86_64"),
        ("x86_64", "5.3.18", 64, r"Linux 5\.4 or later .* this is 5\.3\.18"),
        ("x86_64", "4.18.0-553.el8_10.x86_64", 64, r"Linux 5\.4 or later .* this is 4\.18"),
    ],
)
def test_another_machine_is_refused_by_what_it_lacks(platform, monkeypatch, machine, release, bits, said):
    pretend_uname(monkeypatch, machine, release)
    monkeypatch.setattr(sys, "maxsize", 2 ** (bits - 1) - 1)
    with pytest.raises(ImportError, match=said):
        platform.check()


def test_a_missing_extension_comes_with_the_command_that_builds_it(platform, monkeypatch):
    pretend_built(monkeypatch, False)
    with pytest.raises(ImportError, match=r"not built .*`make build PYTHON=.*pip install"):
        platform.check()


def test_a_torch_that_is_too_old_is_refused_by_its_version(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("slipring.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.4.0+cu121"))
    with pytest.raises(ImportError, match=r"needs torch 2\.6 or later .* and this is 2\.4\.0\+cu121"):
        importlib.import_module("slipring.torch")
