"""The scalars of a loader have the values that their names say."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import slipring
from slipring.monitor import Window, scalars
from tests.support.datasets import Squares
from tests.support.inside import loaders_in


def test_the_scalars_are_differences_over_the_time_between():
    before = slipring.Stats(batches=10, bytes=5_000_000, consumer_wait_s=1.0, fetch_s=1.0, respawns=1)
    now = slipring.Stats(
        batches=30, bytes=9_000_000, copied_batches=5, consumer_wait_s=2.0, fetch_s=3.0, collate_s=1.0,
        slot_wait_s=1.0, respawns=1,
    )  # fmt: skip
    assert scalars(now, before, 2.0) == {
        "slipring/batches_per_s": 10.0,
        "slipring/mb_per_s": 2.0,
        "slipring/wait_share": 0.5,
        "slipring/workers_busy_share": 0.75,
        "slipring/fetch_ms": 100.0,
        "slipring/collate_ms": 50.0,
        "slipring/copied_share": 0.25,
        "slipring/respawns": 0.0,
    }


def test_if_nothing_happened_the_scalars_are_zero_and_waiting_is_never_more_than_all_of_the_time():
    figures = scalars(slipring.Stats(), None, 0.0)
    assert set(figures.values()) == {0.0} and all(name in scalars.__doc__ for name in figures)
    assert scalars(slipring.Stats(consumer_wait_s=3.0), None, 1.0)["slipring/wait_share"] == 1.0


def test_a_window_reports_from_look_to_look_of_all_its_loaders():
    with slipring.Loader(Squares(8), 4) as one, slipring.Loader(Squares(8), 4) as other:
        window = Window([one, other])
        list(one)
        list(other)
        first = window.look()
        assert first["slipring/batches_per_s"] > 0 and first["slipring/mb_per_s"] > 0
        assert window.look()["slipring/batches_per_s"] == 0


@pytest.mark.parametrize("wrap", ["base_dataloader", "iterables", "dataloader", "loader"])
def test_a_loader_is_found_in_its_wrappers(wrap):
    with slipring.Loader(Squares(8), 4) as loader:
        assert loaders_in({"a": [SimpleNamespace(**{wrap: loader})], "b": (loader,)}) == [loader, loader]
    assert loaders_in(None) == loaders_in([1, 2]) == []


# In one interpreter: each part sets the missing modules, and removes nothing.
WITHOUT = """
import io, sys
def said(code, *missing):
    sys.modules.update(dict.fromkeys(missing))
    try:
        exec(code)
    except ImportError as error:
        print(error)
said("import slipring.arrow", "pyarrow")
said("import slipring; slipring.progress([1], file=io.StringIO())", "tqdm")
said("from slipring.monitor import prometheus; prometheus(0)", "prometheus_client")
said("import slipring.monitor.lightning", "lightning", "pytorch_lightning")
said("import slipring.monitor.transformers", "transformers")
"""


def test_without_a_library_the_error_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    arrow, *others = done.stdout.splitlines()
    assert "pip install 'slipring[arrow]'" in arrow
    assert others == [
        "slipring.progress needs tqdm: pip install slipring[monitor]",
        "slipring.monitor.prometheus needs prometheus_client: pip install slipring[monitor]",
        "slipring.monitor.lightning needs Lightning: pip install lightning",
        "slipring.monitor.transformers needs transformers: pip install transformers",
    ]
