"""What loaders advise: arguments that were meant, and those that do not do what they seem to."""

import os
import subprocess
import sys
import warnings

import pytest

from slipring import Loader


def test_far_more_workers_than_processors_are_warned_of():
    cpus = len(os.sched_getaffinity(0))
    with pytest.warns(UserWarning, match=f"num_workers={50 * cpus} for {cpus} processors") as told:
        Loader(range(9), num_workers=50 * cpus).close()
    assert told[0].filename == __file__
    Loader(range(9), num_workers=2 * cpus).close()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("num_worker", "num_workers"), ("multiprocessing_context", "start_method"), ("colate_fn", "collate_fn")],
)
def test_an_argument_that_is_not_there_is_answered_by_the_one_that_was_meant(name, meant):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'. Did you mean '{meant}'"):
        Loader(range(9), **{name: None})


def test_what_is_like_no_argument_gets_no_suggestion():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zz'$"):
        Loader(range(9), zz=1)


def test_arrow_without_pyarrow_names_the_extra():
    code = "import sys; sys.modules['pyarrow'] = None; import slipring.arrow"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'slipring[arrow]'" in done.stderr


# ---- under torch's drop-in


@pytest.fixture
def adapter():
    return pytest.importorskip("slipring.torch")


def test_torchs_drop_in_suggests_torchs_arguments(adapter):
    with pytest.raises(TypeError, match="Did you mean 'multiprocessing_context'"):
        adapter.DataLoader(range(9), start_method="spawn")


def test_dynamic_dispatch_that_cannot_be_is_said_at_construction(adapter):
    with pytest.warns(UserWarning, match=r"needs rng='batch'.*in turn") as told:
        adapter.DataLoader(range(9), num_workers=1, dispatch="dynamic")
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.DataLoader(range(9), num_workers=1, dispatch="dynamic", rng="batch")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_sent_to_a_worker_is_warned_of_as_by_torch(adapter, method):
    data = pytest.importorskip("torch").utils.data
    options = {"num_workers": 1, "collate_fn": lambda samples: samples, "multiprocessing_context": method}
    texts = []
    for loader in data.DataLoader(range(9), **options), adapter.DataLoader(range(9), **options):
        with pytest.warns(UserWarning, match="^Got pickle error") as told, pytest.raises(Exception) as raised:
            next(iter(loader))
        texts.append((type(raised.value), str(told[0].message)))
    assert texts[0] == texts[1]
    assert "use multiprocessing_context='fork'" in str(raised.value)


def test_classes_that_install_does_not_reach_are_named_once(adapter):
    data = pytest.importorskip("torch").utils.data

    class MultiEpochs(data.DataLoader):
        pass

    with pytest.warns(UserWarning, match=r"derived from torch's .*MultiEpochs"):
        adapter.install()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with adapter.install():
            assert data.DataLoader is adapter.DataLoader
    adapter.uninstall()
    assert MultiEpochs.__mro__[1] is data.DataLoader


def leave(number):
    sys.exit(3)


def test_what_is_said_of_deaths_and_starts_names_torchs_argument(adapter):
    options = {"num_workers": 1, "worker_init_fn": leave, "multiprocessing_context": "spawn"}
    with adapter.DataLoader(range(9), **options) as loader, pytest.raises(RuntimeError) as raised:
        next(iter(loader))
    assert "or use multiprocessing_context='fork'" in str(raised.value)
    assert "start_method" not in str(raised.value)
    with adapter.DataLoader(range(9), num_workers=1, multiprocessing_context="fork") as loader:
        next(iter(loader))
        starts = loader._engines.engine.pool.starts
        assert starts._before_joining(threads=3).endswith("or use multiprocessing_context='forkserver'")
