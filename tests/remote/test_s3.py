"""S3, by fsspec's s3fs and by pyarrow, from a server of moto's."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request

import pytest

import slipring
from slipring.errors import RemoteError
from slipring.images import Folder
from tests.remote.s3_server import KEYS
from tests.remote.sources import rows, source
from tests.support.inside import info_of, read_of

for needed in ("moto", "boto3", "flask", "flask_cors", "s3fs"):
    pytest.importorskip(needed)

HASTY = {"attempts": 2, "timeout": 60.0, "attempt_timeout": 20.0}


@contextlib.contextmanager
def running(folder):
    command = [sys.executable, "-m", "tests.remote.s3_server", str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    yield int(process.stdout.readline())
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def port(folder):
    with running(folder) as port:
        yield port


@pytest.fixture(scope="module")
def strict_port(folder):
    """A server that checks keys, and knows none."""
    with running(folder) as port:
        to = f"http://127.0.0.1:{port}/moto-api/reset-auth"
        text = {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(to, b"0", text), timeout=600).close()
        yield port


def by_s3fs(port, **options):
    told = {"key": "testing", "secret": "testing", "endpoint_url": f"http://127.0.0.1:{port}"}
    return slipring.Storage(storage_options={**told, **options}, **HASTY)


@pytest.mark.parametrize("kind", ["Tar", "TarStream", "TableDataset"])
def test_a_bucket_gives_the_same_samples_as_the_files(folder, port, kind):
    data = source(kind, "s3://shards", storage=by_s3fs(port))
    threads = None if kind == "TarStream" else 4
    assert rows(data, num_workers=1, fetch_threads=threads) == rows(source(kind, folder))


def test_class_folders_at_the_root_of_a_bucket_are_found(folder, port):
    there = Folder("s3://classes", storage=by_s3fs(port))
    here = Folder(folder / "classes")
    assert there.classes == here.classes and there.read(7) == here.read(7)
    assert there.samples[7][0].startswith("s3://classes/class ")


def test_an_object_that_is_not_there_and_credentials_that_are_not_given_are_distinguished(port, monkeypatch):
    with pytest.raises(RemoteError, match="does not exist") as caught:
        source("Tar", "s3://shards/nowhere", storage=by_s3fs(port))
    assert caught.value.missing and caught.value.url == "s3://shards/nowhere/0.tar"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(RemoteError, match=r"may not be read.*[Cc]redentials") as caught:
        source("Tar", "s3://shards", storage=by_s3fs(port, key=None, secret=None))
    assert not caught.value.missing and caught.value.url == "s3://shards/0.tar"


@pytest.mark.parametrize("kind", ["Tar", "Folder"])
def test_a_key_that_is_unknown_may_not_read(strict_port, kind):
    with pytest.raises(RemoteError, match="may not be read") as caught:
        source(kind, "s3://shards", storage=by_s3fs(strict_port))
    assert (caught.value.missing, caught.value.attempts) == (False, 1)
    assert caught.value.url.startswith("s3://shards/")


def test_a_refused_connection_is_tried_again_and_named():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        nobody = made.getsockname()[1]
    with pytest.raises(RemoteError, match=r"after 2 attempts.*Could not connect") as caught:
        source("Tar", "s3://shards", storage=by_s3fs(nobody))
    assert not caught.value.missing


# A program: pyarrow's S3 has threads, which must not stay for later tests.
BY_PYARROW = """
import json
import sys
import slipring
from pyarrow import fs
from slipring.errors import RemoteError
from tests.remote.sources import rows, source

def storage_of(port):
    system = fs.S3FileSystem(endpoint_override=f"127.0.0.1:{port}", scheme="http", access_key="testing",
                             secret_key="testing", region="us-east-1")
    return slipring.Storage(system, attempts=3)

def error_of(read, *args, **options):
    try:
        read(*args, **options)
    except RemoteError as error:
        return str(error), error.url, error.missing, error.attempts

if __name__ == "__main__":
    *ports, folder = sys.argv[1:]
    storage, strict = map(storage_of, ports)
    found = {}
    for start_method, kind in (("spawn", "TableDataset"), ("thread", "Folder"), ("thread", "Tar")):
        remote = source(kind, "shards", storage=storage)
        same = rows(remote, num_workers=1, start_method=start_method, fetch_threads=4) == rows(source(kind, folder))
        found[kind] = [same, error_of(source, kind, "shards", storage=strict),
                       *(error_of(source, kind, root, storage=storage) for root in ("shards/nowhere", "s3://nowhere"))]
    found["read"] = error_of(storage._read, "shards/nowhere.tar", 0, 10)
    try:
        rows(remote, num_workers=1, start_method="fork")
    except RuntimeError as error:
        found["fork"] = str(error)
    print(json.dumps(found))
"""
NAMES = {"Tar": "0.tar", "TableDataset": "rows.parquet", "Folder": "classes/"}


def test_pyarrows_s3_reads_in_workers_that_are_not_forked_and_names_what_it_cannot_read(
    folder, port, strict_port, tmp_path
):
    (tmp_path / "program.py").write_text(BY_PYARROW)
    environment = {**os.environ, **KEYS, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    command = [sys.executable, "program.py", str(port), str(strict_port), str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for kind, name in NAMES.items():
        same, (refused, *rest), *missing = found[kind]
        assert same
        assert f"shards/{name}" in refused and "may not be read" in refused and rest == [f"shards/{name}", False, 1]
        for root, (text, *rest) in zip(("shards/nowhere", "s3://nowhere"), missing, strict=True):
            assert f"{root}/{name}" in text and "does not exist" in text and rest == [f"{root}/{name}", True, 1]
    text, *rest = found["read"]
    assert "bytes 0 to 10" in text and rest == ["shards/nowhere.tar", True, 1]
    assert "start the loader's workers with 'forkserver' or 'spawn'" in found["fork"]


def test_an_object_that_is_replaced_between_two_reads_is_noticed(port):
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys)
    client.put_object(Bucket="shards", Key="replaced", Body=b"a" * 100)
    storage = by_s3fs(port)
    _, tag = info_of(storage)("s3://shards/replaced")
    assert read_of(storage)("s3://shards/replaced", 10, 20, tag) == b"a" * 10
    client.put_object(Bucket="shards", Key="replaced", Body=b"b" * 100)
    client.close()
    with pytest.raises(RemoteError, match="has changed") as caught:
        read_of(storage)("s3://shards/replaced", 10, 20, tag)
    assert (caught.value.attempts, caught.value.missing) == (1, False)
