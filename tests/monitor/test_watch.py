"""Observations of a loader's segment, from its own process and from others."""

import itertools
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import slipring
from tests.support.datasets import Squares, flat, numbers
from tests.support.inside import NO_SLOT, PARTICIPANT, RECORD, SLOT, VERSION, NoSegment, Watch, engine_of, observing
from tests.support.processes import until, worker_pids
from tests.support.scenes import Gate, Rows

records = observing("snapshot")

# ---- what an observer sees ----


def test_every_batch_that_was_taken_is_seen_with_its_times():
    with slipring.Loader(Squares(60), 4, num_workers=2) as loader:
        for _ in range(2):
            assert flat(numbers(loader)) == list(range(60))
            seen = engine_of(loader) and Watch(engine_of(loader).ring.controls)
        if seen is None:
            pytest.skip("the engine has ended with its epoch")
        table = records.batches(seen)
        taken = records.taken(table)
    assert sorted(taken["seq"][taken["run"] == taken["run"].max()]) == list(range(15))
    order = ("dispatched_at", "claimed_at", "fetched_at", "published_at", "taken_at")
    for earlier, later in itertools.pairwise(order):
        assert (taken[earlier] <= taken[later]).all()
    assert (taken["rows"] == 4).all() and (taken["bytes"] > 0).all()
    assert set(taken["participant"]) <= {1, 2}
    assert (taken["first_index"] == taken["seq"].astype(np.int64) * 4).all()


def test_a_batch_is_in_the_table_once_whether_its_slot_was_used_again_or_not():
    with slipring.Loader(Squares(400), 4, num_workers=1, persistent_workers=True) as loader:
        watch = None
        for batch in loader:
            del batch
            watch = watch or Watch(engine_of(loader).ring.controls)
            table = records.batches(watch)
            keys = list(zip(table["run"].tolist(), table["seq"].tolist()))
            assert len(keys) == len(set(keys))
        table = records.taken(records.batches(watch))
        assert sorted(table["seq"].tolist()) == list(range(100))
        assert (table["number"] == 0).any() and (table["number"] > 0).any()
        later = records.batches(watch, since=50)
        assert later["number"][later["number"] > 0].min() >= 50


def test_totals_and_records_say_the_same():
    with slipring.Loader(Squares(800), 4, num_workers=1, persistent_workers=True) as loader:
        list(numbers(loader))
        watch = Watch(engine_of(loader).ring.controls)
        sums, stages = watch.totals()
        table = watch.records()
        folded = table[table["number"] <= sums["folded"]]
        assert sums["folded"] == len(folded) == 192 and sums["batches"] == 192
        assert sums["bytes"] == folded["bytes"].sum() and sums["rows"] == folded["rows"].sum()
        total, most, counts = stages["fetch"]
        assert (total, most) == (folded["fetch_ns"].sum(), folded["fetch_ns"].max())
        assert counts.sum() == 192
        cost = watch.slowest()["fetch_ns"] + watch.slowest()["collate_ns"]
        made = np.sort(folded["fetch_ns"] + folded["collate_ns"])[::-1][: len(cost)]
        assert sorted(cost.tolist(), reverse=True) == made.tolist()


