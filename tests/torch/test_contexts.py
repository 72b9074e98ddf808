"""`multiprocessing_context` as an object: its Process decides how workers start."""

import functools
import multiprocessing
import os
import re
import threading
from multiprocessing.context import ForkContext, ForkProcess, SpawnContext, SpawnProcess

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

import slipring  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.parts import slow  # noqa: E402
from tests.support.processes import from_a_daemon  # noqa: E402
from tests.support.torch_datasets import Stream  # noqa: E402


class Named(data.Dataset):
    """Each sample is the process and the thread that read it."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i, os.getpid(), os.environ.get("STARTED_AS", ""), threading.current_thread().name


class _Marked:
    def run(self):
        os.environ["STARTED_AS"] = type(self).__name__
        super().run()


class MarkedFork(_Marked, ForkProcess):
    pass


class MarkedSpawn(_Marked, SpawnProcess):
    pass


class MarkedDefault(_Marked, multiprocessing.Process):
    pass


class OwnThread(threading.Thread):
    pass


def context(process, base=SpawnContext, name="spawn"):
    if isinstance(process, functools.partial):  # from Python 3.14 on, it would become a method
        process = staticmethod(process)
    return type("OwnContext", (base,), {"_name": name, "Process": process})()


@pytest.mark.parametrize(
    ("process", "name"), [(MarkedFork, "spawn"), slow(MarkedSpawn, "unheard of"), (MarkedDefault, "unheard of")]
)
def test_workers_are_processes_of_the_contexts_own_class(process, name):
    options = {"multiprocessing_context": context(process, ForkContext, name), "persistent_workers": True}
    with DataLoader(Named(), 2, num_workers=2, **grouped(**options)) as loader:
        for _ in range(2):
            numbers, pids, started_as, _ = zip(*loader, strict=True)
            assert torch.cat(numbers).tolist() == list(range(8))
            assert {mark for marks in started_as for mark in marks} == {process.__name__}
            assert os.getpid() not in torch.cat(pids).tolist()


def test_a_dead_worker_of_an_own_class_is_replaced_by_another_one():
    options = {"multiprocessing_context": context(MarkedFork), "on_death": "respawn"}
    with DataLoader(Named(), 2, num_workers=1, persistent_workers=True, **grouped(**options)) as loader:
        first = {pid for _, pids, _, _ in loader for pid in pids.tolist()}
        os.kill(first.pop(), 9)
        assert {mark for _, _, marks, _ in loader for mark in marks} == {"MarkedFork"}


def test_a_context_whose_process_is_a_thread_has_the_loaders_thread_workers():
    with DataLoader(Named(), 2, num_workers=2, multiprocessing_context=context(OwnThread)) as loader:
        numbers, pids, _, threads = zip(*loader, strict=True)
    assert torch.cat(numbers).tolist() == list(range(8))
    assert set(torch.cat(pids).tolist()) == {os.getpid()}
    assert len({name for names in threads for name in names} - {threading.current_thread().name}) == 2
    with pytest.raises(ValueError, match=r"num_workers=2 threads .* would each read the whole of Stream"):
        DataLoader(Stream(), 2, num_workers=2, multiprocessing_context=context(OwnThread))


def test_another_context_holds_from_the_next_epoch():
    with DataLoader(Named(), 2, num_workers=1, multiprocessing_context="fork") as loader:
        assert {pid == os.getpid() for _, pids, _, _ in loader for pid in pids.tolist()} == {False}
        loader.multiprocessing_context = context(OwnThread)
        assert {pid == os.getpid() for _, pids, _, _ in loader for pid in pids.tolist()} == {True}


def test_worker_init_fn_in_a_thread_finds_torchs_worker_info():
    found, dataset = [], Named()

    def init(number):
        info = data.get_worker_info()
        own = slipring.get_worker_info()
        found.append((number, info.id, info.num_workers, info.seed - own.seed, info.dataset is dataset))

    options = {"multiprocessing_context": context(OwnThread), "worker_init_fn": init}
    with DataLoader(dataset, 2, num_workers=2, **grouped(**options)) as loader:
        list(loader)
    assert sorted(found) == [(0, 0, 2, 0, True), (1, 1, 2, 0, True)]
    assert data.get_worker_info() is None


class OwnWay(multiprocessing.process.BaseProcess):
    _start_method = "carrier pigeon"


@pytest.mark.parametrize("process", [None, OwnWay, functools.partial(ForkProcess, daemon=True), str])
def test_another_process_class_is_refused_by_name(process):
    name = process.__qualname__ if isinstance(process, type) else repr(process)[:20]
    with pytest.raises(ValueError, match=r"multiprocessing_context=.*its Process must be") as raised:
        DataLoader(Named(), 2, num_workers=1, multiprocessing_context=context(process))
    assert name in str(raised.value)


def load_in_a_daemon(sender, method):
    try:
        with DataLoader(list(range(4)), 2, num_workers=1, multiprocessing_context=method) as loader:
            sender.send([batch.tolist() for batch in loader])
    except AssertionError as error:
        sender.send(str(error))


@pytest.mark.parametrize("method", ["fork", "spawn", context(threading.Thread)], ids=["fork", "spawn", "thread"])
def test_a_daemonic_process_is_told_to_use_threads_which_work(method):
    said = from_a_daemon(load_in_a_daemon, method)
    if isinstance(method, str):
        code = re.search("multiprocessing_context=Threads.. with ``(.+?)``", said)[1]
        names = {"multiprocessing": multiprocessing, "threading": threading}
        exec(code, names)
        with DataLoader(list(range(2)), num_workers=1, multiprocessing_context=names["Threads"]()) as loader:
            assert [batch.tolist() for batch in loader] == [[0], [1]]
    else:
        assert said == [[0, 1], [2, 3]]
