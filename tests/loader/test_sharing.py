"""Several threads that use one iterator: each batch goes to one of them."""

import threading

import pytest

from slipring import Loader, Workers
from slipring.errors import Closed
from tests.support.datasets import Numbers, Shard
from tests.support.kinds import KINDS, loading
from tests.support.processes import LONG_S, in_child


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


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [(range(800), KINDS["inline"]), (Shard(800), KINDS["fork"]), (range(800), KINDS["thread"])],
    ids=["map, inline", "stream, fork", "map, thread"],
)
def test_each_batch_goes_to_one_of_several_threads(dataset, kind):
    with loading(dataset, 2, **kind) as loader:
        for _ in range(2):
            got = []
            ends = ask(iter(loader), 4, lambda batch, got=got: got.extend(batch.tolist()))
            assert [type(end) for end in ends] == [StopIteration] * 4
            assert sorted(got) == list(range(800))


@pytest.mark.parametrize(("rng", "preload"), [("worker", 2), ("batch", 0)])
def test_threads_share_an_iterator_of_torchs_loader(rng, preload):
    torch = pytest.importorskip("slipring.torch")
    with torch.DataLoader(range(800), 2, num_workers=2, rng=rng, device=torch.Device("cpu", preload=preload)) as loader:
        for _ in range(2):
            got = []
            ends = ask(iter(loader), 4, lambda batch, got=got: got.extend(batch.tolist()))
            assert [type(end) for end in ends] == [StopIteration] * 4
            assert sorted(got) == list(range(800))


@pytest.mark.parametrize("how", ["loader", "iterator"])
def test_close_ends_the_waits_of_all_threads(how):
    came, gate = threading.Event(), threading.Event()
    dataset = Numbers(8, {0: lambda: (came.set(), gate.wait())})
    loader = Loader(dataset, 2, num_workers=1, workers=Workers(start_method="thread"))
    iterator = iter(loader)
    ends = []
    thread = threading.Thread(target=lambda: ends.extend(ask(iterator, 3, ends.append)))
    thread.start()
    assert came.wait(LONG_S)
    closer = threading.Thread(target=iterator.close if how == "iterator" else loader.close)
    closer.start()
    thread.join()
    gate.set()  # the worker finishes its batch before it ends
    closer.join()
    loader.close()
    assert len(ends) == 3 and {type(end) for end in ends} <= {Closed, StopIteration}


def test_a_child_forked_while_a_thread_is_in_next_is_refused():
    came, gate = threading.Event(), threading.Event()
    dataset = Numbers(8, {0: lambda: (came.set(), gate.wait())})
    with Loader(dataset, 2) as loader:
        iterator = iter(loader)
        thread = threading.Thread(target=list, args=(iterator,))
        thread.start()
        assert came.wait(LONG_S)

        def child():
            with pytest.raises(Closed):
                next(iterator)

        in_child(child)
        gate.set()
        thread.join()
