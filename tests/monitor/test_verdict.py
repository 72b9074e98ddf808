"""The verdict names what was planted, and nothing where nothing was."""

import os
import signal
import time

import numpy as np
import pytest

import slipring
from slipring.monitor._watch import Watch
from slipring.monitor.sight import Sight
from slipring.monitor.stuck import at_work
from slipring.monitor.verdict import verdict
from slipring.ring._segment import now
from slipring.workers.reporting import look
from tests.fault.procs import state, until, worker_pids
from tests.monitor.hogs import processor_hog

pytestmark = pytest.mark.alone  # who is held up by another program has a cause that nobody planted

CPU_0 = min(os.sched_getaffinity(0))


def compute(seconds):
    """Have a processor for so long, however many others want it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Data:
    """Samples whose reading is a function of their index."""

    def __init__(self, n, read, shape=100):
        self.n, self.read, self.shape = n, read, shape

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.read(i)
        return np.zeros(self.shape, np.float32)


def loop(loader, step_s, epochs=1, keep=0):
    """Train, so to speak; returns the loader's verdict."""
    kept = []
    with loader:
        for _ in range(epochs):
            for batch in loader:
                time.sleep(step_s)
                kept = ([*kept, batch])[-keep:] if keep else []
        made = loader.report()
    print(made)
    return made.verdict


def loader(data, **options):
    """Its workers are forked, since what they read are functions within tests."""
    return slipring.Loader(data, **{"batch_size": 4, "num_workers": 2, "start_method": "fork", **options})


@pytest.mark.measured
def test_slow_decoding_is_named():
    found = loop(loader(Data(1000, lambda i: compute(0.001))), 0.0005)
    assert (found.cause, found.data_bound) == ("decode", True)
    assert "workers" in found.advice


@pytest.mark.measured
def test_slow_storage_is_named():
    found = loop(loader(Data(400, lambda i: time.sleep(0.004))), 0.001)
    assert (found.cause, found.data_bound) == ("storage", True)


@pytest.mark.measured
def test_a_worker_whose_processor_is_taken_is_named():
    def pinned(number):
        if number == 1:
            os.sched_setaffinity(0, {CPU_0})
            os.nice(5)

    data = Data(400, lambda i: compute(0.002))
    with processor_hog(CPU_0):
        found = loop(loader(data, worker_init_fn=pinned), 0.0005)
    assert found.cause == "worker"
    assert "Worker 1 (pid " in found.sentence and "no processor" in found.sentence


@pytest.mark.measured
def test_a_worker_that_waits_longer_than_the_others_is_named():
    def read(i):
        time.sleep(0.005 if slipring.get_worker_info().id == 1 else 0.0005)

    found = loop(loader(Data(400, read)), 0.001)
    assert found.cause == "worker" and "Worker 1" in found.sentence


@pytest.mark.measured
def test_a_slow_sample_is_named_by_its_index():
    found = loop(loader(Data(800, lambda i: time.sleep(0.3 if i in (77, 400) else 0.0002))), 0.001)
    assert found.cause == "sample"
    assert "index 77" in found.sentence and "index 400" in found.sentence


@pytest.mark.measured
def test_a_slow_collate_fn_is_named():
    def collate(samples):
        time.sleep(0.006)
        return np.stack(samples)

    found = loop(loader(Data(400, lambda i: time.sleep(0.0002)), collate_fn=collate), 0.0005)
    assert (found.cause, found.data_bound) == ("collate", True)


@pytest.mark.measured
def test_a_slow_step_is_no_fault_of_the_data():
    found = loop(loader(Data(300, lambda i: time.sleep(0.0002))), 0.01)
    assert (found.cause, found.data_bound, found.advice) == ("consumer", False, "")


@pytest.mark.measured
def test_a_wait_at_each_epochs_begin_is_named():
    options = {"persistent_workers": False, "worker_init_fn": lambda number: time.sleep(0.6)}
    found = loop(loader(Data(160, lambda i: time.sleep(0.0002)), **options), 0.006, epochs=3)
    assert found.cause == "epoch_start" and "persistent_workers=True" in found.advice


@pytest.mark.measured
def test_too_few_slots_are_named():
    found = loop(loader(Data(600, lambda i: time.sleep(0.002)), num_workers=4, slots=2), 0.001)
    assert found.cause == "slots" and "2 slots" in found.sentence


@pytest.mark.measured
def test_batches_that_the_program_keeps_are_named():
    found = loop(loader(Data(600, lambda i: time.sleep(0.001)), slots=16), 0.001, keep=18)
    assert found.cause == "kept" and "16 slots" in found.sentence


