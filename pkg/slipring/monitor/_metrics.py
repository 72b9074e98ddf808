"""Export the figures of all loaders of this process to Prometheus, when it requests them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import integer
from slipring._core.ring.weak_registry import loaders as all_live_loaders
from slipring._core.ring.weak_registry import number_of
from slipring.monitor._callbacks import need

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator
    from wsgiref.simple_server import WSGIServer

# Name of the metric -> (field of `slipring.Stats`, description).
COUNTERS = {
    "slipring_batches": ("batches", "Batches delivered"),
    "slipring_bytes": ("bytes", "Payload bytes delivered"),
    "slipring_wait_seconds": ("consumer_wait_s", "Time that the consumer has waited for batches"),
    "slipring_fetch_seconds": ("fetch_s", "Time that workers took to read samples, summed"),
    "slipring_collate_seconds": ("collate_s", "Time that workers took to put batches together, summed"),
    "slipring_respawns": ("respawns", "Workers that were replaced after a death"),
    "slipring_remote_reads": ("remote_reads", "Attempts to read files behind URLs"),
    "slipring_remote_timeouts": ("remote_timeouts", "Such attempts without an answer in time"),
    "slipring_remote_broken": ("remote_broken", "Such attempts with a broken connection or a wrong answer"),
    "slipring_remote_refused": ("remote_refused", "Such attempts that the server refused for the moment (429, 5xx)"),
    "slipring_remote_rejected": ("remote_rejected", "Such attempts that the server refused for good"),
    "slipring_remote_bytes": ("remote_bytes", "Bytes that came from files behind URLs"),
    "slipring_remote_seconds": ("remote_s", "Time of successful attempts, summed"),
    "slipring_remote_lost_seconds": ("remote_lost_s", "Time of failed attempts and of the pauses after them, summed"),
    "slipring_copied_batches": ("copied_batches", "Batches that were copied out of their slot"),
}
GAUGES = {
    "slipring_slots": ("slots", "Slots of the segment"),
    "slipring_committed_bytes": ("slot_bytes_committed", "Memory under the segment"),
}


class Metrics:
    """A collector of prometheus_client, and the server that shows it; `slipring.monitor.prometheus` makes it.

    Attributes
    ----------
    port : int or None
        The port on which the server listens; None without a server.

    Examples
    --------
    >>> import urllib.request
    >>> import slipring
    >>> from slipring.monitor import prometheus
    >>> loader = slipring.Loader(range(12), batch_size=4)
    >>> batches = list(loader)
    >>> with prometheus(0, addr="127.0.0.1", loaders={"train": loader}) as metrics:
    ...     page = urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics").read().decode()
    >>> 'slipring_batches_total{loader="train"} 3.0' in page
    True
    >>> loader.close()
    """

    def __init__(self, loaders: Any, registry: Any) -> None:
        self._core = need("prometheus_client.core", "slipring.monitor.prometheus")
        self._loaders = None if loaders is None else list(named(loaders))
        self._registry = registry
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None
        self._rank = os.environ.get("RANK")
        self._most: dict[tuple[str, str], float] = {}
        self.port: int | None = None

    def describe(self) -> Iterable[Any]:
        """Return the metric families, for prometheus_client."""
        return self._families().values()

    def collect(self) -> Iterator[Any]:
        """Yield the current figures, for prometheus_client."""
        families = self._families()
        where = [] if self._rank is None else [self._rank]
        names = set()
        for name, loader in live_loaders() if self._loaders is None else self._loaders:
            names.add(name)
            stats = loader.stats()
            for metric, (field, _) in COUNTERS.items():
                # While an iteration ends, its part may be in neither sum: a counter must never decrease.
                value = max(self._most.get((name, metric), 0), getattr(stats, field))
                self._most[name, metric] = value
                families[metric].add_metric([name, *where], value)
            for metric, (field, _) in GAUGES.items():
                families[metric].add_metric([name, *where], getattr(stats, field))
            own = stats.worker_private_bytes
            families["slipring_workers"].add_metric([name, *where], _workers(loader, own))
            for worker, size in enumerate(own):
                if size is not None:
                    families["slipring_worker_private_bytes"].add_metric([name, str(worker), *where], size)
        self._most = {key: value for key, value in self._most.items() if key[0] in names}
        yield from families.values()

    def _families(self) -> dict[str, Any]:
        labels = ["loader", *([] if self._rank is None else ["rank"])]
        counter, gauge = self._core.CounterMetricFamily, self._core.GaugeMetricFamily
        made = {name: counter(name, text, labels=labels) for name, (_, text) in COUNTERS.items()}
        made.update({name: gauge(name, text, labels=labels) for name, (_, text) in GAUGES.items()})
        made["slipring_workers"] = gauge("slipring_workers", "Workers, processes or threads", labels=labels)
        made["slipring_worker_private_bytes"] = gauge(
            "slipring_worker_private_bytes",
            "Memory that a worker process has of its own",
            labels=["loader", "worker", *labels[1:]],
        )
        return made

    def close(self) -> None:
        """Stop the server, and no longer export the figures. Safe to call twice."""
        server, thread, registry = self._server, self._thread, self._registry
        self._server = self._thread = self._registry = None
        if server is not None and thread is not None:
            server.shutdown()
            server.server_close()
            thread.join()
        if registry is not None:
            registry.unregister(self)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def live_loaders() -> Iterator[tuple[str, Any]]:
    """Yield (name, loader) of the loaders of this process that live now."""
    for number, loader in all_live_loaders().items():
        yield f"{_kind(loader)}-{number}", loader


def named(loaders: Iterable[Any] | dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, loader) of the given loaders; a dict has their names."""
    if callable(getattr(loaders, "stats", None)):
        raise TypeError(f"loaders must be a list or dict of loaders, not one {type(loaders).__name__}: give [it]")
    given = loaders.items() if isinstance(loaders, dict) else ((None, loader) for loader in loaders)
    for name, loader in given:
        if not callable(getattr(loader, "stats", None)):
            raise TypeError(
                f"loaders must be loaders of slipring's, a list or dict of them, and {loader!r:.80} has no stats()"
            )
        yield f"{_kind(loader)}-{number_of(loader)}" if name is None else name, loader


