"""Packs of streams: each document once, also after a resume with other ranks and workers."""

import itertools
import json
import os
import random
import signal

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import slipring
from slipring import tokens
from slipring.streams import ShardStream, Stream
from tests.support.kinds import kinds, loading
from tests.support.shards import files, shard
from tests.support.stateful import Walk
from tests.tokens.packed import (
    BUDGET,
    EVERY,
    EVERY_LONG,
    SIZES,
    Numbers,
    Positioned,
    document,
    found_in,
    job,
    length_of,
    part_of_shards,
    ranks_of,
    read,
    read_long,
)


@pytest.mark.parametrize("seed", range(24))
def test_any_ranks_and_workers_read_each_document_once(seed):
    draw = random.Random(seed)
    source, every, options = draw.choice(
        [
            (read, EVERY, {}),
            (read, EVERY, {"max_documents": 3}),
            (read_long, EVERY_LONG, {"overflow": "split"}),
            (read_long, EVERY_LONG, {"split": True}),
        ]
    )
    options["open_packs"] = draw.choice([1, 4, 16])
    shuffle = draw.random() < 0.5
    seen, states = [], None
    while states is None or not all(state["finished"] for state in states):
        most = draw.choice([0, 1, 3, 8, 20, None])
        ranks = ranks_of(draw.randint(1, 4), source, shuffle, **options)
        packs, states = job(ranks, draw.randint(0, 4), most, states, seed)
        seen += packs
    assert sorted(found_in(seen)) == every
    assert all(len(pack) <= options.get("max_documents", BUDGET) for pack in seen)


def check_resumes(packs, taken, **kind):
    """Check that a loader which resumes after so many packs continues with the same ones."""

    def loader():
        return loading(packs, batch_size=None, seed=5, **kind)

    def plain(pack):
        return [each["input_ids"].tolist() for each in pack]

    with loader() as whole:
        expected = [plain(pack) for pack in whole]
    for at in taken:
        with loader() as begun:
            assert [plain(pack) for pack in itertools.islice(begun, at)] == expected[:at]
            state = json.loads(json.dumps(begun.state_dict()))
        with loader() as resumed:
            resumed.load_state_dict(state)
            assert [plain(pack) for pack in resumed] == expected[at:]


SHARDS = ShardStream(range(len(SIZES)), read, 1, shuffle=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"split": True}, {"steps_per_epoch": 90}], ids=repr)
@pytest.mark.parametrize("stream", [SHARDS, Numbers(), Positioned(), Stream(part_of_shards, 1)], ids=repr)
def test_the_same_workers_continue_the_same_packs(workers, options, stream):
    packs = tokens.pack(stream, BUDGET, open_packs=5, **options)
    check_resumes(packs, (0, 1, 8, 30), num_workers=workers, start_method="thread")


@kinds("fork", "one spawn")
@pytest.mark.parametrize("stream", [SHARDS, Positioned()], ids=repr)
def test_worker_processes_continue_the_same_packs(kind, stream):
    check_resumes(tokens.pack(stream, BUDGET), (8,), **kind)


def test_a_dataset_that_says_where_it_is_continues_there():
    class Dataset(Walk):
        def items(self):
            return Numbers().documents()

        def load_state_dict(self, state):
            assert state["at"] >= 64  # not at the beginning
            super().load_state_dict(state)

    check_resumes(tokens.pack(Dataset(), BUDGET, open_packs=2), (70,), num_workers=1, start_method="fork")


def test_states_of_every_nth_pack_suffice():
    check_resumes(tokens.pack(SHARDS, BUDGET), (8, 13), num_workers=2, snapshot_every_n_steps=7, start_method="thread")


def test_a_killed_worker_loses_no_document(tmp_path):
    def deadly(shard):
        killed = tmp_path / "killed"
        if shard == 4 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return read(shard)

    (packs,) = ranks_of(1, deadly, open_packs=3)
    with loading(packs, batch_size=None, num_workers=2, start_method="fork", on_death="respawn") as loader:
        assert sorted(found_in(loader)) == EVERY
    assert (tmp_path / "killed").exists()


def test_split_packs_are_full():
    for open_packs in (1, 16):
        (packs,) = ranks_of(1, read_long, split=True, open_packs=open_packs)
        found = [*packs]
        assert found_in(found) == EVERY_LONG  # in order
        assert {sum(len(each["input_ids"]) for each in pack) for pack in found[:-1]} == {BUDGET}


def test_documents_fill_the_packs():
    packs = [*ranks_of(1)[0]]
    assert len(EVERY) / BUDGET / len(packs) > 0.96


