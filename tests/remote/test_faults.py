"""A server that fails, stalls, refuses or ends: no sample is lost, or an error names it, and nothing hangs."""

import os
import shutil
import signal

import pytest

import slipring
from slipring import Workers, images
from slipring.errors import ImageError, RemoteError
from tests.remote.sources import CROP, plain, rows, source
from tests.support.http_server import Running
from tests.support.inside import read_of
from tests.support.processes import LONG_S
from tests.support.shards import files, shard

SEED = int(os.environ.get("SLIPRING_TEST_SEED", "5"))
PATIENT = {"attempts": 12, "attempt_timeout": 1.0}
HASTY = {"attempts": 3, "timeout": 20.0, "attempt_timeout": 0.5}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("TarStream", {}),
        ("Tar", {"shuffle": True, "fetch_threads": 4}),
        ("Folder", {"shuffle": True}),
        ("TableDataset", {"shuffle": True, "fetch_threads": 4}),
        ("TableDataset of IPC", {"shuffle": True}),
    ],
)
def test_a_server_that_fails_and_stalls_loses_nothing(folder, serve, kind, options):
    server = serve(folder, seed=SEED, fail=0.15, stall=0.03)
    data = source(kind, server.url, storage=slipring.Storage(**PATIENT))
    here = source(kind, folder)
    want = rows(here, num_workers=2, **options)
    faults = 0
    while not faults:  # by chance, few requests may succeed
        assert rows(data, num_workers=2, **options) == want
        faults = sum(server.tells("faults").values())


@pytest.mark.parametrize("kind", ["Tar", "Folder", "TableDataset"])
def test_a_url_that_does_not_exist_is_named_at_once(server, kind):
    with pytest.raises(RemoteError, match="does not exist") as caught:
        source(kind, server.url + "/nowhere")
    assert caught.value.missing and caught.value.attempts == 1
    assert caught.value.url.startswith(server.url + "/nowhere/")


def test_a_forbidden_file_is_not_tried_again(server):
    with pytest.raises(RemoteError, match="may not be read") as caught:
        source("Tar", server.url + "/secret")
    assert (caught.value.missing, caught.value.attempts) == (False, 1)


@pytest.mark.parametrize(
    ("kind", "fault", "text"), [("TableDataset", "fail", "after 3 attempts"), ("Tar", "stall", "no answer in time")]
)
def test_a_server_that_only_fails_is_not_taken_for_a_file_that_is_missing(folder, serve, kind, fault, text):
    server = serve(folder, **{fault: 1.0})
    with pytest.raises(RemoteError, match=text) as caught:
        source(kind, server.url, storage=slipring.Storage(**HASTY))
    assert (caught.value.missing, caught.value.attempts) == (False, 3)
    assert caught.value.__cause__ is not None


def test_nobody_there_is_an_error_with_the_url(folder):
    with Running(folder) as server:
        url = server.url
    with pytest.raises(RemoteError, match="after 3 attempts") as caught:
        source("Tar", url, storage=slipring.Storage(**HASTY))
    assert caught.value.url.startswith(url)


def test_a_server_that_ignores_ranges_is_reported_at_once(folder, serve):
    server = serve(folder, ranges=False)
    with pytest.raises(RemoteError, match="does the server answer requests of ranges") as caught:
        source("Tar", server.url, storage=slipring.Storage(**HASTY))[5]
    assert caught.value.attempts == 1


