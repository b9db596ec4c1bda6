"""Dagster: a live run that Dagster did not start reports itself to a Dagster webserver.

Each report is a materialization of the asset ``<flow>/live``, through the webserver's REST endpoint, with the
numbers of a run that Dagster has started. A webserver that does not answer is told of in the log, once, and
the stream goes on.
"""

from __future__ import annotations

import json
import logging
from http.client import HTTPException
from urllib.request import Request, urlopen

from flowcore.metrics.figures import figures
from flowcore.metrics.progress import FlowProgress

__all__ = ["DagsterListener"]

_EVERY_MS = 10_000
_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


class DagsterListener:
    """Reports every ten seconds or less often, and at the run's end.

    Args:
        address: Of the webserver, ``http://HOST:PORT`` with its path prefix if it has one.
    """

    def __init__(self, address: str) -> None:
        self._url = f"{address.rstrip('/')}/report_asset_materialization/"
        self._reported_ms: int | None = None
        self._failed = False

    def progressed(self, progress: FlowProgress) -> None:
        """Report what is due."""
        before_ms, is_last = self._reported_ms, progress.state != "running"
        if before_ms is not None and not is_last and progress.time_ms - before_ms < _EVERY_MS:
            return
        self._reported_ms = progress.time_ms
        try:
            self._report(progress)
        except (OSError, HTTPException) as error:
            if not self._failed:
                _log.warning(
                    "flow %r could not be reported to %s: %s; it is tried again, the stream goes on",
                    progress.flow, self._url, error,
                )  # fmt: skip
            self._failed = True
        else:
            self._failed = False

    def _report(self, progress: FlowProgress) -> None:
        told = {
            "asset_key": [progress.flow, "live"],
            "description": progress.error or f"{progress.state} on {progress.host}, process {progress.pid}",
            "metadata": {"state": progress.state, **figures(progress)},
        }
        request = Request(  # noqa: S310 - the setting takes http and https only
            self._url, json.dumps(told).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
            pass
