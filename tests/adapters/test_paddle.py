"""slipring.adapters.paddle: the behaviour of Paddle's loader that it keeps.

Each test runs without paddle (leaves are arrays), and with it where it is installed.
"""

import os
import sys
import threading
import time

import numpy as np
import pytest

from slipring.adapters import paddle as adapter
from slipring.adapters.paddle import BatchSampler, DataLoader
from tests.support.adapters import Images, Made, Pair, import_paddle, labels, plain
from tests.support.datasets import flat
from tests.support.processes import LONG_S

WORKERS = [0, 2]


class Stream:
    """Each worker yields its share, by the adapter's get_worker_info."""

    def __init__(self, n=7):
        self.n = n

    def __iter__(self):
        info = adapter.get_worker_info()
        step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from (np.int64(i) for i in range(step[0], self.n, step[1]))


# ---- behaviour that is kept


@pytest.mark.parametrize("num_workers", WORKERS)
def test_batches_come_in_order_as_tensors(kind, num_workers):
    loader = DataLoader(Images(41), batch_size=4, num_workers=num_workers)
    assert len(loader) == len(iter(loader)) == 11
    for batches in (list(loader), list(loader())):
        assert all(isinstance(leaf, kind) for batch in batches for leaf in batch)
        assert labels(batches) == [list(range(k, min(k + 4, 41))) for k in range(0, 41, 4)]
        assert [image.tolist()[0] for image, _ in batches] == [[k, k] for k in range(0, 41, 4)]


@pytest.mark.parametrize(("num_workers", "places"), [(0, 3), (2, 1)])
def test_outstanding_batches_are_bounded(kind, num_workers, places):
    asked = []

    class Counting(BatchSampler):
        def __iter__(self):
            for batch in super().__iter__():
                asked.append(batch)
                yield batch

    sampler = Counting(Images(60), batch_size=1)
    loader = DataLoader(
        Images(60), batch_sampler=sampler, num_workers=num_workers, prefetch_factor=3, places=["cpu"] * places
    )
    for step, _ in enumerate(loader, 1):
        assert len(asked) <= step * places + 3 * max(num_workers, places)


def test_without_workers_a_thread_prefetches(kind):
    made = threading.Semaphore(0)
    batches = iter(DataLoader(Made(lambda i: (made.release(), i)[1]), prefetch_factor=2))
    assert made.acquire(timeout=LONG_S) and made.acquire(timeout=LONG_S), "nobody has asked yet"
    assert [plain(batch) for batch in batches] == [[0], [1], [2], [3]]
    who = []
    batches = iter(DataLoader(Made(lambda i: who.append(threading.current_thread()) or i), use_buffer_reader=False))
    assert not who
    assert [plain(batch) for batch in batches] == [[0], [1], [2], [3]]
    assert set(who) == {threading.main_thread()}


@pytest.mark.parametrize("use_buffer_reader", [False, True])
def test_without_workers_the_datasets_random_numbers_follow_numpys_seed(kind, use_buffer_reader):
    def drawn(seed):
        np.random.seed(seed)
        data = Made(lambda i: np.random.rand())
        return [plain(batch) for batch in DataLoader(data, use_buffer_reader=use_buffer_reader)]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.usefixtures("forked")
def test_the_workers_of_two_ranks_draw_different_random_numbers(kind):
    def drawn(rank):
        sampler = BatchSampler(sampler=range(4), batch_size=2)
        sampler.local_rank = rank  # as of a DistributedBatchSampler
        np.random.seed(3)
        data = Made(lambda i: np.random.rand(), 4)
        return flat([plain(batch) for batch in DataLoader(data, batch_sampler=sampler, num_workers=2)])

    assert drawn(0) == drawn(0) and not set(drawn(0)) & set(drawn(1))


@pytest.mark.usefixtures("forked")
def test_generators_stay_as_worker_init_fn_seeded_them(kind):
    data = Made(lambda i: np.random.random(), 4)
    loader = DataLoader(data, num_workers=1, worker_init_fn=lambda n: np.random.seed(5))
    assert flat([plain(batch) for batch in loader]) == np.random.RandomState(5).random(4).tolist()


def test_costs_are_counted(kind):
    loader = DataLoader(Made(lambda i: (time.sleep(0.02), i)[1], 8), use_buffer_reader=False)
    for _ in loader:
        time.sleep(0.03)
    assert loader.reader_cost >= 0.02 and loader.batch_cost >= 0.045


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("num_workers", WORKERS)
def test_batch_size_none_means_no_batching(kind, num_workers):
    loader = DataLoader(Images(3), batch_size=None, num_workers=num_workers)
    assert [plain(sample) for sample in loader] == [([0.0, 0.0], 0), ([1.0, 1.0], 1), ([2.0, 2.0], 2)]
    assert isinstance(next(iter(loader))[0], kind) and len(loader) == 3
    stream = DataLoader(Stream(3), batch_size=None, num_workers=num_workers, collate_fn=lambda x: {"x": int(x)})
    assert list(stream) == [{"x": 0}, {"x": 1}, {"x": 2}]


