"""Data of all tests of URLs: shards, tables and class folders on servers in separate processes."""

import contextlib
import importlib.util
import logging

import pytest

from tests.support.http_server import Running

NEEDED = ("fsspec", "aiohttp", "pyarrow", "PIL")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


def pytest_collection_modifyitems(items):
    for item in items:
        if MISSING and "tests/remote/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(MISSING)}"))


@pytest.fixture(scope="session", autouse=True)
def loop_of_fsspec():
    """Start fsspec's event loop, which has descriptors, starts with the first read, and stays."""
    if not MISSING:
        import fsspec.asyn

        fsspec.asyn.get_loop()
        logging.getLogger("fsspec").setLevel(logging.CRITICAL)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Two shards, Parquet, Arrow IPC and class folders."""
    if MISSING:
        pytest.skip(f"not installed: {', '.join(MISSING)}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.support.pictures import encoded, pixels
    from tests.support.shards import files, shard

    folder = tmp_path_factory.mktemp("served")
    for number in range(2):
        shard(folder / f"{number}.tar", files(20, first=20 * number))
    pictures = [encoded(pixels(30, 40, number)) for number in range(48)]
    table = pa.table({"image": pictures, "label": range(48), "text": [f"number {i}" * 50 for i in range(48)]})
    pq.write_table(table, folder / "rows.parquet", row_group_size=4)
    for name, make in (("rows.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with make(str(folder / name), table.schema) as sink:
            sink.write_table(table, max_chunksize=4)
    for number, picture in enumerate(pictures[:16]):
        path = folder / "classes" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    """A server without faults for all tests, which count by differences."""
    with Running(folder) as server:
        yield server


@pytest.fixture
def serve():
    """A function that starts a server with given faults; the server ends with the test."""
    with contextlib.ExitStack() as servers:
        yield lambda folder, **options: servers.enter_context(Running(folder, **options))


@pytest.fixture
def disk(tmp_path):
    """A folder for a disk cache; it does not exist yet."""
    return tmp_path / "kept"
