"""Listening: who is told of a flow's live run, by its settings?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from flowcore.errors import SettingsError
from flowcore.metrics.history import HistoryWriter, history_folder
from flowcore.metrics.log import LogListener
from flowcore.metrics.prometheus import PrometheusListener
from flowcore.metrics.reporter import ProgressListener
from flowcore.settings import Settings

__all__ = ["listeners_of"]

_log = logging.getLogger(__name__)


@contextmanager
def listeners_of(flow: str, settings: Settings) -> Iterator[list[ProgressListener]]:
    """The log, the history, and Prometheus where it has a port; nobody where ``metrics.interval`` is 0.

    Raises:
        SettingsError: Prometheus has a port and nothing to show there.
        RunError: The port cannot be listened on.
    """
    port = settings.prometheus_port
    if not settings.metrics_interval:
        if port is not None:
            msg = (
                f"metrics.prometheus.port={port} with metrics.interval=0: nobody would look at the run, and "
                "there would be no metrics; set metrics.interval='5 s', or no port"
            )
            raise SettingsError(msg)
        yield []
        return
    with nullcontext() if port is None else PrometheusListener(port) as prometheus:
        if prometheus is not None:
            _log.info("metrics of flow %r are served at %s", flow, prometheus.url)
        history = HistoryWriter(history_folder(settings.state_dir, flow))
        yield [LogListener(), history, *([prometheus] if prometheus else [])]
