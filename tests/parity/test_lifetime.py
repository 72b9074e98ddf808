"""Loaders and iterators may be kept, dropped, copied and left in any order."""

import contextlib
import copy
import gc
import pickle
import threading

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")


from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import Values  # noqa: E402
from tests.support.torch_datasets import Made, seed_by_worker  # noqa: E402

NUMBERS = Values(list(range(12)))
SETTINGS = [(0, False), (2, False), (2, True)]


def workers(setting):
    return {"num_workers": setting[0], "persistent_workers": setting[1]}


def as_list(batches):
    return [batch.tolist() for batch in batches]


ALL = [[i, i + 1, i + 2] for i in range(0, 12, 3)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_loader_may_go_before_its_iterator_and_after_the_end_there_is_nothing_more(make, setting):
    loader = make(NUMBERS, batch_size=3, **workers(setting))
    iterator = iter(loader)
    assert len(iterator) == 4 and next(iterator).tolist() == ALL[0]
    del loader
    gc.collect()
    assert as_list(iterator) == ALL[1:]
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_iterators_do_not_disturb_each_other(make, num_workers):
    loader = make(NUMBERS, batch_size=3, num_workers=num_workers)
    one, other = iter(loader), iter(loader)
    assert [(a.tolist(), b.tolist()) for a, b in zip(one, other)] == [(x, x) for x in ALL]


def test_with_persistent_workers_a_second_iterator_is_the_first_begun_again(make):
    loader = make(NUMBERS, batch_size=3, num_workers=2, persistent_workers=True)
    one = iter(loader)
    next(one)
    assert iter(loader) is one
    assert as_list(one) == ALL


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_loader_can_be_copied_before_its_first_epoch(make, duplicate):
    loader = make(NUMBERS, batch_size=3, num_workers=2, worker_init_fn=seed_by_worker)
    assert as_list(duplicate(loader)) == as_list(loader) == ALL


def test_a_dataset_may_read_from_a_loader(make):
    inner = make(NUMBERS, batch_size=4)
    outer = make(Made(lambda i: sum(batch.sum() for batch in inner) + i, 4), batch_size=2, num_workers=2)
    assert as_list(outer) == [[66, 67], [68, 69]]


@pytest.mark.parametrize("options", [{}, {"rng": "batch", "preload": 1}])
def test_threads_that_begin_epochs_of_one_persistent_loader_do_not_close_it(options):
    loader = DataLoader(range(10_000), num_workers=1, persistent_workers=True, **grouped(**options))
    raised, begun = [], threading.Barrier(2)

    def read():
        begun.wait()
        try:
            for _ in range(30):  # a race
                for _ in zip(range(30), loader):
                    pass
        except Exception as error:
            raised.append(error)

    next(iter(loader))
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loader.close()
    assert raised == []


def test_attributes_of_torchs_iterator_that_libraries_use_exist(make):
    loader = make(NUMBERS, batch_size=2, num_workers=2, prefetch_factor=3)
    iterator = iter(loader)
    next(iterator)
    processes = iterator._workers
    assert [process.is_alive() for process in processes] == [True, True]
    assert iterator._prefetch_factor == 3
    iterator._shutdown_workers()
    for process in processes:
        with contextlib.suppress(ValueError):  # our descriptors are closed by then
            assert not process.is_alive()
