"""Listening: who is told of a flow's live run, by its settings?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from flowcore.errors import SettingsError
from flowcore.metrics.dagster import DagsterListener
from flowcore.metrics.history import HistoryWriter, history_folder
from flowcore.metrics.log import LogListener
from flowcore.metrics.prometheus import PrometheusListener
from flowcore.metrics.reporting import ProgressListener
from flowcore.settings import Settings

__all__ = ["listeners_of"]

_log = logging.getLogger(__name__)


@contextmanager
def listeners_of(flow: str, settings: Settings) -> Iterator[list[ProgressListener]]:
    """The log, the history, Prometheus where it has a port, Dagster where it has an address.

    Nobody where ``metrics.interval`` is 0.

    Raises:
        SettingsError: Prometheus or Dagster shall be told, and nobody looks.
        RunError: The port cannot be listened on.
    """
    port = settings.prometheus_port
    if not settings.metrics_interval:
        told = {"metrics.prometheus.port": port, "metrics.dagster.url": settings.dagster_url}
        for key, value in told.items():
            if value is not None:
                msg = (
                    f"{key}={value} with metrics.interval=0: nobody would look at the run, and there would "
                    f"be nothing to tell; set metrics.interval='5 s', or leave {key} out"
                )
                raise SettingsError(msg)
        yield []
        return
    with nullcontext() if port is None else PrometheusListener(port, settings.prometheus_host) as prometheus:
        if prometheus is not None:
            _log.info("metrics of flow %r are served at %s", flow, prometheus.url)
        history = HistoryWriter(history_folder(settings.state_dir, flow))
        # Last, as it may wait for its answer.
        dagster = [DagsterListener(settings.dagster_url)] if settings.dagster_url else []
        yield [LogListener(), history, *([prometheus] if prometheus else []), *dagster]
