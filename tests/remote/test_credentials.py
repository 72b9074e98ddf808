"""Credentials of S3 that expire during an epoch: the error says so, and with new ones the loader continues."""

import json
import os
import sys

import pytest

import slipring
from slipring import images
from slipring.errors import RemoteError
from tests.remote.sources import CROP, plain
from tests.support.options import grouped
from tests.support.processes import LONG_S
from tests.support.shards import files, shard

pytest.importorskip("s3fs")

SHARDS = 8
PROVIDER = """#!{python}
import datetime, json
key, seconds = json.load(open({file!r}))
when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
print(json.dumps({{"Version": 1, "AccessKeyId": key, "SecretAccessKey": "secret", "SessionToken": "token",
                  "Expiration": when.isoformat()}}))
"""
OWN = {"key": "first", "secret": "secret", "token": "token"}
EARLY, LATE = (60, 36_000)  # seconds until credentials expire: botocore renews those that have less than 10 minutes


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A folder with the bucket "shards"."""
    bucket = tmp_path_factory.mktemp("buckets")
    (bucket / "shards").mkdir()
    for number in range(SHARDS):
        shard(bucket / "shards" / f"{number}.tar", files(4, first=4 * number))
    return bucket


@pytest.fixture
def server(bucket, tmp_path, serve, monkeypatch):
    """A server that accepts the keys in the file "keys"; credentials come from files below `tmp_path`."""
    (tmp_path / "keys").write_text("first")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return serve(bucket, keys=str(tmp_path / "keys"))


def dataset(kind, root, storage=None):
    return getattr(images, kind)([f"{root}/{number}.tar" for number in range(SHARDS)], CROP, storage=storage)


def read(kind, storage, workers, change, threads=None):
    """Return the batches and the error, if any; call `change` after the first batch."""
    got = []
    data = dataset(kind, "s3://shards", storage)
    options = {"num_workers": workers, "prefetch_factor": 1, "fetch_threads": threads}
    with slipring.Loader(data, 4, timeout=LONG_S, **grouped(**options)) as loader:
        try:
            for batch in loader:
                got.append(plain(batch))
                if len(got) == 1:
                    change()
        except RemoteError as error:
            return got, error
    return got, None


def expected(kind, bucket):
    with slipring.Loader(dataset(kind, bucket / "shards"), 4) as loader:
        return [plain(batch) for batch in loader]


def by_process(folder, key, seconds):
    """Credentials with an expiry time."""
    (folder / "key").write_text(json.dumps([key, seconds]))
    (folder / "provide").write_text(PROVIDER.format(python=sys.executable, file=str(folder / "key")))
    os.chmod(folder / "provide", 0o755)
    (folder / "config").write_text(f"[default]\ncredential_process = {folder / 'provide'}\n")


@pytest.mark.parametrize(("kind", "workers"), [("Tar", 0), ("TarStream", 1)])
def test_credentials_that_expire_in_mid_epoch_are_named_after_one_attempt(bucket, server, tmp_path, kind, workers):
    storage = slipring.Storage(storage_options={"endpoint_url": server.url, **OWN})
    got, error = read(kind, storage, workers, lambda: (tmp_path / "keys").write_text("second"))
    assert got and got == expected(kind, bucket)[: len(got)]
    assert "may not be read" in str(error) and "The provided token has expired" in str(error)
    assert error.attempts == 1 and not error.missing and error.url.startswith("s3://shards/")


@pytest.mark.usefixtures("forked")  # a fork server has the environment of its own start
@pytest.mark.parametrize(
    ("seconds", "workers", "threads"), [(EARLY, 0, None), (LATE, 1, 8)], ids=["expires early", "expires late, threads"]
)
def test_credentials_that_are_renewed_in_mid_epoch_lose_nothing(bucket, server, tmp_path, seconds, workers, threads):
    def renew():
        by_process(tmp_path, "second", seconds)
        (tmp_path / "keys").write_text("second")

    by_process(tmp_path, "first", seconds)
    storage = slipring.Storage(storage_options={"endpoint_url": server.url})
    assert read("Tar", storage, workers, renew, threads) == (expected("Tar", bucket), None)