@pytest.mark.measured
def test_threads_that_wait_for_pythons_lock_are_named():
    def read(i):
        n = 0
        for k in range(300_000):
            n += k

    found = loop(loader(Data(100, read), num_workers=4, start_method="thread"), 0.0005)
    assert (found.cause, found.data_bound) == ("gil", True)


TEXTS = []


@pytest.mark.measured
def test_workers_that_copy_their_parents_memory_are_named():
    TEXTS.extend(f"some text {i}" for i in range(2_000_000))

    class Texts:
        def __len__(self):
            return 2000

        def __getitem__(self, i):
            return sum(map(len, TEXTS[i * 1000 : (i + 1) * 1000]))

    try:
        found = loop(loader(Texts()), 0.0001)
    finally:
        TEXTS.clear()
    assert found.cause == "memory" and "StringList" in found.advice


@pytest.mark.measured
def test_workers_that_have_memory_of_their_own_are_not_said_to_copy_their_parents():
    tables = []

    def begin(number):
        tables.append(np.ones(20_000_000))  # 160 MB

    found = loop(loader(Data(200, lambda i: time.sleep(0.003)), worker_init_fn=begin), 0.001)
    assert found.cause == "storage"


@pytest.mark.measured
def test_a_cache_that_is_too_small_is_named():
    def read(i):
        compute(0.002)

    cached = slipring.cached(Data(300, read, 600), "300KiB")
    found = loop(loader(cached), 0.0002, epochs=3)
    assert found.cause == "cache" and "budget" in found.sentence


@pytest.mark.measured
def test_a_cache_that_is_too_small_is_named_where_workers_do_not_persist():
    pytest.importorskip("torch")
    import slipring.torch

    cached = slipring.cached(Data(100, lambda i: time.sleep(0.006), 600), "100KiB")
    made = slipring.torch.DataLoader(cached, batch_size=4, num_workers=2, multiprocessing_context="fork")
    found = loop(made, 0.0002, epochs=3)
    assert found.cause == "cache" and "budget" in found.sentence


@pytest.mark.measured
def test_a_slow_copy_to_the_device_is_named():
    torch = pytest.importorskip("torch")
    import slipring.torch

    def onto(batch):
        time.sleep(0.006)
        return batch

    data = torch.utils.data.TensorDataset(torch.zeros(800, 100))
    made = slipring.torch.DataLoader(
        data, batch_size=4, num_workers=2, device="cpu", preload=1, transform_device=onto
    )
    found = loop(made, 0.001)
    assert (found.cause, found.data_bound) == ("copy", True)


def _rank(rank, file, out):
    import torch.distributed

    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    with loader(Data(200, lambda i: time.sleep(0.004 if rank == 1 else 0.0001))) as mine:
        for _ in mine:
            time.sleep(0.004)
        out.put((rank, mine.report(ranks=True).dict()))
    torch.distributed.destroy_process_group()


@pytest.mark.measured
def test_the_rank_that_holds_up_the_others_is_named_in_all_of_them(tmp_path):
    pytest.importorskip("torch")
    import multiprocessing

    context = multiprocessing.get_context("fork")
    out = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, tmp_path / "meet", out)) for rank in range(2)]
    for each in ranks:
        each.start()
    told = dict(out.get(timeout=60) for _ in ranks)
    for each in ranks:
        each.join()
    for rank in range(2):
        assert told[rank]["verdict"]["cause"] == "rank"
        assert "Rank 1 holds up all 2" in told[rank]["verdict"]["sentence"]
        assert [r["rank"] for r in told[rank]["ranks"]] == [1, 0]


def hangs(i, goes_on):
    """Whoever is at 45 waits for a byte."""
    if i == 45:
        os.read(goes_on, 1)


class Whole(Data):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Stream:
    def __init__(self, read):
        self.read = read

    def __iter__(self):
        for i in range(80):
            self.read(i)
            yield i


