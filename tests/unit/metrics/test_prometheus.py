"""Prometheus, its dashboard and its alerts get the progress of a run."""

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowcore.errors import RunError, SettingsError
from flowcore.kafka.broker import free_port
from flowcore.metrics.prometheus import PrometheusListener, metrics_of
from flowcore.metrics.reporting import listeners_of
from flowcore.settings import Settings
from tests.unit.metrics.full_progress import NOW_MS, query, run

DEPLOY = Path(__file__).parents[3] / "deploy"


def scrape(url: str) -> str:
    """The text that Prometheus reads."""
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - the address is ours
        return str(answer.read().decode())


def port_of(listener: PrometheusListener) -> int:
    """The port on which it listens."""
    return int(listener.url.split(":")[2].split("/")[0])


def samples(text: str) -> dict[str, float]:
    """Values of a scrape by name and labels."""
    return {
        f"{sample.name}{json.dumps(sample.labels, sort_keys=True)}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_serves_every_measure_in_base_units() -> None:
    """Counters end in _total, times are seconds, and names carry their unit."""
    with PrometheusListener(range(1)) as listener:
        listener.progressed(run())
        found = samples(scrape(listener.url))
    names = {key.partition("{")[0] for key in found}

    of_query = '{"flow": "sales", "query": "out"}'
    of_partition = '{"flow": "sales", "partition": "1", "query": "out", "topic": "bids"}'
    of_latency = '{"flow": "sales", "quantile": "0.99", "sink": "sales/out", "source": "sales/bids"}'
    assert found[f"flowcore_query_records_in_total{of_query}"] == 900
    assert found[f"flowcore_query_batch_duration_seconds{of_query}"] == 2
    assert found[f"flowcore_query_watermark_timestamp_seconds{of_query}"] == NOW_MS / 1000 - 3
    assert found[f"flowcore_partition_lag_records{of_partition}"] == 100
    assert found[f"flowcore_latency_seconds{of_latency}"] == 0.004
    assert found['flowcore_query_mode{"flow": "sales", "mode": "realtime", "query": "out"}'] == 1
    assert found[f"flowcore_query_oldest_buffered_seconds{of_query}"] == 1.5
    assert found[f"flowcore_query_open_transactions{of_query}"] == 2
    assert found[f"flowcore_query_oldest_transaction_seconds{of_query}"] == 2.5
    of_operator = '{"flow": "sales", "operator": "slow", "query": "out"}'
    assert found[f"flowcore_operator_busy_seconds_total{of_operator}"] == 90
    assert found[f"flowcore_operator_busy_share{of_operator}"] == 1.5
    assert len(names) == 36
    assert not [name for name in names if name.endswith("_ms")]


def test_prometheus_omits_unknown_values() -> None:
    """An unknown value has no sample instead of a zero."""
    names = {family.name for family in metrics_of(run(queries=(query(lag=None, partitions=()),)))}

    assert "flowcore_query_lag_records" not in names
    assert "flowcore_partition_lag_records" not in names
    assert "flowcore_query_late_records" in names


def test_prometheus_port_that_is_taken_is_refused() -> None:
    """The message has the port and what to pass instead; the first server continues."""
    with PrometheusListener(range(1)) as first:
        port = port_of(first)
        with pytest.raises(
            RunError, match=rf"port={port} cannot be listened on at 127.0.0.1: .*or 0 for any"
        ):
            PrometheusListener(range(port, port + 1)).__enter__()

        first.progressed(run())
        assert "flowcore_query_active" in scrape(first.url)


def test_runs_that_share_a_range_of_ports_take_one_each() -> None:
    """The first that is free; after the last one a run is refused with the range."""
    taken = free_port()
    shared = Settings.of({"metrics.prometheus.port": f"{taken}-{taken + 1}"}, environment={}).prometheus_ports
    assert shared == range(taken, taken + 2)
    with PrometheusListener(shared) as first, PrometheusListener(shared) as second:
        assert (port_of(first), port_of(second)) == (taken, taken + 1)
        with pytest.raises(RunError, match=f"port={taken}-{taken + 1} cannot be listened on"):
            PrometheusListener(shared).__enter__()
    with PrometheusListener(shared) as again:
        assert port_of(again) == taken


def test_prometheus_without_a_metrics_interval_is_refused(tmp_path: Path) -> None:
    """Without an interval it would have no values."""
    settings = Settings.of(
        {"state.dir": tmp_path, "metrics.prometheus.port": 0, "metrics.interval": "0"}, environment={}
    )

    with pytest.raises(SettingsError, match=r"metrics\.interval=0"), listeners_of("sales", settings):
        pass


def test_dashboard_and_alerts_use_existing_metrics() -> None:
    """Every metric in the dashboard and in Prometheus' files is served by a run."""
    served = {sample.name for family in metrics_of(run()) for sample in family.samples}
    texts = [file.read_text() for folder in ("grafana", "prometheus") for file in _files(DEPLOY / folder)]
    asked = {name for text in texts for name in re.findall(r"\bflowcore_[a-z_]+", text)}

    assert len(asked) > 10
    assert asked - served == set()


def test_dashboard_shows_something_of_every_kind() -> None:
    """Each panel has a title, a unit if it has axes, and the provisioned data source."""
    dashboard = json.loads((DEPLOY / "grafana" / "flowcore.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]

    assert len(panels) >= 10
    assert all(panel["title"] and panel["targets"] for panel in panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"flowcore-prometheus"}
    assert "uid: flowcore-prometheus" in (DEPLOY / "grafana" / "datasource.yaml").read_text()


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.is_file()]