@pytest.mark.parametrize("given", [{"shuffle": True}, {"batch_sampler": [[0]]}])
def test_iterable_datasets_set_their_own_order(kind, given):
    with pytest.raises(ValueError, match=next(iter(given))):
        DataLoader(Stream(), **given)
    with pytest.raises(ValueError, match="length"):
        len(DataLoader(Stream()))
    with pytest.raises(TypeError, match="no length"):
        len(iter(DataLoader(Stream(), batch_size=2)))
    with pytest.raises(AssertionError, match="indices and a length, not be iterable alone"):
        BatchSampler(Stream(), batch_size=2)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_iterable_datasets_are_shared_by_workers(kind, num_workers):
    loader = DataLoader(Stream(), batch_size=2, num_workers=num_workers)
    got = [plain(batch) for batch in loader]
    assert sorted(flat(got)) == list(range(7))
    assert got[0] == ([0, 2] if num_workers else [0, 1])
    for drop_last, sizes in ((False, [2, 2, 1]), (True, [2, 2])):
        options = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        dropped = DataLoader(Stream(5), batch_size=2, drop_last=drop_last, **options)
        for _ in range(2):
            assert sorted(map(len, dropped), reverse=True) == sizes
        dropped.close()


def test_each_place_gets_a_batch_per_step(kind):
    loader = DataLoader(Images(10), batch_size=2, places=["cpu", "cpu"], num_workers=2)
    steps = list(loader)
    assert [[batch[1].tolist() for batch in step] for step in steps] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_batches_can_be_dicts_by_name(kind):
    """Kept: return_list=False with feed_list names; a step is a list of them, one for each place."""

    class Variable:
        name = "image"

    loader = DataLoader(Images(4), [Variable, "label"], return_list=False, batch_size=2, num_workers=2)
    assert [plain(batch)["label"] for [batch] in loader] == [[0, 1], [2, 3]]
    assert isinstance(next(loader())[0]["image"], kind)
    with pytest.raises(ValueError, match=r"1 names.*2 leaves"):
        next(iter(DataLoader(Images(4), ["one"], return_list=False)))


STRUCTURES = {
    "tuple": (lambda i: (np.float32(i), i), ([0.0, 1.0], [0, 1])),
    "list": (lambda i: [np.float32(i), [i]], [[0.0, 1.0], [[0, 1]]]),
    "namedtuple": (lambda i: Pair(i, float(i)), Pair([0, 1], [0.0, 1.0])),
    "text": (lambda i: (f"n{i}", i), (["n0", "n1"], [0, 1])),
    "prefix": (lambda i: ("_paddle_field_0", i), (["_paddle_field_0"] * 2, [0, 1])),
    "prefix in a dict": (
        lambda i: {"_paddle_field_1": "_paddle_field_1", "x": i},
        {"_paddle_field_1": ["_paddle_field_1"] * 2, "x": [0, 1]},
    ),
}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_structures_are_restored_around_the_leaves(kind, structure):
    make, expected = STRUCTURES[structure]
    got = plain(next(iter(DataLoader(Made(make), batch_size=2, num_workers=1))))
    assert got == expected and type(got) is type(expected)


@pytest.mark.usefixtures("forked")
def test_persistent_workers_resume_each_epoch(kind, monkeypatch, tmp_path):
    slept = []
    loader = DataLoader(
        Made(lambda i: os.getpid()),
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=lambda n: (tmp_path / f"{n}").touch(),
    )
    pids = {int(batch[0]) for batch in loader}
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in range(50):
        pids |= {int(batch[0]) for batch in loader}
    assert len(pids) <= 2 and not slept, "it sleeps between epochs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    loader.close()


class Telling:
    def __iter__(self):
        for info in (adapter.get_worker_info(), getattr(sys.modules.get("paddle.io"), "get_worker_info", bool)()):
            if info:
                yield info.id, info.num_workers, info.seed, float(isinstance(info.dataset, Telling))


def test_workers_know_who_they_are(kind):
    told = [plain(batch) for batch in DataLoader(Telling(), num_workers=2)]
    assert sorted({(a[0], b[0]) for a, b, _, _ in told}) == [(0, 2), (1, 2)]
    assert all(dataset == [1.0] for *_, dataset in told)
    assert len(told) == (4 if "paddle.io" in sys.modules else 2)
    assert adapter.get_worker_info() is None


