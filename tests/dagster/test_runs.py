"""Jobs of the reference flow, run in this process as a run worker runs them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    AssetSelection,
    DagsterEventType,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    define_asset_job,
)
from pyspark import SparkContext

from flowcore.dagster import FlowcoreResource, definitions
from flowcore.kafka.topics import end_offsets
from pipelines.auctions.assets import auctions as auctions_flow

pytestmark = pytest.mark.dagster

CATALOG = AssetKey(["auctions", "catalog"])
LIVE = AssetKey(["auctions", "live"])
COMPLETE = AssetCheckKey(CATALOG, "complete")


@dataclass(frozen=True, slots=True)
class Location:
    """A code location of its own, with the folder it keeps its state in."""

    defs: Definitions
    instance: DagsterInstance
    state: Path

    def run(self, job: str, **options: Any) -> ExecuteInProcessResult:
        return self.defs.resolve_job_def(job).execute_in_process(instance=self.instance, **options)

    @property
    def manifest(self) -> dict[str, Any]:
        found = json.loads((self.state / "auctions/results/catalog/manifest.json").read_text())
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
def location(auctions: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Location]:
    """The reference flow with its history digested once."""
    state = tmp_path_factory.mktemp("state")
    defs = Definitions.merge(
        definitions(auctions_flow, flowcore=FlowcoreResource(more=auctions.settings(state))),
        Definitions(
            jobs=[define_asset_job("checks", AssetSelection.checks(AssetCheckKey(CATALOG, "complete")))]
        ),
    )
    with DagsterInstance.ephemeral() as instance:
        yield Location(defs, instance, state)


@pytest.fixture(scope="module")
def history(location: Location) -> ExecuteInProcessResult:
    """The first run of the bounded stage."""
    return location.run("auctions_history")


def _metadata(result: ExecuteInProcessResult, key: AssetKey) -> dict[str, Any]:
    # A run that lasts has beaten before.
    node = "auctions__live" if key == LIVE else "auctions__history"
    event = result.asset_materializations_for_node(node)[-1]
    assert event.asset_key == key
    return {name: value.value for name, value in event.metadata.items()}


def test_bounded_stage_shows_what_it_left(location: Location, history: ExecuteInProcessResult) -> None:
    """Rows, columns, digest, files and bytes are those of the Parquet files on disk."""
    metadata = _metadata(history, CATALOG)
    files = sorted(Path(metadata["path"]).glob("*.parquet"))
    columns = [(column.name, column.type) for column in metadata["dagster/column_schema"].columns]

    assert metadata["dagster/row_count"] == sum(pq.ParquetFile(file).metadata.num_rows for file in files) > 0
    assert columns == [
        ("auction_id", "bigint"),
        ("category", "bigint"),
        ("seller", "bigint"),
        ("sold", "bigint"),
        ("median", "double"),
    ]
    assert (metadata["files"], metadata["bytes"]) == (len(files), sum(file.stat().st_size for file in files))
    assert metadata["digest"] == location.manifest["tables"]["catalog"]["digest"]
    assert metadata["version"] == location.manifest["version"]
    assert metadata["duration_s"] == location.manifest["duration_ms"] / 1000 > 0
    assert metadata["sources"].keys() == {"auctions", "past_bids"}
    assert metadata["rejected"] == 0
    assert metadata["fresh"] is True
    assert metadata["state"] == "committed"
    assert metadata["running_s"] + metadata["finishing_s"] >= metadata["duration_s"] > 0


def test_bounded_stage_is_checked_in_the_same_run(history: ExecuteInProcessResult) -> None:
    """The checks of each table run after it."""
    checks = {check.check_name: check for check in history.get_asset_check_evaluations()}

    assert checks.keys() == {"complete", "unique_auction_id", "range_sold", "range_median", "not_null_seller"}
    assert all(check.passed for check in checks.values())
    assert checks["complete"].metadata["rows"].value == _metadata(history, CATALOG)["dagster/row_count"]


def test_bounded_stage_shows_where_its_columns_come_from(history: ExecuteInProcessResult) -> None:
    """Each column of the table has the columns of the files that it is computed from."""
    lineage = _metadata(history, CATALOG)["dagster/column_lineage"].deps_by_column

    assert {
        column: [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps]
        for column, deps in lineage.items()
    } == {
        "auction_id": [("files/history/auctions", "auction_id")],
        "category": [("files/history/auctions", "category")],
        "seller": [("files/history/auctions", "seller")],
        "sold": [("files/history/auctions", "auction_id")],
        "median": [("files/history/bids", "price")],
    }


def test_run_leaves_no_jvm(history: ExecuteInProcessResult) -> None:
    """After a run has ended, its session and its JVM have ended, too."""
    assert history.success
    assert SparkContext._gateway is None
    assert SparkContext._active_spark_context is None


@pytest.mark.thorough
def test_slice_catches_up_and_ends(
    location: Location, history: ExecuteInProcessResult, auctions: Any
) -> None:
    """Every bid of the topic is joined; the run says how many, and with which version of history."""
    result = location.run("auctions_slice")
    metadata = _metadata(result, LIVE)

    assert metadata["bids/records"] == metadata["highest/records"] == auctions.bids
    assert metadata["bids/records_out"] == auctions.bids
    assert metadata["bids/mode"] == metadata["highest/mode"] == "slice"
    assert metadata["bids/lag"] == metadata["bids/bids[0]/lag"] == metadata["highest/bids[1]/lag"] == 0
    assert metadata["highest/state_bytes"] > 0
    assert "| `bids` | `slice" in metadata["health"]
    assert metadata["bounded_version/catalog"] == _metadata(history, CATALOG)["version"]
    assert sum(end_offsets(auctions.servers, "enriched-bids").values()) == auctions.bids
    found = {check.check_name: check.passed for check in _evaluations(location, result)}
    assert found.items() >= {"late_share": True, "dead_letter_share": True, "fresh": True}.items()


def _evaluations(location: Location, result: ExecuteInProcessResult) -> list[Any]:
    """The checks that a run answered as it went."""
    kinds = {DagsterEventType.ASSET_CHECK_EVALUATION}
    return [
        entry.get_dagster_event().event_specific_data
        for entry in location.instance.all_logs(result.run_id, of_type=kinds)
    ]


def test_check_fails_when_a_file_is_damaged(location: Location, history: ExecuteInProcessResult) -> None:
    """One changed byte is found, and the message names the file; no Spark is needed to see it."""
    file = next(Path(_metadata(history, CATALOG)["path"]).glob("*.parquet"))
    original = file.read_bytes()
    file.write_bytes(bytes([original[0] ^ 1]) + original[1:])
    try:
        (check,) = _check(location)
    finally:
        file.write_bytes(original)

    assert not check.passed
    assert str(file) in check.description
    assert [again.passed for again in _check(location)] == [True]


def test_check_fails_when_the_manifest_counts_other_rows(
    location: Location, history: ExecuteInProcessResult
) -> None:
    """A manifest that does not say what the files hold is not complete."""
    path = location.state / "auctions/results/catalog/manifest.json"
    original = path.read_text()
    rows = _metadata(history, CATALOG)["dagster/row_count"]
    path.write_text(original.replace(f'"rows": {rows}', f'"rows": {rows + 1}'))
    try:
        (check,) = _check(location)
    finally:
        path.write_text(original)

    assert not check.passed
    assert f"the files hold {rows} rows, the manifest says {rows + 1}" in check.description


def _check(location: Location) -> list[Any]:
    return list(location.run("checks", raise_on_error=False).get_asset_check_evaluations())
