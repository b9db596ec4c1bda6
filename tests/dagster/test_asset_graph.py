"""Assets of flows: their keys, and what they depend on, within a flow and from flow to flow."""

from collections.abc import Callable

import pytest
from dagster import AssetKey, Definitions

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.dagster import definitions, flow_assets

pytestmark = pytest.mark.dagster


def test_flows_that_share_a_topic_share_its_asset() -> None:
    """What one flow writes and another reads is one node, so the graph leads from flow to flow."""
    defs = definitions(flow_assets(_relay("first", "a", "b")), flow_assets(_relay("second", "b", "c")))
    graph = defs.resolve_asset_graph()

    assert graph.get(AssetKey(["kafka", "b"])).parent_keys == {AssetKey(["first", "live"])}
    assert graph.get(AssetKey(["second", "live"])).parent_keys == {AssetKey(["kafka", "b"])}


def test_live_asset_does_not_depend_on_the_topic_of_its_own_cut() -> None:
    """Its queries write it and read it; Dagster refuses a circle of assets."""
    flow = Flow("sales")
    flow.read("in", KafkaTopic("bids", schema="id BIGINT")).through("ids").write("out", KafkaTopic("out"))
    graph = definitions(flow_assets(flow)).resolve_asset_graph()

    assert graph.get(AssetKey(["sales", "live"])).parent_keys == {AssetKey(["kafka", "bids"])}
    assert graph.get(AssetKey(["kafka", "ids"])).parent_keys == {AssetKey(["sales", "live"])}


@pytest.mark.parametrize(
    "build",
    [
        lambda: [_mirror()],
        lambda: [_replay()],
        lambda: [_compaction()],
        lambda: [_swap()],
        lambda: [_relay("first", "a", "b"), _relay("second", "b", "a")],
    ],
    ids=["mirror", "replay", "compaction", "swap", "relays"],
)
def test_flows_that_read_what_they_write_make_no_cycle_of_assets(build: Callable[[], list[Flow]]) -> None:
    """Dagster could not load it, or not order it, which its UI and automation do. All else is kept."""
    defs = definitions(*map(flow_assets, build()))
    Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()

    assert set(graph.toposorted_asset_keys) == graph.get_all_asset_keys()
    assert all(graph.get(key).parent_keys for key in graph.get_all_asset_keys() if key.path[-1] == "live")


def test_flows_that_read_one_topic_share_its_dead_letters() -> None:
    """One asset with one check, though both put messages there."""
    graph = definitions(
        flow_assets(_relay("first", "a", "b")), flow_assets(_relay("second", "a", "c"))
    ).resolve_asset_graph()
    letters = graph.get(AssetKey(["kafka", "a.dead-letter"]))

    assert {key.path[0] for key in letters.parent_keys} == {"first", "second"}
    assert [key.name for key in letters.check_keys] == ["quiet"]


def test_files_that_one_flow_makes_are_not_outside_of_another() -> None:
    """A bounded sink is an asset that can be materialized, also for a flow that reads it."""
    graph = definitions(
        flow_assets(_report("first", "raw", "clean")), flow_assets(_report("second", "clean", "out"))
    )
    clean = graph.resolve_asset_graph().get(AssetKey(["files", "clean"]))

    assert clean.is_materializable
    assert clean.parent_keys == {AssetKey(["files", "raw"])}
    assert clean.child_keys == {AssetKey(["files", "out"])}


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("out/sales-2026.v1", ["out", "sales-2026.v1"]),
        ("out/day=2026-01-01", ["out", "day_2026-01-01_b2a60902"]),
        ("sales 2024.csv", ["sales_2024.csv_62770a6a"]),
        ("größe", ["gr__e_d353a267"]),
    ],
    ids=["accepted", "partition", "space", "umlauts"],
)
def test_paths_that_dagster_refuses_are_rewritten(path: str, parts: list[str]) -> None:
    """A digest keeps apart two paths that differ only in what is replaced; the description has the path."""
    defs = definitions(
        flow_assets(_report("first", path, "last")), flow_assets(_report("second", "in", path))
    )
    Definitions.validate_loadable(defs)
    asset = defs.resolve_asset_graph().get(AssetKey(["files", *parts]))

    assert asset.child_keys == {AssetKey(["files", "last"])}
    assert asset.parent_keys == {AssetKey(["files", "in"])}


@pytest.mark.parametrize("name", ["shop-sales", "shop.sales"], ids=["dash", "dot"])
def test_flow_names_that_dagster_refuses_are_rewritten_for_jobs_only(name: str) -> None:
    """The asset keeps the flow's name; job, group, op and pool get a valid name."""
    assets = definitions(flow_assets(_relay(name, "a", "b")))

    assert assets.resolve_asset_graph().has(AssetKey([name, "live"]))
    assert assets.resolve_job_def("shop_sales_slice")


def _relay(name: str, source: str, sink: str) -> Flow:
    flow = Flow(name)
    flow.read("in", KafkaTopic(source, schema="id BIGINT")).write("out", KafkaTopic(sink))
    return flow


def _report(name: str, source: str, sink: str) -> Flow:
    flow = Flow(name)
    flow.read("in", Parquet(source, schema="id BIGINT")).write("out", Parquet(sink))
    return flow


def _mirror() -> Flow:
    flow = Flow("mirror")
    there = flow.read("in", KafkaTopic("a", servers="there:9092", schema="id BIGINT"))
    there.write("out", KafkaTopic("a", servers="here:9092"))
    return flow


def _replay() -> Flow:
    """Live queries join what they have written before."""
    flow = Flow("replay")
    written = flow.read("written", KafkaTopic("b", schema="id BIGINT, n BIGINT", until="latest"))
    counts = written.aggregate(by="id", count="count(*)", name="counts")
    live = flow.read("in", KafkaTopic("a", schema="id BIGINT, n BIGINT"))
    live.join(counts, on="id", how="left").write("out", KafkaTopic("b"))
    return flow


def _compaction() -> Flow:
    """A bounded stage adds to the topic that it has read."""
    flow = Flow("compaction")
    flow.read("in", KafkaTopic("a", schema="id BIGINT", until="latest")).write("out", KafkaTopic("a"))
    return flow


def _swap() -> Flow:
    flow = Flow("swap")
    for source, sink in ("ab", "ba"):
        flow.read(f"in-{source}", Parquet(source, schema="id BIGINT")).write(f"out-{sink}", Parquet(sink))
    return flow