def test_a_handlers_exception_is_no_failure_of_the_server(folder, serve):
    storage = slipring.Storage(attempts=8, timeout=50, attempt_timeout=20)
    server = serve(folder, stall=1.0)

    def give_up(signum, frame):
        raise TimeoutError("the program's own")

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        with pytest.raises(TimeoutError, match="the program's own") as caught:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            read_of(storage)(f"{server.url}/0.tar", 0, 1000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert type(caught.value) is TimeoutError


def test_a_shard_that_has_gone_costs_its_samples_and_the_stream_continues(folder, tmp_path, serve):
    for number in range(2):
        shutil.copy(folder / f"{number}.tar", tmp_path / f"{number}.tar")
    here = source("Tar", folder)
    shard_of = {here[n][0].tobytes(): n // 20 for n in range(40)}
    data = source("TarStream", serve(tmp_path).url, storage=slipring.Storage(**HASTY), shuffle=True)
    samples = iter(data)  # one request per sample
    gone = shard_of[next(samples)[0].tobytes()]
    (tmp_path / f"{gone}.tar").unlink()
    with pytest.raises(RemoteError, match="does not exist"):
        next(samples)
    assert [shard_of[picture.tobytes()] for picture, _ in samples] == [1 - gone] * 20


ROWS = 160  # 20 batches: more than a worker prefetches, and more than fail while the server is down


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Files like those of `folder`, but longer: record batches of 300 kB in Arrow IPC, and a shard per batch."""
    import pyarrow as pa

    long = tmp_path_factory.mktemp("long")
    for number in range(2):
        shard(long / f"{number}.tar", files(ROWS // 2, first=number * ROWS // 2))
    for number in range(ROWS // 8):
        shard(long / f"batch {number}.tar", files(8, first=8 * number))
    table = pa.table({"label": range(ROWS), "text": [f"number {i}" + "." * 75_000 for i in range(ROWS)]})
    with pa.ipc.new_file(str(long / "rows.arrow"), table.schema) as sink:
        sink.write_table(table, max_chunksize=4)
    return long


def read_on(kind, root, storage=None):
    """Return such a dataset of the files in `long`."""
    if kind != "TarStream":
        return source(kind, root, storage=storage)
    return images.TarStream([f"{root}/batch {number}.tar" for number in range(ROWS // 8)], CROP, storage=storage)


@pytest.mark.parametrize(("kind", "threads"), [("TarStream", None), ("Tar", None), ("TableDataset of IPC", 4)])
def test_when_the_server_goes_away_the_error_says_where_and_the_iteration_continues(long, kind, threads):
    with Running(long) as server:
        port = server.port
        data = read_on(kind, server.url, slipring.Storage(**HASTY))
        want = rows(read_on(kind, long))
        loader = slipring.Loader(
            data, 8, seed=3, num_workers=1, prefetch_factor=1, timeout=LONG_S, workers=Workers(fetch_threads=threads)
        )
        with loader:
            iterator = iter(loader)
            got = [plain(next(iterator))]
            server.kill()
            failed = None
            while failed is None:  # prefetched batches come first
                try:
                    got.append(plain(next(iterator)))
                except RemoteError as error:
                    failed = error
            assert f"127.0.0.1:{port}" in str(failed) and f"127.0.0.1:{port}" in failed.url
            assert got == want[: len(got)]
            assert failed.__cause__.seq == len(got)
            if kind == "Tar":  # the other kinds read whole groups of rows
                assert failed.index == 8 * len(got)
            with Running(long, port=port):
                while True:
                    try:
                        rest = [plain(batch) for batch in iterator]
                        break
                    except RemoteError:  # a batch that was made while the server was down
                        pass
            assert rest and rest == want[len(want) - len(rest) :]


@pytest.mark.parametrize("kind", ["Tar", "TarStream"])
def test_a_state_from_before_the_server_went_away_resumes_at_the_failed_batch(long, kind):
    def loader_of(data):
        return slipring.Loader(data, 8, num_workers=1, prefetch_factor=1, timeout=LONG_S)

    with Running(long) as server:
        port = server.port
        data, got = read_on(kind, server.url, slipring.Storage(**HASTY)), []
        with loader_of(data) as loader:
            iterator = iter(loader)
            server.kill()
            with pytest.raises(RemoteError):
                while True:
                    state = loader.state_dict()
                    got.append(plain(next(iterator)))
    with Running(long, port=port), loader_of(data) as again:
        again.load_state_dict(state)
        assert got + [plain(batch) for batch in again] == rows(read_on(kind, long))


def test_a_missing_image_is_passed_over_and_a_server_that_is_gone_is_not(folder, tmp_path):
    shutil.copytree(folder / "classes", tmp_path / "classes")
    with Running(tmp_path) as server:
        data = source("Folder", server.url, storage=slipring.Storage(**HASTY), on_error="skip")
        (tmp_path / data.samples[2][0].removeprefix(server.url + "/").replace("%20", " ")).unlink()
        assert (data[2][0] == data[3][0]).all()
        server.kill()
        with pytest.raises(RemoteError) as caught:
            data[4]
        assert caught.value.index == 4 and not caught.value.missing


CHANGED = [("Tar", ImageError, "create the dataset again"), ("TableDataset", ValueError, "make a new TableDataset")]


@pytest.mark.parametrize(("kind", "error", "text"), CHANGED)
def test_a_file_that_was_changed_at_its_url_is_noticed_by_a_new_process(folder, tmp_path, serve, kind, error, text):
    for name in ("0.tar", "1.tar", "rows.parquet"):
        shutil.copy(folder / name, tmp_path / name)
    data = source(kind, serve(tmp_path).url)
    for name in ("0.tar", "1.tar", "rows.parquet"):
        os.utime(tmp_path / name, (1, 1))
    with slipring.Loader(data, 8, num_workers=1) as loader, pytest.raises(error, match=text):
        next(iter(loader))
