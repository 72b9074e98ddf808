"""See where the time goes, from inside and outside; export figures to Prometheus, loggers and a progress bar."""

from slipring._core.ring.rates import Window, scalars
from slipring._observe.report import Report
from slipring._observe.snapshot import Stage
from slipring._observe.verdict import Verdict
from slipring._public import publish
from slipring.monitor._metrics import Metrics, prometheus
from slipring.monitor._progress import Progress
from slipring.monitor._replay import Replay

__all__ = ["Metrics", "Progress", "Replay", "Report", "Stage", "Verdict", "Window", "prometheus", "scalars"]

publish(__name__)
