"""TableDataset: rows of Arrow IPC and Parquet files, and record batches in their slots."""

import contextlib
import os
import pickle
import shutil

import numpy as np
import pytest

from slipring import Workers

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from slipring import Loader  # noqa: E402
from slipring.arrow import Rows, TableDataset, collate  # noqa: E402
from slipring.arrow import files as table_files  # noqa: E402
from tests.support.parts import slow  # noqa: E402

N, GROUP = 103, 10
FORMS = ("parquet", "file", "stream", "zstd")


def table():
    images = [{"bytes": bytes([i]) * (i + 1), "path": f"{i}.jpg" if i % 7 else None} for i in range(N)]
    return pa.table({
        "image": images,
        "label": pa.array(range(N), pa.int32()),
        "kind": pa.array([f"k{i % 3}" for i in range(N)]).dictionary_encode(),
        "boxes": [[float(i)] * (i % 4) for i in range(N)],
    })  # fmt: skip


def write(path, form, rows):
    if form == "parquet":
        pq.write_table(rows, path, row_group_size=GROUP)
        return str(path)
    options = pa.ipc.IpcWriteOptions(compression="zstd" if form == "zstd" else None)
    make = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, make(sink, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=GROUP)
    return str(path)


@pytest.fixture
def parquet(tmp_path):
    return write(tmp_path / "t.parquet", "parquet", table())


@pytest.fixture(params=FORMS)
def path(request, tmp_path):
    return write(tmp_path / "t", request.param, table())


def label_of(row):
    """A decoder for workers of any kind."""
    return {"label": row["label"], "size": len(row["image"]["bytes"])}


def test_rows_are_those_of_the_table(path):
    rows = table().to_pylist()
    dataset = TableDataset(path)
    assert len(dataset) == N
    assert [dataset[i] for i in (0, 9, 10, 102, -1, -N, np.int64(3))] == [rows[i] for i in (0, 9, 10, 102, -1, -N, 3)]
    wanted = [50, 3, 102, 3, -2, 51, 52]  # from several groups, one row twice
    assert dataset.__getitems__(wanted) == [rows[i] for i in wanted]
    assert dataset.take(wanted).to_pylist() == [rows[i] for i in wanted]
    assert dataset.take([]).num_rows == 0 and dataset.take([]).schema.names == dataset.schema.names


def test_rows_are_numbered_through_all_files(tmp_path):
    rows = table()
    parts = [rows.slice(0, 40), rows.slice(40, 0), rows.slice(40)]
    paths = [write(tmp_path / str(i), form, part) for i, (form, part) in enumerate(zip(FORMS, parts))]
    dataset = TableDataset(paths, columns=["label", "image"])
    assert len(dataset) == N and dataset.schema.names == ["label", "image"]
    order = np.random.default_rng(0).permutation(N)
    assert dataset.take(order).to_pylist() == rows.select(["label", "image"]).take(order).to_pylist()


@pytest.mark.parametrize("form", ["parquet", "file"])
def test_columns_may_have_another_order_and_be_nullable_in_some_files_only(tmp_path, form):
    strict = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    paths = [
        write(tmp_path / "1", form, pa.table({"a": [0, 1], "b": ["x", "y"]}, schema=strict)),
        write(tmp_path / "2", form, pa.table({"b": ["z", "w"], "a": [2, None]})),
        write(tmp_path / "3", form, pa.table({"a": [4], "b": ["v"]}).replace_schema_metadata({"k": "v"})),
    ]
    rows = TableDataset(paths)
    assert rows.__getitems__([2, 0, 3, 4]) == [
        {"a": 2, "b": "z"},
        {"a": 0, "b": "x"},
        {"a": None, "b": "w"},
        {"a": 4, "b": "v"},
    ]
    together = TableDataset(paths, returns="record_batch")
    for indices in ([2, 0, 3, 4], [0, 1], [2, 3], [4]):
        batch = together.take(indices)
        batch.validate(full=True)
        assert batch.schema.equals(rows.schema, check_metadata=True)
        assert batch["a"].to_pylist() == [row["a"] for row in rows.__getitems__(indices)]
    assert rows.schema.names == ["a", "b"] and rows.schema.field("a").nullable


@pytest.mark.parametrize("form", ["file", "zstd"])
def test_types_that_pyarrow_has_no_take_for_are_read_too(tmp_path, form):
    inside = [{"text": f"{i}" * 20} for i in range(50)]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([4, 50], pa.int32()), pa.array(["a", "b"]))
    values = pa.table({
        "text": pa.array([None if i % 7 == 3 else f"{i}" * 20 for i in range(50)], pa.string_view()),
        "bytes": pa.array([bytes([i]) * 1000 for i in range(50)], pa.binary_view()),
        "runs": runs,
        "inside": pa.array(inside, pa.struct([("text", pa.string_view())])),
    })  # fmt: skip
    path = write(tmp_path / "t", form, values)
    expected = values.to_pylist()
    for indices in ([3, 49, 0, 17, 3], [5, 6, 7], [41]):
        assert TableDataset(path).__getitems__(indices) == [expected[i] for i in indices]
        batch = TableDataset(path, returns="record_batch").take(indices)
        assert batch.to_pylist() == [expected[i] for i in indices]
        assert batch.schema.field("bytes").type == pa.binary_view()
        # The rest of their row group does not come along.
        assert batch["bytes"].nbytes < 1100 * len(indices)


