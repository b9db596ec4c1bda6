"""Joined results: the committed tables that live queries join, ready in memory.

Each table is read and checked once for a run, kept in memory, and stays the same version until the run
ends. Where a join key repeats, rows get their position among their equals, so that each output has
an id of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from flowcore.graph.operators import Join, Operator
from flowcore.planner.plan import BoundedStage, Plan
from flowcore.spark.batch import named
from flowcore.spark.context import Context
from flowcore.spark.lanes import ORDINAL
from flowcore.spark.manifest import Manifest

__all__ = ["joined_results"]


@contextmanager
def joined_results(plan: Plan, context: Context) -> Iterator[Mapping[Operator, DataFrame]]:
    """The frame of every result that the live stage of a plan joins.

    Raises:
        ResultError: A result is missing or damaged.
    """
    frames: dict[Operator, DataFrame] = {}
    try:
        for stage in plan.bounded:
            if stage.results:
                manifest = context.results.require(stage.name)
                _pin(stage, manifest, plan, context)
                for result in stage.results:
                    frames[result.operator] = _load(result.operator, stage, manifest, plan, context)
        yield frames
    finally:
        for frame in frames.values():
            frame.unpersist()


def _load(
    operator: Operator, stage: BoundedStage, manifest: Manifest, plan: Plan, context: Context
) -> DataFrame:
    root = context.results.folder(stage.name).root
    table = manifest.tables[operator.name]
    frame = context.spark.read.parquet(*(str(root / file.path) for file in table.files))
    repeating = [keys for keys in _join_keys(operator, plan) if _repeats(frame, keys)]
    if repeating:
        # With one repeating key the first partner is number 0; with several only a global number is unique.
        groups = repeating[0] if len(repeating) == 1 else ()
        order = Window.partitionBy(*map(named, groups)).orderBy(*map(named, _sortable(frame)))
        frame = frame.withColumn(ORDINAL, F.row_number().over(order) - 1)
    return frame.persist()


def _join_keys(operator: Operator, plan: Plan) -> list[tuple[str, ...]]:
    joins = {
        node
        for query in (plan.live.queries if plan.live else ())
        for node in query.operators
        if isinstance(node, Join) and node.inputs[1] is operator and node.how in ("inner", "left")
    }
    return sorted({tuple(theirs for _, theirs in join.on) for join in joins})


def _repeats(frame: DataFrame, keys: Sequence[str]) -> bool:
    return bool(frame.groupBy(*map(named, keys)).count().where("count > 1").limit(1).count())


def _sortable(frame: DataFrame) -> Sequence[str]:
    return [name for name, kind in frame.dtypes if not kind.startswith("map")]


def _pin(stage: BoundedStage, manifest: Manifest, plan: Plan, context: Context) -> None:
    for query in plan.live.queries if plan.live else ():
        if {result.operator for result in stage.results} & set(query.results):
            context.results.folder(stage.name).pin(query.name, manifest.version)
