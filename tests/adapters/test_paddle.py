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
    """Kept: in-order delivery."""
    loader = DataLoader(Images(41), batch_size=4, num_workers=num_workers)
    assert len(loader) == 11
    for _ in range(2):
        batches = list(loader)
        assert all(isinstance(leaf, kind) for batch in batches for leaf in batch)
        assert labels(batches) == [list(range(k, min(k + 4, 41))) for k in range(0, 41, 4)]
        assert [image.tolist()[0] for image, _ in batches] == [[k, k] for k in range(0, 41, 4)]


@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_outstanding_batches_are_bounded(kind, num_workers, places):
    """Kept: outstanding batches ≤ prefetch_factor × max(workers, places)."""
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
    """Kept: zero workers still prefetch in a thread, but not without use_buffer_reader."""
    made = threading.Semaphore(0)
    batches = iter(DataLoader(Made(lambda i: (made.release(), i)[1]), prefetch_factor=2))
    assert made.acquire(timeout=60) and made.acquire(timeout=60), "nobody has asked yet"
    assert [plain(batch) for batch in batches] == [[0], [1], [2], [3]]
    who = []
    batches = iter(DataLoader(Made(lambda i: who.append(threading.current_thread()) or i), use_buffer_reader=False))
    assert not who
    assert [plain(batch) for batch in batches] == [[0], [1], [2], [3]]
    assert set(who) == {threading.main_thread()}


class Drawing:
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return np.random.rand()


@pytest.mark.parametrize("use_buffer_reader", [False, True])
def test_without_workers_the_datasets_random_numbers_follow_numpys_seed(use_buffer_reader):
    def drawn(seed):
        np.random.seed(seed)
        return [float(batch[0]) for batch in DataLoader(Drawing(), use_buffer_reader=use_buffer_reader)]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("num_workers", WORKERS)
def test_batch_size_none_means_no_batching(kind, num_workers):
    """Kept: batch_size=None: no batching."""
    loader = DataLoader(Images(3), batch_size=None, num_workers=num_workers)
    assert [plain(sample) for sample in loader] == [([0.0, 0.0], 0), ([1.0, 1.0], 1), ([2.0, 2.0], 2)]
    assert isinstance(next(iter(loader))[0], kind) and len(loader) == 3
    stream = DataLoader(Stream(3), batch_size=None, num_workers=num_workers, collate_fn=lambda x: {"x": int(x)})
    assert list(stream) == [{"x": 0}, {"x": 1}, {"x": 2}]


@pytest.mark.parametrize("given", [{"shuffle": True}, {"batch_sampler": [[0]]}])
def test_iterable_datasets_set_their_own_order(kind, given):
    """Kept: iterable dataset with shuffle or batch_sampler -> ValueError; it has no length."""
    with pytest.raises(ValueError, match=next(iter(given))):
        DataLoader(Stream(), **given)
    with pytest.raises(ValueError, match="length"):
        len(DataLoader(Stream()))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_iterable_datasets_are_shared_by_workers(kind, num_workers):
    loader = DataLoader(Stream(), batch_size=2, num_workers=num_workers)
    got = [plain(batch) for batch in loader]
    assert sorted(flat(got)) == list(range(7))
    assert got[0] == ([0, 2] if num_workers else [0, 1])
    dropped = DataLoader(Stream(5), batch_size=2, drop_last=True, num_workers=num_workers)
    assert [len(batch) for batch in dropped] == [2, 2]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_each_place_gets_a_batch_per_step(kind, num_workers):
    """Kept: places: one batch per place per step; too few for all places at the end are dropped."""
    loader = DataLoader(Images(10), batch_size=2, places=["cpu", "cpu"], num_workers=num_workers)
    steps = list(loader)
    assert [[batch[1].tolist() for batch in step] for step in steps] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_batches_can_be_dicts_by_name(kind, num_workers):
    """Kept: return_list=False with feed_list names; a step is a list of them, one for each place."""

    class Variable:
        name = "image"

    loader = DataLoader(Images(4), [Variable, "label"], return_list=False, batch_size=2, num_workers=num_workers)
    assert [plain(batch)["label"] for [batch] in loader] == [[0, 1], [2, 3]]
    assert isinstance(next(loader())[0]["image"], kind)
    with pytest.raises(ValueError, match=r"1 names.*2 leaves"):
        next(iter(DataLoader(Images(4), ["one"], return_list=False)))


