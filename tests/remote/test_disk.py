"""The disk cache alone: budget, order, damage, and folders that fail."""

import errno
import fcntl
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

import slipring
from tests.remote.disks import LARGE, SIZE, bytes_below, data_of, entry_of, exit_of, files_below, forked
from tests.support.inside import DiskCache, read_of

# ---- contents


def test_bytes_are_found_by_their_name(disk):
    cache = DiskCache(str(disk), LARGE)
    for name, data in (("a", b""), ("b", b"x"), ("c", data_of("c", 3 << 20)), ("b", b"replaced")):
        assert cache.get(name) != data
        cache.put(name, data)
        assert cache.get(name) == DiskCache(str(disk), LARGE).get(name) == data
    assert len(files_below(disk)) == 3


def test_every_changed_or_missing_byte_of_an_entry_and_another_entry_are_noticed(disk):
    cache = DiskCache(str(disk), LARGE)
    cache.put("name", b"some bytes")
    (entry,) = files_below(disk)
    whole = entry.read_bytes()
    damages = [whole + b"x", entry_of(disk, "other").read_bytes()]
    for at in range(len(whole)):
        damages += [whole[:at], whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :]]
    for damaged in damages:
        entry.write_bytes(damaged)
        assert cache.get("name") is None
    entry.write_bytes(whole)
    assert cache.get("name") == b"some bytes"


# ---- the budget


def test_the_entries_that_were_used_least_recently_are_removed_first(disk):
    budget = 10 * (SIZE + 100)
    entries = [entry_of(disk, f"{number}") for number in range(10)]
    for number, entry in enumerate(entries):
        os.utime(entry, (number + 1, number + 1))
    cache = DiskCache(str(disk), budget)
    for number in (0, 3):
        assert cache.get(f"{number}") == data_of(f"{number}")
    cache.put("new", data_of("new"))
    assert [entry.exists() for entry in entries] == [True, False, False, True] + 6 * [True]
    for name in ("newer", "newest"):  # a sweep frees memory for one more entry
        cache.put(name, data_of(name))
    assert [entry.exists() for entry in entries] == [True, False, False, True, False, False] + 4 * [True]
    assert all(cache.get(name) == data_of(name) for name in ("new", "newer", "newest"))


def test_an_entry_above_the_budget_is_not_stored_and_removes_nothing(disk):
    cache = DiskCache(str(disk), 2 * SIZE)
    cache.put("small", data_of("small"))
    cache.put("large", bytes(2 * SIZE))
    assert cache.get("small") == data_of("small") and cache.get("large") is None


def test_a_smaller_budget_holds_for_the_files_that_are_there(disk):
    for number in range(20):
        entry_of(disk, f"{number}")
    DiskCache(str(disk), 5 * SIZE).put("new", b"x")
    assert 0 < bytes_below(disk) <= 5 * SIZE


@pytest.mark.parametrize("damage", [b"", b"00000000000000000001x", None], ids=str)
def test_a_total_that_is_damaged_is_counted_again(disk, damage):
    budget = 10 * (SIZE + 100)
    cache = DiskCache(str(disk), budget)
    for number in range(30):
        total = disk / "slipring.total"
        if damage is None:
            total.unlink()
        else:
            total.write_bytes(damage)
        cache.put(f"{number}", data_of(f"{number}"))
        assert cache.get(f"{number}") == data_of(f"{number}")
        assert bytes_below(disk) <= budget


def put_many(folder, budget, first, report):
    cache = DiskCache(folder, budget)
    for number in range(first, first + 100):
        cache.put(f"{number % 100}", data_of(f"{number % 100}"))
        right = all(cache.get(name) in (None, data_of(name)) for name in (f"{number % 100}", f"{number % 7}"))
        os.write(report, b"." if right else b"!")


def test_two_processes_and_their_threads_keep_to_one_budget(disk):
    budget = 20 * SIZE
    told, report = os.pipe()

    def run(first):
        arguments = [(str(disk), budget, first + 25 * n, report) for n in range(2)]
        threads = [threading.Thread(target=put_many, args=each) for each in arguments]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with forked(run, 0) as one, forked(run, 50) as two:
        os.close(report)
        reports = b""
        while more := os.read(told, 8):
            reports += more
            assert bytes_below(disk) <= budget
        assert (exit_of(one), exit_of(two)) == (0, 0)
    os.close(told)
    assert reports == 400 * b"."
    assert budget / 2 < bytes_below(disk) <= budget
    assert files_below(disk, "*.part") == []


