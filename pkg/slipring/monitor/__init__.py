"""Seeing where the time goes, from inside and outside; figures for other programs: Prometheus, loggers, a bar."""

from typing import TYPE_CHECKING

__all__ = ["Metrics", "Progress", "Replay", "Report", "Stage", "Verdict", "Window", "prometheus", "scalars"]

# Name -> its module, imported when it is asked for: each loader's module imports this folder.
_LATE = {
    "Metrics": "metrics",
    "Progress": "progress",
    "Replay": "replay",
    "Report": "report",
    "Stage": "sight",
    "Verdict": "verdict",
    "Window": "figures",
    "prometheus": "metrics",
    "scalars": "figures",
}

if TYPE_CHECKING:
    from slipring.monitor.figures import Window, scalars
    from slipring.monitor.metrics import Metrics, prometheus
    from slipring.monitor.progress import Progress
    from slipring.monitor.replay import Replay
    from slipring.monitor.report import Report
    from slipring.monitor.sight import Stage
    from slipring.monitor.verdict import Verdict
else:

    def __getattr__(name):
        if name in _LATE:
            import importlib

            return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
