"""Sensors launch a flow's jobs when there is work, once, and not too early."""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    RunRequest,
    SensorResult,
    SkipReason,
    build_sensor_context,
    evaluate_automation_conditions,
)
from dagster._core.events import StepMaterializationData

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.dagster import Automation, FlowcoreResource, definitions, flow_assets
from flowcore.dagster.names import live_key
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.metrics.history import HistoryWriter, history_folder
from flowcore.metrics.progress import FlowProgress, PartitionProgress, QueryProgress

pytestmark = pytest.mark.dagster


def _relay(broker: str, folder: Path, **options: Any) -> Definitions:
    flow = Flow("f")
    flow.read("in", KafkaTopic("in", schema="id BIGINT")).write("out", KafkaTopic("out"))
    more = {"state.dir": str(folder), "kafka.bootstrap.servers": broker}
    return definitions(
        flow_assets(flow, automation=Automation(**options)), flowcore=FlowcoreResource(more=more)
    )


def _digest(folder: Path) -> Definitions:
    flow = Flow("f")
    flow.read("raw", Parquet("raw", schema="id BIGINT")).write("clean", Parquet("clean"))
    more = {"state.dir": str(folder / "state"), "data.dir": str(folder), "execution.short-lived": "true"}
    return definitions(flow_assets(flow), flowcore=FlowcoreResource(more=more))


def _tick(defs: Definitions, sensor: str, instance: DagsterInstance, cursor: str | None = None) -> Any:
    with build_sensor_context(
        instance, cursor=cursor, definitions=defs, resources=dict(defs.resources or {})
    ) as context:
        return defs.resolve_sensor_def(sensor)(context)


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    """An instance without runs."""
    with DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """A broker with a topic of two partitions that has 30 records."""
    with EmbeddedBroker() as started:
        ensure_topics(started.bootstrap_servers, {"in": 2})
        _send(started.bootstrap_servers, "in", 30)
        yield started.bootstrap_servers


def _send(servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(count):
        producer.produce(topic, b"{}", partition=number % 2 if topic == "in" else 0)
    assert producer.flush(30) == 0


def _write(path: Path, ids: list[int]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids}), path / "part.parquet")


def test_new_history_is_read_when_it_is_stable(tmp_path: Path, instance: DagsterInstance) -> None:
    """Not at the first tick, not while it changes, not again after it was read; again after a change."""
    defs = _digest(tmp_path)
    _write(tmp_path / "raw", [1])
    first = _tick(defs, "f_new_history", instance)
    _write(tmp_path / "raw", [1, 2])
    second = _tick(defs, "f_new_history", instance, first.cursor)
    third = _tick(defs, "f_new_history", instance, second.cursor)
    (request,) = third.run_requests

    assert not first.run_requests
    assert not second.run_requests
    assert request.tags == {"flowcore/because": "clean/raw changed"}
    result = defs.resolve_job_def("f_history").execute_in_process(
        instance=instance, run_config=request.run_config
    )
    assert result.success
    assert (
        "no source has changed"
        in _tick(defs, "f_new_history", instance, third.cursor).skip_reason.skip_message
    )

    _write(tmp_path / "raw", [1, 2, 3])
    fourth = _tick(defs, "f_new_history", instance, "")
    (again,) = _tick(defs, "f_new_history", instance, fourth.cursor).run_requests
    assert again.run_key != request.run_key


def test_new_history_without_files_skips_with_a_reason(tmp_path: Path, instance: DagsterInstance) -> None:
    """The tick is skipped with the message of the run, and does not fail each minute."""
    found = _tick(_digest(tmp_path), "f_new_history", instance)

    assert isinstance(found, SkipReason)
    assert "does not exist" in (found.skip_message or "")


@pytest.mark.parametrize(("lag", "launched"), [(10, True), (11, False)], ids=["enough", "too-little"])
def test_lag_launches_a_slice(
    broker: str, tmp_path: Path, instance: DagsterInstance, lag: int, launched: bool
) -> None:
    """Lag is the topic's end minus the offsets committed by the slowest query."""
    defs = _relay(broker, tmp_path, lag_records=lag)
    _progress(tmp_path, {"near": (15, 15), "far": (8, 12)})
    found = _tick(defs, "f_lag", instance)

    assert isinstance(found, RunRequest if launched else SkipReason)
    if launched:
        assert found.tags == {"flowcore/because": "10 records are unread"}


