"""slipring.adapters.di_engine: the behaviour of DI-engine's loader that it keeps."""

import functools
import threading

import pytest

torch = pytest.importorskip("torch")

from slipring.adapters.di_engine import AsyncDataLoader, default_collate  # noqa: E402
from tests.adapters.jobs import Pair, Source, number, rows, sample, take, waiting  # noqa: E402
from tests.preload.conftest import lab  # noqa: E402, F401 (a fixture)

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize("num_workers", [0, 3])
def test_callables_and_ready_samples_come_as_batches_in_dispatch_order_without_end(num_workers):
    calls = iter(range(1000))

    def alternating(batch_size):
        n = next(calls)
        made = [functools.partial(number, n * batch_size + k) for k in range(batch_size)]
        return [one() for one in made] if n % 2 else made

    loader = AsyncDataLoader(alternating, 4, "cpu", num_workers=num_workers)
    assert iter(loader) is loader
    assert take(loader, 30) == rows(30, 4)
    loader.close()


def test_callables_run_in_workers_and_ready_samples_here():
    import os

    with_work = AsyncDataLoader(Source(), 4, "cpu", num_workers=2)
    assert os.getpid() not in next(with_work)["pid"].tolist()
    at_once = AsyncDataLoader(Source(ready=True), 4, "cpu", num_workers=2)
    assert set(next(at_once)["pid"].tolist()) == {os.getpid()}
    assert at_once.stats().batches == 0, "it did not go through a worker"
    with_work.close()
    at_once.close()


def test_a_dict_is_a_batch_as_it_is():
    batch = {"x": torch.arange(6).reshape(3, 2), "note": "as it is"}
    for source in (batch, lambda batch_size: batch):
        loader = AsyncDataLoader(source, 3, "cpu")
        for _ in range(5):
            got = next(loader)
            assert torch.equal(got["x"], batch["x"]) and got["note"] == "as it is"
        loader.close()


@pytest.mark.parametrize("chunk_size", [3, 0])
def test_a_chunk_size_that_does_not_divide_is_refused_with_both(chunk_size):
    with pytest.raises(AssertionError, match=rf"4/{chunk_size}\b"):
        AsyncDataLoader(Source(), 4, "cpu", chunk_size)


@pytest.mark.parametrize("chunk_size", [1, None])
def test_several_workers_share_one_batch(tmp_path, chunk_size):
    loader = AsyncDataLoader(Source(waiting, path=tmp_path / "gate"), 4, "cpu", chunk_size, num_workers=2)
    batch = next(loader)
    assert batch["i"].tolist() == [0, 1, 2, 3] and len(set(batch["pid"].tolist())) == 2
    loader.close()


def test_a_chunk_size_finer_than_a_slot_has_ranges_is_made_coarser():
    loader = AsyncDataLoader(Source(), 128, "cpu", chunk_size=1, num_workers=2)
    assert take(loader, 3) == rows(3, 128)
    loader.close()


@pytest.mark.parametrize(("num_workers", "ready"), [(0, True), (1, False), (3, False)])
def test_the_source_is_asked_a_bounded_number_of_batches_ahead(num_workers, ready):
    source = Source(ready=ready)
    most = 2 * max(1, num_workers) * 2 + 2
    loader = AsyncDataLoader(source, 4, "cpu", num_workers=num_workers)
    for taken in range(1, 30):
        next(loader)
        assert source.calls <= taken + most
    loader.close()


@pytest.mark.parametrize(("num_workers", "chunk_size", "ready"), [(0, None, False), (2, 1, False), (2, 4, True)])
def test_batches_follow_di_engines_collation(num_workers, chunk_size, ready):
    loader = AsyncDataLoader(Source(sample, ready=ready), 4, "cpu", chunk_size, num_workers=num_workers)
    batch = next(loader)
    assert batch["obs"].shape == (4, 3, 2) and batch["obs"][2, 0, 0] == 2
    assert batch["reward"].shape == (4,) and batch["reward"].tolist() == [0, 1, 2, 3]
    assert batch["done"].dtype is torch.bool and batch["value"].dtype is torch.float32
    assert batch["action"].dtype is torch.int64 and batch["array"].dtype is torch.int16
    assert batch["name"] == ["s0", "s1", "s2", "s3"]
    assert type(batch["pair"]) is Pair and batch["pair"].a.shape == (4, 2)
    assert [part.tolist() for part in batch["list"]] == [[0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3]]
    assert batch["collate_ignore_raw"] == [{"i": i} for i in range(4)]
    loader.close()


