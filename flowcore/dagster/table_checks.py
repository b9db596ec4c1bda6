"""Asset checks of the tables that bounded stages write: complete files, and expectations of the values.

The files are compared with the stage's manifest. Expectations are evaluated by Spark in one pass over the
table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg
import pyarrow.parquet as pq

from flowcore.api.expressions import resolve
from flowcore.api.operators import Join, Operator
from flowcore.dagster.attributes import Expectations
from flowcore.dagster.names import check_name, check_op_name, table_key
from flowcore.dagster.resources import FlowcoreResource, SparkResource
from flowcore.errors import ConfigurationError, ResultError
from flowcore.escaping import markdown_code
from flowcore.planner.model import BoundedStage
from flowcore.planner.plan import Plan
from flowcore.spark.results.store import ResultStore, StageFolder

__all__ = ["build_completeness_checks", "build_expectation_checks"]


def build_completeness_checks(stage: BoundedStage, flow: str) -> list[dg.AssetChecksDefinition]:
    """A blocking check for each table: its files exist, are unchanged and hold all rows."""
    return [_completeness_check(stage, result.name, flow) for result in stage.results]


def _completeness_check(stage: BoundedStage, table: str, flow: str) -> dg.AssetChecksDefinition:
    key, name = table_key(flow, table), "complete"
    description = "Every file of the committed result exists, is unchanged, and holds all its rows."
    spec = dg.AssetCheckSpec(name, asset=key, blocking=True, description=description)

    @dg.multi_asset_check(name=check_op_name(key, name), specs=[spec])
    def complete(
        context: dg.AssetCheckExecutionContext, flowcore: FlowcoreResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        spark.send_heartbeats(context.instance, context.run.run_id)
        store = ResultStore(flowcore.settings().state_dir, flow)
        yield _check_files(store.folder(stage.name), table)

    return complete


def _check_files(folder: StageFolder, name: str) -> dg.AssetCheckResult:
    manifest = folder.manifest()
    if manifest is None:
        return dg.AssetCheckResult(
            passed=False, description=f"there is no committed result in {markdown_code(str(folder.root))}"
        )
    table = manifest.tables[name]
    try:
        replace(manifest, tables={name: table}).check(folder.root)
    except ResultError as error:
        return dg.AssetCheckResult(passed=False, description=markdown_code(str(error)))
    rows = sum(pq.ParquetFile(folder.root / file.path).metadata.num_rows for file in table.files)
    description = f"{rows:,} rows" if rows else "the result has no rows"
    if rows != table.rows:
        description = f"the files hold {rows} rows, the manifest says {table.rows}"
    return dg.AssetCheckResult(
        passed=rows == table.rows and rows > 0,
        description=description,
        metadata={"version": manifest.version, "rows": rows, "files": len(table.files)},
    )


@dataclass(frozen=True, slots=True)
class _Expectation:
    """An expectation of a table; ``violations`` is Spark SQL that counts the rows that violate it."""

    name: str
    description: str
    violations: str
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR


def build_expectation_checks(
    plan: Plan, expectations: Mapping[str, Expectations]
) -> list[dg.AssetChecksDefinition]:
    """The checks of all tables of a flow that have expectations, given by table.

    Raises:
        ConfigurationError: No bounded stage writes a table of that name.
        PlanError: A table does not have an expected column.
    """
    tables = {result.name: (stage, result.operator) for stage in plan.bounded for result in stage.results}
    unknown = sorted(expectations.keys() - tables.keys())
    if unknown:
        msg = (
            f"flow {plan.flow!r} has no table {unknown[0]!r}: the expectations would never be checked; "
            f"its tables are {', '.join(tables) or 'none'}"
        )
        raise ConfigurationError(msg)
    checks = []
    for table, (stage, operator) in tables.items():
        found = list(_expectations(operator, plan, expectations.get(table, Expectations())))
        if found:
            checks.append(_expectation_checks(stage, plan.flow, table, found))
    return checks


def _expectations(table: Operator, plan: Plan, expected: Expectations) -> Iterator[_Expectation]:
    columns = [*(expected.unique or ()), *expected.ranges, *expected.not_null]
    resolve(columns, table.columns, table.name, "an expectation of Dagster's")
    if expected.unique is None:
        for keys in _live_join_keys(table, plan):
            yield _unique(keys, dg.AssetCheckSeverity.WARN)
    elif expected.unique:
        yield _unique(expected.unique, dg.AssetCheckSeverity.ERROR)
    for column, (low, high) in expected.ranges.items():
        bounds = [f"`{column}` < {low}"] * (low is not None) + [f"`{column}` > {high}"] * (high is not None)
        limits = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
        yield _Expectation(
            check_name("range", [column]),
            f"{markdown_code(column)} is {' and '.join(limits)}, or null.",
            f"count_if({' OR '.join(bounds) or 'false'})",
        )
    for column in expected.not_null:
        yield _Expectation(
            check_name("not_null", [column]),
            f"{markdown_code(column)} is never null.",
            f"count_if(`{column}` IS NULL)",
        )


def _live_join_keys(table: Operator, plan: Plan) -> dict[tuple[str, ...], None]:
    """The distinct sets of columns by which live queries join a table."""
    return {
        tuple(pair[number] for pair in node.on): None
        for query in plan.live_queries
        for node in query.operators
        if isinstance(node, Join)
        for number, side in enumerate(node.inputs)
        if side is table
    }


def _unique(columns: Sequence[str], severity: dg.AssetCheckSeverity) -> _Expectation:
    keys = ", ".join(f"`{column}`" for column in columns)
    known = " AND ".join(f"`{column}` IS NOT NULL" for column in columns)
    joined = severity is dg.AssetCheckSeverity.WARN
    why = "; a live record that joins several rows would be emitted several times" if joined else ""
    return _Expectation(
        check_name("unique", columns),
        f"No two rows have the same {', '.join(map(markdown_code, columns))}{why}.",
        f"count_if({known}) - count(DISTINCT {keys})",
        severity,
    )


def _expectation_checks(
    stage: BoundedStage, flow: str, table: str, expectations: Sequence[_Expectation]
) -> dg.AssetChecksDefinition:
    key = table_key(flow, table)
    specs = [dg.AssetCheckSpec(each.name, asset=key, description=each.description) for each in expectations]

    @dg.multi_asset_check(name=check_op_name(key, "values"), specs=specs, can_subset=True)
    def values(
        context: dg.AssetCheckExecutionContext, flowcore: FlowcoreResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        spark.send_heartbeats(context.instance, context.run.run_id)
        settings = flowcore.settings()
        selected = {check.name for check in context.selected_asset_check_keys}
        chosen = [each for each in expectations if each.name in selected]
        folder = ResultStore(settings.state_dir, flow).folder(stage.name)
        manifest = folder.manifest()
        counts: list[int | None] = [None] * len(chosen)
        if manifest is not None:
            rows = spark.session(settings).read.parquet(str(folder.root / manifest.version / table))
            counts = list(rows.selectExpr(*(each.violations for each in chosen)).head() or counts)
        for each, count in zip(chosen, counts, strict=True):
            yield dg.AssetCheckResult(
                asset_key=key,
                check_name=each.name,
                passed=count == 0,
                severity=each.severity,
                description="there is no committed result"
                if count is None
                else f"{count:,} rows violate the expectation",
                metadata={} if count is None else {"rows_otherwise": count},
            )

    return values
