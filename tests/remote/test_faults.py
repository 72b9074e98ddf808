"""A server that fails, stalls, refuses or ends: no sample is lost, or an error names it, and nothing hangs."""

import os
import shutil
import signal

import pytest

import slipring
from slipring import Workers, images
from slipring.errors import ImageError, RemoteError
from tests.remote.sources import CROP, MAPS, plain, source
from tests.support.http_server import Running
from tests.support.inside import read_of
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels
from tests.support.shards import files, shard

SEED = int(os.environ.get("SLIPRING_TEST_SEED", "5"))
PATIENT = {"attempts": 12, "attempt_timeout": 1.0}
HASTY = {"attempts": 3, "timeout": 20.0, "attempt_timeout": 0.5}


def epoch(data, **options):
    with slipring.Loader(data, 8, timeout=100, seed=3, **grouped(**options)) as loader:
        return [plain(batch) for batch in loader]


@pytest.mark.parametrize("threads", [None, 4])
@pytest.mark.parametrize("kind", [*MAPS, "TarStream"])
def test_a_server_that_fails_and_stalls_loses_nothing(folder, serve, kind, threads):
    options = {"num_workers": 2}
    if kind != "TarStream":
        options |= {"shuffle": True, "fetch_threads": threads}
    elif threads is not None:
        pytest.skip("an iterable dataset has no fetch_threads")
    server = serve(folder, seed=SEED, fail=0.15, stall=0.03)
    data = source(kind, server.url, storage=slipring.Storage(**PATIENT))
    here = source(kind, folder)
    want = epoch(here, **options)
    faults = 0
    while not faults:  # by chance, few requests may succeed
        assert epoch(data, **options) == want
        faults = sum(server.tells("faults").values())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_five_percent_of_failures_and_one_of_stalls_lose_nothing(folder, serve):
    """Every kind of fault, and many requests."""
    server = serve(folder, seed=SEED, fail=0.05, stall=0.01)
    data = source("Folder", server.url, storage=slipring.Storage(**PATIENT))
    want = epoch(source("Folder", folder), shuffle=True)
    with slipring.Loader(
        data, 8, shuffle=True, seed=3, num_workers=2, timeout=100, workers=Workers(fetch_threads=8)
    ) as loader:
        assert [plain(batch) for batch in loader] == want
        while not all(server.tells("faults").values()):
            assert sorted(n for _, labels in loader for n in labels) == sorted(n for _, ls in want for n in ls)


@pytest.mark.parametrize("kind", ["Tar", "Parquet", "Folder", "TableDataset"])
def test_a_url_that_does_not_exist_is_named_at_once(server, kind):
    with pytest.raises(RemoteError, match="does not exist") as caught:
        source(kind, server.url + "/nowhere")
    assert caught.value.missing and caught.value.attempts == 1
    assert caught.value.url.startswith(server.url + "/nowhere/")


def test_a_forbidden_file_is_not_tried_again(server):
    with pytest.raises(RemoteError, match="may not be read") as caught:
        source("Tar", server.url + "/secret")
    assert (caught.value.missing, caught.value.attempts) == (False, 1)


def test_a_server_that_only_fails_is_not_taken_for_a_file_that_is_missing(folder, serve):
    server = serve(folder, fail=1.0)
    with pytest.raises(RemoteError, match="after 3 attempts") as caught:
        source("TableDataset", server.url, storage=slipring.Storage(**HASTY))
    assert (caught.value.missing, caught.value.attempts) == (False, 3)
    assert caught.value.__cause__ is not None


def test_a_server_that_never_answers_ends_in_an_error(folder, serve):
    server = serve(folder, stall=1.0)
    with pytest.raises(RemoteError, match="no answer in time"):
        source("Tar", server.url, storage=slipring.Storage(**HASTY))


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
    import pyarrow.parquet as pq

    long = tmp_path_factory.mktemp("long")
    for number in range(2):
        shard(long / f"{number}.tar", files(ROWS // 2, first=number * ROWS // 2))
    for number in range(ROWS // 8):
        shard(long / f"batch {number}.tar", files(8, first=8 * number))
    pictures = [encoded(pixels(30, 40, number)) for number in range(ROWS)]
    texts = [f"number {i}" for i in range(ROWS)]
    table = pa.table({"image": pictures, "label": range(ROWS), "text": texts})
    pq.write_table(table, long / "rows.parquet", row_group_size=4)
    table = pa.table({"label": range(ROWS), "text": [text + "." * 75_000 for text in texts]})
    with pa.ipc.new_file(str(long / "rows.arrow"), table.schema) as sink:
        sink.write_table(table, max_chunksize=4)
    for number, picture in enumerate(pictures):
        path = long / "classes" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    return long


READ_ON = ("Tar", "TarStream", "Parquet", "Folder", "TableDataset", "TableDataset of IPC")


def read_on(kind, root, storage=None, cls=images.TarStream):
    """Return such a dataset of the files in `long`."""
    if kind != "TarStream":
        return source(kind, root, storage=storage)
    return cls([f"{root}/batch {number}.tar" for number in range(ROWS // 8)], CROP, storage=storage)


@pytest.mark.parametrize("threads", [None, 4])
@pytest.mark.parametrize("kind", READ_ON)
def test_when_the_server_goes_away_the_error_says_where_and_the_iteration_continues(long, kind, threads):
    if kind == "TarStream" and threads is not None:
        pytest.skip("an iterable dataset has no fetch_threads")
    with Running(long) as server:
        port = server.port
        data = read_on(kind, server.url, slipring.Storage(**HASTY))
        want = epoch(read_on(kind, long))
        loader = slipring.Loader(
            data, 8, seed=3, num_workers=1, prefetch_factor=1, timeout=100, workers=Workers(fetch_threads=threads)
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
            if kind in ("Tar", "Folder"):  # the other kinds read whole groups of rows
                assert failed.index == 8 * len(got)
            with Running(long, port=port):
                while True:
                    try:
                        rest = [plain(batch) for batch in iterator]
                        break
                    except RemoteError:  # a batch that was made while the server was down
                        pass
            assert rest and rest == want[len(want) - len(rest) :]


@pytest.mark.slow
@pytest.mark.parametrize("kind", READ_ON)
def test_a_state_from_before_the_server_went_away_resumes_where_it_failed(long, kind):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    class Shards(images.TarStream, torch.utils.data.IterableDataset):
        pass

    def loader_of(data):
        return DataLoader(data, 8, num_workers=1, prefetch_factor=1, timeout=100)

    want = [plain_tensors(batch) for batch in loader_of(read_on(kind, long, cls=Shards))]
    with Running(long) as server:
        port = server.port
        data = read_on(kind, server.url, slipring.Storage(**HASTY), Shards)
        loader, got = loader_of(data), []
        state = loader.state_dict()
        iterator = iter(loader)
        server.kill()
        with pytest.raises(RemoteError):
            while True:
                got.append(plain_tensors(next(iterator)))
                state = loader.state_dict()
        loader.close()
    with Running(long, port=port):
        again = loader_of(data)
        again.load_state_dict(state)
        assert got + [plain_tensors(batch) for batch in again] == want
        again.close()


def plain_tensors(batch):
    if isinstance(batch, dict):
        return batch["label"].tolist(), list(batch["text"])
    return batch[0].numpy().tobytes(), batch[1].tolist()


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