def test_values_unknown_to_the_collation_are_a_type_error():
    for samples in ([None], [object()], [{"x": None}]):
        with pytest.raises(TypeError, match="samples must be"):
            default_collate(samples)


def test_a_collate_fn_of_ones_own_gets_the_list_of_samples():
    loader = AsyncDataLoader(Source(), 4, "cpu", collate_fn=lambda s: [one["i"] for one in s], num_workers=2)
    assert next(loader) == [0, 1, 2, 3]
    loader.close()


@pytest.mark.parametrize("ready", [False, True])
def test_batches_are_moved_to_a_device_ahead_of_time(lab, ready):  # noqa: F811
    """Kept: a thread moves batches to the device ahead of time. Fixed: events order the copies, from registered
    slots (samples that workers made), or pinned copies (ready samples)."""
    loader = AsyncDataLoader(Source(sample, ready=ready), 4, "privateuseone", num_workers=2)
    lab.await_copies(1)  # before the first next()
    for k in range(6):
        batch = next(loader)
        assert lab.read(batch["obs"])[:, 0, 0].tolist() == list(range(4 * k, 4 * k + 4))
        assert batch["name"][0] == f"s{4 * k}"
    assert bool(lab.registrations) is not ready and bool(lab.staged) is ready
    loader.close()


def test_an_error_of_the_device_is_raised(lab):  # noqa: F811
    """Fixed: an exception in the device thread hangs the consumer."""
    lab.fail_at = {0}
    loader = AsyncDataLoader(Source(sample), 4, "privateuseone", num_workers=1)
    with pytest.raises(MemoryError, match="copy 0"):
        next(loader)
    assert lab.read(next(loader)["obs"])[0, 0, 0] == 4
    loader.close()


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"data_source": [1, 2]}, TypeError, r"data_source must be callable or a dict, not \[1, 2\]"),
        ({"num_workers": -1}, ValueError, "-1; 0 and 1"),
        ({"num_workers": 5000}, ValueError, "num_workers must be from 0 to 4093, not 5000"),
        ({"device": "quantum"}, (ValueError, RuntimeError), "quantum|device"),
    ],
)
def test_nonsense_is_refused_at_construction(arguments, kind, said):
    with pytest.raises(kind, match=said):
        AsyncDataLoader(**{"data_source": Source(), "batch_size": 4, "device": "cpu", **arguments})


@pytest.mark.parametrize(("num_workers", "chunk_size"), [(1, 1), (2, None)])
def test_a_source_may_return_more_callables_than_asked_for_but_no_more_than_can_be_shared(num_workers, chunk_size):
    lengths = iter([4, 12, 1000, 4, 3, 4])

    def odd(batch_size):
        return [functools.partial(number, k) for k in range(next(lengths))]

    loader = AsyncDataLoader(odd, 4, "cpu", chunk_size, num_workers=num_workers)
    assert take(loader, 2) == [list(range(4)), list(range(12))]
    if num_workers == 1:  # no sharing
        assert take(loader, 1) == [list(range(1000))]
    else:
        with pytest.raises(ValueError, match=r"a batch of 1000 into more than 56 ranges; use at least 18"):
            next(loader)
    assert take(loader, 3) == [list(range(4)), list(range(3)), list(range(4))]
    assert list(loader) == []
    loader.close()


@pytest.mark.parametrize(("num_workers", "ready"), [(0, False), (2, True)])
def test_closing_twice_is_fine_and_ends_the_iteration(num_workers, ready):
    loader = AsyncDataLoader(Source(ready=ready), 4, "cpu", num_workers=num_workers)
    held = next(loader)
    loader.close()
    loader.close()
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(loader)
    assert held["i"].tolist() == [0, 1, 2, 3], "batches outlive their loader"
    assert list(loader) == []


def test_dropping_the_loader_closes_it():
    loader = AsyncDataLoader(Source(), 4, "cpu", num_workers=2)
    assert take(loader, 3) == rows(3, 4)
    del loader


def test_closing_in_another_thread_ends_a_next_that_waits():
    asked = threading.Event()
    gate = threading.Event()

    def never(batch_size):
        asked.set()
        gate.wait()
        return []

    loader = AsyncDataLoader(never, 4, "cpu")
    closer = threading.Thread(target=lambda: (asked.wait(), loader.close()))
    closer.start()
    with pytest.raises(StopIteration):
        next(loader)
    closer.join()
    gate.set()
