"""Several threads that use one iterator: each batch goes to one of them."""

import os
import threading

import pytest

from slipring import Loader, Workers
from slipring.errors import Closed
from tests.support.datasets import Shard, Squares
from tests.support.kinds import kinds, loading


class Gated(Squares):
    """Its samples wait until `gate` is set."""

    def __init__(self):
        super().__init__(8)
        self.came, self.gate = threading.Event(), threading.Event()

    def __getitem__(self, i):
        self.came.set()
        self.gate.wait()
        return super().__getitem__(i)


def ask(iterator, threads, take):
    """Let `threads` threads exhaust an iterator; return the exceptions that ended them."""
    ends = []

    def run():
        try:
            while True:
                take(next(iterator))
        except Exception as error:
            ends.append(error)

    started = [threading.Thread(target=run) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return ends


@kinds("inline", "fork", "thread")
@pytest.mark.parametrize("dataset", [range(800), Shard(800)], ids=["map", "stream"])
def test_each_batch_goes_to_one_of_several_threads(dataset, kind):
    with loading(dataset, 2, **kind) as loader:
        for _ in range(2):
            got = []
            ends = ask(iter(loader), 4, lambda batch, got=got: got.extend(batch.tolist()))
            assert [type(end) for end in ends] == [StopIteration] * 4
            assert sorted(got) == list(range(800))


@pytest.mark.parametrize("preload", [0, 2])
@pytest.mark.parametrize("rng", ["worker", "batch"])
def test_threads_share_an_iterator_of_torchs_loader(rng, preload):
    torch = pytest.importorskip("slipring.torch")
    with torch.DataLoader(range(800), 2, num_workers=2, rng=rng, device=torch.Device("cpu", preload=preload)) as loader:
        for _ in range(2):
            got = []
            ends = ask(iter(loader), 4, lambda batch, got=got: got.extend(batch.tolist()))
            assert [type(end) for end in ends] == [StopIteration] * 4
            assert sorted(got) == list(range(800))


def test_close_ends_the_waits_of_all_threads():
    dataset = Gated()
    loader = Loader(dataset, 2, num_workers=1, workers=Workers(start_method="thread"))
    iterator = iter(loader)
    ends = []
    thread = threading.Thread(target=lambda: ends.extend(ask(iterator, 3, ends.append)))
    thread.start()
    assert dataset.came.wait(60)
    closer = threading.Thread(target=loader.close)
    closer.start()
    thread.join()
    dataset.gate.set()  # the worker finishes its batch before it ends
    closer.join()
    assert len(ends) == 3 and {type(end) for end in ends} <= {Closed, StopIteration}


def test_a_child_forked_while_a_thread_is_in_next_is_refused():
    dataset = Gated()
    with Loader(dataset, 2) as loader:
        iterator = iter(loader)
        thread = threading.Thread(target=list, args=(iterator,))
        thread.start()
        assert dataset.came.wait(60)
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except Closed:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        dataset.gate.set()
        thread.join()
