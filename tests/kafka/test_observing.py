"""Metrics of a running query are correct: scraped, in the history, and in another process."""

import json
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowcore import Flow, Parquet
from flowcore.errors import RunError
from flowcore.metrics.history import history_folder, last_progress, read_history
from flowcore.metrics.progress import FlowProgress
from flowcore.spark.checkpoint.offset_log import committed_offsets
from flowcore.watermarks import bounded_out_of_orderness
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, shop STRING, price DOUBLE"


def test_scrape_of_a_running_query_reports_its_work(live: Live) -> None:
    """Counts, lag by partition, dead letters and state are exported until the run ends."""
    bids, out, best = live.topic("bids", schema=BID), live.topic("out"), live.topic("best")
    live.send(bids, *(_bid(number) for number in range(20)), b"bad", b"worse", partitions=2)
    flow = Flow("scraped")
    source = flow.read("bids", bids)
    source.where("price > 5").write("out", out)
    source.aggregate(by="shop", best="max(price)").write("best", best)
    live.settings = _observed(live, prometheus_ports=range(1))
    urls = []

    def follow(run: Any) -> None:
        urls.append(run.metrics_url)
        run_until(
            run, lambda: _scraped(run.metrics_url).get(("flowcore_query_records_out_total", "bids")) == 14
        )
        run_until(run, lambda: _scraped(run.metrics_url).get(("flowcore_query_batches_total", "best")) == 1)

        found = _scraped(run.metrics_url)
        dead_letters = [found["flowcore_query_dead_letters_total", name] for name in ("bids", "best")]
        assert found["flowcore_query_records_in_total", "bids"] == 22
        assert found["flowcore_query_lag_records", "bids"] == 0
        assert found["flowcore_partition_offset", "bids", bids.name, "0"] == 11
        assert found["flowcore_partition_lag_records", "bids", bids.name, "1"] == 0
        assert sorted(dead_letters) == [0, 2]
        assert found["flowcore_query_state_bytes", "best"] > 0
        assert ("flowcore_query_state_bytes", "bids") not in found
        assert found["flowcore_query_mode", "bids"] == 1

    live.run(flow, "micro-batch", follow)

    with pytest.raises(URLError):
        _scraped(urls[0])


def test_dead_letters_of_a_shared_topic_are_counted_once(live: Live) -> None:
    """Two sources read one topic, so that two queries write its dead letters."""
    bids = live.topic("bids", schema=BID)
    live.send(bids, _bid(1), b"bad")
    flow = Flow("shared")
    for name in ("first", "second"):
        flow.read(name, bids).write(f"{name}_out", live.topic(name))

    def follow(run: Any) -> None:
        run_until(run, lambda: sum(query.dead_letters for query in run.progress()) >= 2)
        time.sleep(1)
        assert [query.dead_letters for query in run.progress()] == [2, 0]

    live.run(flow, "micro-batch", follow)


