"""File systems of fsspec, and of pyarrow by fsspec's wrapper. Each read ends within its seconds."""

import asyncio
import concurrent.futures
import errno
import threading
from concurrent.futures import Future

from fsspec.implementations.arrow import ArrowFSWrapper

from slipring._files.answers import check

# Fields that change with a file, best first: of s3fs and http, gcsfs, adlfs, and others.
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "Last-Modified", "mtime", "updated")


class Pyarrow(ArrowFSWrapper):
    """A file system of pyarrow."""

    cachable = False  # the instance ends with its last reference

    @classmethod
    def _strip_protocol(cls, path):
        return path.partition("://")[2] or path

    def cat_file(self, path, start=None, end=None):
        """Read a range; fsspec's own method takes no range that begins at 0, and needs more calls for a whole file."""
        with self.fs.open_input_file(path) as file:
            return file.read() if start is None else file.read_at(end - start, start)

    def find(self, path, detail=True):
        """List all files below; fsspec would send a request for each folder."""
        from pyarrow.fs import FileSelector

        try:
            found = self.fs.get_file_info(FileSelector(path, recursive=True))
        except OSError as error:
            if "NO_SUCH_BUCKET" in str(error):  # S3's, which has no type of its own
                raise FileNotFoundError(f"{path} is not there: {error}") from error
            raise
        return {info.path: {"type": info.type.name.lower(), "mtime": info.mtime} for info in found}


class Remote:
    """A file system whose calls have a time limit. A tag changes with the contents, as far as the server reports it."""

    has_answered = False  # its credentials, if it has any, were good

    def __init__(self, system):
        self._fs = system
        self._is_http = "http" in _protocols(system)
        self._is_s3 = "s3" in _protocols(system) and hasattr(system, "_call_s3")
        self._has_coroutines = _is_async(system)

    def path(self, url):
        """Return the file system's own name for a URL."""
        return self._fs._strip_protocol(url)

    def info(self, path, seconds):
        """Return (size, tag) of a file."""
        try:
            found = self._call("info", path, seconds=seconds)
        except FileNotFoundError:
            if self._is_http:  # it reports every failure like this; a read distinguishes them
                self.read(path, 0, 1, seconds)
                raise ConnectionError("the server does not answer a question about the file") from None
            raise
        except OSError as error:
            # The answer to S3's HEAD has no body, so no reason ("the token has expired"): the answer to a read has one.
            if isinstance(error, PermissionError) or error.errno == errno.EINVAL:
                self.read(path, 0, 1, seconds)
            raise
        if found.get("type") == "directory":
            raise IsADirectoryError(f"{path} is a directory")
        return found.get("size"), _tag(found)

    def read(self, path, start, stop, seconds, tag=""):
        """Return the bytes [start, stop), or all; raise an exception if the answer has another tag."""
        if self._is_s3 and start is not None and tag:
            return self._run(self._read_if_same(path, start, stop, tag), seconds)
        if not self._is_http:
            return self._call("cat_file", path, start=start, end=stop, seconds=seconds)
        headers = {}

        async def keep_headers(answer):  # aiohttp calls it; fsspec itself looks at the status
            headers["of"] = answer.headers

        data = self._call("cat_file", path, start=start, end=stop, seconds=seconds, raise_for_status=keep_headers)
        if "of" in headers:  # an empty range sends no request
            check(headers["of"], data, start, tag)
        return data

    async def _read_if_same(self, path, start, stop, etag):
        """Read from an object of S3, which refuses if the object has changed; `cat_file` has no such request."""
        bucket, key, version = self._fs.split_path(path)
        options = {"VersionId": version} if version else {"IfMatch": etag}
        try:
            found = await self._fs._call_s3(
                "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **options
            )
        except OSError as error:
            answer = getattr(error.__cause__, "response", {})
            if answer.get("Error", {}).get("Code") in ("PreconditionFailed", "412"):
                raise ValueError(f"the object has changed: its ETag was {etag}; create the dataset again") from error
            raise
        async with found["Body"] as body:
            return await body.read()

    def find(self, root, seconds):
        """Return (path, tag) of all files below."""
        strict = {"on_error": "raise"} if self._is_http else {}  # by default it leaves out folders that fail
        found = self._call("find", root, detail=True, seconds=seconds, **strict)
        return [(path, _tag(info)) for path, info in sorted(found.items()) if info.get("type") == "file"]

    def _call(self, name, *args, seconds, **options):
        if not self._has_coroutines:
            return within(seconds, lambda: getattr(self._fs, name)(*args, **options))
        return self._run(getattr(self._fs, f"_{name}")(*args, **options), seconds)

    def _run(self, made, seconds):
        """Return the result of one of the file system's coroutines."""
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(made, seconds), self._fs.loop)
        try:
            return future.result(seconds + 1)  # one more, for a loop that is delayed
        except BaseException:
            future.cancel()
            raise


def within(seconds, read):
    """Return the result of `read`, or raise TimeoutError; `read` then continues in an abandoned thread."""
    future = Future()

    def run():
        try:
            future.set_result(read())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="slipring-read", daemon=True).start()
    try:
        return future.result(seconds)
    except concurrent.futures.TimeoutError:
        if future.done():  # the read itself raised it
            raise
        raise TimeoutError(f"no answer within {seconds:.1f} s") from None


def _is_async(system):
    """Return whether a file system has coroutines; a wrapper (``dir://``) claims them even if it wraps none."""
    below = getattr(system, "fs", None)
    return system.async_impl and (below is None or _is_async(below))


def _protocols(system):
    names = system.protocol
    return (names,) if isinstance(names, str) else tuple(names)


def _tag(info):
    return next((str(info[name]) for name in _TAGS if info.get(name)), "")
