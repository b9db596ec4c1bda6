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

__all__ = ["PrometheusListener", "metrics_of", "show_ports"]


class PrometheusListener(Collector):
    """Serves the last progress of a run at ``http://HOST:PORT/metrics``; a context manager.

    Args:
        ports: It listens on the first that is free, so that several runs may share a range; port 0 is any
            free port.
        host: The address to listen on. The endpoint has no password.

    Raises:
        RunError: Every port is in use or not permitted.
    """

    def __init__(self, ports: range, host: str = "127.0.0.1") -> None:
        self._ports = ports
        self._port = ports[0]
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
        for port in self._ports:
            try:
                self._server, self._thread = start_http_server(port, self._host, registry)
            except OSError as error:
                refused = error
                continue
            self._port = self._server.server_port
            return self
        msg = (
            f"metrics.prometheus.port={show_ports(self._ports)} cannot be listened on at {self._host}: "
            f"{refused}; the run would have no metrics; pass a free port, a longer range, or 0 for any"
        )
        raise RunError(msg) from refused

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def show_ports(ports: range) -> str:
    """Ports as a setting.

    >>> show_ports(range(9464, 9474)), show_ports(range(1))
    ('9464-9473', '0')
    """
    return f"{ports[0]}-{ports[-1]}" if len(ports) > 1 else str(ports[0])


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
        for operator in query.operators:
            families.add(operator, {**labels, "operator": operator.name})
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
