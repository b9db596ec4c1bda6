"""The assets of the reference flow as Dagster loads them, without starting Spark."""

import sqlite3
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    AssetSpec,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    EnvVar,
    GraphDefinition,
    RunRequest,
    SkipReason,
    build_schedule_context,
    op,
)

from flowcore import Flow, KafkaTopic
from flowcore.dagster import (
    FlowcoreResource,
    KafkaResource,
    ResultsResource,
    SparkResource,
    definitions,
    flow_assets,
)
from flowcore.errors import SettingsError
from flowcore.kafka.broker import free_port
from flowcore.kafka.security import Security
from flowcore.settings import Settings
from pipelines.definitions import defs
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.dagster

LOAD = """
import os
from pathlib import Path

from pipelines.definitions import defs
from pyspark import SparkContext

defs.get_repository_def()
children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
print(SparkContext._gateway, children)
"""


def test_definitions_load_without_a_jvm() -> None:
    """A fresh interpreter that loads everything has no gateway to Java and no child process."""
    run = subprocess.run(
        [sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, timeout=LONGEST_S
    )

    assert run.stdout.split("\n")[-2:] == ["None []", ""]


def test_assets_of_the_flows_are_these() -> None:
    """Key, kinds, owner or group, and what it depends on."""
    graph = defs.resolve_asset_graph()
    assets = [
        f"{node.key.to_user_string()} ({', '.join(sorted(node.kinds))})"
        f" of {' '.join(node.owners) or node.group_name}"
        f" <- {', '.join(sorted(key.to_user_string() for key in node.parent_keys)) or '.'}"
        for node in sorted(graph.asset_nodes, key=lambda node: node.key)
    ]

    assert {node.group_name for node in graph.asset_nodes if node.is_executable} == {
        "activity",
        "auctions",
    }
    assert assets == [
        "activity/live (kafka, spark) of team:auctions <- kafka/bids",
        "auctions/catalog (parquet, spark) of team:auctions <- files/history/auctions, files/history/bids",
        "auctions/live (kafka, spark) of team:auctions <- auctions/catalog, kafka/bids",
        "files/history/auctions (parquet) of external <- .",
        "files/history/bids (parquet) of external <- .",
        "kafka/auction-activity (kafka) of external <- activity/live",
        "kafka/bidder-totals (kafka) of external <- activity/live",
        "kafka/bids (kafka) of external <- .",
        "kafka/bids.dead-letter (kafka) of external <- activity/live, auctions/live",
        "kafka/enriched-bids (kafka) of external <- auctions/live",
        "kafka/highest-bids (kafka) of external <- auctions/live",
        "kafka/late-bids (kafka) of external <- activity/live",
    ]


def test_checks_of_the_flows_are_these() -> None:
    """Every check, as its asset and its name."""
    graph = defs.resolve_asset_graph()
    checks = [f"{check.asset_key.to_user_string()}:{check.name}" for check in graph.asset_check_keys]

    assert sorted(checks) == [
        "activity/live:dead_letter_share",
        "activity/live:fresh",
        "activity/live:late_share",
        "activity/live:running",
        "auctions/catalog:complete",
        "auctions/catalog:not_null_seller",
        "auctions/catalog:range_median",
        "auctions/catalog:range_sold",
        "auctions/catalog:unique_auction_id",
        "auctions/live:dead_letter_share",
        "auctions/live:fresh",
        "auctions/live:late_share",
        "auctions/live:running",
        "kafka/bids.dead-letter:quiet",
    ]


def test_jobs_and_schedules_of_the_flows_are_these() -> None:
    """The assets of each job; the times and the job of each schedule, all of which are off."""
    repository = defs.get_repository_def()
    jobs = {
        job.name: sorted(key.to_user_string() for key in job.asset_layer.executable_asset_keys)
        for job in repository.get_all_jobs()
        if not job.name.startswith("__")
    }
    schedules = [
        (each.name, each.cron_schedule, each.job_name, each.default_status.value)
        for each in repository.schedule_defs
    ]

    assert jobs == {
        "auctions_history": ["auctions/catalog"],
        "auctions_slice": ["auctions/live"],
        "auctions_live": ["auctions/live"],
        "activity_slice": ["activity/live"],
        "activity_live": ["activity/live"],
    }
    assert schedules == [
        ("activity_slice_schedule", "*/5 * * * *", "activity_slice", "STOPPED"),
        ("auctions_refresh_schedule", "0 3 * * *", "auctions_history", "STOPPED"),
        ("auctions_slice_schedule", "*/5 * * * *", "auctions_slice", "STOPPED"),
    ]


def test_sensors_of_the_flows_are_these() -> None:
    """Sensors that watch a flow are on; sensors that launch runs are off until a person turns them on."""
    sensors = [(each.name, each.default_status.value) for each in defs.get_repository_def().sensor_defs]

    assert sorted(sensors) == [
        ("activity_dead_letters", "RUNNING"),
        ("activity_health", "RUNNING"),
        ("activity_lag", "STOPPED"),
        ("activity_supervision", "RUNNING"),
        ("auctions_automation", "STOPPED"),
        ("auctions_dead_letters", "RUNNING"),
        ("auctions_health", "RUNNING"),
        ("auctions_lag", "STOPPED"),
        ("auctions_new_history", "STOPPED"),
        ("auctions_supervision", "RUNNING"),
    ]


@pytest.mark.parametrize(
    ("schedule", "job"),
    [
        ("auctions_slice_schedule", "auctions_slice"),
        ("auctions_slice_schedule", "auctions_live"),
        ("auctions_refresh_schedule", "auctions_history"),
    ],
    ids=["slice-slice", "slice-live", "refresh"],
)
def test_schedule_skips_while_the_flow_runs(schedule: str, job: str) -> None:
    """Slices would wait in the queue for the live run, one more with each tick."""
    each = defs.resolve_schedule_def(schedule)
    with DagsterInstance.local_temp() as instance, build_schedule_context(instance) as context:
        idle = each(context)
        instance.create_run_for_job(defs.resolve_job_def(job), status=DagsterRunStatus.STARTED)
        busy = each(context)

    assert isinstance(idle, RunRequest)
    assert isinstance(busy, SkipReason)
    assert job in (busy.skip_message or "")


def test_every_asset_and_field_is_described() -> None:
    """Every asset, resource and setting in the UI has a description."""
    graph = defs.resolve_asset_graph()
    fields = [
        field
        for resource in (defs.resources or {}).values()
        for field in type(resource).model_fields.values()
    ]

    sensors = defs.get_repository_def().sensor_defs

    assert all(node.description for node in graph.asset_nodes)
    assert all(each.description for each in [*sensors, *defs.get_repository_def().schedule_defs])
    assert all(graph.get(key).description for key in graph.asset_check_keys)
    assert len(fields) == 19
    assert all(field.description for field in fields)


def test_resources_give_the_settings_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password by the name of its variable, which is all that Dagster shows of it."""
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    kafka = KafkaResource(
        bootstrap_servers="a:1", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
        username="ann", password=EnvVar("KAFKA_PASSWORD"),
    )  # fmt: skip
    assets = flow_assets(_relay("first", "a", "b"))
    defs = definitions(assets, kafka=kafka, results=ResultsResource(state_dir="/state"))
    found: list[Settings] = []

    @op
    def read_settings(flowcore: FlowcoreResource) -> None:
        found.append(flowcore.settings())

    GraphDefinition("g", node_defs=[read_settings]).to_job(
        resource_defs=dict(defs.resources or {})
    ).execute_in_process()

    assert found[0].bootstrap_servers == "a:1"
    assert found[0].state_dir == Path("/state")
    assert Security.of(found[0]).password == "s3cret"  # noqa: S105
    assert "s3cret" not in f"{defs.resources} {found[0]}"


SECRETS = {
    "more": (FlowcoreResource(more={"kafka.sasl.password": "s3cret"}), SparkResource()),
    "more, mistyped": (FlowcoreResource(more={"kafka.sasl.pasword": "s3cret"}), SparkResource()),
    "more, of Spark": (FlowcoreResource(more={"spark.hadoop.fs.s3a.secret.key": "s3cret"}), SparkResource()),
    "spark_config": (
        FlowcoreResource(), SparkResource(spark_config={"spark.authenticate.secret": "s3cret"})
    ),
    "spark_config, nested": (
        FlowcoreResource(), SparkResource(spark_config={"spark": {"ssl": {"keyPassword": "s3cret"}}})
    ),
    "password": (FlowcoreResource(kafka=KafkaResource(password="s3cret")), SparkResource()),  # noqa: S106
    "key_password": (FlowcoreResource(kafka=KafkaResource(key_password="s3cret")), SparkResource()),  # noqa: S106
}  # fmt: skip


@pytest.mark.parametrize(("flowcore", "spark"), SECRETS.values(), ids=SECRETS)
def test_definitions_with_a_secret_are_refused(flowcore: FlowcoreResource, spark: SparkResource) -> None:
    """Dagster stores the values of resources with each job, also of one whose runs fail."""
    with pytest.raises(SettingsError) as refused:
        definitions(flow_assets(_relay("first", "a", "b")), flowcore=flowcore, spark=spark)

    assert "s3cret" not in str(refused.value)


def test_literal_password_beside_other_resources_is_refused() -> None:
    """Also where `definitions` makes the resource of all settings itself."""
    with pytest.raises(SettingsError, match="`password` of KafkaResource is a text"):
        definitions(flow_assets(_relay("first", "a", "b")), kafka=KafkaResource(password="s3cret"))  # noqa: S106


def test_settings_from_variables_and_files_are_not_refused() -> None:
    """The value is that of the run; Dagster stores the name or the path only."""
    flowcore = FlowcoreResource(
        more={
            "execution.trigger-interval": EnvVar("NOT_SET_HERE"),
            "kafka.sasl.password.file": "/only/in/a/run",
        }
    )

    assert definitions(flow_assets(_relay("first", "a", "b")), flowcore=flowcore)


def test_runs_keep_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the events of a run that fails, nor in its logs, nor in the snapshots of its job."""
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    kafka = KafkaResource(
        bootstrap_servers=f"127.0.0.1:{free_port()}", security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN", username="ann", password=EnvVar("KAFKA_PASSWORD"),
    )  # fmt: skip
    defs = definitions(
        flow_assets(_relay("first", "a", "b")),
        kafka=kafka,
        results=ResultsResource(state_dir=str(tmp_path / "state")),
    )
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        job = defs.resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(instance=instance, raise_on_error=False)
        events = str([event.event_specific_data for event in done.filter_events(lambda _: True)])
    snapshots = _snapshots(tmp_path)
    files = [file for file in tmp_path.rglob("*") if file.is_file() and b"s3cret" in file.read_bytes()]

    assert "did not answer" in events
    assert b"KAFKA_PASSWORD" in snapshots
    assert b"s3cret" not in snapshots
    assert (files, "s3cret" in events) == ([], False)


def _snapshots(folder: Path) -> bytes:
    """What Dagster stored of jobs, which it compresses."""
    found = b""
    for file in folder.rglob("runs.db"):
        with closing(sqlite3.connect(file)) as connection:
            rows = connection.execute("SELECT snapshot_body FROM snapshots")
            found += b"".join(zlib.decompress(body) for (body,) in rows)
    return found


def test_definitions_can_be_merged_with_others() -> None:
    """A code location may have other assets than those of its flows."""
    other = Definitions(assets=[AssetSpec("other")])

    assert Definitions.merge(defs, other).resolve_asset_graph().has(AssetKey("other"))


def _relay(name: str, source: str, sink: str) -> Flow:
    flow = Flow(name)
    flow.read("in", KafkaTopic(source, schema="id BIGINT")).write("out", KafkaTopic(sink))
    return flow
