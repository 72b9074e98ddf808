"""What tells files apart, wherever they are: protocol, endpoint and place, never who may read them."""

import hashlib
import inspect
import re

# Options of file systems that say where files lie: the others may be secrets, of which no list would have all.
_PLACES = {
    "account_host", "account_name", "base_path", "base_url", "blob_storage_authority", "branch", "bucket",
    "client_kwargs", "container", "container_name", "database", "dataset", "endpoint", "endpoint_override",
    "endpoint_url", "file_system_name", "fo", "fs", "host", "hostname", "org", "owner", "path", "port", "project",
    "protocol", "ref", "region", "region_name", "repo", "repo_id", "repo_type", "revision", "root", "scheme",
    "server", "sha", "share", "share_name", "target_options", "target_protocol", "url", "volume",
}  # fmt: skip
_NESTED = ("client_kwargs", "target_options")  # options of another one
_PASSWORD = re.compile(r"^([A-Za-z0-9+.-]+://[^/:@]*):[^/]*@")


def token_of(options, filesystem=None):
    """Return a short name of the place that is read with these options, or by this file system."""
    return _short(repr(_places(options) if filesystem is None else _of(filesystem)))


def name_of(token, url, tag, start, stop):
    """Return what bytes of a file are called on a disk here."""
    return _short(f"{token} {_without_password(url)} {tag} {start} {stop}")


def _short(text):
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _without_password(text):
    """Return a URL without the password that it may have before the host."""
    return _PASSWORD.sub(r"\1@", text)


def _of(filesystem):
    """Return what tells a file system of fsspec, or of pyarrow, from others."""
    kind = type(filesystem).__name__
    if hasattr(filesystem, "storage_options"):  # fsspec's, which keeps what it was made with
        names = list(inspect.signature(type(filesystem).__init__).parameters)[1:]
        options = {**dict(zip(names, filesystem.storage_args)), **filesystem.storage_options}
        return kind, _places(options)
    if hasattr(filesystem, "base_fs"):
        return kind, filesystem.base_path, _of(filesystem.base_fs)
    if hasattr(filesystem, "handler"):
        below = getattr(filesystem.handler, "fs", None)
        return kind, type(filesystem.handler).__name__, None if below is None else _of(below)
    (first, *_) = filesystem.__reduce__()[1] or ({},)  # what it is made anew with
    return filesystem.type_name, _places(first) if isinstance(first, dict) else None


def _places(options):
    return sorted((name, _told(name, value)) for name, value in options.items() if name in _PLACES)


def _told(name, value):
    if name in _NESTED and isinstance(value, dict):
        return repr(_places(value))
    if name == "fs":
        return repr(_of(value))
    return _without_password(value) if isinstance(value, str) else repr(value)
