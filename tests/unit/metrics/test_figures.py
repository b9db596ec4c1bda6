"""Figures of a run have stable keys, and are reported to a Dagster webserver."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from flowcore.errors import SettingsError
from flowcore.metrics.dagster import DagsterListener, figures
from flowcore.metrics.progress import FlowProgress, LatencyProgress, PartitionProgress, QueryProgress
from flowcore.metrics.reporting import listeners_of
from flowcore.settings import Settings

NOW_MS = 1_800_000_000_000
QUERY = QueryProgress(
    name="out",
    mode="realtime",
    active=True,
    rows_in=1 << 40,
    lag=3,
    watermark_ms=NOW_MS - 2000,
    bounded={"catalog": "v1"},
    partitions=(PartitionProgress(topic="bids", partition=1, lag=3, offset=12),),
)
RUN = FlowProgress(
    flow="sales",
    time_ms=NOW_MS,
    seconds=60.0,
    host="pod",
    pid=7,
    queries=(QUERY,),
    latencies=(LatencyProgress(source="a", sink="b", markers=1, p50_ms=0.5),),
)


@contextmanager
def webserver(status: int = 200) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """An address, and the requests it received: paths and bodies."""
    came: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Do nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_figures_are_flat_and_leave_out_what_nobody_plots() -> None:
    """Timestamps become delays, large numbers become floats, unknown values are omitted."""
    found = figures(RUN)

    assert found["out/watermark_delay_s"] == 2.0
    assert found["out/bids[1]/lag"] == 3
    assert (found["out/records"], type(found["out/records"])) == (float(1 << 40), float)
    assert (found["out/mode"], found["bounded_version/catalog"]) == ("realtime", "v1")
    assert found["latency/a -> b/p50_ms"] == 0.5
    assert not [key for key in found if "offset" in key or "state_rows" in key]


def test_dagster_receives_reports_at_intervals_and_at_the_end() -> None:
    """A report less than ten seconds after the previous one waits, except the last."""
    with webserver() as (address, came):
        listener = DagsterListener(address)
        listener.progressed(RUN)
        listener.progressed(replace(RUN, time_ms=NOW_MS + 9_999, seconds=69.0))
        listener.progressed(replace(RUN, time_ms=NOW_MS + 10_000, seconds=70.0))
        listener.progressed(replace(RUN, time_ms=NOW_MS - 10_000, seconds=75.0))  # the clock was set back
        listener.progressed(replace(RUN, time_ms=NOW_MS - 9_999, state="failed", error="broken"))

    assert [path for path, _ in came] == ["/report_asset_materialization/"] * 4
    assert [body["asset_key"] for _, body in came] == [["sales", "live"]] * 4
    assert [body["metadata"]["seconds"] for _, body in came] == [60.0, 70.0, 75.0, 60.0]
    assert [body["metadata"]["state"] for _, body in came] == ["running", "running", "running", "failed"]
    assert (came[0][1]["description"], came[3][1]["description"]) == ("running on pod, process 7", "`broken`")


def test_dagster_without_answer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The run continues; each interruption has one line in the log."""
    with webserver() as (gone, _):
        pass
    listener = DagsterListener(gone)
    with caplog.at_level(logging.WARNING):
        for second in (0, 10, 20):
            listener.progressed(replace(RUN, time_ms=NOW_MS + second * 1000))

    (line,) = caplog.messages
    assert gone in line
    assert "the stream continues" in line


def test_dagster_that_refuses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The log has its answer."""
    with webserver(status=401) as (address, _), caplog.at_level(logging.WARNING):
        DagsterListener(address).progressed(RUN)

    assert "401" in caplog.text


def test_dagster_is_a_listener_where_it_has_an_address(tmp_path: Path) -> None:
    """Without a polling interval a run has nothing to report."""
    settings = Settings.of(
        {"state.dir": tmp_path, "metrics.dagster.url": "http://127.0.0.1:9"}, environment={}
    )
    with listeners_of("sales", settings) as found:
        assert isinstance(found[-1], DagsterListener)

    blind = Settings.of({"metrics.interval": "0", "metrics.dagster.url": "http://dagster"}, environment={})
    with (
        pytest.raises(SettingsError, match=r"metrics\.dagster\.url=http://dagster"),
        listeners_of("s", blind),
    ):
        pass
