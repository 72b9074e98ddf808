"""Names that distinguish files, wherever they are: by protocol, endpoint and place, never by who may read them."""

import hashlib
import inspect
import os
import pickle
import re

# Options that say who reads, or how, are left out of a name; all others, also those that nobody here knows, may say
# where files lie. The name is a hash that nobody turns round: what is missing here costs a second copy, no secret.
_WHO_OR_HOW = re.compile(
    r"""(?:X_)? (?:  # as headers begin
    (?:\w+_)? (?:token|password|passwd|passphrase|secret|credentials?)  # who
    | (?:(?:aws_)?(?:secret_)?access|account|api|private|secret|shared)_key (?:_id)?
    | key | tok | anon(?:ymous)? | auth | (?:proxy_)?authorization | cookies? | user_agent
    | credential\w* | session\w* | kerb_\w+ | kerberos | key_filename | pkey
    | AccountKey | SharedAccessSignature | Password | Pwd  # in connection strings

    | \w*timeout\w* | cache_\w+ | asynchronous | loop | get_client  # how
    | skip_instance_cache | use_listings_cache | listings_expiry_time | max_paths
    | (?:default_)? (?:block_size|fill_cache|cache_type) | batch_size | requester_pays
    | max_concurrency | max_concurrent_tasks | max_workers | semaphore | retries | retry_\w+
    | background_writes | load_frequency | replication | use_mmap
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_NESTED = re.compile(r"(?:\w+_)?(?:kwargs|options|args|conf|headers)")  # options of another one
_PASSWORD = re.compile(r"^([A-Za-z0-9+.-]+://[^/:@]*):[^/]*@")
_SYSTEMS = {("fsspec.spec", "AbstractFileSystem"), ("pyarrow._fs", "FileSystem")}


def token_of(options, filesystem=None):
    """Return a short name of the place that is read with these options, or through this file system."""
    return _short(repr(_places(options) if filesystem is None else _of(filesystem)))


def name_of(token, url, tag, start, stop):
    """Return the name of a file's bytes in a local cache."""
    return _short(f"{token} {_without_password(url)} {tag} {start} {stop}")


def _short(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _without_password(text):
    """Return a URL without the password that it may have before the host."""
    return _PASSWORD.sub(r"\1@", text)


def _is_system(value):
    return any((kind.__module__, kind.__qualname__) in _SYSTEMS for kind in type(value).__mro__)


def _called(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _of(filesystem):
    """Return what distinguishes a file system of fsspec, or of pyarrow, from others."""
    kind = _called(filesystem)
    if hasattr(filesystem, "storage_options"):  # fsspec's, which keeps what it was made with
        return kind, _places(_given(filesystem))
    if hasattr(filesystem, "base_fs"):
        return kind, filesystem.base_path, _of(filesystem.base_fs)
    if hasattr(filesystem, "handler"):
        handler = filesystem.handler
        if _called(handler) == "pyarrow.fs.FSSpecHandler":
            return kind, _of(handler.fs)
        return kind, _recipe(handler)
    made_with = filesystem.__reduce__()[1]
    return kind, [_places(value) if isinstance(value, dict) else _told("", value) for value in made_with]


def _given(filesystem):
    """Return the options of a file system of fsspec, including those given by position."""
    (_, *parameters) = inspect.signature(type(filesystem).__init__).parameters.values()
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    given = filesystem.storage_args
    names += [f"{place}" for place in range(len(names), len(given))]
    return {**dict(zip(names, given)), **filesystem.storage_options}


def _places(options):
    """Return the options without those that say who reads, or how."""
    return sorted(
        (str(name), _told(str(name), value))
        for name, value in options.items()
        if not _WHO_OR_HOW.fullmatch(str(name).replace("-", "_"))
    )


def _told(name, value):
    """Return a text that is the same for equal values, and differs for different ones."""
    if _is_system(value):
        return repr(_of(value))
    if isinstance(value, dict):
        if _NESTED.fullmatch(name):
            return repr(_places(value))
        return repr(sorted((repr(key), _told("", below)) for key, below in value.items()))
    if isinstance(value, (list, tuple)):
        return repr([_told("", below) for below in value])
    if isinstance(value, str):
        if name == "connection_string":  # "AccountName=...;AccountKey=...;EndpointSuffix=..."
            return repr(_places(dict(part.partition("=")[::2] for part in value.split(";"))))
        return repr(_without_password(value))
    if value is None or isinstance(value, (bool, int, float, bytes)):
        return repr(value)
    return _recipe(value)


def _recipe(value):
    """Return a name of any object, by its pickle; if it has none, a name that is never found again."""
    try:
        return f"{_called(value)} {_short(pickle.dumps(value))}"
    except Exception:  # whatever its pickling raises
        return f"{_called(value)} {os.urandom(16).hex()}"
