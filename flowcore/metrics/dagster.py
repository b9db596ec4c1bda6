"""Progress as numbers that Dagster plots, and reports to a Dagster webserver from runs that it did not start.

Keys stay the same from one report to the next. Dagster plots integers of 32 bits and leaves a gap for larger
ones, so those become floats.
"""

import json
import logging
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

from flowcore.escaping import markdown_code, printable
from flowcore.metrics.progress import FlowProgress, measures_of

__all__ = ["DagsterListener", "Figure", "figures", "plotted"]

Figure = str | int | float

_INTERVAL_MS = 10_000
_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


class DagsterListener:
    """Reports at most every ten seconds, and at the run's end.

    Each report is a materialization of the asset ``<flow>/live``, through the webserver's REST endpoint. If
    the webserver does not answer, one line is logged and the stream continues.

    Args:
        address: The webserver's address, ``http://HOST:PORT``, with its path prefix if it has one.
    """

    def __init__(self, address: str) -> None:
        self._url = f"{address.rstrip('/')}/report_asset_materialization/"
        self._reported_ms: int | None = None
        self._failed = False

    def progressed(self, progress: FlowProgress) -> None:
        """Report the progress if a report is due."""
        before_ms, is_last = self._reported_ms, progress.state != "running"
        # A clock that was set back must not stop the reports.
        if before_ms is not None and not is_last and 0 <= progress.time_ms - before_ms < _INTERVAL_MS:
            return
        self._reported_ms = progress.time_ms
        try:
            self._report(progress)
        except (OSError, HTTPException) as error:
            if not self._failed:
                _log.warning(
                    "flow %r could not be reported to %s: %s; reports are tried again, the stream continues",
                    progress.flow, self._url, error,
                )  # fmt: skip
            self._failed = True
        else:
            self._failed = False

    def _report(self, progress: FlowProgress) -> None:
        report = {
            "asset_key": [progress.flow, "live"],
            "description": markdown_code(progress.error)
            if progress.error
            else f"{progress.state} on {progress.host}, process {progress.pid}",
            "metadata": {"state": progress.state, **figures(progress)},
        }
        request = Request(  # noqa: S310 - the setting takes http and https only
            self._url, json.dumps(report).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
            pass


def figures(progress: FlowProgress) -> dict[str, Figure]:
    """All plotted measures in one flat mapping, and modes and versions as text.

    >>> figures(FlowProgress(flow="sales", time_ms=0, seconds=1.5))
    {'seconds': 1.5, 'broker_silent_s': 0.0}
    """
    found: dict[str, Figure] = {
        "seconds": progress.seconds, "broker_silent_s": progress.broker_silent_ms / 1000
    }  # fmt: skip
    for query in progress.queries:
        found[f"{query.name}/mode"] = query.mode
        found[f"{query.name}/realtime"] = int(query.mode == "realtime")
        found |= _measures(query.name, query, progress.time_ms)
        for operator in query.operators:
            found |= _measures(f"{query.name}/{operator.name}", operator, progress.time_ms)
        for one in query.partitions:
            found |= _measures(f"{query.name}/{one.topic}[{one.partition}]", one, progress.time_ms)
        for stage, version in query.bounded.items():
            found[f"bounded_version/{stage}"] = version
    for latency in progress.latencies:
        found |= _measures(f"latency/{latency.source} -> {latency.sink}", latency, progress.time_ms)
    return {printable(key): printable(each) if isinstance(each, str) else each for key, each in found.items()}


def plotted(number: float) -> float:
    """A number in the type that Dagster plots."""
    return float(number) if abs(number) >= 1 << 31 else number


def _measures(path: str, progress: Any, now_ms: int) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for measure in measures_of(progress):
        key, value = measure.key, measure.value(progress)
        if measure.unit == "ago":  # so that the plot shows a watermark that does not advance
            key, value = key.replace("_ms", "_delay_s"), measure.figure(progress, now_ms)
        if value is not None and measure.plotted:
            found[f"{path}/{key}"] = plotted(int(value) if isinstance(value, bool) else value)
    return found