def test_calling_the_loader_iterates_it(kind):
    """Kept: loader() is iter(loader)."""
    loader = DataLoader(Images(4), batch_size=2)
    assert labels(loader()) == labels(loader) == [[0, 1], [2, 3]]


STRUCTURES = {
    "tuple": (lambda i: (np.float32(i), i), ([0.0, 1.0], [0, 1])),
    "list": (lambda i: [np.float32(i), [i]], [[0.0, 1.0], [[0, 1]]]),
    "dict": (lambda i: {"x": {"y": i}}, {"x": {"y": [0, 1]}}),
    "namedtuple": (lambda i: Pair(i, float(i)), Pair([0, 1], [0.0, 1.0])),
    "number": (lambda i: i, [0, 1]),
    "text": (lambda i: (f"n{i}", i), (["n0", "n1"], [0, 1])),
    "prefix": (lambda i: ("_paddle_field_0", i), (["_paddle_field_0"] * 2, [0, 1])),
    "prefix in a dict": (lambda i: {"_paddle_field_1": "_paddle_field_1", "x": i}, None),
}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_structures_are_restored_around_the_leaves(kind, structure, num_workers):
    """Kept: dict, list, tuple, namedtuple. Fixed: strings with a magic prefix collide; tuple -> list."""
    make, expected = STRUCTURES[structure]
    if expected is None:
        expected = {"_paddle_field_1": ["_paddle_field_1"] * 2, "x": [0, 1]}
    got = plain(next(iter(DataLoader(Made(make), batch_size=2, num_workers=num_workers))))
    assert got == expected and type(got) is type(expected)


@pytest.mark.usefixtures("forked")
def test_persistent_workers_resume_each_epoch(kind, monkeypatch):
    """Kept: persistent workers resume. Fixed: 0.5 s sleep on each epoch."""
    slept = []
    loader = DataLoader(Made(lambda i: os.getpid()), num_workers=2, persistent_workers=True)
    pids = {int(batch[0]) for batch in loader}
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in range(50):
        pids |= {int(batch[0]) for batch in loader}
    assert len(pids) <= 2 and not slept, "it sleeps between epochs"
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_drop_last_is_kept_in_each_epoch(kind, persistent):
    """Fixed: resumed workers forget drop_last (they always drop)."""
    for drop_last, sizes in ((False, [2, 2, 1]), (True, [2, 2])):
        loader = DataLoader(Stream(5), batch_size=2, drop_last=drop_last, num_workers=1, persistent_workers=persistent)
        for _ in range(3):
            assert [len(batch) for batch in loader] == sizes
        loader.close()


class Telling:
    def __iter__(self):
        for info in (adapter.get_worker_info(), getattr(sys.modules.get("paddle.io"), "get_worker_info", bool)()):
            if info:
                yield info.id, info.num_workers, info.seed, float(isinstance(info.dataset, Telling))


def test_workers_know_who_they_are(kind):
    """Kept: get_worker_info(): id, num_workers, dataset, seed; paddle's own function knows too."""
    told = [plain(batch) for batch in DataLoader(Telling(), num_workers=2)]
    assert sorted({(a[0], b[0]) for a, b, _, _ in told}) == [(0, 2), (1, 2)]
    assert all(dataset == [1.0] for *_, dataset in told)
    assert len(told) == (4 if "paddle.io" in sys.modules else 2)
    assert adapter.get_worker_info() is None


@pytest.mark.usefixtures("forked")
def test_worker_init_fn_is_called_in_each_worker(kind, tmp_path):
    """Kept: worker_init_fn(worker_id)."""
    loader = DataLoader(Images(8), num_workers=2, worker_init_fn=lambda n: (tmp_path / f"{n}").touch())
    assert len(list(loader)) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.usefixtures("forked")
def test_generators_stay_as_worker_init_fn_seeded_them():
    """Kept: Paddle does not seed numpy's generator again."""
    loader = DataLoader(
        Made(lambda i: np.random.random(), 4), num_workers=1, worker_init_fn=lambda n: np.random.seed(5)
    )
    drawn = np.concatenate([plain(batch) for batch in loader])
    assert drawn.tolist() == np.random.RandomState(5).random(4).tolist()