def test_paddles_timer_and_profiler_see_the_reader():
    paddle = import_paddle()
    timer = paddle.profiler.timer.benchmark()
    timer.begin()
    loader = DataLoader(Made(lambda i: (time.sleep(0.02), i)[1], 16), use_buffer_reader=False)
    for _ in loader:
        timer.step(1)
    assert "reader_cost: 0.02" in timer.step_info("samples")
    timer.end()
    kinds = {"targets": [paddle.profiler.ProfilerTarget.CPU], "on_trace_ready": lambda profiler: None}
    with paddle.profiler.Profiler(**kinds) as profiler:
        list(DataLoader(Images(4)))
        profiler.step()
    events, todo = [], list(profiler.profiler_result.get_data().values())
    while todo:
        node = todo.pop()
        events.append(node.name)
        todo += node.children_node
    assert "slipring.DataLoader" in events


class Far:
    """Samples that take a while, asleep."""

    def __len__(self):
        return 400

    def __getitem__(self, i):
        time.sleep(0.002)
        return i


def test_the_number_of_workers_can_be_tuned(kind):
    adapter.set_autotune_config(True, 5)
    try:
        tuned = DataLoader(Far(), batch_size=4, num_workers=1, persistent_workers=True)
    finally:
        adapter.set_autotune_config(False)
    for _ in range(3):
        assert [int(i) for batch in tuned for i in plain(batch)] == list(range(400))
    found = tuned._loader.tuning
    assert found.history and tuned.num_workers == found.workers
    tuned.close()
    assert DataLoader(Images(), num_workers=1).num_workers == 1


def test_a_loader_of_an_iterable_dataset_has_a_batch_sampler_without_end(kind):
    loader = DataLoader(Stream(), batch_size=2)
    assert next(iter(loader.batch_sampler)) == [None, None]
    assert loader.batch_sampler.batch_size == 2 and loader.batch_sampler.dataset is loader.dataset
    assert [plain(batch) for batch in loader] == [[0, 1], [2, 3], [4, 5], [6]]
    assert DataLoader(Stream(), batch_size=None).batch_sampler is None


def test_batch_samplers_decide_which_samples_are_read(kind):
    loader = DataLoader(Images(), batch_sampler=[[3, 1], [2]], num_workers=2)
    assert labels(loader) == [[3, 1], [2]] and len(loader) == 2
    sampler = BatchSampler(sampler=[5, 4, 3], batch_size=2, drop_last=True)
    assert labels(DataLoader(Images(), batch_sampler=sampler)) == [[5, 4]]


@pytest.mark.parametrize(
    ("num_workers", "arguments"), [(0, {"batch_size": 4, "shuffle": True}), (2, {"shuffle": True, "drop_last": True})]
)
def test_batches_and_their_order_are_paddles(num_workers, arguments):
    paddle = import_paddle()

    def run(loader):
        np.random.seed(5)
        made = loader(Images(11), num_workers=num_workers, **arguments)
        return [[leaf.numpy().tolist() for leaf in batch] for _ in range(3) for batch in made]

    assert run(DataLoader) == run(paddle.io.DataLoader)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("num_workers", WORKERS)
def test_datasets_of_paddles_tensors_are_collated(num_workers):
    paddle = import_paddle()
    made = Made(lambda i: {"x": paddle.to_tensor([float(i)]), "n": i})
    got = next(iter(DataLoader(made, batch_size=2, num_workers=num_workers)))
    assert isinstance(got["x"], paddle.Tensor) and plain(got) == {"x": [[0.0], [1.0]], "n": [0, 1]}
    own = DataLoader(made, batch_size=2, num_workers=num_workers, collate_fn=lambda s: [one["x"] for one in s])
    assert plain(next(iter(own))) == [[0.0], [1.0]]


def test_tensors_lie_in_the_slots_and_keep_them():
    """Paddle's tensors are views: no copy is made, and a live batch is not overwritten."""
    import_paddle()
    loader = DataLoader(Images(400), batch_size=4, num_workers=2)
    held = [batch for k, batch in enumerate(loader) if k % 25 == 0]
    assert labels(held) == [list(range(4 * k, 4 * k + 4)) for k in range(0, 100, 25)]
    assert loader.stats().copied_batches == 0 and loader.stats().pickled_leaves == 0
    kept = list(DataLoader(Images(400), batch_size=4, num_workers=2))
    assert labels(kept) == [list(range(k, k + 4)) for k in range(0, 400, 4)]
