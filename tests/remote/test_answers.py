"""Answers with the right number of wrong bytes, and files that change between two reads of one process."""

import base64
import hashlib
import os

import pytest

import slipring
from slipring.errors import RemoteError
from tests.remote.sources import source
from tests.support.inside import Damaged, check, info_of, read_of

DATA = b"the bytes of a file"
HASTY = {"attempts": 3, "timeout": 30.0, "attempt_timeout": 5.0}


def digest(algorithm, data):
    return base64.b64encode(hashlib.new(algorithm, data).digest()).decode()


OF = {
    name: lambda data, name=name, form=form, algorithm=algorithm: {name: form.format(digest(algorithm, data))}
    for name, form, algorithm in (
        ("Content-Digest", "sha-256=:{}:", "sha256"),
        ("Repr-Digest", "md5=:nothing:, sha-512=:{}:", "sha512"),
        ("Digest", "SHA-256={}", "sha256"),
        ("Content-MD5", "{}", "md5"),
    )
}


@pytest.mark.parametrize("name", OF)
def test_the_digest_that_an_answer_has_is_compared(name):
    check(OF[name](DATA), DATA, None, "")
    with pytest.raises(Damaged, match=name):
        check(OF[name](DATA), DATA[:-1] + b"E", None, "")
    of_the_range = name == "Content-Digest"  # the others are digests of the whole file
    check({"Content-Range": "bytes 4-8/19", **OF[name](DATA[4:9] if of_the_range else DATA)}, DATA[4:9], 4, "")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Digest": "crc32=:nothing:", "Content-MD5": hashlib.md5(b"other").hexdigest()},
        {"Content-Encoding": "gzip", "ETag": '"a-gzip"', "Content-Digest": f"sha-256=:{digest('sha256', b'other')}:"},
        {"ETag": '"a"', "Last-Modified": "today"},
    ],
    ids=str,
)
def test_missing_headers_of_an_answer_are_no_error(headers):
    for tag in ("", '"a"', "today"):
        check(headers, DATA, None, tag)


def test_another_range_and_another_state_of_the_file_are_noticed():
    with pytest.raises(Damaged, match="from 4 on came where those from 3 on"):
        check({"Content-Range": "bytes 4-8/19"}, DATA[4:9], 3, "")
    with pytest.raises(ValueError, match="has changed"):
        check({"ETag": '"b"'}, DATA, 3, '"a"')


@pytest.mark.parametrize("fault", ["damaged", "shifted"])
def test_wrong_bytes_of_the_right_length_are_asked_for_again(folder, serve, fault):
    server = serve(folder, digests=True, **{fault: 2})
    storage = slipring.Storage(**HASTY)
    assert read_of(storage)(f"{server.url}/0.tar", 100, 2000) == (folder / "0.tar").read_bytes()[100:2000]
    assert server.tells("requests")["requests"] == 3


def test_a_server_that_only_gives_wrong_bytes_is_named(folder, serve):
    server = serve(folder, digests=True, damaged=1000)
    with pytest.raises(RemoteError, match=r"after 3 attempts.*not those of the answer's Content-Digest"):
        source("Tar", server.url, storage=slipring.Storage(**HASTY))


def test_a_file_that_changes_between_two_reads_is_noticed(tmp_path, serve):
    (tmp_path / "file").write_bytes(os.urandom(1000))
    url = f"{serve(tmp_path).url}/file"
    storage = slipring.Storage(**HASTY)
    size, tag = info_of(storage)(url)
    assert read_of(storage)(url, 0, size, tag) == (tmp_path / "file").read_bytes()
    os.utime(tmp_path / "file", (1, 1))
    with pytest.raises(RemoteError, match="has changed") as caught:
        read_of(storage)(url, 100, 200, tag)
    assert caught.value.attempts == 1
