"""Names that distinguish files, wherever they are: by protocol, endpoint and location, never by credentials.

fsspec's own ids do not do that: `fsid` is the same for all S3 endpoints, or missing, and a token has the credentials.
"""

import hashlib
import io
import os
import pickle
import re

# Options with credentials, and options of how to read, are left out of a name. All others, including unknown ones, may
# determine where files lie. The name is a one-way hash: an option that is missing here costs a second copy, no secret.
_WHO_OR_HOW = re.compile(
    r"""(?:X_)? (?:  # as headers begin
    (?:\w+_)? (?:token|password|passwd|passphrase|secret|credentials?)  # who
    | (?:(?:aws_)?(?:secret_)?access|account|api|private|secret|shared)_key (?:_id)?
    | key | tok | anon(?:ymous)? | auth | (?:proxy_)?authorization | cookies? | user_agent
    | credential\w* | session\w* | kerb_\w+ | kerberos | key_filename | pkey

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
_USER = r"\1@"
_KEY = re.compile(r"(?:AccountKey|SharedAccessSignature|Password|Pwd)=[^;]*", re.IGNORECASE)
_SYSTEMS = {("fsspec.spec", "AbstractFileSystem"), ("pyarrow._fs", "FileSystem")}


def token_of(options, filesystem=None):
    """Return a short name of the location that is read with these options, or through this file system."""
    written = io.BytesIO()
    try:
        _LocationPickler(written).dump(_without_credentials(options) if filesystem is None else filesystem)
    except Exception:  # pickling an option may raise anything; data under this name is never found again
        return os.urandom(16).hex()
    return _short(written.getvalue())


def name_of(token, url, tag, start, stop):
    """Return the name of a file's bytes in a local cache."""
    text = f"{token} {_PASSWORD.sub(_USER, url)} {tag} {start} {stop}"
    return _short(text.encode("utf-8", "surrogatepass"))


def _short(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class _LocationPickler(pickle.Pickler):
    """A pickler that writes file systems without credentials and options of how to read."""

    def __init__(self, file):
        super().__init__(file, protocol=4)
        self.fast = True  # equal values are written alike, whether or not they are one object

    def persistent_id(self, value):
        if isinstance(value, str) and _PASSWORD.match(value):
            return _PASSWORD.sub(_USER, value)
        return None

    def reducer_override(self, value):
        if not any((kind.__module__, kind.__qualname__) in _SYSTEMS for kind in type(value).__mro__):
            return NotImplemented
        if hasattr(value, "storage_options"):  # fsspec's, which keeps its constructor's arguments
            made_with = *value.storage_args, value.storage_options
        else:
            made_with = value.__reduce__()[1]
        kept = [_without_credentials(each) if isinstance(each, dict) else each for each in made_with]
        return tuple, ((type(value).__module__, type(value).__qualname__, *kept),)


def _without_credentials(options):
    """Return the options without credentials and options of how to read."""
    kept = {}
    for name, value in options.items():
        if _WHO_OR_HOW.fullmatch(str(name).replace("-", "_")):
            continue
        if name == "connection_string" and isinstance(value, str):  # of Azure: "AccountName=...;AccountKey=...;..."
            value = _KEY.sub("", value)
        elif isinstance(value, dict) and _NESTED.fullmatch(str(name)):
            value = _without_credentials(value)
        kept[str(name)] = value
    return sorted(kept.items(), key=lambda option: option[0])
