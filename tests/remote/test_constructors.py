"""A file system whose constructor fails: it is called within the attempt, and the error has the URL."""

import os
import signal

import pytest

import slipring
from slipring import Workers
from slipring.errors import LoaderTimeout, RemoteError
from tests.remote.sources import rows, source
from tests.support.inside import read_of
from tests.support.processes import LONG_S
from tests.support.signals import handling

local = pytest.importorskip("fsspec.implementations.local")

QUICK = {"attempts": 3, "timeout": 50.0}


class Flaky(local.LocalFileSystem):
    """Local files with URLs of their own; the constructor raises the exceptions in `errors` in order."""

    protocol = "flaky"
    cachable = False
    errors = ()
    made = 0

    def __init__(self, *args, **options):
        Flaky.made += 1
        if Flaky.errors:
            error, *Flaky.errors = Flaky.errors
            raise error
        super().__init__(*args, **options)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("flaky://"))


@pytest.fixture(autouse=True)
def known():
    """Register the class's protocol with fsspec."""
    from fsspec.registry import _registry, register_implementation

    register_implementation("flaky", Flaky, clobber=True)
    Flaky.errors, Flaky.made = (), 0
    yield
    Flaky.errors = ()
    del _registry["flaky"]


def given(way, folder, **options):
    """Return (root, storage) for a folder: with URLs, with an instance, or with pyarrow's wrapper of an instance."""
    from pyarrow import fs

    if way == "url":
        return f"flaky://{folder}", slipring.Storage(**options)
    system = Flaky()
    if way == "pyarrow":
        system = fs.PyFileSystem(fs.FSSpecHandler(system))
    return str(folder), slipring.Storage(system, **options)


@pytest.mark.parametrize(
    ("way", "kind"), [("url", "Tar"), ("fsspec", "TarStream"), ("pyarrow", "Folder"), ("url", "TableDataset")]
)
def test_a_constructor_that_fails_twice_is_called_a_third_time_in_every_process(folder, way, kind):
    failing = [ConnectionError("no server of tokens"), TimeoutError("not yet")]
    root, storage = given(way, folder, **QUICK)
    Flaky.errors, Flaky.made = failing, 0
    data = source(kind, root, storage=storage)
    assert Flaky.made >= 3  # two threads read two shards
    Flaky.errors = failing  # for the forked worker
    assert rows(data, num_workers=1, start_method="fork") == rows(source(kind, folder))


@pytest.mark.parametrize("way", ["url", "fsspec", "pyarrow"])
def test_a_constructor_that_always_fails_ends_in_an_error_with_the_url(folder, way):
    root, storage = given(way, folder, **QUICK)
    Flaky.errors, Flaky.made = [ConnectionError("no server of tokens")] * 100, 0
    with pytest.raises(RemoteError, match=r"after 3 attempts.*ConnectionError: no server of tokens") as caught:
        source("Parquet", root, storage=storage)
    assert caught.value.url == f"{root}/rows.parquet" and Flaky.made == 3
    assert (caught.value.missing, caught.value.attempts) == (False, 3)


@pytest.mark.parametrize(
    ("way", "error"), [("url", PermissionError("expired")), ("pyarrow", FileNotFoundError("of the key"))], ids=repr
)
def test_credentials_that_a_constructor_does_not_find_are_not_tried_again(folder, way, error):
    root, storage = given(way, folder, **QUICK)
    Flaky.errors = [error] * 100
    with pytest.raises(RemoteError, match=f"may not be read.*{type(error).__name__}: {error}") as caught:
        source("Parquet", root, storage=storage)
    assert caught.value.url == f"{root}/rows.parquet"
    assert (caught.value.missing, caught.value.attempts) == (False, 1)


def test_a_worker_that_does_not_find_the_file_of_its_key_skips_no_image(folder):
    data = source("Folder", f"flaky://{folder}", storage=slipring.Storage(**QUICK), on_error="skip")
    Flaky.errors = [FileNotFoundError(2, "No such file or directory", "key.json")] * 100
    loader = slipring.Loader(data, 8, num_workers=1, timeout=LONG_S, workers=Workers(start_method="fork"))
    with loader, pytest.raises(RemoteError, match=r"key\.json") as caught:
        next(iter(loader))
    assert caught.value.index == 0 and not caught.value.missing


def test_a_library_that_a_constructor_lacks_is_raised_at_once_unchanged(folder):
    root, storage = given("url", folder, **QUICK)
    Flaky.errors, Flaky.made = [ModuleNotFoundError("pip install tokens", name="tokens")] * 100, 0
    with pytest.raises(ModuleNotFoundError, match="pip install tokens"):
        source("Parquet", root, storage=storage)
    assert Flaky.made == 1


def test_a_handlers_exception_in_a_constructor_is_no_failure_of_it(folder):
    class Stops(FileNotFoundError):
        def __str__(self):
            return "the program's own"

    def give_up(signum, frame):
        raise Stops

    class Interrupted:
        """A list of errors whose check sends a signal first."""

        def __bool__(self):
            os.kill(os.getpid(), signal.SIGUSR1)
            return True

    with handling(give_up):
        Flaky.errors = Interrupted()
        with pytest.raises(Stops):
            read_of(slipring.Storage(**QUICK))(f"flaky://{folder}/0.tar", 0, 10)  # in this thread


def test_a_constructor_that_blocks_delays_its_worker_until_the_loaders_timeout(folder):
    """It is not interrupted: `attempt_timeout` does not apply there."""

    class Blocks:
        def __bool__(self):
            signal.pause()

    data = source("Parquet", f"flaky://{folder}", storage=slipring.Storage(attempt_timeout=0.1, timeout=0.2))
    Flaky.errors = Blocks()
    loader = slipring.Loader(data, 8, num_workers=1, timeout=2, workers=Workers(start_method="fork"))
    with loader, pytest.raises(LoaderTimeout):
        next(iter(loader))
