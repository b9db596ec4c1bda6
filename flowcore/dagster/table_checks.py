"""Expectations: does a table of a bounded stage hold what it shall? One pass over it, by Spark."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    MetadataValue,
    multi_asset_check,
)

from flowcore.api.expressions import resolve
from flowcore.api.operators import Join, Operator
from flowcore.dagster.attributes import Expectations
from flowcore.dagster.names import op_name, table_key
from flowcore.dagster.resources import FlowcoreResource, SparkResource
from flowcore.errors import ConfigurationError
from flowcore.planner.model import BoundedStage
from flowcore.planner.plan import Plan
from flowcore.spark.results.store import ResultStore

__all__ = ["expectation_checks"]


@dataclass(frozen=True, slots=True)
class _Check:
    """One expectation of a table.

    Attributes:
        name: Of the asset check.
        what: What is expected, in words.
        wrong: Spark SQL of an aggregate that counts the rows that are otherwise.
        severity: Of a table in which there are any.
    """

    name: str
    what: str
    wrong: str
    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR


def expectation_checks(plan: Plan, expected: Mapping[str, Expectations]) -> list[AssetChecksDefinition]:
    """For each table of a flow of which something is expected, the checks of it.

    Args:
        plan: Of the flow.
        expected: By table.

    Raises:
        ConfigurationError: Something is expected of a table that no bounded stage leaves.
        PlanError: Something is expected of a column that a table does not have.
    """
    tables = {result.name: (stage, result.operator) for stage in plan.bounded for result in stage.results}
    unknown = sorted(expected.keys() - tables.keys())
    if unknown:
        msg = (
            f"flow {plan.flow!r} leaves no table {unknown[0]!r}: it would never be checked; "
            f"its tables are {', '.join(tables) or 'none'}"
        )
        raise ConfigurationError(msg)
    found = []
    for table, (stage, operator) in tables.items():
        checks = list(_expected(operator, plan, expected.get(table, Expectations())))
        if checks:
            found.append(_asset_checks(stage, plan.flow, table, checks))
    return found


def _expected(table: Operator, plan: Plan, expected: Expectations) -> Iterator[_Check]:
    named = [*(expected.unique or ()), *expected.ranges, *expected.not_null]
    resolve(named, table.columns, table.name, "an expectation of Dagster's")
    if expected.unique is None:
        for keys in _joined_by(table, plan):
            yield _unique(keys, AssetCheckSeverity.WARN)
    elif expected.unique:
        yield _unique(expected.unique, AssetCheckSeverity.ERROR)
    for column, (low, high) in expected.ranges.items():
        bounds = [f"`{column}` < {low}"] * (low is not None) + [f"`{column}` > {high}"] * (high is not None)
        what = " and ".join(["at least {low}"] * (low is not None) + ["at most {high}"] * (high is not None))
        yield _Check(
            f"range_{column}",
            f"`{column}` is {what.format(low=low, high=high)}, or null.",
            f"count_if({' OR '.join(bounds) or 'false'})",
        )
    for column in expected.not_null:
        yield _Check(f"not_null_{column}", f"`{column}` is never null.", f"count_if(`{column}` IS NULL)")


def _joined_by(table: Operator, plan: Plan) -> Iterator[tuple[str, ...]]:
    """The columns by which live queries join it, each set of them once."""
    joins = (node for query in plan.live.queries for node in query.operators) if plan.live else ()
    sides = {
        tuple(pair[number] for pair in node.on): None
        for node in joins
        if isinstance(node, Join)
        for number, side in enumerate(node.inputs)
        if side is table
    }
    yield from sides


def _unique(columns: Sequence[str], severity: AssetCheckSeverity) -> _Check:
    keys = ", ".join(f"`{column}`" for column in columns)
    known = " AND ".join(f"`{column}` IS NOT NULL" for column in columns)
    joined = severity is AssetCheckSeverity.WARN
    why = "; a live record that meets several would come out several times" if joined else ""
    return _Check(
        f"unique_{'_'.join(columns)}",
        f"No two rows have the same {keys}{why}.",
        f"count_if({known}) - count(DISTINCT {keys})",
        severity,
    )


def _asset_checks(
    stage: BoundedStage, flow: str, table: str, checks: Sequence[_Check]
) -> AssetChecksDefinition:
    key = table_key(flow, table)
    specs = [AssetCheckSpec(check.name, asset=key, description=check.what) for check in checks]

    @multi_asset_check(name=op_name(flow, f"{table}_values"), specs=specs, can_subset=True)
    def values(
        context: AssetCheckExecutionContext, flowcore: FlowcoreResource, spark: SparkResource
    ) -> Iterator[AssetCheckResult]:
        settings = flowcore.settings()
        asked = {check.name for check in context.selected_asset_check_keys}
        chosen = [check for check in checks if check.name in asked]
        folder = ResultStore(settings.state_dir, flow).folder(stage.name)
        manifest = folder.manifest()
        counts: list[int | None] = [None] * len(chosen)
        if manifest is not None:
            rows = spark.session(settings).read.parquet(str(folder.root / manifest.version / table))
            counts = list(rows.selectExpr(*(check.wrong for check in chosen)).head() or counts)
        for check, wrong in zip(chosen, counts, strict=True):
            found = "there is no committed result" if wrong is None else f"{wrong:,} rows are otherwise"
            yield AssetCheckResult(
                asset_key=key,
                check_name=check.name,
                passed=wrong == 0,
                severity=check.severity,
                description=found,
                metadata={} if wrong is None else {"rows_otherwise": MetadataValue.int(wrong)},
            )

    return values
