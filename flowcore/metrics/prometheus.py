"""Prometheus metrics of a live run's last progress, served on loopback by default.

A scrape does not poll the run: it shows the last report.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from flowcore.errors import RunError
from flowcore.escaping import printable
from flowcore.metrics.progress import FlowProgress, measures_of

__all__ = ["PrometheusListener", "metrics_of"]


class PrometheusListener(Collector):
    """Serves the last progress of a run at ``http://HOST:PORT/metrics``; a context manager.

    Args:
        port: 0 for any free port.
        host: The address to listen on. The endpoint has no password.

    Raises:
        RunError: The port is in use or not permitted.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._port = port
        self._host = host
        self._latest: FlowProgress | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}/metrics"

    def progressed(self, progress: FlowProgress) -> None:
        self._latest = progress

    def collect(self) -> Iterator[Metric]:
        """The metrics of the last progress, for a scrape."""
        if self._latest is not None:
            yield from metrics_of(self._latest)

    def __enter__(self) -> Self:
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(self._port, self._host, registry)
        except (OSError, OverflowError) as error:
            msg = (
                f"metrics.prometheus.port={self._port} cannot be listened on at {self._host}: {error}; the "
                "run would have no metrics; pass a free port, or 0 for any"
            )
            raise RunError(msg) from error
        self._port = self._server.server_port
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def metrics_of(progress: FlowProgress) -> list[Metric]:
    """A run's progress as Prometheus metrics; an unknown value has no sample."""
    flow = {"flow": progress.flow}
    families = _Families()
    families.add(progress, flow)
    for query in progress.queries:
        labels = {**flow, "query": query.name}
        families.add(query, labels)
        families.info("flowcore_query_mode", "how the query runs", {**labels, "mode": query.mode})
        for stage, version in query.bounded.items():
            families.info(
                "flowcore_query_bounded_result",
                "version of a bounded result that it joins",
                {**labels, "stage": stage, "version": version},
            )
        for one in query.partitions:
            families.add(one, {**labels, "topic": one.topic, "partition": str(one.partition)})
    for latency in progress.latencies:
        families.add(latency, {**flow, "source": latency.source, "sink": latency.sink})
    return list(families.found.values())


class _Families:
    """Metrics by name, each with all its samples."""

    def __init__(self) -> None:
        self.found: dict[str, Metric] = {}

    def add(self, progress: Any, labels: Mapping[str, str]) -> None:
        for measure in measures_of(progress):
            value = measure.value(progress)
            if value is not None:
                name = f"{measure.metric}_total" if measure.kind == "counter" else measure.metric
                family = self._family(measure.metric, measure.doc, measure.kind)
                family.add_sample(name, _shown({**labels, **measure.labels}), value * measure.scale)

    def info(self, name: str, doc: str, labels: Mapping[str, str]) -> None:
        self._family(name, doc, "gauge").add_sample(name, _shown(labels), 1)

    def _family(self, name: str, doc: str, kind: str) -> Metric:
        return self.found.setdefault(name, Metric(name, doc, kind))


def _shown(labels: Mapping[str, str]) -> dict[str, str]:
    # The client escapes quotes; a surrogate that is not part of a pair would fail the whole scrape.
    return {name: printable(text) for name, text in labels.items()}