def test_realtime_query_reports_its_progress_before_its_batch_ends(live: Live) -> None:
    """Its lag is the number of unread records, reported by partition before the offsets are committed."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, *(_bid(number) for number in range(30)), partitions=2)
    flow = Flow("quick")
    flow.read("bids", bids).write("out", out)

    def follow(run: Any) -> None:
        run_until(run, lambda: (run.progress()[0].rows_in, run.progress()[0].rows_out) == (30, 30))
        (query,) = run.progress()
        assert (query.batches, query.lag) == (0, 0)
        assert [one.lag for one in query.partitions] == [15, 15]

    live.run(flow, "realtime", follow)


def test_busiest_operator_is_found(live: Live) -> None:
    """A chain of functions and an operator with state report how long the workers were in them."""

    def wait(record: Any) -> Any:
        time.sleep(0.02)
        return record

    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, *(_bid(number) for number in range(20)), partitions=2)
    flow = Flow("busy")
    source = flow.read("bids", bids)
    slow = source.map(wait, schema=BID, name="slow").map(lambda record: record, schema=BID, name="same")
    slow.deduplicate(by="id", within=None, name="once").write("out", out)

    def follow(run: Any) -> None:
        def busy() -> dict[str, int]:
            return {one.name: one.busy_ms for one in run.health().queries[0].operators}

        run_until(run, lambda: busy().get("slow > same", 0) >= 400 and busy()["once"] > 0)

    live.run(flow, "micro-batch", follow)


def test_history_has_runs_switches_and_versions(live: Live, tmp_path: Path) -> None:
    """A slice and a micro-batch run on one checkpoint are in the history and visible to another process."""
    (tmp_path / "shops").mkdir()
    pq.write_table(pa.table({"shop": ["a"], "city": ["Bern"]}), tmp_path / "shops" / "p.parquet")
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1), _bid(2))
    flow = Flow("kept")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING")).select(
        "*", name="shops_all"
    )
    flow.read("bids", bids).join(shops, on="shop", how="left").write("out", out)
    live.settings = _observed(live)
    shown: list[Any] = []

    live.run(flow)
    first = _last(live, "kept")
    kept = committed_offsets(live.settings.state_dir / "kept" / "checkpoints" / "bids")

    def follow(run: Any) -> None:
        # The first trigger finds nothing and still reports a batch.
        run_until(run, lambda: run.running["bids"].lastProgress is not None)
        live.send(bids, _bid(3))
        run_until(run, lambda: _last(live, "kept").queries[0].rows_in == 1)
        shown.append(_top("kept", live))

    live.run(flow, "micro-batch", follow)
    second, (code, shown_top) = _last(live, "kept"), shown[0]
    stopped, _ = _top("kept", live)
    history = read_history(history_folder(live.settings.state_dir, "kept"))

    assert (first.state, first.queries[0].rows_in, first.queries[0].rows_out) == ("ended", 2, 2)
    assert kept == {bids.name: {0: 2}}
    assert (code, shown_top["state"], shown_top["queries"][0]["mode"]) == (0, "running", "micro-batch")
    assert stopped == 1
    (switch,) = second.switches
    assert (switch.query, switch.before, switch.after) == ("bids", "slice", "micro-batch")
    assert switch.reason
    (version,) = second.queries[0].bounded.values()
    assert (live.settings.state_dir / "kept" / "results").glob(f"*/{version}")
    assert not second.queries[0].active
    assert len({beat.started_ms for beat in history}) == 2


def test_history_has_the_reason_of_a_failed_run(live: Live) -> None:
    """The last entry is that of the failure."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1))
    flow = Flow("failing")
    flow.read("bids", bids).select("id", "raise_error('too high') as price").write("out", out)
    live.settings = _observed(live)

    with pytest.raises(RunError) as caught:
        live.run(flow)

    last = _last(live, "failing")
    assert last.state == "failed"
    assert last.error == str(caught.value)
    assert "too high" in last.error
    assert not last.queries[0].active


def test_watermark_of_each_partition_is_reported(live: Live) -> None:
    """The watermark of the query is the minimum of its partitions."""
    bids = live.topic(
        "bids", schema="id BIGINT NOT NULL, at BIGINT NOT NULL", event_time="at",
        watermark=bounded_out_of_orderness(timedelta(0)),
    )  # fmt: skip
    out = live.topic("out", elements="tagged")
    live.send(bids, {"id": 1, "at": 5_000}, {"id": 2, "at": 9_000}, partitions=2)
    flow = Flow("timed")
    flow.read("bids", bids).write("out", out)

    def follow(run: Any) -> None:
        run_until(run, lambda: run.progress()[0].watermark_ms is not None)
        (query,) = run.progress()
        assert query.watermark_ms == 4_999
        assert [one.watermark_ms for one in query.partitions] == [4_999, 8_999]
        assert [one.idle for one in query.partitions] == [False, False]

    live.run(flow, "micro-batch", follow)


def test_run_without_a_metrics_interval_writes_no_history(live: Live) -> None:
    """With metrics.interval=0, `health()` answers but nothing is written."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1))
    flow = Flow("silent")
    flow.read("bids", bids).write("out", out)
    live.settings = replace(live.settings, metrics_interval=timedelta(0))
    asked: list[FlowProgress] = []

    def follow(run: Any) -> None:
        assert run.wait(60)
        asked.append(run.health())

    live.run(flow, "slice", follow)

    assert asked[0].queries[0].rows_in == 1
    assert not history_folder(live.settings.state_dir, "silent").exists()


def _bid(number: int) -> dict[str, Any]:
    return {"id": number, "shop": "ab"[number % 2], "price": float(number)}


def _observed(live: Live, **settings: Any) -> Any:
    return replace(live.settings, metrics_interval=timedelta(milliseconds=200), **settings)


def _scraped(url: str) -> dict[tuple[str, ...], float]:
    """Samples that Prometheus would read, by name, query, and topic and partition if present."""
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - the address is ours
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
    labels = ("query", "topic", "partition")
    return {
        (one.name, *(one.labels[name] for name in labels if name in one.labels)): one.value for one in samples
    }


def _last(live: Live, flow: str) -> FlowProgress:
    found = last_progress(history_folder(live.settings.state_dir, flow))
    assert found is not None
    return found


def _top(flow: str, live: Live) -> tuple[int, dict[str, Any]]:
    """Exit code and output of `flowcore top` in its own process."""
    command = [sys.executable, "-m", "flowcore.cli.main", "top", flow, "--json"]
    found = subprocess.run(
        [*command, "--set", f"state.dir={live.settings.state_dir}"],
        check=False,
        capture_output=True,
        text=True,
    )
    return found.returncode, json.loads(found.stdout)
