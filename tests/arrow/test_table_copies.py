"""TableDataset with copied files: of another machine, with other mtimes."""

import os
import pickle
import shutil

import pytest

from slipring import Workers

pa = pytest.importorskip("pyarrow")

from slipring import Loader  # noqa: E402
from slipring.arrow import TableDataset  # noqa: E402
from slipring.arrow import files as table_files  # noqa: E402
from tests.arrow.test_tables import N, label_of, table, write  # noqa: E402

CHANGED = "has .* bytes, changed .*; it had .* when the dataset was made"


def copy(path):
    """Replace a file by a copy with another inode and mtime."""
    shutil.copyfile(path, f"{path}.copy")
    then = os.stat(path)
    os.utime(f"{path}.copy", ns=(then.st_atime_ns, then.st_mtime_ns + 10**9))
    os.replace(f"{path}.copy", path)


@pytest.fixture(params=["parquet", "stream"])
def path(request, tmp_path):
    return write(tmp_path / "t", request.param, table())


@pytest.fixture
def elsewhere(monkeypatch):
    """A function after whose call this process seems to run on another machine."""
    return lambda: monkeypatch.setattr(table_files, "machine", lambda: "another")


def test_another_machine_reads_a_copy_of_another_time(path, elsewhere):
    data = pickle.dumps(TableDataset(path))
    assert len(data) < 3000
    copy(path)
    elsewhere()
    dataset = pickle.loads(data)
    assert [row["label"] for row in dataset.__getitems__(range(N))] == list(range(N))
    again = pickle.loads(pickle.dumps(pickle.loads(data)))  # in a process that never read the table
    assert again[5]["label"] == 5


def test_another_machine_refuses_a_file_of_another_size(path, elsewhere):
    data = pickle.dumps(TableDataset(path))
    write(path, "file", pa.concat_tables([table(), table()]))
    elsewhere()
    with pytest.raises(ValueError, match=CHANGED):
        pickle.loads(data)[0]


@pytest.mark.parametrize("pickled", [False, True])
def test_the_machine_where_the_dataset_was_made_refuses_a_copy_of_another_time(path, pickled):
    dataset = TableDataset(path)
    if pickled:
        dataset = pickle.loads(pickle.dumps(dataset))
    copy(path)
    with pytest.raises(ValueError, match=CHANGED):
        dataset[0]


def test_a_copy_that_keeps_the_time_is_read(path):
    data = pickle.dumps(TableDataset(path))
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)
    assert pickle.loads(data)[7]["label"] == 7


def test_a_pickle_can_be_made_where_the_file_has_gone(path):
    dataset = TableDataset(path)
    os.remove(path)
    again = pickle.loads(pickle.dumps(dataset))
    assert len(again) == N
    with pytest.raises(FileNotFoundError):
        again[0]


def test_spawned_workers_read_a_copy_on_another_machine(tmp_path, elsewhere):
    path = write(tmp_path / "t", "parquet", table())
    elsewhere()
    dataset = TableDataset(path, decode=label_of)  # made on that machine; the workers run on this one
    copy(path)
    with Loader(dataset, 8, num_workers=2, workers=Workers(start_method="spawn")) as loader:
        assert [label for batch in loader for label in batch["label"].tolist()] == list(range(N))