def test_another_process_that_has_the_descriptor_sees_the_same():
    code = (
        "import sys; from tests.support.inside import Watch, observing; records = observing('snapshot');"
        "w = Watch(int(sys.argv[1]));"
        "print(w.segment_info()['label'], sorted(records.taken(records.batches(w))['seq'].tolist()),"
        "[pid for pid in w.participants()['pid'].tolist() if pid])"
    )
    with slipring.Loader(Squares(12), 4, num_workers=1, persistent_workers=True) as loader:
        list(numbers(loader))
        ring = engine_of(loader).ring
        command = [sys.executable, "-c", code, str(ring.controls)]
        done = subprocess.run(command, pass_fds=[ring.controls], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        label = Watch(ring.controls).segment_info()["label"]
        pids = [os.getpid(), *worker_pids(loader).values()]
        assert done.stdout.strip() == f"{label} [0, 1, 2] {pids}"


@pytest.mark.parametrize("stopped", [False, True], ids=["hung", "stopped"])
def test_the_row_at_which_a_worker_hangs_is_seen(tmp_path, stopped):
    with Gate(tmp_path / "gate") as gate:
        data = Rows(8, on={5: gate})
        with slipring.Loader(data, 4, num_workers=1) as loader:
            iterator = iter(loader)
            next(iterator)
            gate.arrived()
            pid = worker_pids(loader)[0]
            if stopped:
                os.kill(pid, signal.SIGSTOP)
            watch = Watch(engine_of(loader).ring.controls)
            me = watch.participants()[1]
            slots = watch.slots()
            at = slots[slots["batch"]["slot"] == me["at_slot"]][0]
            assert me["pid"] == pid and me["at_row"] == 1
            assert at["batch"]["seq"] == 1 and records.states(slots)[0] in ("leased", "claimed", "free")
            assert at["batch"]["claimed_at"] <= me["at_since"]
            if stopped:
                os.kill(pid, signal.SIGCONT)
            gate.open(1)
            list(iterator)
            until(lambda: watch.participants()[1]["at_slot"] == NO_SLOT, "the worker is at no row")


def test_a_queues_messages_are_seen():
    queue = slipring.Queue(4)
    for i in range(40):
        queue.put(np.full(3, i))
        assert queue.get()[0] == i
    watch = Watch(queue._ring().controls)
    assert watch.segment_info()["push"]
    table = records.taken(records.batches(watch))
    assert sorted(table["seq"].tolist()) == list(range(40))
    assert (table["dispatched_at"] == 0).all()


# ---- segments that are refused ----


def memory(content):
    """Return the descriptor of a file without a name."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(fd, content)
    return fd


@pytest.fixture
def segment():
    """Return the bytes of a small segment that observers read."""
    with slipring.Loader(Squares(8), 4, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        fd = engine_of(loader).ring.controls
        yield bytearray(os.pread(fd, Watch(fd).segment_info()["data_off"], 0))


def test_a_copy_of_a_segment_is_read(segment):
    fd = memory(segment)
    try:
        for copy in (False, True):
            assert len(records.taken(records.batches(Watch(fd, copy)))) == 2
    finally:
        os.close(fd)


def refused(content, copy):
    fd = memory(content)
    try:
        with pytest.raises(NoSegment) as caught:
            Watch(fd, copy)
    finally:
        os.close(fd)
    return str(caught.value)


@pytest.mark.parametrize("copy", [False, True])
def test_a_file_that_is_no_segment_is_refused_with_the_reason(segment, copy):
    assert "no slipring segment" in refused(b"", copy)
    assert "no slipring segment" in refused(b"something else " * 1000, copy)
    assert "cut short" in refused(segment[:-1], copy)
    other = segment.copy()
    other[8:12] = (VERSION + 1).to_bytes(4, "little")
    text = refused(other, copy)
    assert f"version {VERSION + 1}" in text and f"of version {VERSION}" in text and "job" in text
    stub = segment.copy()
    stub[88:96] = bytes(8)
    assert "SLIPRING_RECORD" in refused(stub, copy)


def test_a_closed_descriptor_is_an_os_error():
    with pytest.raises(OSError, match="Bad file descriptor"):
        Watch(-1)


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_segment_is_read_without_harm(segment, seed):
    rng = np.random.default_rng(seed)
    words = np.frombuffer(segment, np.uint64).copy()
    at = rng.integers(16, len(words), 20_000)  # all but the checked words
    odd = np.array([0, 1, 7, 1 << 32, 1 << 63, (1 << 64) - 1], np.uint64)
    words[at] = rng.choice(odd, len(at))
    fd = memory(words.tobytes())
    try:
        watch = Watch(fd)
        assert watch.slots().dtype == SLOT and watch.participants().dtype == PARTICIPANT
        records.states(watch.slots())
        assert records.batches(watch).dtype == watch.slowest().dtype == RECORD
        assert watch.records((1 << 64) - 1).dtype == RECORD
        watch.totals()
        watch.segment_info()
    finally:
        os.close(fd)
