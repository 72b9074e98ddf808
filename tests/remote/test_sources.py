"""Datasets of URLs return the same samples as local files, in every kind of worker, and read only what they need."""

import io
import os
import pickle
import shutil
import tarfile
from urllib.parse import unquote

import numpy as np
import pytest

import slipring
from slipring import Workers
from tests.remote.sources import TableDataset, plain, rows, source
from tests.support.processes import LONG_S


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("Tar", {"num_workers": 1, "start_method": "spawn"}),
        ("Parquet", {"num_workers": 2}),
        ("Folder", {"num_workers": 2, "start_method": "thread", "fetch_threads": 2}),
        ("TableDataset", {"num_workers": 1, "fetch_threads": 4}),
        ("TableDataset of IPC", {"num_workers": 2, "start_method": "thread", "fetch_threads": 2}),
        ("TableDataset of a stream", {"num_workers": 0}),
    ],
    ids=str,
)
def test_batches_from_a_server_are_those_of_the_files_themselves(folder, server, kind, workers):
    here = rows(source(kind, folder), shuffle=True, num_workers=0)
    remote = source(kind, server.url)
    assert rows(remote, shuffle=True, **workers) == here


@pytest.mark.parametrize(("workers", "shuffle"), [(0, True), (2, False)])
def test_a_stream_of_shards_from_a_server_is_that_of_the_files(folder, server, shuffle, workers):
    def of(root):
        return rows(source("TarStream", root, shuffle=shuffle), num_workers=workers)

    assert of(server.url) == of(folder)


def test_a_file_url_is_a_file_here(folder):
    url = (folder / "0.tar").as_uri()
    data = slipring.images.Tar(url)
    assert data.paths == [str(folder / "0.tar")] and data[3][1] == 3


def test_class_folders_have_their_names_and_numbers_also_where_urls_quote_them(folder, tmp_path, serve):
    (picture, *_) = sorted((folder / "classes").rglob("*.jpg"))
    for name in ("zebra", "élan", "n a", "n [x]", "apple", "50% off"):
        (tmp_path / "classes" / name).mkdir(parents=True)
        shutil.copy(picture, tmp_path / "classes" / name / f"{name} ü.jpg")
    here, remote = source("Folder", tmp_path), source("Folder", serve(tmp_path).url)
    assert (remote.classes, remote.class_to_idx) == (here.classes, here.class_to_idx)
    assert plain(remote.fetch_into(range(6), np.empty)) == plain(here.fetch_into(range(6), np.empty))
    assert [unquote(path).rpartition("/")[2] for path, _ in remote.samples] == [
        path.rpartition("/")[2] for path, _ in here.samples
    ]


@pytest.mark.parametrize("kind", ["Tar", "TableDataset"])
def test_fetch_threads_request_concurrently(folder, serve, kind):
    """The server delays every answer until it has eight requests."""
    server = serve(folder, together=8)
    data = source(kind, server.url)
    each = 1 if kind == "Tar" else 4  # rows of a group
    order = {"sampler": range(0, 8 * each, each), "batch_size": 8}
    server.tells("gather")
    with slipring.Loader(data, **order, num_workers=1, timeout=LONG_S, workers=Workers(fetch_threads=8)) as loader:
        (batch,) = loader
    with slipring.Loader(source(kind, folder), **order) as loader:
        assert plain(batch) == plain(next(iter(loader)))


def test_fetch_threads_read_row_groups_of_local_files_too(folder):
    data = source("TableDataset", folder)
    assert rows(data, num_workers=1, fetch_threads=3, shuffle=True) == rows(data, shuffle=True)


def fill(path, members, size):
    """Write a shard; the bytes of large members are never read."""
    with tarfile.open(path, "w") as shard:
        for number in range(members):
            for ending, data in ((f"{number}.jpg", bytes([number % 256]) * size), (f"{number}.cls", b"1")):
                member = tarfile.TarInfo(ending)
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))


def test_headers_of_large_members_are_read_without_the_members(tmp_path, serve):
    fill(tmp_path / "large.tar", 4, 6 << 20)
    server = serve(tmp_path)
    assert len(slipring.images.Tar(f"{server.url}/large.tar")) == 4
    assert server.tells("requests")["bytes"] < 6 << 20


