"""The rows that an operator with state emits: unpacked from its key groups, each in its branch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from flowcore.api.operators import Operator
from flowcore.keyed.operator import CONTROL, CONTROL_ROWS
from flowcore.spark.frame.rows import BRANCH, ELEMENT, KEY_GROUP, POSITION, VALUE, RowKind
from flowcore.spark.operators.key_groups import COUNTER_ROWS, MARKER_ROWS, Outlet, Unpacking
from flowcore.spark.operators.processor import COUNTERS, MARKERS, PASSING

__all__ = ["StepRows", "text_by_branch", "unpack_step"]

_COUNTERS = "_counters"


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows that an operator's key groups emit.

    Attributes:
        frame: The rows of all outputs, each in its branch.
        columns: By output, the frame's names of its columns.
        branches: The branches of the outputs.
    """

    frame: DataFrame
    columns: Mapping[str, Mapping[str, str]]
    branches: Collection[int]

    def replace(self, texts: Mapping[str, str]) -> dict[str, str]:
        """SQL texts that replace columns in the outputs' rows only; rows that passed keep what they have."""
        own = f"{BRANCH} IN ({', '.join(map(str, self.branches))})"
        return {
            name: f"CASE WHEN {own} THEN {text} ELSE {name} END" if name in self.frame.columns else text
            for name, text in texts.items()
        }


def text_by_branch(texts: Mapping[int, str]) -> str:
    """SQL text of a column that differs by branch; null in other rows."""
    if not texts:
        return "CAST(NULL AS STRING)"
    cases = (f"WHEN {number} THEN {text}" for number, text in texts.items())
    return f"CASE {BRANCH} {' '.join(cases)} END"


def unpack_step(
    node: Operator,
    packed: DataFrame,
    schemas: Mapping[str, pa.Schema],
    branches: Mapping[str, int],
    *,
    names: Iterator[str],
    passing: pa.Schema | None,
    has_downstream: bool,
) -> StepRows:
    """Unpack what key groups emit, and observe their counters.

    Args:
        node: The operator.
        packed: The packed output of its key groups.
        schemas: The columns of each output.
        branches: The branch of each output that is read.
        names: New physical column names.
        passing: The columns of rows that passed the key groups; None if no rows did.
        has_downstream: Control elements are for another operator with state.
    """
    own = {output: {name: next(names) for name in schemas[output].names} for output in branches}
    schemas = {**schemas, MARKERS: MARKER_ROWS, COUNTERS: COUNTER_ROWS, CONTROL: CONTROL_ROWS}
    kinds: dict[str, int | None] = {
        **branches,
        MARKERS: RowKind.MARKER,
        COUNTERS: RowKind.COUNTERS,
        CONTROL: RowKind.CONTROL,
        PASSING: None,
    }
    columns: dict[str, Mapping[str, str]] = dict(own)
    columns |= {MARKERS: {"event": VALUE, "partition": "partition"}, COUNTERS: {"counters": _COUNTERS}}
    fields: dict[str, pa.DataType] = {BRANCH: pa.int32()}
    if has_downstream:
        columns[CONTROL] = {"element": ELEMENT}
        fields |= {KEY_GROUP: pa.int32(), POSITION: pa.int64()}
    if passing is not None:
        schemas[PASSING] = passing
        columns[PASSING] = {name: name for name in passing.names}
    for output, physical in columns.items():
        fields |= {now: schemas[output].field(name).type for name, now in physical.items()}
    schema = pa.schema(fields)
    outlets = {
        output: Outlet(
            schema=schemas[output],
            columns={now: name for name, now in physical.items()},
            branch=kinds[output],
        )
        for output, physical in columns.items()
    }
    channel = {"key_group": KEY_GROUP, "position": POSITION} if has_downstream else {}
    unpacking = Unpacking(outlets=outlets, schema=schema, branch=BRANCH, **channel)
    frame = _observe_counters(node, packed.mapInArrow(unpacking.run, from_arrow_schema(schema)))
    return StepRows(
        frame.where(f"{BRANCH} <> {RowKind.COUNTERS}"),
        own,
        [number for number in branches.values() if number != RowKind.BAD],
    )


def _observe_counters(node: Operator, frame: DataFrame) -> DataFrame:
    def counter(name: str) -> str:
        return f"CAST(get_json_object({_COUNTERS}, '$.{name}') AS BIGINT)"

    return frame.observe(
        f"flowcore-keygroups-{node.name}",
        F.expr(f"coalesce(sum({counter('late_records')}), 0)").alias("late_records"),
        F.expr(f"coalesce(sum({counter('dropped_records')}), 0)").alias("dropped_records"),
        F.expr(f"coalesce(sum({counter('saved_records')}), 0)").alias("saved_records"),
        F.expr(f"sum({counter('held_records')})").alias("held_records"),
        F.expr(f"min({counter('held_since_ms')})").alias("held_since_ms"),
        F.expr(f"coalesce(sum({counter('state_bytes')}), 0)").alias("state_bytes"),
        F.expr(f"min({counter('watermark_ms')})").alias("watermark_ms"),
        F.expr(f"max({counter('backlog')})").alias("backlog"),
        F.expr(f"collect_list(get_json_object({_COUNTERS}, '$.emitted'))").alias("emitted"),
    )