def _kind(loader: Any) -> str:
    return type(getattr(loader, "dataset", loader)).__name__


def _workers(loader: Any, measured: tuple[Any, ...]) -> int:
    engines = getattr(loader, "_engines", None)
    if engines is not None and engines.engine is None:
        return 0  # before the first iteration, or closed
    number = getattr(loader, "num_workers", getattr(getattr(loader, "options", None), "num_workers", None))
    return number if isinstance(number, int) else len(measured)


def prometheus(
    port: int | None,
    addr: str = "0.0.0.0",
    loaders: Iterable[Any] | dict[str, Any] | None = None,
    *,
    registry: Any = None,
) -> Metrics:
    """Export the figures of this process's loaders to Prometheus, over HTTP.

    They are read from ``loader.stats()`` when Prometheus requests them; the loop over a loader is not involved. Each
    has the label ``loader``, and the label ``rank`` if the environment variable RANK is set, as torchrun does.

    Parameters
    ----------
    port : int or None
        0: any free port; see the result's ``port``. None: no server, because the program exports the registry itself.
    addr : str
        The address to listen on.
    loaders : iterable or dict of them, optional
        The loaders; a dict has their names. Default: all living loaders, including those made later; each is named by
        the class of its dataset and a number.
    registry : prometheus_client.CollectorRegistry, optional
        Default: prometheus_client's own, whose other metrics are exported, too.

    Returns
    -------
    Metrics
        Close it at the end.

    Raises
    ------
    ImportError
        prometheus_client is not installed.
    OSError
        The port is taken.
    TypeError
        `loaders` is one loader, or has an element that is not a loader.
    ValueError
        The registry exports loaders already.

    Examples
    --------
    >>> from slipring.monitor import prometheus
    >>> metrics = prometheus(0)
    >>> metrics.close()
    """
    integer("port", port, 0, 65535, optional=True)
    client = need("prometheus_client", "slipring.monitor.prometheus")
    registry = client.REGISTRY if registry is None else registry
    metrics = Metrics(loaders, None)
    try:
        registry.register(metrics)
    except ValueError as error:
        raise ValueError(
            "this registry shows loaders already: close() what prometheus() returned before, or give registry="
        ) from error
    metrics._registry = registry
    if port is not None:
        try:
            metrics._server, metrics._thread = client.start_http_server(port, addr, registry=registry)
        except BaseException:
            metrics.close()
            raise
        metrics.port = metrics._server.server_port
    return metrics
