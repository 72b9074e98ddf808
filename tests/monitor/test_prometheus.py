"""Prometheus reads the figures of live loaders over HTTP."""

import gc
import re
import socket
import threading
import urllib.request

import pytest

import slipring
from slipring import Workers
from tests.support.datasets import Squares
from tests.support.processes import until

client = pytest.importorskip("prometheus_client")

from slipring.monitor import prometheus  # noqa: E402


def scrape(metrics):
    """Return {(name, labels): value} of the server's figures."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as page:
        text = page.read().decode()
    lines = re.findall(r"^(slipring_\w+)\{([^}]*)\} (\S+)$", text, re.M)
    return {(name, labels): float(value) for name, labels, value in lines}


@pytest.fixture
def shown():
    """A function that exports loaders in a separate registry until the test ends."""
    opened = []

    def show(*args, **kwargs):
        opened.append(prometheus(0, "127.0.0.1", *args, registry=client.CollectorRegistry(), **kwargs))
        return opened[-1]

    yield show
    for metrics in opened:
        metrics.close()


def test_a_value_that_is_no_list_of_loaders_is_refused_and_not_iterated(shown):
    with slipring.Loader(Squares(40), 4) as loader:
        with pytest.raises(TypeError, match="not one Loader: give"):
            shown(loaders=loader)
        assert loader.stats().batches == 0
        for none in ([1, 2], {"train": Squares(4)}):
            with pytest.raises(TypeError, match=r"has no stats\(\)"):
                shown(loaders=none)


def test_a_get_shows_the_deliveries_of_a_loader(shown):
    with slipring.Loader(Squares(40), 4, num_workers=2, workers=Workers(start_method="fork")) as loader:
        metrics = shown({"train": loader})
        list(loader)
        figures, stats = scrape(metrics), loader.stats()
        assert figures["slipring_batches_total", 'loader="train"'] == 10
        assert figures["slipring_bytes_total", 'loader="train"'] == stats.bytes > 0
        assert figures["slipring_wait_seconds_total", 'loader="train"'] == pytest.approx(stats.consumer_wait_s)
        assert figures["slipring_fetch_seconds_total", 'loader="train"'] == pytest.approx(stats.fetch_s)
        assert figures["slipring_collate_seconds_total", 'loader="train"'] == pytest.approx(stats.collate_s)
        assert figures["slipring_respawns_total", 'loader="train"'] == 0
        assert figures["slipring_copied_batches_total", 'loader="train"'] == stats.copied_batches
        assert figures["slipring_slots", 'loader="train"'] == stats.slots
        assert figures["slipring_committed_bytes", 'loader="train"'] == stats.slot_bytes_committed
        assert figures["slipring_workers", 'loader="train"'] == 2
        assert {labels for name, labels in figures if name == "slipring_worker_private_bytes"} == {
            'loader="train",worker="0"',
            'loader="train",worker="1"',
        }
        list(loader)
        assert scrape(metrics)["slipring_batches_total", 'loader="train"'] == 20
        loader.close()
        assert scrape(metrics)["slipring_workers", 'loader="train"'] == 0


def test_all_living_loaders_are_shown_under_their_datasets_names_and_gone_ones_are_not(shown):
    class Here(Squares):
        pass

    def names():
        gc.collect()
        found = {labels for name, labels in scrape(metrics) if name == "slipring_batches_total"}
        return {re.sub(r"\d+", "N", labels) for labels in found if "Here" in labels}, found

    metrics = shown()
    assert names()[0] == set()
    one = slipring.Loader(Here(8), 4)
    other = slipring.Loader(Here(8), 4)
    list(one)
    same, found = names()
    assert same == {'loader="Here-N"'} and sum("Here" in labels for labels in found) == 2
    one.close()
    other.close()
    del one, other
    assert names()[0] == set()


def test_a_loader_that_is_given_has_the_same_name_as_among_all_and_a_rank_is_a_label(shown, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with slipring.Loader(Squares(8), 4) as loader:
        (given,) = {labels for _, labels in scrape(shown([loader]))}
        assert given.endswith(',rank="3"') and given in {labels for _, labels in scrape(shown())}


def test_no_counter_goes_back_while_iterations_begin_and_end(shown):
    with slipring.Loader(
        Squares(40), 4, num_workers=2, persistent_workers=False, workers=Workers(start_method="thread")
    ) as loader:
        metrics, ended, seen = shown({"it": loader}), threading.Event(), []

        def look():
            while not ended.is_set():
                seen.append(scrape(metrics)["slipring_batches_total", 'loader="it"'])

        thread = threading.Thread(target=look)
        thread.start()
        try:
            for _ in range(30):
                list(loader)
                pair = iter(loader), iter(loader)  # a second engine, whose figures are added to the totals at its end
                next(pair[1])
                del pair
            until(lambda: len(seen) > 1, "it has been looked at twice")
        finally:
            ended.set()
            thread.join()
    assert seen == sorted(seen)


def test_the_end_frees_port_and_registry():
    registry = client.CollectorRegistry()
    with slipring.Loader(Squares(8), 4) as loader:
        metrics = prometheus(0, "127.0.0.1", [loader], registry=registry)
        port = metrics.port
        with pytest.raises(ValueError, match="shows loaders already"):
            prometheus(None, loaders=[loader], registry=registry)
        metrics.close()
        metrics.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with prometheus(None, loaders=[loader], registry=registry) as metrics:
            assert metrics.port is None
            assert b"slipring_slots" in client.generate_latest(registry)
        assert client.generate_latest(registry) == b""


def test_a_port_that_is_taken_is_an_error_that_leaves_nothing_registered():
    registry = client.CollectorRegistry()
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError):
        prometheus(server.getsockname()[1], "127.0.0.1", registry=registry)
    prometheus(None, registry=registry).close()
