"""Storage: its arguments, its effect on local files, and its disk cache."""

import gc
import os
import pickle
import subprocess
import sys
import weakref

import pytest

import slipring
from slipring import images
from slipring.errors import RemoteError
from tests.remote.sources import rows, source
from tests.support.inside import info_of, is_transient, read_of
from tests.support.processes import until


def test_local_files_are_read_without_fsspec(folder):
    code = (
        "import sys; from slipring import images; from slipring.arrow import TableDataset\n"
        f"images.Tar({str(folder / '0.tar')!r})[0]; TableDataset({str(folder / 'rows.parquet')!r})[0]\n"
        f"images.Folder({str(folder / 'classes')!r})[0]\n"
        "print(sorted({'fsspec', 'aiohttp', 'slipring._files.disk'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"timeout": 0}, ValueError, "timeout must be above 0"),
        ({"filesystem": 3}, TypeError, "fsspec's or of pyarrow.fs"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        slipring.Storage(**options)


def test_a_storage_that_is_none_and_paths_of_two_kinds_are_refused(folder):
    with pytest.raises(TypeError, match=r"slipring\.Storage"):
        images.Tar(folder / "0.tar", storage={"key": 1})
    with pytest.raises(ValueError, match="all of one kind"):
        images.Tar([folder / "0.tar", "http://127.0.0.1/1.tar"])
    with pytest.raises(ValueError, match="nowhere"):
        images.Tar("nowhere://a/0.tar")


@pytest.mark.parametrize("system", ["fsspec", "pyarrow"])
def test_a_file_system_that_is_given_reads_the_paths(folder, system):
    """This holds for blocking file systems, too: fsspec's and pyarrow's for local files."""
    import fsspec
    from pyarrow import fs

    of = {"fsspec": lambda: fsspec.filesystem("file"), "pyarrow": fs.LocalFileSystem}[system]()
    storage = pickle.loads(pickle.dumps(slipring.Storage(of)))
    for kind in ("Tar", "TableDataset", "Folder"):
        assert rows(source(kind, folder, storage=storage), num_workers=1) == rows(source(kind, folder))
    with pytest.raises(RemoteError, match="does not exist"):
        images.Tar(str(folder / "none.tar"), storage=storage)


def roots(classes):
    """Yield (root, options) of a folder that several file systems have."""
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem
    from pyarrow import fs

    below = DirFileSystem(classes, LocalFileSystem()), fs.SubTreeFileSystem(classes, fs.LocalFileSystem())
    yield from ((root, slipring.Storage(system)) for system in below for root in ("", "/"))
    yield from ((f"file://{classes}", slipring.Storage(system)) for system in (LocalFileSystem(), fs.LocalFileSystem()))
    yield from ((root, None) for root in ("memory://", "memory://pictures/", "memory:///pictures"))


def test_class_folders_are_found_at_the_root_of_a_file_system_and_by_a_url_of_it(folder):
    import fsspec

    here, memory = images.Folder(folder / "classes"), fsspec.filesystem("memory")
    for left in memory.ls("/", detail=False):  # of other tests in this process
        memory.rm(left, recursive=True)
    for root, storage in roots(str(folder / "classes")):
        try:
            if storage is None:
                memory.put(f"{folder}/classes/", f"{root}/", recursive=True)
            there = images.Folder(root, storage=storage)
            assert there.classes == here.classes, root
            assert [there.read(i) for i in range(len(there))] == [here.read(i) for i in range(len(here))], root
        finally:
            if storage is None:
                memory.rm("/", recursive=True)


@pytest.mark.parametrize("kind", ["Tar", "TableDataset"])
def test_a_dataset_ends_with_the_last_reference_to_it_and_its_connections_with_it(server, kind):
    storage = slipring.Storage()
    data = source(kind, server.url, storage=storage)
    data[3]
    (system,) = storage._mine()["systems"].values()
    ends = weakref.ref(data), weakref.ref(system)
    gc.disable()
    try:
        del data, system, storage
        # fsspec's thread may still be finishing the last read.
        until(lambda: [end() for end in ends] == [None, None], "dataset and connections have ended")
    finally:
        gc.enable()


class Status(Exception):
    def __init__(self, status, status_code=None):
        self.status, self.status_code = status, status_code


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (Status(503), True),
        (Status(429), True),
        (Status(403), False),
        (Status(416), False),
        (TimeoutError(), True),
        (OSError("When reading: AWS Error NETWORK_CONNECTION"), True),
        (OSError("When reading: AWS Error ACCESS_DENIED during HeadObject"), False),
        (PermissionError(), False),
        (ValueError(), False),
        (Status(None, 503), True),
        (Status(None, 404), False),
    ],
    ids=repr,
)
def test_an_error_is_worth_another_attempt_or_not(error, transient):
    assert is_transient(error) is transient


# ---- the disk cache


def test_cached_names_contain_no_password_and_hold_for_another_one(tmp_path, serve, disk):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "bytes").write_bytes(data := os.urandom(5000))
    server = serve(tmp_path / "served")
    for secret in ("first-one", "second-one"):
        url = server.url.replace("http://", f"http://somebody:{secret}@") + "/bytes"
        headers = {"Cookie": secret}
        before = server.tells("requests")["bytes"]
        storage = slipring.Storage(storage_options={"headers": headers}, disk_cache=disk)
        assert read_of(storage)(url, 0, 5000) == data
        assert server.tells("requests")["bytes"] - before == (5000 if secret == "first-one" else 0)
    written = b"".join(path.read_bytes() for path in disk.rglob("*") if path.is_file())
    assert data in written and b"-one" not in written


@pytest.mark.parametrize("kind", ["Tar", "TableDataset"])
def test_files_in_the_disk_cache_are_not_requested_again(folder, server, disk, kind):
    def read(num_workers):  # as in another process
        data = source(kind, server.url, storage=slipring.Storage(disk_cache=disk))
        return rows(data, num_workers=num_workers)

    want = rows(source(kind, folder))
    assert read(2) == want
    assert read(1) == want  # two workers would race for the batches, and so for the cached ranges
    before = server.tells("requests")["bytes"]
    assert read(1) == want
    assert server.tells("requests")["bytes"] == before


def test_a_file_that_has_grown_is_read_again_if_the_server_has_no_tag(tmp_path, serve, disk):
    (tmp_path / "served").mkdir()
    data = os.urandom(1_000_000)
    url = f"{serve(tmp_path / 'served', tags=False).url}/bytes"
    for size in (400_000, 1_000_000):
        (tmp_path / "served" / "bytes").write_bytes(data[:size])
        storage = slipring.Storage(disk_cache=disk)
        told, tag = info_of(storage)(url)
        assert (told, storage._open(url, told, tag).read()) == (size, data[:size])