def test_lag_launches_nothing_during_a_run(broker: str, tmp_path: Path, instance: DagsterInstance) -> None:
    """The run would wait in the pool, and one more with each tick."""
    defs = _relay(broker, tmp_path, lag_records=1)
    _progress(tmp_path, {"out": (0, 0)})
    instance.create_run_for_job(defs.resolve_job_def("f_live"), status=DagsterRunStatus.STARTED)
    found = _tick(defs, "f_lag", instance)

    assert isinstance(found, SkipReason)
    assert "f_live has not ended" in (found.skip_message or "")


def test_lag_launches_nothing_beside_a_run_that_dagster_did_not_start(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    """The slice would be refused, since the run holds the checkpoints, at each tick."""
    defs = _relay("127.0.0.1:9", tmp_path, lag_records=1)
    _progress(tmp_path, {"out": (0, 0)}, "running")
    found = _tick(defs, "f_lag", instance)

    assert isinstance(found, SkipReason)
    assert "the flow runs, though Dagster did not start it" in (found.skip_message or "")


@pytest.mark.parametrize(
    ("restarts", "reason"),
    [(3, "crashed: restart 1 of 3 is due in"), (0, "it is not launched again")],
    ids=["waits", "gave-up"],
)
def test_lag_leaves_a_crashed_live_run_to_the_supervisor(
    broker: str, tmp_path: Path, instance: DagsterInstance, restarts: int, reason: str
) -> None:
    """A launch would begin a new row of restarts. After a terminate there is nothing to count."""
    defs = _relay(broker, tmp_path, lag_records=1, lag_job="live", restarts=restarts)
    _progress(tmp_path, {"out": (0, 0)})
    never = _tick(defs, "f_lag", instance)
    run = instance.create_run_for_job(defs.resolve_job_def("f_live"), status=DagsterRunStatus.STARTED)
    instance.report_run_failed(run)
    crashed = _tick(defs, "f_lag", instance)
    run = instance.create_run_for_job(defs.resolve_job_def("f_live"), status=DagsterRunStatus.STARTED)
    instance.report_run_canceled(run)
    terminated = _tick(defs, "f_lag", instance)

    assert isinstance(never, RunRequest)
    assert isinstance(crashed, SkipReason)
    assert reason in (crashed.skip_message or "")
    assert isinstance(terminated, RunRequest)


def test_lag_of_a_flow_that_never_ran_is_not_guessed(
    broker: str, tmp_path: Path, instance: DagsterInstance
) -> None:
    """Its first run may start at the end of the topic."""
    assert "never ran" in _tick(_relay(broker, tmp_path), "f_lag", instance).skip_message


def _progress(state: Path, offsets: dict[str, tuple[int, int]], how: str = "ended") -> None:
    queries = tuple(
        QueryProgress(
            name=name, mode="slice", active=False,
            partitions=tuple(
                PartitionProgress(topic="in", partition=number, offset=offset)
                for number, offset in enumerate(found)
            ),
        )
        for name, found in offsets.items()
    )  # fmt: skip
    progress = FlowProgress(
        flow="f", time_ms=time.time_ns() // 1_000_000, seconds=1.0, queries=queries, state=how
    )
    HistoryWriter(history_folder(state, "f")).progressed(progress)


def test_dead_letters_are_reported_on_change(broker: str, tmp_path: Path, instance: DagsterInstance) -> None:
    """The first report has none, the second has some, and there is no report in between."""
    defs = _relay(broker, tmp_path)
    before = _tick(defs, "f_dead_letters", instance)
    ensure_topics(broker, {"in.dead-letter": 1})
    between = _tick(defs, "f_dead_letters", instance, before.cursor)
    _send(broker, "in.dead-letter", 3)
    after = _tick(defs, "f_dead_letters", instance, between.cursor)

    assert _reported(before) == [(True, "0 messages of topic `in` became dead letters in the last hour")]
    assert _reported(between) == []
    assert _reported(after) == [(False, "3 messages of topic `in` became dead letters in the last hour")]


def test_dead_letters_wait_for_a_broker(tmp_path: Path, instance: DagsterInstance) -> None:
    """Without a broker the tick reports the reason."""
    found = _tick(_relay("127.0.0.1:9", tmp_path), "f_dead_letters", instance)

    assert isinstance(found, SkipReason)


def test_health_is_reported_on_change_while_no_run_reports_it(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    """Each check once after the run's end, then those that came to another outcome."""
    defs = _relay("127.0.0.1:9", tmp_path)
    run = instance.create_run_for_job(defs.resolve_job_def("f_live"), status=DagsterRunStatus.STARTED)
    beat = StepMaterializationData(AssetMaterialization(live_key("f")), [])
    kind = DagsterEventType.ASSET_MATERIALIZATION.value
    event = DagsterEvent(kind, run.job_name, event_specific_data=beat)
    instance.report_dagster_event(event, run.run_id)
    nothing = _tick(defs, "f_health", instance)
    query = QueryProgress(name="out", mode="realtime", active=True, rows_in=100)
    progress = FlowProgress(
        flow="f", time_ms=time.time_ns() // 1_000_000, seconds=1.0, interval_s=5.0,
        host=socket.gethostname(), pid=os.getpid(), queries=(query,),
    )  # fmt: skip
    writer = HistoryWriter(history_folder(tmp_path, "f"))
    writer.progressed(progress)
    running = _tick(defs, "f_health", instance, nothing.cursor)
    writer.progressed(replace(progress, state="ended"))
    first = _tick(defs, "f_health", instance, running.cursor)
    again = _tick(defs, "f_health", instance, first.cursor)
    writer.progressed(replace(progress, state="ended", queries=(replace(query, dropped=50),)))
    second = _tick(defs, "f_health", instance, again.cursor)
    writer.progressed(replace(progress, time_ms=time.time_ns() // 1_000_000))
    resumed = _tick(defs, "f_health", instance, second.cursor)
    writer.progressed(replace(progress, state="ended", queries=(replace(query, dropped=50),)))
    third = _tick(defs, "f_health", instance, resumed.cursor or second.cursor)  # as Dagster's daemon does

    assert _reported(nothing) == _reported(running) == _reported(again) == []
    assert [passed for passed, _ in _reported(first)] == [True, True, True]
    assert _reported(second) == [(False, "50 of 100 records of query `out` (50.000%)")]
    assert _reported(resumed) == []
    assert [passed for passed, _ in _reported(third)].count(False) == 1, "the run may have reported another"


def test_health_of_a_run_that_dagster_did_not_start_is_reported(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    """It may report itself to Dagster, but no run of Dagster's evaluates the checks."""
    defs = _relay("127.0.0.1:9", tmp_path)
    _progress(tmp_path, {"out": (0, 0)}, "running")
    instance.report_runless_asset_event(AssetMaterialization(live_key("f")))
    found = _tick(defs, "f_health", instance)

    assert [passed for passed, _ in _reported(found)] == [True, True, True]


def _reported(result: SensorResult) -> list[tuple[bool, str]]:
    events = [event for event in result.asset_events or [] if isinstance(event, AssetCheckEvaluation)]
    return [(event.passed, event.description or "") for event in events]


def test_bounded_asset_is_made_anew_after_what_it_reads() -> None:
    """Declarative automation follows from flow to flow, but not changes of external assets."""
    first, second = Flow("first"), Flow("second")
    first.read("raw", Parquet("raw", schema="id BIGINT")).write("clean", Parquet("clean"))
    second.read("clean", Parquet("clean", schema="id BIGINT")).write("report", Parquet("report"))
    defs = definitions(flow_assets(first), flow_assets(second))
    clean, report = (AssetKey(["files", name]) for name in ("clean", "report"))
    cursor, requested = None, []
    with DagsterInstance.ephemeral() as instance:
        for made in ([], [clean], [], [report]):
            for key in made:
                instance.report_runless_asset_event(AssetMaterialization(key))
            found = evaluate_automation_conditions(
                defs, instance, AssetSelection.assets(clean, report), cursor=cursor
            )
            cursor = found.cursor
            requested.append((found.get_num_requested(clean), found.get_num_requested(report)))

    assert requested == [(0, 0), (0, 1), (0, 0), (0, 0)]
