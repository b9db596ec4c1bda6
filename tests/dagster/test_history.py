"""The bounded stages of a flow in one Dagster run: in parallel, each alone, and with progress in the log."""

import base64
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetKey,
    AssetMaterialization,
    DagsterEventType,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    ExecuteInProcessResult,
    asset_check,
)

from flowcore import Flow, KafkaTopic, Parquet, from_frame
from flowcore.dagster import FlowcoreResource, definitions, flow_assets, heartbeats, termination
from flowcore.dagster.heartbeats import HEARTBEAT
from pipelines.auctions.assets import auctions
from tests.waiting import wait_until

pytestmark = pytest.mark.dagster


def _meeting(folder: Path, mine: str, other: str) -> Callable[[Any], Any]:
    """A source whose task ends only when another source's task is running too."""

    def wait(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        (folder / mine).touch()
        deadline = time.monotonic() + 40
        while not (folder / other).exists():
            if time.monotonic() > deadline:
                msg = f"{other} never came"
                raise TimeoutError(msg)
            time.sleep(0.05)
        yield from frames

    return lambda spark: spark.range(0, 1, 1, 1).toDF("a").mapInPandas(wait, "a BIGINT")


def _location(folder: Path) -> Definitions:
    flow = Flow("f")
    first = flow.read("one", from_frame(_meeting(folder, "1", "2"), "a BIGINT"))
    first.write("x", Parquet("x"))
    first.select("a + 1 as a").write("more", Parquet("more"))
    live = flow.read("in", KafkaTopic("in", schema="a BIGINT"))
    live.join(first.select("a", name="known"), on="a", how="left").write("out", KafkaTopic("out"))
    flow.read("two", from_frame(_meeting(folder, "2", "1"), "a BIGINT")).write("y", Parquet("y"))
    more = {"data.dir": str(folder), "state.dir": str(folder / "state"), "execution.short-lived": "true"}
    return definitions(flow_assets(flow), flowcore=FlowcoreResource(more=more))


def _run(folder: Path, *keys: str) -> ExecuteInProcessResult:
    job = _location(folder).resolve_job_def("f_history")
    selection = [AssetKey(["files", key]) for key in keys] or None
    with DagsterInstance.ephemeral() as instance:
        return job.execute_in_process(instance=instance, asset_selection=selection, raise_on_error=False)


def _materializations(result: ExecuteInProcessResult) -> list[AssetMaterialization]:
    events = [e for e in result.all_events if e.event_type is DagsterEventType.ASSET_MATERIALIZATION]
    return [event.step_materialization_data.materialization for event in events]


def _materialized(result: ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    return {
        each.asset_key.path[-1]: {name: value.value for name, value in each.metadata.items()}
        for each in _materializations(result)
        if each.asset_key
    }


@pytest.mark.thorough
def test_stages_of_one_run_are_side_by_side(tmp_path: Path) -> None:
    """Each of these ends only if the other one runs; how long each was in each state is metadata."""
    result = _run(tmp_path)

    assert result.success
    made = _materialized(result)
    assert made.keys() == {"x", "more", "y", "known"}
    for metadata in made.values():
        assert metadata["state"] == "committed"
        assert metadata["running_s"] > 0
        assert metadata["finishing_s"] > 0


def test_stage_is_run_whole_though_one_asset_of_it_is_asked_for(tmp_path: Path) -> None:
    """The other sink and the table are made along with it and shown; the other stage is not run."""
    (tmp_path / "2").touch()

    result = _run(tmp_path, "more")

    assert result.success
    made = _materialized(result)
    assert made.keys() == {"x", "more", "known"}
    known = next(each for each in _materializations(result) if each.asset_key == AssetKey(["f", "known"]))
    assert (known.tags or {}).get("dagster/data_version") == made["known"]["digest"]
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("terminated", [True, False], ids=["terminated", "declared-failed"])
def test_run_that_is_to_end_ends_though_no_signal_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminated: bool
) -> None:
    """Its code server is gone, so only Dagster's storage says so. Its jobs are cancelled."""
    monkeypatch.setattr(termination, "_STORAGE_POLL_S", 0.1)
    job = _location(tmp_path).resolve_job_def("f_history")
    with DagsterInstance.local_temp() as instance:

        def end() -> None:
            wait_until((tmp_path / "1").exists)
            (run,) = instance.get_runs()
            if terminated:
                instance.report_run_canceling(run)
            else:
                instance.report_run_failed(run)

        ending = threading.Thread(target=end)
        ending.start()
        with suppress(DagsterExecutionInterruptedError):
            job.execute_in_process(
                instance=instance, asset_selection=[AssetKey(["files", "x"])], raise_on_error=False
            )
        ending.join()
        (run,) = instance.get_runs()
        kinds = {DagsterEventType.STEP_FAILURE}
        events = [entry.get_dagster_event() for entry in instance.all_logs(run.run_id, of_type=kinds)]
        errors = str([event.step_failure_data.error for event in events])

    assert run.status is (DagsterRunStatus.CANCELED if terminated else DagsterRunStatus.FAILURE)
    assert ("was declared failed while it still ran" in errors) is not terminated
    assert "never came" not in errors  # the error of the job itself, if it is left to its end


def test_run_renews_its_heartbeat_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a check that the project has added, which knows nothing of heartbeats. Then its thread ends."""
    monkeypatch.setattr(heartbeats, "_INTERVAL_S", 0.05)

    @asset_check(asset=AssetKey(["files", "x"]))
    def own(context: AssetCheckExecutionContext) -> AssetCheckResult:
        instance, run_id = context.instance, context.run.run_id
        instance.add_run_tags(run_id, {HEARTBEAT: "old"})
        wait_until(lambda: (run := instance.get_run_by_id(run_id)) and run.tags[HEARTBEAT] != "old")
        return AssetCheckResult(passed=True)

    (tmp_path / "2").touch()
    defs = Definitions.merge(_location(tmp_path), Definitions(asset_checks=[own]))
    with DagsterInstance.local_temp() as instance:
        job = defs.resolve_job_def("f_history")
        result = job.execute_in_process(
            instance=instance, asset_selection=[AssetKey(["files", "x"])], raise_on_error=False
        )

    assert result.success
    assert len(result.get_asset_check_evaluations()) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


@pytest.mark.parametrize("key", [["auctions", "catalog"], ["auctions", "live"]], ids=["bounded", "live"])
def test_plan_is_drawn_in_the_metadata_of_an_asset(key: list[str]) -> None:
    """Dagster's Markdown shows a picture that is in it: the drawn plan, and the plan in words below."""
    metadata = definitions(auctions).resolve_asset_graph().get(AssetKey(key)).metadata
    text = metadata["plan"].value

    (picture,) = re.findall(r"^!\[.*\]\(data:image/svg\+xml;base64,([\w+/=]+)\)$", text, re.MULTILINE)
    root = ET.fromstring(base64.b64decode(picture))  # noqa: S314 - it is our own

    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "bids: read KafkaTopic bids from earliest" in titles
    assert "stage 1: catalog (batch, starts at once)" in text
