"""Expectations of a bounded table are checked in the run that makes it; violations are counted."""

from collections.abc import Iterator
from typing import Any

import pytest
from dagster import AssetCheckSeverity, DagsterInstance, Definitions

from flowcore import Flow, KafkaTopic, from_frame
from flowcore.dagster import Expectations, FlowcoreResource, definitions, flow_assets
from flowcore.errors import ConfigurationError, PlanError

pytestmark = pytest.mark.dagster

ROWS = [(1, 0.5, "a"), (1, 2.0, None), (2, None, "b"), (3, 9.0, "c"), (None, 1.0, "d"), (None, 1.0, "e")]
SCHEMA = "id BIGINT, price DOUBLE, shop STRING"


def _flow() -> Flow:
    flow = Flow("f")
    prices = flow.read("rows", from_frame(lambda spark: spark.createDataFrame(ROWS, SCHEMA), SCHEMA)).select(
        "*", name="prices"
    )
    live = flow.read("in", KafkaTopic("in", schema="id BIGINT"))
    live.join(prices, on="id", how="left").write("out", KafkaTopic("out"))
    return flow


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The checks of one run, by name."""
    folder = tmp_path_factory.mktemp("state")
    expected = Expectations(ranges={"price": (1.0, 5.0), "id": (None, 3)}, not_null=["shop", "price"])
    more = {"state.dir": str(folder), "execution.short-lived": "true"}
    defs = definitions(
        flow_assets(_flow(), expectations={"prices": expected}), flowcore=FlowcoreResource(more=more)
    )
    with DagsterInstance.ephemeral() as instance:
        result = defs.resolve_job_def("f_history").execute_in_process(instance=instance)
        assert result.success
        yield {check.check_name: check for check in result.get_asset_check_evaluations()}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("unique_id", 1), ("range_price", 2), ("range_id", 0), ("not_null_shop", 1), ("not_null_price", 1)],
)
def test_rows_that_violate_an_expectation_are_counted(checks: dict[str, Any], name: str, wrong: int) -> None:
    """Null values are neither duplicates nor outside of a range."""
    assert checks[name].passed is (wrong == 0)
    assert checks[name].metadata["rows_otherwise"].value == wrong


def test_columns_whose_names_dagster_refuses_are_checked() -> None:
    """The name of a check has a digest of the column, which its description and its query have as it is."""
    flow = Flow("f")
    schema = "`auction-id` BIGINT, größe DOUBLE"
    rows = from_frame(lambda spark: spark.createDataFrame([(1, 2.0)], schema), schema)
    sizes = flow.read("rows", rows).select("*", name="sizes")
    live = flow.read("in", KafkaTopic("in", schema="`auction-id` BIGINT"))
    live.join(sizes, on="auction-id", how="left").write("out", KafkaTopic("out"))
    expected = Expectations(ranges={"größe": (1, 2)}, not_null=["größe"])
    defs = definitions(flow_assets(flow, expectations={"sizes": expected}))
    Definitions.validate_loadable(defs)
    names = {key.name for key in defs.resolve_asset_graph().asset_check_keys}

    assert {"unique_auction_id_08728cca", "range_gr__e_d353a267", "not_null_gr__e_d353a267"} < names


def test_key_of_a_live_join_is_checked_unasked(checks: dict[str, Any]) -> None:
    """It may be intended, so it is a warning; a declared expectation is an error."""
    assert checks["unique_id"].severity is AssetCheckSeverity.WARN
    assert checks["range_price"].severity is AssetCheckSeverity.ERROR
    assert checks["complete"].passed


@pytest.mark.parametrize(
    ("table", "expected", "error", "message"),
    [
        ("prizes", Expectations(), ConfigurationError, "no table 'prizes'.*its tables are prices"),
        ("prices", Expectations(unique=["idd"]), PlanError, "'idd'.*did you mean 'id'"),
        ("prices", Expectations(ranges={"x": (0, 1)}), PlanError, "'x'"),
    ],
    ids=["table", "key", "range"],
)
def test_expectation_of_nothing_is_refused(
    table: str, expected: Expectations, error: type[Exception], message: str
) -> None:
    """It would never be checked, and nobody would know."""
    with pytest.raises(error, match=message):
        flow_assets(_flow(), expectations={table: expected})