def test_each_part_has_the_rows_of_its_tokens():
    class Labelled:
        def __iter__(self):
            for n in (230, 20):
                yield {"input_ids": [*range(n)], "labels": np.arange(n) * 2, "name": "x" * n, "weight": 2.0}

    parts = [each for pack in tokens.pack(Labelled(), BUDGET, overflow="split") for each in pack]
    assert sorted(len(each["input_ids"]) for each in parts) == [20, 30, 100, 100]
    for each in parts:
        assert each["labels"].tolist() == [2 * x for x in each["input_ids"]]
        assert len(each["name"]) in (230, 20) and each["weight"] == 2.0


@pytest.mark.parametrize("overflow", ["drop", "truncate"])
def test_documents_above_the_budget_are_dropped_or_truncated_and_logged(overflow, caplog):
    (packs,) = ranks_of(1, read_long, overflow=overflow)
    found = sorted(found_in(packs))
    most = {"drop": (0, BUDGET), "truncate": (BUDGET, 400)}[overflow]
    every = []
    for number, size in enumerate(SIZES):
        for row in range(size):
            whole = document(number, row, 400)
            every += whole[: most[len(whole) <= BUDGET]].tolist()
    assert found == every
    first, last = (record.getMessage() for record in caplog.records)
    assert f"overflow='{overflow}'" in first and "of shard 0 has" in first
    lengths = [length_of(number, row, 400) for number, size in enumerate(SIZES) for row in range(size)]
    assert f"in this worker's pass: {sum(length > BUDGET for length in lengths)}, overflow='{overflow}'" in last


def test_each_document_takes_a_multiple_of_tokens():
    for options in ({}, {"split": True}):
        (packs,) = ranks_of(1, document_multiple_of=16, **options)
        found = [*packs]
        assert all(sum(-(-len(each["input_ids"]) // 16) for each in pack) <= BUDGET // 16 for pack in found)
        assert sorted(found_in(found)) == EVERY


def test_a_collator_writes_a_pack_into_the_slot():
    (packs,) = ranks_of(1)
    collate = tokens.Flat("transformers", fields=["input_ids"])
    expected = [collate(pack) for pack in packs]
    with loading(packs, batch_size=None, num_workers=1, collate_fn=collate, slots=4) as loader:
        for batch, like in zip(loader, expected, strict=True):
            assert batch["input_ids"].tolist() == like["input_ids"].tolist()
            assert batch["cu_seq_lens_q"].tolist() == like["cu_seq_lens_q"].tolist()


def test_the_torch_loader_delivers_packs_as_tensors():
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    (packs,) = ranks_of(1)
    collate = tokens.Flat(fields=["input_ids"])
    for workers in (0, 1):
        loader = DataLoader(packs, batch_size=None, num_workers=workers, collate_fn=collate)
        for batch, pack in zip(loader, packs, strict=True):
            assert type(batch["input_ids"]) is torch.Tensor
            assert batch["input_ids"].tolist() == [x for each in pack for x in each["input_ids"].tolist()]
    theirs = torch.utils.data.DataLoader(packs, batch_size=None, num_workers=1, collate_fn=found_in_one)
    assert sorted(x for pack in theirs for x in pack) == EVERY


def found_in_one(pack):
    return found_in([pack])


@kinds("inline", "one fork", "one thread")
def test_documents_of_later_packs_do_not_lie_in_the_slot(kind):
    class Written:
        def __iter__(self):
            for number in range(64):
                array = slipring.empty(10 + number, np.int64)
                array[:] = number
                yield {"input_ids": array, "in_slot": array.base is not None}

    packs = tokens.pack(Written(), BUDGET)
    with loading(packs, batch_size=None, **kind) as loader:
        found = [each for pack in loader for each in pack]
    assert sorted(len(each["input_ids"]) for each in found) == [*range(10, 74)]
    assert not any(each["in_slot"] for each in found)


def test_samples_of_tar_shards_are_packed_by_a_function_of_their_size(tmp_path):
    images = pytest.importorskip("slipring.images")
    paths = [shard(tmp_path / f"{n}.tar", files(6, 10 * n)) for n in range(3)]
    seen, states = [], None
    for n, most in ((2, 2), (3, None)):
        packs = [
            tokens.pack(
                images.TarStream(paths, shuffle=True, rank=rank, world_size=n, target="json"),
                4,
                length=lambda sample: 1 + sample[1]["number"] % 3,
                open_packs=1,
            )
            for rank in range(n)
        ]
        found, states = job(packs, 0, most, states)
        seen += found
    assert sorted(target["number"] for pack in seen for _, target in pack) == [
        10 * n + k for n in range(3) for k in range(6)
    ]
    assert all(sum(1 + target["number"] % 3 for _, target in pack) <= 4 for pack in seen)
