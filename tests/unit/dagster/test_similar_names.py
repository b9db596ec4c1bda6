"""Topics, tables and files whose names differ in `-` and `.` only are in one code location."""

from __future__ import annotations

from pathlib import Path

from dagster import AssetCheckKey, AssetKey, DagsterInstance, Definitions

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.dagster import Expectations, FlowcoreResource, definitions, flow_assets

NAMES = ("orders-eu", "orders.eu")


def _topics() -> Flow:
    flow = Flow("shop")
    for number, name in enumerate(NAMES):
        source = flow.read(f"in{number}", KafkaTopic(name, schema="id BIGINT"))
        source.write(f"out{number}", KafkaTopic(f"out{number}"))
    return flow


def _tables() -> Flow:
    """Two tables that live queries join, each of its own stage."""
    flow = Flow("shop")
    live = flow.read("in", KafkaTopic("in", schema="id BIGINT"))
    for number, name in enumerate(NAMES):
        table = flow.read(f"raw{number}", Parquet(f"raw{number}", schema="id BIGINT")).select("*", name=name)
        live = live.join(table, on="id", how="left")
    live.write("out", KafkaTopic("out"))
    return flow


def _checks(defs: Definitions) -> set[AssetCheckKey]:
    Definitions.validate_loadable(defs)
    return set(defs.resolve_asset_graph().asset_check_keys)


def test_dead_letter_topics_with_similar_names_have_a_check_each() -> None:
    """Dagster would give both ops one name, and refuse the code location."""
    found = _checks(definitions(flow_assets(_topics())))

    quiet = {key.asset_key.path[-1] for key in found if key.name == "quiet"}
    assert quiet == {f"{name}.dead-letter" for name in NAMES}


def test_tables_with_similar_names_have_their_checks(tmp_path: Path) -> None:
    """Those of the files and those of the values; each answers for its own table."""
    flowcore = FlowcoreResource(more={"state.dir": str(tmp_path)})
    expected = {name: Expectations(not_null=["id"]) for name in NAMES}
    defs = definitions(flow_assets(_tables(), expectations=expected), flowcore=flowcore)
    names = ("complete", "not_null_id", "unique_id")
    keys = {AssetCheckKey(AssetKey(["shop", table]), name) for table in NAMES for name in names}
    assert keys <= _checks(defs)

    job = defs.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=set(), asset_check_selection=keys
    )
    with DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    found = {each.asset_check_key: each for each in result.get_asset_check_evaluations()}

    assert found.keys() == keys
    for key, each in found.items():
        assert not each.passed
        assert "there is no committed result" in (each.description or "")
        table = key.asset_key.path[-1]
        assert key.name != "complete" or table in (each.description or "")


def test_names_of_other_checks_stay_as_they_are() -> None:
    """They are keys of a launch, and in the history of runs."""
    flow = Flow("shop")
    table = flow.read("raw", Parquet("raw", schema="id BIGINT")).select("*", name="catalog")
    flow.read("in", KafkaTopic("in", schema="id BIGINT")).join(table, on="id").write("out", KafkaTopic("out"))
    job = definitions(flow_assets(flow)).resolve_job_def("shop_history")

    ops = {node.name for node in job.graph.nodes}
    assert ops == {"shop__history", "shop__catalog_complete", "shop__catalog_values"}
