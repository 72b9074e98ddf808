"""Many threads use one object at once. Without a GIL, nothing but slipring's own locks keeps its parts whole."""

import contextlib
import itertools
import os
import queue
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest

import slipring
from slipring import Cache, Loader, Queue, Workers
from slipring.errors import Closed
from tests.support.datasets import Squares, numbers
from tests.support.processes import LONG_S

THREADS = 4
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
KINDS = {"alone": 0, "threads": Workers(start_method="thread"), "processes": Workers(start_method="fork")}


@pytest.mark.skipif(not FREE_THREADED, reason="this Python has a GIL")
@pytest.mark.skipif(os.environ.get("PYTHON_GIL") == "0", reason="this variable keeps the GIL off")
def test_the_import_leaves_the_gil_off():
    program = "import sys, slipring, slipring.images, slipring.tokens; print(sys._is_gil_enabled())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def together(*functions):
    """Call each function in a thread of its own, all at once; raise what the first one that failed has raised."""
    errors, start = [], threading.Barrier(len(functions))

    def call(function):
        start.wait(LONG_S)
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def loader_of(kind, n, batch_size, **options):
    workers = KINDS[kind]
    return Loader(Squares(n), batch_size, **({"num_workers": 2, "workers": workers} if workers else {}), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_share_an_iterator_get_each_batch_once(kind):
    got = [[] for _ in range(THREADS)]
    with loader_of(kind, 4000, 4) as loader:
        iterator = iter(loader)
        together(*[lambda mine=mine: mine.extend(numbers(iterator)) for mine in got])
    assert sorted(itertools.chain(*got)) == numbers(loader_of("alone", 4000, 4))
    assert all(mine == sorted(mine) for mine in got)  # each thread sees them in order


@pytest.mark.parametrize("kind", KINDS)
def test_states_reports_and_figures_can_be_asked_for_in_other_threads(kind):
    over = threading.Event()
    with loader_of(kind, 4000, 4, shuffle=True, seed=1) as loader:
        numbers(loader)
        whole, states = [], []

        def iterate():
            try:
                whole.extend(numbers(loader))
            finally:
                over.set()

        def ask():
            while not over.is_set():
                states.append(loader.state_dict())
                assert loader.stats().batches >= 1000
                assert repr(loader)

        together(iterate, ask, ask)
        for state in [state for state in states if not state["finished"]][:: max(1, len(states) // 3)]:
            loader.load_state_dict(state)
            rest = numbers(loader)
            assert rest == whole[1000 - len(rest) :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("round_", range(25))
def test_an_iterator_that_another_thread_closes_ends_in_each_thread(kind, round_):
    got = []

    def iterate():
        with contextlib.suppress(Closed):
            for batch in iterator:
                got.append(int(batch[1][0]))

    def close():
        while len(got) < round_ * 2:
            pass
        iterator.close()

    with loader_of(kind, 4000, 4) as loader:
        iterator = iter(loader)
        together(iterate, iterate, close, close)
        assert len(got) == len(set(got))
        with pytest.raises((Closed, StopIteration)):
            next(iterator)
        assert len(numbers(loader)) == 1000  # the loader goes on


def test_one_cache_serves_varied_trees_to_all_threads():
    trees = [
        {"image": np.full((i % 7 + 1, 3), i, "uint8"), "label": i, "names": [f"n{j}" for j in range(i % 5)]}
        for i in range(200)
    ]
    with Cache("16MiB") as cache:

        def read(first):
            for turn in range(20):
                for i in range(first, first + len(trees)):
                    tree = cache.get_or_make(i % len(trees), lambda: trees[i % len(trees)])  # noqa: B023 - called at once
                    assert tree["label"] == i % len(trees) and (tree["image"] == tree["label"]).all(), turn

        together(*[lambda first=first: read(first) for first in range(0, 200, 200 // THREADS)])


def test_one_queue_takes_from_and_gives_to_all_threads():
    n = 2000
    got = [[] for _ in range(THREADS)]
    shared = Queue(4)

    def put(first):
        for i in range(first, n, THREADS):
            shared.put({"i": i, "a": np.full(i % 50, i)})

    def get(mine):
        for _ in range(n // THREADS):
            message = shared.get()
            assert (message["a"] == message["i"]).all()
            mine.append(message["i"])

    together(*[lambda f=f: put(f) for f in range(THREADS)], *[lambda mine=mine: get(mine) for mine in got])
    shared.close()
    assert sorted(itertools.chain(*got)) == list(range(n))


def test_a_stream_gives_each_row_to_one_thread():
    rows = [{"a": np.arange(i, i + 10)} for i in range(0, 10_000, 10)]
    got = [[] for _ in range(THREADS)]
    with slipring.stream(rows, 32) as stream:
        iterator = iter(stream)

        def take(mine):
            for batch in iterator:
                mine.extend(batch["a"].tolist())

        together(*[lambda mine=mine: take(mine) for mine in got])
    assert sorted(itertools.chain(*got)) == list(range(10_000))


def test_a_broadcast_gives_each_message_to_one_thread_of_a_reader():
    n = 2000
    got = [[] for _ in range(THREADS)]
    with slipring.Broadcast(1, 4) as broadcast, broadcast.handle.open() as reader:

        def put():
            for i in range(n):
                broadcast.put({"i": i, "a": np.full(i % 50, i)})
            broadcast.close()

        def get(mine):
            reader.wait_until_ready()
            for message in reader:
                assert (message["a"] == message["i"]).all()
                mine.append(message["i"])

        together(put, *[lambda mine=mine: get(mine) for mine in got])
    assert sorted(itertools.chain(*got)) == list(range(n))
    assert all(mine == sorted(mine) for mine in got)


@pytest.mark.parametrize("round_", range(25))
def test_the_ends_of_a_broadcast_can_be_shown_while_another_thread_closes_them(round_):
    broadcast = slipring.Broadcast(2, 4)
    reader = broadcast.handle.open()

    def ask():
        while not (broadcast.closed and reader.closed):
            assert "Broadcast" in repr(broadcast) and "BroadcastReader" in repr(reader)
            with contextlib.suppress(Closed):
                assert 0 <= broadcast.readers <= 1 and broadcast.handle.n_readers == 2

    def close():
        for _ in range(round_):
            repr(reader)
        reader.close()
        broadcast.close()

    together(ask, ask, close)


def test_messages_that_another_thread_drops_make_room_for_a_reader_that_waits():
    handed = queue.SimpleQueue()
    with slipring.Broadcast(1, 2) as broadcast, broadcast.handle.open(copy="never") as reader:

        def put():
            for i in range(200):
                broadcast.put(np.full(5000, i), timeout=LONG_S)
            broadcast.close()

        def get():
            for message in reader:
                handed.put(message)
                del message

        def drop():
            for i in range(200):
                assert (handed.get() == i).all()

        together(put, get, drop)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_iterator_of_torchs_loader_can_be_asked_while_another_thread_begins_epochs(device):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    over = threading.Event()
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork", "device": device}
    with DataLoader(torch.arange(40), 4, **options) as loader:
        iterator = iter(loader)

        def iterate():
            try:
                for _ in range(100):
                    assert len(list(loader)) == 10
            finally:
                over.set()

        def ask():
            while not over.is_set():
                assert 0 <= iterator.position.delivered <= 10
                assert loader.state_dict()

        together(iterate, ask, ask)