@pytest.mark.parametrize("how", ["getitems", "stream", "collate"])
def test_a_worker_that_hangs_at_a_whole_batch_is_named(how):
    goes_on, told = os.pipe()

    def read(i):
        hangs(i, goes_on)

    def collate(samples):
        hangs(int(samples[1][0]), goes_on)
        return np.stack(samples)

    class Numbered(Data):
        def __getitem__(self, i):
            return np.full(3, i)

    made = {
        "getitems": lambda: loader(Whole(80, read)),
        "stream": lambda: loader(Stream(read), num_workers=1),
        "collate": lambda: loader(Numbered(80, read), collate_fn=collate),
    }
    with made[how]() as hanging:
        batches = iter(hanging)
        for _ in range(11):  # the next one never comes
            next(batches)
        until(lambda: at_work(look(hanging._engine.ring)), "a worker is at it")
        until(lambda: not (look(hanging._engine.ring).table["published_at"] == 0).sum() > 1, "no other")
        found = verdict(Sight(Watch(hanging._engine.ring.controls), at_ns=now() + 60_000_000_000))
        os.write(told, b"x")
    os.close(goes_on)
    os.close(told)
    does = {"getitems": "making one batch", "stream": "making one batch", "collate": "putting one batch"}[how]
    assert found.cause == "hung" and does in found.sentence and "batch 11" in found.sentence


def test_a_worker_that_is_stopped_does_not_hang():
    with loader(Data(80, lambda i: None)) as halted:
        next(iter(halted))
        until(lambda: look(halted._engine.ring).there.sum() == 2, "both have begun")
        pid = worker_pids(halted)[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: state(pid) == "T", "it is stopped")
            found = halted.report().verdict
        finally:
            os.kill(pid, signal.SIGCONT)
    assert (found.cause, found.data_bound) == ("stopped", False)
    assert f"worker 1 (pid {pid})" in found.sentence and f"kill -CONT {pid}" in found.advice


@pytest.mark.measured
def test_a_slow_sampler_is_named():
    class Draws:
        def __iter__(self):
            for i in range(160):
                time.sleep(0.002)
                yield i

    found = loop(loader(Data(160, lambda i: None), sampler=Draws()), 0.002)
    assert (found.cause, found.data_bound) == ("sampler", True)


@pytest.mark.measured
def test_a_slow_beginning_is_no_workers_fault():
    found = loop(loader(Data(600, lambda i: time.sleep(0.02 if i < 100 else 0.0002))), 0.003)
    assert found.cause == "storage"


def test_a_queue_that_nobody_reads_is_full():
    queue = slipring.Queue(4)
    for i in range(4):
        queue.put(i)
    found = queue.report().verdict
    queue.close()
    assert found.cause == "consumer" and "Nobody has got any" in found.sentence


def test_a_worker_that_hangs_is_named():
    goes_on, told = os.pipe()

    def read(i):
        if i == 45:
            os.read(goes_on, 1)

    with loader(Data(80, read)) as hanging:
        batches = iter(hanging)
        for _ in range(11):  # the next one never comes
            next(batches)
        ring = hanging._engine.ring
        while not (Watch(ring.controls).parties()["at_row"] == 1).any():
            time.sleep(0.01)
        found = verdict(Sight(Watch(ring.controls), at_ns=now() + 60_000_000_000))
        os.write(told, b"x")
    os.close(goes_on)
    os.close(told)
    assert found.cause == "hung" and "row 1 of its batch, which begins at index 44" in found.sentence


@pytest.mark.measured
def test_nothing_is_wrong_where_nothing_is():
    found = loop(loader(Data(400, lambda i: time.sleep(0.001))), 0.004)
    assert (found.cause, found.data_bound, found.advice) == ("ok", False, "")


@pytest.mark.measured
def test_batches_made_in_the_loop_are_named():
    found = loop(loader(Data(200, lambda i: time.sleep(0.001)), num_workers=0), 0.001)
    assert found.cause == "no_workers" and "num_workers=" in found.advice


@pytest.mark.measured
def test_of_batches_made_in_the_loop_no_worker_is_told():
    found = loop(loader(Data(80, lambda i: None), num_workers=0), 0.02)
    assert found.cause == "ok" and "worker" not in found.sentence


@pytest.mark.measured
def test_batches_made_in_torchs_loop_are_named():
    pytest.importorskip("torch")
    import slipring.torch

    data = Data(200, lambda i: time.sleep(0.001))
    found = loop(slipring.torch.DataLoader(data, batch_size=4), 0.001)
    assert (found.cause, found.data_bound) == ("no_workers", True)


@pytest.mark.measured
def test_batches_that_cost_less_than_their_way_are_named():
    in_turn = slipring.Loader(range(8000), batch_size=4, num_workers=1, prefetch_factor=1)
    found = loop(in_turn, 0)
    assert (found.cause, found.data_bound) == ("tiny", True)


@pytest.mark.measured
def test_a_few_batches_are_too_early():
    assert loop(loader(Data(8, lambda i: None)), 0).cause == "unknown"
    with slipring.Loader(range(10)) as unused:
        assert unused.report().verdict.cause == "unknown"
