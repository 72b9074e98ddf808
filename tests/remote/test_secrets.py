"""Credentials in URLs are in no message, traceback, log or repr."""

import logging
import pickle
import traceback

import pytest

import slipring
from slipring import images
from slipring.errors import ImageError, RemoteError, shown
from slipring.redaction import redacted
from tests.remote.sources import source
from tests.support.inside import read_of
from tests.support.shards import files, shard

SIGNED = (
    "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=hidden&X-Amz-Security-Token=hidden%2Fhidden"
    "&X-Amz-Date=20260101T000000Z&X-Amz-Signature=hidden&part=3"
)
HASTY = {"attempts": 1, "timeout": 20.0, "attempt_timeout": 2.0}


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("https://me:hidden@host:80/a.tar?x=1", "https://***@host:80/a.tar?x=1"),
        ("https://hidden@host/a, https://host/b@c", "https://***@host/a, https://host/b@c"),
        ("s3://me:hid@den@bucket/a", "s3://***@bucket/a"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("simplecache::https://me:hidden@host/a", "simplecache::https://***@host/a"),
        ("at url: /a.tar?Signature=hid%2Fden&part=3: gone", "at url: /a.tar?Signature=***&part=3: gone"),
        ("(https://h/a?x=1&sig=hidden)", "(https://h/a?x=1&sig=***)"),
        ("'https://h/a?token=hidden', password", "'https://h/a?token=***', password"),
        ("https://h/a?key=hidden#b", "https://h/a?key=***#b"),
        ("https://h/a?author=me&keys=3&monkey=4&design=5", "https://h/a?author=me&keys=3&monkey=4&design=5"),
        ("AccountName=a;AccountKey=hidden==", "AccountName=a;AccountKey=***"),
        ("user@host, num_workers=3, key=5, a && password == b", "user@host, num_workers=3, key=5, a && password == b"),
        *(
            (f"https://h/a?part=3&{name}=hidden", f"https://h/a?part=3&{name}=***")
            for name in (
                "X-Amz-Signature", "X-Amz-Credential", "X-Amz-Security-Token", "x-goog-signature", "Signature", "sig",
                "token", "access_token", "key", "api_key", "apikey", "password", "passwd", "client_secret",
                "AWSAccessKeyId", "GoogleAccessId", "Key-Pair-Id", "Policy", "auth", "sessionid",
            )
        ),
    ],
)  # fmt: skip
def test_credentials_are_left_out_of_a_text_and_the_rest_stays(text, without):
    assert redacted(text) == without and redacted(without) == without


def test_messages_and_attributes_of_errors_have_no_credentials():
    error = RemoteError(f"https://h/a{SIGNED}: nothing", url=f"https://h/a{SIGNED}", attempts=2)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert "hidden" not in f"{one} {one!r} {one.__dict__}"
        assert one.url.endswith("&part=3") and one.attempts == 2
    assert "hidden" not in shown([f"https://h/{'a' * 450}{SIGNED}"])


@pytest.mark.parametrize(("kind", "path"), [("Tar", "/nowhere"), ("TableDataset", "/secret"), ("Folder", "")])
def test_a_file_that_cannot_be_read_is_named_without_credentials(server, serve, folder, path, kind):
    """The texts of fsspec and aiohttp, which are printed as causes, contain none either."""
    url = (server if path else serve(folder, fail=1.0)).url + path
    url = url.replace("://", "://me:hidden@") + "/0.tar" + SIGNED
    read = {
        "Tar": lambda storage: images.Tar(url, storage=storage),
        "Folder": lambda storage: images.Folder(url, storage=storage),
        "TableDataset": lambda storage: source("TableDataset", url, storage=storage),
    }[kind]
    with pytest.raises(RemoteError, match="part=3") as caught:
        read(slipring.Storage(**HASTY))
    text = "".join(traceback.format_exception(caught.type, caught.value, caught.value.__traceback__))
    assert "hidden" not in f"{text} {caught.value.__dict__}"
    assert caught.value.__cause__ is not None and caught.value.__context__ is None


class Signed(images.Tar):
    """A shard whose samples have URLs of their own."""

    url = ""

    def read(self, index):
        return read_of(self._remote)(self.url, 0, 10), 0


def test_the_traceback_of_a_worker_has_no_credentials(server):
    data = Signed(f"{server.url}/0.tar", images.CenterCrop(20), storage=slipring.Storage(**HASTY))
    data.url = f"{server.url}/nowhere{SIGNED}"
    with slipring.Loader(data, 4, num_workers=1) as loader, pytest.raises(RemoteError) as caught:
        next(iter(loader))
    text = "".join(traceback.format_exception(caught.type, caught.value, caught.value.__traceback__))
    assert "hidden" not in text and "hidden" not in caught.value.__cause__.traceback and "part=3" in text


class Refused:
    """A dataset whose own exception has a signed URL in its text."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError(f"403 for https://h/a{SIGNED}")


def test_the_report_on_a_datasets_own_exception_has_no_credentials():
    with slipring.Loader(Refused(), 2, num_workers=1) as loader, pytest.raises(ValueError, match="403") as caught:
        next(iter(loader))
    assert "hidden" not in f"{caught.value.__cause__} {caught.value.__cause__.traceback}"


class Broken(images.Tar):
    def read(self, index):
        return b"no image", 0


def test_the_log_of_a_skipped_image_and_other_messages_have_no_credentials(tmp_path, serve, caplog):
    shard(tmp_path / "a.tar", files(2))
    (tmp_path / "b.tar").write_bytes(b"no shard" * 100)
    root = serve(tmp_path).url
    data = Broken(f"{root}/a.tar{SIGNED}", images.CenterCrop(20), on_error="skip")
    with caplog.at_level(logging.WARNING, "slipring"), pytest.raises(ImageError, match="none of the 2 images"):
        data[0]
    assert "skipped" in caplog.text and "part=3" in caplog.text and "hidden" not in caplog.text
    with pytest.raises(ValueError, match="is no tar file") as caught:
        images.Tar(f"{root}/b.tar{SIGNED}")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("kind", ["Tar", "TarStream", "Parquet", "Folder", "TableDataset"])
def test_the_repr_of_a_dataset_has_no_credentials(server, kind):
    text = repr(source(kind, server.url.replace("://", "://me:hidden@")))
    assert "hidden" not in text and kind in text
