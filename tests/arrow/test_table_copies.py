"""TableDataset where its files are copies: another machine's, with other times of modification."""

import functools
import os
import pickle
import shutil

import numpy as np
import pytest

from slipring import Workers

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from slipring import Loader  # noqa: E402
from slipring.arrow import TableDataset  # noqa: E402
from slipring.arrow import files as table_files  # noqa: E402
from tests.arrow.test_tables import FORMS, N, label_of, table, write  # noqa: E402

CHANGED = "has .* bytes, changed .*; it had .* when the dataset was made"
OTHERS = "is no copy of the file that the dataset was made of"


def copy(path):
    """Put an honest copy in a file's place, of another inode and time."""
    shutil.copyfile(path, f"{path}.copy")  # beside it, so that its inode is not given out again
    then = os.stat(path)
    os.utime(f"{path}.copy", ns=(then.st_atime_ns, then.st_mtime_ns + 10**9))
    os.replace(f"{path}.copy", path)


def poke(path, at, byte=b"\x5a"):
    """Change one byte in place, and the time."""
    then = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(byte if old != byte else b"\xa5")
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns + 10**9))


def poke_rows(path):
    """The same at a place behind which the file can still be opened."""
    for at in range(600, 2000):
        shutil.copy2(path, f"{path}.before")
        poke(path, at)
        try:
            TableDataset(path)
            return
        except ValueError:
            os.replace(f"{path}.before", path)
    pytest.fail("no such place")


def large(path, form, labels):
    """A file of which the labels lie neither at the beginning nor at the end, some MiB away from both."""
    rows = pa.table({
        "image": np.arange(1 << 19),
        "label": np.asarray(labels, np.int64),
        "sound": np.arange(1 << 19) + 1,
    })  # fmt: skip
    if form == "parquet":
        plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        pq.write_table(rows, path, row_group_size=1 << 18, **plain)
        return str(path)
    options = pa.ipc.IpcWriteOptions()
    make = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, make(sink, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=1 << 18)
    return str(path)


@pytest.fixture(params=FORMS)
def path(request, tmp_path):
    return write(tmp_path / "t", request.param, table())


@pytest.fixture(params=["parquet", "file", "stream"])
def large_path(request, tmp_path):
    return large(tmp_path / f"t.{request.param}", request.param, np.arange(1 << 19) % 7)


def test_a_copy_of_another_time_is_read_where_a_pickle_comes(path):
    data = pickle.dumps(TableDataset(path))
    assert len(data) < 3000
    copy(path)
    dataset = pickle.loads(data)
    assert [row["label"] for row in dataset.__getitems__(range(N))] == list(range(N))
    again = pickle.loads(pickle.dumps(pickle.loads(data)))  # where it was never read
    assert again[5]["label"] == 5


def test_a_large_copy_of_another_time_is_read_too(large_path):
    data = pickle.dumps(TableDataset(large_path, ["label"]))
    copy(large_path)
    assert pickle.loads(data)[9] == {"label": 2}


def test_a_large_copy_with_another_column_is_none(large_path, tmp_path):
    data = pickle.dumps(TableDataset(large_path))
    before = os.stat(large_path)
    large(tmp_path / "other", large_path.rpartition(".")[2], np.arange(1 << 19) % 7 + 1)
    os.replace(tmp_path / "other", large_path)
    after = os.stat(large_path)
    assert before.st_size == after.st_size and before.st_mtime_ns != after.st_mtime_ns
    with pytest.raises(ValueError, match=OTHERS):
        pickle.loads(data)[0]


def test_a_small_copy_with_one_byte_changed_is_none(path):
    data = pickle.dumps(TableDataset(path))
    copy(path)
    poke_rows(path)
    with pytest.raises(ValueError, match=OTHERS):
        pickle.loads(data)[0]


def test_a_change_in_place_is_told_to_who_unpickles_on_the_same_machine(large_path):
    """Where a hash of parts of it would not tell."""
    data = pickle.dumps(TableDataset(large_path))
    poke(large_path, 300_001)
    with pytest.raises(ValueError, match=CHANGED):
        pickle.loads(data)[0]


def test_another_machine_may_give_a_copy_the_same_number(path, monkeypatch):
    data = pickle.dumps(TableDataset(path))
    os.utime(path, ns=(0, 0))
    with pytest.raises(ValueError, match=CHANGED):
        pickle.loads(data)[0]
    monkeypatch.setattr(table_files, "machine", lambda: "another")
    assert pickle.loads(data)[7]["label"] == 7


def test_a_copy_that_was_taken_must_stay_as_it_is(large_path):
    data = pickle.dumps(TableDataset(large_path))
    copy(large_path)
    dataset = pickle.loads(data)
    assert dataset[0]["label"] == 0
    poke(large_path, 300_001)
    with Loader(dataset, 1, num_workers=1) as loader, pytest.raises(ValueError, match=CHANGED):
        next(iter(loader))  # a worker opens the file anew


def test_who_was_not_pickled_takes_no_copy(path):
    dataset = TableDataset(path)
    copy(path)
    with pytest.raises(ValueError, match=CHANGED):
        dataset[0]


def test_a_change_before_the_pickle_is_told_behind_it(path):
    dataset = TableDataset(path)
    poke_rows(path)
    data = pickle.dumps(dataset)
    copy(path)
    with pytest.raises(ValueError, match=CHANGED):
        pickle.loads(data)[0]
    os.remove(path)
    data = pickle.dumps(TableDataset(write(path, "file", table())))
    os.remove(path)
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)[0]
    assert pickle.loads(pickle.dumps(pickle.loads(data)))._digests == pickle.loads(data)._digests


def test_a_pickle_can_be_made_where_the_file_has_gone(path):
    dataset = TableDataset(path)
    os.remove(path)
    assert len(pickle.loads(pickle.dumps(dataset))) == N


def test_the_whole_of_a_long_footer_counts(tmp_path):
    """A value that is the least of one row group among 2,000, and of which nothing else is read."""
    values = np.arange(200_000)
    write_it = functools.partial(pq.write_table, row_group_size=100, compression="none")
    write_it(pa.table({"a": values}), tmp_path / "t")
    size = os.path.getsize(tmp_path / "t")
    assert size > table_files.WHOLE and pq.read_metadata(tmp_path / "t").serialized_size > 2 * table_files.END
    data = pickle.dumps(TableDataset(tmp_path / "t"))
    values[100_000] -= 1
    write_it(pa.table({"a": values}), tmp_path / "other")
    os.replace(tmp_path / "other", tmp_path / "t")
    assert os.path.getsize(tmp_path / "t") == size
    with pytest.raises(ValueError, match=OTHERS):
        pickle.loads(data)[0]


@pytest.mark.parametrize("form", ["parquet", "file"])
def test_spawned_workers_read_a_copy(tmp_path, form):
    path = write(tmp_path / "t", form, table())
    dataset = pickle.loads(pickle.dumps(TableDataset(path, decode=label_of)))
    copy(path)
    with Loader(dataset, 8, num_workers=2, workers=Workers(start_method="spawn")) as loader:
        assert [label for batch in loader for label in batch["label"].tolist()] == list(range(N))
