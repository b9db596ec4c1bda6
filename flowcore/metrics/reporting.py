"""Regular progress reports of a live run to the listeners that its settings select, such as the log."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Protocol, Self

from flowcore.background import LoggedFailures, PeriodicThread
from flowcore.errors import SettingsError
from flowcore.escaping import printable
from flowcore.metrics.dagster import DagsterListener
from flowcore.metrics.health import show_count
from flowcore.metrics.history import HistoryWriter, history_folder
from flowcore.metrics.progress import FlowProgress
from flowcore.metrics.prometheus import PrometheusListener, show_ports
from flowcore.settings import Settings

__all__ = [
    "LogListener",
    "ProgressListener",
    "Reporter",
    "describe_events",
    "listeners_of",
    "require_interval",
]

_INTERVAL_MS = 60_000
_log = logging.getLogger(__name__)


class ProgressListener(Protocol):
    """Receives the progress of a run, from one thread at a time."""

    def progressed(self, progress: FlowProgress) -> None:
        """Receive the current progress."""


class Reporter:
    """Polls the progress of a run and passes it to listeners; a context manager with one thread.

    The last report follows at the end. A poll or a listener that fails is logged, once for failures in a row,
    and stops neither the run nor the other listeners.

    Args:
        listeners: They are called in this order.
    """

    def __init__(
        self, poll: Callable[[], FlowProgress], listeners: Sequence[ProgressListener], interval_s: float
    ) -> None:
        self._poll = poll
        self._failures = LoggedFailures(
            _log,
            "the progress of the run cannot be read; the run continues",
            "the progress of the run can be read again",
        )
        self._listeners = [(each, _failures_of(type(each).__name__)) for each in listeners]
        self._thread = PeriodicThread("progress", self._report, interval_s, at_once=True)

    def __enter__(self) -> Self:
        self._thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.__exit__(None, None, None)
        self._report()

    def _report(self) -> None:
        progress = None
        with self._failures:  # whatever it is, records must flow on
            progress = self._poll()
        if progress is None:
            return
        for listener, failures in self._listeners:
            with failures:  # listeners may be user code
                listener.progressed(progress)


def _failures_of(listener: str) -> LoggedFailures:
    return LoggedFailures(
        _log,
        f"{listener} did not receive the progress of the run",
        f"{listener} receives the progress of the run again",
    )


def require_interval(settings: Settings) -> None:
    """Check that there is progress to report if Prometheus or Dagster is configured.

    Raises:
        SettingsError: ``metrics.interval`` is 0.
    """
    ports = settings.prometheus_ports
    shown = None if ports is None else show_ports(ports)
    listeners = {"metrics.prometheus.port": shown, "metrics.dagster.url": settings.dagster_url}
    for key, value in listeners.items():
        if value is not None and not settings.metrics_interval:
            msg = (
                f"{key}={value} with metrics.interval=0: there would be no progress to report; set "
                f"metrics.interval='5 s', or leave {key} out"
            )
            raise SettingsError(msg)


@contextmanager
def listeners_of(flow: str, settings: Settings) -> Iterator[list[ProgressListener]]:
    """The listeners of a flow: log and history; Prometheus if it has a port, Dagster if it has an address.

    There are none if ``metrics.interval`` is 0.

    Raises:
        SettingsError: Prometheus or Dagster is configured, and ``metrics.interval`` is 0.
        RunError: The port is not available.
    """
    require_interval(settings)
    if not settings.metrics_interval:
        yield []
        return
    ports, host = settings.prometheus_ports, settings.prometheus_host
    with nullcontext() if ports is None else PrometheusListener(ports, host) as prometheus:
        if prometheus is not None:
            _log.info("metrics of flow %r are served at %s", flow, prometheus.url)
        history = HistoryWriter(history_folder(settings.state_dir, flow))
        # Dagster is last, since it may have to wait for an answer.
        dagster = [DagsterListener(settings.dagster_url)] if settings.dagster_url else []
        yield [LogListener(), history, *([prometheus] if prometheus else []), *dagster]


class LogListener:
    """Logs a line for each query once a minute, and all events at once."""

    def __init__(self) -> None:
        self._before: FlowProgress | None = None
        self._written_ms: int | None = None

    def progressed(self, progress: FlowProgress) -> None:
        """Log what is due."""
        for line in describe_events(self._before, progress):
            _log.warning("%s", line)
        self._before = progress
        is_last, written_ms = progress.state != "running", self._written_ms
        # A clock that was set back must not stop the lines.
        if is_last or written_ms is None or not 0 <= progress.time_ms - written_ms < _INTERVAL_MS:
            self._written_ms = progress.time_ms
            for query in progress.queries:
                _log.info(
                    "%s/%s %s: %s/s in, %s/s out, lag %s, late %s, dropped %s, dead letters %s%s",
                    progress.flow,
                    query.name,
                    query.mode,
                    show_count(query.rows_per_second),
                    show_count(query.rows_out_per_second),
                    show_count(query.lag),
                    f"{query.late:,}",
                    f"{query.dropped:,}",
                    f"{query.dead_letters:,}",
                    ", catching up" if query.backlog else "",
                )


def describe_events(before: FlowProgress | None, now: FlowProgress) -> list[str]:
    """Events since the previous progress: dead letters, dropped records, switches of queries."""
    found = []
    known = {query.name: query for query in before.queries} if before else {}
    for query in now.queries:
        then = known.get(query.name)
        where = f"query {query.name!r} of flow {now.flow!r}"
        if letters := query.dead_letters - (then.dead_letters if then else 0):
            found.append(f"{where}: {letters:,} messages went to dead-letter topics")
        if dropped := query.dropped - (then.dropped if then else 0):
            found.append(f"{where}: {dropped:,} records came too late and were dropped")
    seen = set(before.switches) if before else set()
    for switch in now.switches:
        if switch not in seen and (before or switch.time_ms >= now.time_ms):
            how = f"is in {switch.after} mode as before"
            if switch.before != switch.after:
                how = f"went from {switch.before} to {switch.after}"
            reason = switch.reason or "no reason given"
            found.append(f"query {switch.query!r} of flow {now.flow!r} {how}: {reason}")
    return [*map(printable, found)]