def test_with_a_disk_cache_a_shard_of_small_members_is_read_once_and_kept_once(tmp_path, serve):
    (tmp_path / "served").mkdir()
    fill(tmp_path / "served" / "small.tar", 300, 20_000)
    size = os.path.getsize(tmp_path / "served" / "small.tar")
    server = serve(tmp_path / "served")
    storage = slipring.Storage(disk_cache=tmp_path / "kept")
    here = slipring.images.Tar(tmp_path / "served" / "small.tar")
    remote = slipring.images.Tar(f"{server.url}/small.tar", storage=storage)
    assert server.tells("requests")["requests"] < 12, "for 600 headers"
    for number in (7, 299, 0, 150, *range(300)):
        assert remote.read(number) == here.read(number)
    streamed = slipring.images.Tar(f"{server.url}/small.tar", storage=storage).in_order()
    assert [streamed.read(number) for number in range(300)] == [here.read(number) for number in range(300)]
    assert server.tells("requests")["bytes"] == size
    kept = sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*.entry"))
    assert size <= kept <= 1.01 * size


def test_an_index_that_was_kept_is_not_made_again(folder, tmp_path, server):
    first = source("Tar", server.url, index=tmp_path / "indices")
    before = server.tells("requests")
    again = source("Tar", server.url, index=tmp_path / "indices")
    after = server.tells("requests")
    assert list(again.keys) == list(first.keys) and len(os.listdir(tmp_path / "indices")) == 2
    assert after["bytes"] == before["bytes"] and after["requests"] == before["requests"] + 2


def test_nothing_can_be_kept_beside_a_url(server):
    with pytest.raises(ValueError, match="give a folder"):
        source("Tar", server.url, index="sidecar")


def test_a_row_group_is_one_request_of_the_columns_that_are_read(folder, server):
    data = source("TableDataset", server.url)
    before = server.tells("requests")
    assert data[4]["label"] == 4  # the second group; this process does not open the file again
    after = server.tells("requests")
    assert after["requests"] - before["requests"] <= 2  # one checks whether the file has changed
    assert after["bytes"] - before["bytes"] < os.path.getsize(folder / "rows.parquet") / 2


@pytest.fixture(scope="module")
def batches_of_rows(tmp_path_factory):
    """An Arrow IPC file of 40 record batches of 100 kB, 4 MB altogether."""
    import pyarrow as pa

    path = tmp_path_factory.mktemp("ipc") / "rows.arrow"
    table = pa.table({"id": range(1000), "bytes": [bytes(4000) for _ in range(1000)]})
    with pa.ipc.new_file(str(path), table.schema) as sink:
        sink.write_table(table, max_chunksize=25)
    return path


def test_rows_of_arrow_ipc_are_counted_without_the_large_columns(tmp_path, serve):
    import pyarrow as pa

    table = pa.table({"image": [bytes([n]) * 100_000 for n in range(100)], "text": ["x"] * 100, "label": range(100)})
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as sink:
        sink.write_table(table, max_chunksize=20)
    server = serve(tmp_path)
    for columns in (["label"], ["label", "text"]):
        before = server.tells("requests")["bytes"]
        data = TableDataset(f"{server.url}/rows.arrow", columns=columns)
        assert server.tells("requests")["bytes"] - before < 2 << 20
        assert len(data) == 100 and data[70] == {name: 70 if name == "label" else "x" for name in columns}


@pytest.mark.parametrize("pickled", [False, True])
def test_an_opening_of_arrow_ipc_reads_the_footer_and_the_batches_asked_for(batches_of_rows, serve, pickled):
    server = serve(batches_of_rows.parent)
    data = TableDataset(f"{server.url}/rows.arrow")
    if pickled:
        data = pickle.loads(pickle.dumps(data))
    before = server.tells("requests")
    assert data[500]["id"] == 500
    after = server.tells("requests")
    # Requests: whether the file has changed, its end if unknown here, and the batch of at least 256 KiB.
    assert after["requests"] - before["requests"] <= 2 + pickled
    assert after["bytes"] - before["bytes"] <= (1 << 18) + pickled * (1 << 16)


def test_a_stream_in_order_is_read_in_large_pieces(folder, server):
    data = source("TarStream", server.url)
    before = server.tells("requests")["requests"]
    assert len(list(data)) == 40
    assert server.tells("requests")["requests"] - before < 12