def test_costs_are_counted(kind):
    """Kept: reader cost and batch cost figures."""
    loader = DataLoader(Made(lambda i: (time.sleep(0.02), i)[1], 8), use_buffer_reader=False)
    for _ in loader:
        time.sleep(0.03)
    assert loader.reader_cost >= 0.02 and loader.batch_cost >= 0.045
    assert loader.stats().batches == 8


def test_paddles_timer_and_profiler_see_the_reader():
    """Kept: profiler ranges around `next`, its timer's reader cost."""
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
        return 800

    def __getitem__(self, i):
        time.sleep(0.002)
        return i


def test_the_number_of_workers_can_be_tuned(kind):
    """Kept: autotuning of the number of workers."""
    adapter.set_autotune_config(True, 5)
    try:
        tuned = DataLoader(Far(), batch_size=4, num_workers=1, persistent_workers=True)
    finally:
        adapter.set_autotune_config(False)
    for _ in range(3):
        assert [int(i) for batch in tuned for i in plain(batch)] == list(range(800))
    found = tuned._loader.tuning
    assert found.history and tuned.num_workers == found.workers
    tuned.close()
    assert DataLoader(Images(), num_workers=1).num_workers == 1


def test_the_number_of_workers_is_tuned_as_paddles_own_configuration_says():
    """Kept: paddle.incubate.autotune.set_config."""
    paddle = import_paddle()
    paddle.incubate.autotune.set_config({"dataloader": {"enable": True, "tuning_steps": 3}})
    try:
        tuned = DataLoader(Far(), batch_size=4, num_workers=1)
    finally:
        paddle.incubate.autotune.set_config({"dataloader": {"enable": False, "tuning_steps": 3}})
    for _ in range(3):
        assert sum(1 for _ in tuned) == 200
    found = tuned._loader.tuning
    assert found.history and tuned.num_workers == found.workers
    assert DataLoader(Images(), num_workers=1).num_workers == 1


@pytest.mark.parametrize("num_workers", WORKERS)
def test_an_iterator_has_its_loaders_length(kind, num_workers):
    iterator = iter(DataLoader(Images(5), batch_size=2, num_workers=num_workers))
    assert len(iterator) == 3
    assert len(list(iterator)) == 3
    with pytest.raises(TypeError, match="no length"):
        len(iter(DataLoader(Stream(), batch_size=2, num_workers=num_workers)))


def test_a_loader_of_an_iterable_dataset_has_a_batch_sampler_without_end(kind):
    loader = DataLoader(Stream(), batch_size=2)
    assert next(iter(loader.batch_sampler)) == [None, None]
    assert loader.batch_sampler.batch_size == 2 and loader.batch_sampler.dataset is loader.dataset
    assert [plain(batch) for batch in loader] == [[0, 1], [2, 3], [4, 5], [6]]
    assert DataLoader(Stream(), batch_size=None).batch_sampler is None


def test_a_batch_sampler_takes_no_iterable_dataset(kind):
    datasets = [Stream()] if kind is np.ndarray else [Stream(), type("S", (iterable_dataset(),), {})()]
    for dataset in datasets:
        with pytest.raises(AssertionError, match="indices and a length, not be iterable alone"):
            BatchSampler(dataset, batch_size=2)


def iterable_dataset():
    return import_paddle().io.IterableDataset


@pytest.mark.parametrize("num_workers", WORKERS)
def test_batch_samplers_decide_which_samples_are_read(kind, num_workers):
    loader = DataLoader(Images(), batch_sampler=[[3, 1], [2]], num_workers=num_workers)
    assert labels(loader) == [[3, 1], [2]] and len(loader) == 2
    sampler = BatchSampler(sampler=[5, 4, 3], batch_size=2, drop_last=True)
    assert labels(DataLoader(Images(), batch_sampler=sampler, num_workers=num_workers)) == [[5, 4]]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize(
    "arguments", [{"batch_size": 3}, {"batch_size": 4, "shuffle": True}, {"shuffle": True, "drop_last": True}]
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


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"])
def test_dtypes_are_kept(kind, dtype):
    got = next(iter(DataLoader(Made(lambda i: np.full((2, 3), i % 2, dtype)), batch_size=4)))
    got = got.numpy() if hasattr(got, "numpy") else got
    assert got.dtype == dtype and got[:, 0, 0].tolist() == [0, 1, 0, 1]
