"""Joined results: the committed tables that live queries join.

Each table is checked once for a run, and stays the same version until the run ends. Where a join key
repeats, rows get their position among their equals, so that each output has an id of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyarrow.dataset import dataset
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from flowcore.graph.operators import Join, Operator
from flowcore.planner.plan import BoundedStage, Plan
from flowcore.spark.batch import named
from flowcore.spark.context import Context
from flowcore.spark.lanes import ORDINAL
from flowcore.spark.manifest import Manifest

__all__ = ["joined_results"]

Pin = Callable[[], None]


@contextmanager
def joined_results(plan: Plan, context: Context) -> Iterator[tuple[Mapping[Operator, DataFrame], Pin]]:
    """The frame of every result that the live stage of a plan joins.

    Yields:
        The frames, and what keeps their versions for the queries; to be called when these are sure to start.

    Raises:
        ResultError: A result is missing or damaged.
    """
    frames: dict[Operator, DataFrame] = {}
    manifests: dict[BoundedStage, Manifest] = {}

    def pin() -> None:
        for stage, manifest in manifests.items():
            _pin(stage, manifest, plan, context)

    try:
        for stage in plan.bounded:
            if stage.results:
                manifest = manifests[stage] = context.results.require(stage.name)
                for result in stage.results:
                    frames[result.operator] = _load(result.operator, stage, manifest, plan, context)
        yield frames, pin
    finally:
        for frame in frames.values():
            frame.unpersist()


def _load(
    operator: Operator, stage: BoundedStage, manifest: Manifest, plan: Plan, context: Context
) -> DataFrame:
    root = context.results.folder(stage.name).root
    table = manifest.tables[operator.name]
    files = [str(root / file.path) for file in table.files]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in table.schema)
    reader = context.spark.read
    if "struct<" not in schema:  # names of fields stand there without the backquotes they may need
        reader = reader.schema(schema)
    frame = reader.parquet(*files)
    repeating = [keys for keys in _join_keys(operator, plan) if _repeats(files, keys)]
    if repeating:
        # With one repeating key the first partner is number 0; with several only a global number is unique.
        groups = repeating[0] if len(repeating) == 1 else ()
        order = Window.partitionBy(*map(named, groups)).orderBy(*map(named, _sortable(frame)))
        frame = frame.withColumn(ORDINAL, F.row_number().over(order) - 1)
    # A micro-batch query reads the table for every batch, the others once in minutes.
    often = any(
        operator in query.results and query.mode.value == "micro-batch"
        for query in (plan.live.queries if plan.live else ())
    )
    return frame.persist() if often else frame


def _join_keys(operator: Operator, plan: Plan) -> list[tuple[str, ...]]:
    joins = {
        node
        for query in (plan.live.queries if plan.live else ())
        for node in query.operators
        if isinstance(node, Join) and node.inputs[1] is operator and node.how in ("inner", "left")
    }
    return sorted({tuple(theirs for _, theirs in join.on) for join in joins})


def _repeats(files: Sequence[str], keys: Sequence[str]) -> bool:
    # Arrow answers in the time that Spark takes to plan the question.
    table = dataset(list(files)).to_table(columns=list(keys))
    try:
        groups = table.group_by(list(keys)).aggregate([])
    except pa.ArrowNotImplementedError:  # a key of a nested type: numbering it is never wrong
        return True
    return bool(groups.num_rows < table.num_rows)


def _sortable(frame: DataFrame) -> Sequence[str]:
    return [name for name, kind in frame.dtypes if "map<" not in kind and "variant" not in kind]


def _pin(stage: BoundedStage, manifest: Manifest, plan: Plan, context: Context) -> None:
    for query in plan.live.queries if plan.live else ():
        if {result.operator for result in stage.results} & set(query.results):
            context.results.folder(stage.name).pin(query.name, manifest.version)