def test_files_of_other_programs_are_neither_removed_nor_counted(disk):
    theirs = [
        *(disk / name for name in ("cache.db", "cache.db-wal", "notes.entry", "slipring-1.part", "swept")),
        disk / "01" / "23" / f"{'0' * 28}.val",  # an entry of another cache
        disk / "ab" / "mine.entry",
        disk / "ab" / f"{'0' * 32}.entry",
        disk / "ab" / "cd" / f"{'ab' * 16}.entry",
        disk / "theirs" / "ab" / f"{'ab' * 16}.entry",
        disk / "ab" / f"slipring-{'0' * 32}.part",
        disk / f"{'0' * 32}.part",
    ]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10 * SIZE))
        os.utime(path, (1, 1))
    (disk / "ff").symlink_to(disk / "theirs" / "ab")
    budget = 5 * (SIZE + 100)
    cache = DiskCache(str(disk), budget)
    for number in range(20):
        cache.put(f"{number}", data_of(f"{number}"))
        assert cache.get(f"{number}") == data_of(f"{number}")
    assert all(path.stat().st_size == 10 * SIZE for path in theirs)
    own = set(files_below(disk)) - set(theirs)
    assert 3 <= len(own) <= 5


# ---- folders that fail


def test_a_full_disk_fails_no_read_and_is_reported_once(tmp_path, serve, small, caplog):
    directory = Path(small(1 << 20))
    (tmp_path / "served").mkdir()
    data = os.urandom(4 << 20)
    (tmp_path / "served" / "bytes").write_bytes(data)
    url = f"{serve(tmp_path / 'served').url}/bytes"
    storage = slipring.Storage(disk_cache=directory, disk_cache_bytes="1GiB")
    for _ in range(2):
        for at in range(0, len(data), 200_000):
            assert read_of(storage)(url, at, min(len(data), at + 200_000)) == data[at : at + 200_000]
    (said,) = caplog.messages
    assert os.strerror(errno.ENOSPC) in said and str(directory) in said
    assert len(files_below(directory, "*.entry")) >= 3 and files_below(directory, "*.part") == []


def test_a_folder_that_becomes_read_only_still_serves_its_entries(small, caplog):
    directory = small(1 << 20)
    cache = DiskCache(directory, LARGE)
    cache.put("name", data_of("name"))
    subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
    for opened in (cache, DiskCache(directory, LARGE)):
        opened.put("other", b"bytes")
        assert opened.get("name") == data_of("name") and opened.get("other") is None
    (said,) = caplog.messages
    assert os.strerror(errno.EROFS) in said


def test_a_folder_that_was_removed_is_made_again(disk, caplog):
    cache = DiskCache(str(disk), LARGE)
    for _ in range(2):
        cache.put("name", b"bytes")
        assert cache.get("name") == b"bytes"
        shutil.rmtree(disk)
        assert cache.get("name") is None
    assert caplog.messages == []


def test_a_file_in_the_place_of_the_folder_is_reported_and_nothing_is_kept(disk, caplog):
    disk.write_bytes(b"a file")
    cache = DiskCache(str(disk), LARGE)
    for _ in range(2):
        cache.put("name", b"bytes")
        assert cache.get("name") is None
    assert caplog.messages and all("does not work" in said for said in caplog.messages)
    assert len(caplog.messages) == len(set(caplog.messages)) and disk.read_bytes() == b"a file"


def test_a_lock_that_somebody_else_keeps_stops_no_process(disk, caplog):
    cache = DiskCache(str(disk), LARGE)
    cache.put("name", b"bytes")
    with open(disk / "slipring.total", "rb") as total:
        fcntl.flock(total, fcntl.LOCK_EX)
        DiskCache(str(disk), LARGE).put("other", b"bytes")
        assert cache.get("name") == b"bytes" and cache.get("other") is None
    cache.put("other", b"bytes")
    assert cache.get("other") == b"bytes" and caplog.messages == []
