"""Advice of loaders: misspelt arguments, and arguments whose effect differs from their name."""

import os
import warnings

import numpy as np
import pytest

import slipring
from slipring import Loader


def test_far_more_workers_than_processors_are_warned_of():
    cpus = len(os.sched_getaffinity(0))
    with pytest.warns(UserWarning, match=f"num_workers={50 * cpus} for {cpus} processors") as told:
        Loader(range(9), num_workers=50 * cpus).close()
    assert told[0].filename == __file__
    Loader(range(9), num_workers=2 * cpus).close()


ANSWERS = {
    "num_worker": "Did you mean 'num_workers'", "generator": "Did you mean 'seed'",
    # Arguments of tf.data, Keras and Grain.
    "worker_count": "Did you mean 'num_workers'", "use_multiprocessing": ".*Workers\\(start_method=",
    "num_threads": ".*Workers\\(fetch_threads=", "drop_remainder": "Did you mean 'drop_last'",
    "max_queue_size": "Did you mean 'prefetch_factor'", "num_epochs": ".* once for each epoch",
    "repeat": ".* once for each epoch", "transforms": ".* in collate_fn", "shard_options": ".*slipring.BatchSampler",
    # Arguments that belong to a group, or have another name.
    "chunk_size": r".*workers=slipring\.Workers\(chunk_size=", "slots": r".*memory=slipring\.Memory\(slots=",
    "on_worker_death": r".*workers=slipring\.Workers\(on_death=", "min_workers": r".*num_workers=\(least, most\)",
    "multiprocessing_context": r".*workers=slipring\.Workers\(start_method=", "dispatch": ".*rng='worker'",
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_argument_that_is_not_there_is_answered_by_the_one_that_was_meant(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'. {ANSWERS[name]}"):
        Loader(range(9), **{name: None})


@pytest.mark.parametrize("name", ["preload", "devices"])
def test_options_of_a_device_are_refused_with_advice(adapter, name):
    with pytest.raises(TypeError, match=f"keyword argument '{name}'. Give device="):
        adapter.DataLoader(range(9), **{name: None})
    with pytest.raises(TypeError, match=f"keyword argument '{name}'$"):
        Loader(range(9), **{name: None})


def test_streams_answer_by_arguments_of_their_own():
    for name, meant in (("shuffle", "shuffle_buffer"), ("colums", "columns")):
        with pytest.raises(TypeError, match=f"argument '{name}'. Did you mean '{meant}'"):
            slipring.stream([{"x": np.arange(3)}], 2, **{name: True})


def test_a_batch_sampler_given_as_sampler_is_answered_by_batch_sampler():
    sampler = slipring.BatchSampler(10, batch_size=2)
    with pytest.raises(TypeError, match=r"sampler \(BatchSampler\) gives lists .* give it as batch_sampler="):
        Loader(range(10), 2, sampler=sampler)
    with Loader(np.arange(4), None, sampler=sampler) as loader:
        assert next(iter(loader)).tolist() == [0, 1]


def test_a_dict_of_arrays_is_no_dataset():
    with pytest.raises(TypeError, match=r"dict of \['x'\].*use slipring.stream\(\[dataset\]"):
        Loader({"x": np.arange(3)})
    with Loader({0: 5, 1: 6}, 2) as loader, Loader({"x": 7}, sampler=["x"]) as by_key:
        assert next(iter(loader)).tolist() == [5, 6] and next(iter(by_key)).tolist() == [7]


def test_a_tuple_of_arrays_of_as_many_rows_is_warned_of():
    with pytest.warns(UserWarning, match="tuple of 2 arrays of 9 rows each, which are 2 samples") as told:
        Loader((np.zeros((9, 3)), np.zeros(9)))
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for samples in ((np.zeros(9), np.zeros(8)), (np.zeros(2),) * 3, [np.zeros(9)] * 2, (1, 2)):
            Loader(samples)


def test_a_name_unlike_all_arguments_gets_no_suggestion():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zz'$"):
        Loader(range(9), zz=1)


# ---- under torch's drop-in


@pytest.fixture
def adapter():
    return pytest.importorskip("slipring.torch")


def test_torchs_drop_in_suggests_torchs_arguments(adapter):
    with pytest.raises(TypeError, match="Did you mean 'multiprocessing_context'"):
        adapter.DataLoader(range(9), start_method="spawn")


def test_an_object_that_cannot_be_sent_to_a_worker_causes_torchs_warning(adapter):
    data = pytest.importorskip("torch").utils.data
    options = {"num_workers": 1, "collate_fn": lambda samples: samples, "multiprocessing_context": "spawn"}
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
