"""Check the bytes of an HTTP answer: their offset in the file, the state of the file, and their digest."""

import base64
import hashlib
import re

from slipring._files.attempts import Damaged

_RANGE = re.compile(r"bytes (\d+)-")
_DIGESTS = re.compile(r"(?:^|[\s,])(sha-256|sha-512)=:?([A-Za-z0-9+/]+=*)", re.IGNORECASE)
# Digests of the answer's bytes, and of the whole file: RFC 9530, and the headers that it replaces.
_OF_THE_ANSWER, _OF_THE_FILE = ("Content-Digest",), ("Repr-Digest", "Digest")


def check(headers, data, start, tag):
    """Raise if the bytes are not those that were requested.

    `headers` maps names in any case. `start` is the first byte requested; None: the whole file. `tag` is the file's
    ETag or time of modification when its size was requested; "" is unknown. Raise Damaged if another attempt may
    succeed, and ValueError if the file has changed.
    """
    if headers.get("Content-Encoding", "identity") != "identity":
        return  # ETag and digests refer to the encoded bytes
    etag = headers.get("ETag")
    if tag and etag and tag not in (etag, headers.get("Last-Modified")):
        raise ValueError(f"the file has changed: its tag was {tag} and is {etag}; create the dataset again")
    came = _RANGE.match(headers.get("Content-Range", ""))
    if start is not None and came and int(came[1]) != start:
        raise Damaged(f"the bytes from {came[1]} on came where those from {start} on were requested")
    for name in _OF_THE_ANSWER + (_OF_THE_FILE if start is None else ()):
        for algorithm, expected in _DIGESTS.findall(headers.get(name, "")):
            _compare(name, hashlib.new(algorithm.lower().replace("-", ""), data), expected)
    if start is None and "Content-MD5" in headers:  # for a range, some servers send the digest of the file
        _compare("Content-MD5", hashlib.md5(data), headers["Content-MD5"])


def _compare(name, found, expected):
    digest = base64.b64encode(found.digest()).decode()
    if expected != digest and len(expected) == len(digest):  # some servers write hexadecimal digits
        raise Damaged(f"the bytes that came are not those of the answer's {name}")