def test_columns_that_are_not_read_are_not_decompressed(tmp_path):
    dataset = TableDataset(write(tmp_path / "t", "zstd", table()), columns=["label"])
    assert dataset[7] == {"label": 7}
    assert dataset._open_here.borrow(0).batch(0).schema.names == ["label"]


@pytest.mark.parametrize("index", [N, -N - 1, 1 << 70])
def test_an_index_outside_is_an_index_error(parquet, index):
    with pytest.raises(IndexError, match=f"index {index} of a TableDataset of {N} rows"):
        TableDataset(parquet)[index]


def test_a_batch_reads_each_row_group_once_and_only_its_columns(parquet, monkeypatch):
    read = []
    theirs = pq.ParquetFile.read_row_group

    def counted(self, group, columns=None, **options):
        read.append((group, tuple(columns)))
        return theirs(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    dataset = TableDataset(parquet, columns=["label"], cached_groups=1)
    assert read == []
    dataset.__getitems__([95, 3, 91, 4, 3, 99])
    assert sorted(read) == [(0, ("label",)), (9, ("label",))]
    dataset.__getitems__([90, 98])  # the group that was read last is cached
    assert len(read) == 2


@pytest.mark.parametrize(("form", "copied"), [("file", False), ("stream", False), ("zstd", True)])
def test_uncompressed_ipc_is_read_where_it_is_mapped(tmp_path, form, copied):
    dataset = TableDataset(write(tmp_path / "t", form, table()))
    label = dataset.take(range(12, 17))["label"]
    memory = dataset._open_here.borrow(0).memory
    inside = memory.address <= label.buffers()[1].address < memory.address + memory.size
    assert inside is not copied
    assert label.to_pylist() == list(range(12, 17))


class OfOpenFiles:
    """Adds to each label how many descriptors of the tables' files this process has."""

    def __init__(self, data, folder):
        self.data, self.folder = data, str(folder)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        label = self.data[i]["label"]
        files = 0
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # another thread has closed it
                files += os.readlink(f"/proc/self/fd/{fd}").startswith(self.folder)
        return label, files


def test_of_many_files_few_are_open_in_a_worker_with_threads(tmp_path):
    paths = [tmp_path / f"{number}.parquet" for number in range(100)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"label": [2 * number, 2 * number + 1]}), path, row_group_size=1)
    data = OfOpenFiles(TableDataset(paths, cached_groups=1), tmp_path)
    workers = Workers(fetch_threads=4)
    with Loader(data, 10, shuffle=True, num_workers=1, workers=workers, rng="sample") as loader:
        labels, files = map(np.concatenate, zip(*loader))
        assert sorted(labels) == list(range(200))
    assert 0 < max(files) <= 64 + 4


def test_an_unreadable_file_is_reported(tmp_path, parquet):
    other = write(tmp_path / "o", "file", pa.table({"label": ["a"]}))
    (tmp_path / "text").write_text("no table at all")
    (tmp_path / "cut").write_bytes(b"PAR1 and no more")
    for wrong, error, text in (
        (lambda: TableDataset(table()), TypeError, "reads files, not a Table"),
        (lambda: TableDataset([]), ValueError, "at least one file"),
        (lambda: TableDataset(parquet, columns=["x"]), ValueError, "0 columns named 'x'"),
        (lambda: TableDataset(parquet, columns=["label"] * 2), ValueError, "columns.* 'label' is there 2 times"),
        (lambda: TableDataset([parquet, other], columns=["label"]), ValueError, "int32 .* has string"),
        (lambda: TableDataset([parquet, other]), ValueError, "lacks it"),
        (lambda: TableDataset(tmp_path / "text"), ValueError, "neither Parquet nor Arrow IPC"),
        (lambda: TableDataset(tmp_path / "cut"), ValueError, "cannot be read"),
        (lambda: TableDataset(tmp_path / "none"), FileNotFoundError, "none"),
        (lambda: TableDataset(parquet, decode=id, decode_batch=id), ValueError, "exclude"),
        (lambda: TableDataset(parquet, decode=id, returns="record_batch"), ValueError, "no samples"),
        (lambda: TableDataset(parquet, decode_batch=lambda b: [1])[:2], TypeError, "integer"),
        (lambda: TableDataset(parquet, decode_batch=lambda b: [1]).__getitems__([1, 2]), ValueError, "1 .* 2"),
        (lambda: collate([{"a": 1}]), TypeError, "returns='record_batch'"),
    ):
        with pytest.raises(error, match=text):
            wrong()


