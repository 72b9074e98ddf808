"""Files that version 1 of each kept format wrote: later versions of slipring must go on using them.

docs/stability.md lists the formats. If a format changes, these files and their tests stay, and new ones are added.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import slipring
from tests.support.inside import DiskCache

KEPT = Path(__file__).parent


def test_a_state_of_version_1_continues_the_same_shuffled_epoch():
    state = json.loads((KEPT / "state-1.json").read_text())
    assert state["slipring"] == 1
    with slipring.Loader(range(100), 8, shuffle=True, seed=7) as loader:
        assert len(list(loader)) == 13  # the state is of the epoch after it
        whole = [batch.tolist() for batch in loader]
    for num_workers in (0, 2):
        with slipring.Loader(range(100), 8, shuffle=True, seed=7, num_workers=num_workers) as loader:
            loader.load_state_dict(state)
            rest = [batch.tolist() for batch in loader]
        assert rest == whole[3:]
        assert rest[0] == [15, 66, 7, 70, 72, 81, 56, 42]


class Hundreds:
    """A sequence of a user's class: of such indices, the first states had a digest of the length alone."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return 100 + index


def test_a_state_of_a_users_sequence_that_knows_only_its_length_is_loaded():
    state = json.loads((KEPT / "sampler-1.json").read_text())
    sampler = slipring.BatchSampler(Hundreds(), 3, shuffle=True, seed=7)
    whole = list(sampler)
    sampler.load_state_dict(state)
    assert list(sampler) == whole[2:]
    assert iter(sampler).state_dict()["indices"] != state["indices"]
    with pytest.raises(ValueError, match="other indices"):
        slipring.BatchSampler([*range(100, 120)], 3, shuffle=True, seed=7).load_state_dict(state)


def test_an_index_of_version_2_is_used_and_not_made_again(tmp_path):
    images = pytest.importorskip("slipring.images")
    shard, index = tmp_path / "shard.tar", tmp_path / "shard.tar.index.npz"
    for path in (shard, index):
        shutil.copy(KEPT / path.name, path)
    with np.load(index) as kept:
        assert kept["version"] == 2
        size, modified = map(int, str(kept["made_of"]).split()[:2])
    assert size == shard.stat().st_size
    os.utime(shard, ns=(modified, modified))
    before = index.stat()
    data = images.Tar(shard, images.CenterCrop(4), index="sidecar")
    assert [data[i][1] for i in range(len(data))] == [3, 5] and data.keys == ["a", "b"]
    after = index.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_an_index_of_another_version_is_made_again(tmp_path):
    images = pytest.importorskip("slipring.images")
    shard, index = tmp_path / "shard.tar", tmp_path / "shard.tar.index.npz"
    shutil.copy(KEPT / shard.name, shard)
    images.Tar(shard, images.CenterCrop(4), index="sidecar")
    with np.load(index) as kept:
        parts = dict(kept)
    np.savez(index, **{**parts, "version": 1, "records": parts["records"][:1], "keys": parts["keys"][:1]})
    assert len(images.Tar(shard, images.CenterCrop(4), index="sidecar")) == 2


def test_an_entry_of_version_1_of_the_disk_cache_is_found_and_one_of_another_version_is_not(tmp_path):
    entry = KEPT / "disk-cache-1.entry"
    cache = DiskCache(str(tmp_path), 1 << 20)
    cache.put("a name", b"other bytes")
    (kept,) = tmp_path.glob("*/*.entry")
    shutil.copy(entry, kept)
    assert cache.get("a name") == b"the bytes that were read"
    kept.write_bytes(b"slipring cache 2" + entry.read_bytes()[16:])
    assert cache.get("a name") is None
