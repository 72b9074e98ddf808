"""See where the time goes, from inside and outside; export figures to Prometheus, loggers and a progress bar."""

from slipring._core.ring.rates import Window, scalars
from slipring._observe.report import Report
from slipring._observe.snapshot import Stage
from slipring._observe.verdict import Verdict
from slipring.monitor._metrics import Metrics, prometheus
from slipring.monitor._progress import Progress
from slipring.monitor._replay import Replay

__all__ = ["Metrics", "Progress", "Replay", "Report", "Stage", "Verdict", "Window", "prometheus", "scalars"]

for _public in (Metrics, Progress, Replay, prometheus):
    _public.__module__ = __name__  # its pickle and its repr have its public name