@pytest.mark.parametrize(
    ("form", "method", "chunk_size"),
    [("parquet", "fork", 3), ("file", "fork", None), ("parquet", "thread", None), slow("zstd", "spawn", 3)],
)
def test_every_row_arrives_once_in_every_kind_of_loader(tmp_path, form, method, chunk_size):
    path = write(tmp_path / "t", form, table())
    dataset = TableDataset(path, columns=["image", "label"], decode=label_of)
    dataset[0]  # the parent opens the file: its workers must not use the parent's descriptor
    workers = Workers(start_method=method, chunk_size=chunk_size)
    with Loader(dataset, 8, shuffle=True, seed=3, num_workers=2, workers=workers) as loader:
        batches = list(loader)
        assert loader.stats().pickled_leaves == 0
    labels = np.concatenate([b["label"] for b in batches])
    assert sorted(labels.tolist()) == list(range(N)) and labels.tolist() != list(range(N))
    assert all((b["size"] == b["label"] + 1).all() for b in batches)


@pytest.mark.parametrize(("form", "chunk_size"), [("parquet", None), ("stream", None), ("zstd", 3)])
def test_record_batches_lie_in_their_slots(tmp_path, form, chunk_size):
    path = write(tmp_path / "t", form, table())
    dataset = TableDataset(path, returns="record_batch")
    assert isinstance(dataset.__getitems__([1]), Rows)
    rows = table().to_pylist()
    with Loader(dataset, 8, collate_fn=collate, num_workers=2, workers=Workers(chunk_size=chunk_size)) as loader:
        n = 0
        allocated = pa.total_allocated_bytes()
        for batch in loader:
            assert type(batch) is pa.RecordBatch
            # Its buffers are the slot's. Arrow's threads may release earlier batches.
            assert pa.total_allocated_bytes() <= allocated
            assert batch.to_pylist() == rows[n : n + batch.num_rows]
            n += batch.num_rows
            del batch
        assert n == N and loader.stats().pickled_leaves == 0


def nested():
    return pa.array([[[1], None], [], None, [[2, 3]]] * 5)


MAKE = {
    "nested lists": nested,
    "dictionary": lambda: pa.array(["a", None, "b", "a"] * 5).dictionary_encode(),
    "strings": lambda: pa.array(["ü" * 9, "", None, "x"] * 5),
    "image": lambda: pa.array([{"bytes": b"\xff\xd8" * 9, "path": None}, None] * 10),
}


def addresses(column):
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    found = [b for chunk in chunks for b in chunk.buffers() if b is not None and b.size]
    if isinstance(column.type, pa.DictionaryType):
        found += [b for chunk in chunks for b in chunk.dictionary.buffers() if b is not None]
    return found


def lies_in_the_slot(trip, sent):
    """Send a value; return whether it was read without an allocation and keeps its slot."""
    slot = trip.put(sent)
    allocated = pa.total_allocated_bytes()
    got = trip.take(slot)
    assert pa.total_allocated_bytes() <= allocated
    assert got.equals(sent) and trip.free == 3 and trip.ring.meter.pickled_leaves == 0
    columns = got.columns
    assert all(addresses(column) for column in columns)
    kept = columns[0]
    del got, columns
    for _ in range(9):
        trip(np.full(5000, 255, np.uint8))
    assert trip.free == 3 and kept.equals(sent.column(0))
    del kept
    assert trip.free == 4


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_record_batches_and_tables_are_read_in_place_and_keep_their_slot(trip, make):
    batch = pa.RecordBatch.from_arrays([make()], ["c"])
    lies_in_the_slot(trip, batch)
    lies_in_the_slot(trip, batch.slice(3, 9))
    lies_in_the_slot(trip, pa.concat_tables([pa.table({"c": make()}), pa.table({"c": make()}).slice(1)]))


@pytest.mark.parametrize("returns", ["rows", "record_batch"])
def test_torchs_loader_reads_tables(parquet, returns):
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    dataset = TableDataset(parquet, ["label"], returns=returns)
    with DataLoader(dataset, 8, num_workers=2, collate_fn=None if returns == "rows" else collate) as loader:
        assert [label for batch in loader for label in np.asarray(batch["label"]).tolist()] == list(range(N))


# ---- copied files: of another machine, with other mtimes


CHANGED = "has .* bytes, changed .*; it had .* when the dataset was made"


def copy(path):
    """Replace a file by a copy with another inode and mtime."""
    shutil.copyfile(path, f"{path}.copy")
    then = os.stat(path)
    os.utime(f"{path}.copy", ns=(then.st_atime_ns, then.st_mtime_ns + 10**9))
    os.replace(f"{path}.copy", path)


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


def test_a_pickle_can_be_made_where_the_file_has_gone(path):
    dataset = TableDataset(path)
    os.remove(path)
    again = pickle.loads(pickle.dumps(dataset))
    assert len(again) == N
    with pytest.raises(FileNotFoundError):
        again[0]
