"""The rows that an exchange emits: unpacked from its key groups, each in its branch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from flowcore.keyed.dead_letters import DEAD_LETTERS
from flowcore.keyed.operator import CONTROL, CONTROL_ROWS
from flowcore.keyed.packed import EVERY
from flowcore.spark.frame.rows import BRANCH, ELEMENT, KEY_GROUP, POSITION, SOURCE, VALUE, RowKind
from flowcore.spark.operators.key_groups import COUNTER_ROWS, MARKER_ROWS, Outlet, Unpacking
from flowcore.spark.operators.keyed_step import StepMember
from flowcore.spark.operators.processor import COUNTERS, MARKERS, PASSING

__all__ = ["StepRows", "text_by_branch", "unpack_step"]

_COUNTERS = "_counters"


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows that key groups emit.

    Attributes:
        frame: The rows of all outputs, each in its branch.
        columns: For each operator, by output, the frame's names of its columns.
        dead_letters: The frame's names of the columns of all operators' dead letters.
    """

    frame: DataFrame
    columns: Sequence[Mapping[str, Mapping[str, str]]]
    dead_letters: Mapping[str, str]


def text_by_branch(texts: Mapping[int, str], otherwise: str | None = None) -> str:
    """SQL text of a column that differs by branch; in other rows another column, or null."""
    if not texts:
        return otherwise or "CAST(NULL AS STRING)"
    cases = (f"WHEN {number} THEN {text}" for number, text in texts.items())
    return f"CASE {BRANCH} {' '.join(cases)} {f'ELSE {otherwise} ' if otherwise else ''}END"


def unpack_step(
    members: Sequence[StepMember],
    packed: DataFrame,
    *,
    names: Iterator[str],
    passing: pa.Schema | None,
    numbers: Sequence[int] | None,
) -> StepRows:
    """Unpack what key groups emit, and observe their counters.

    Args:
        members: The operators of the exchange.
        packed: The packed output of their key groups.
        names: New physical column names.
        passing: The columns of rows that passed the key groups; None if no rows did.
        numbers: The operators' numbers among the query's sources, for another exchange downstream; None
            without one.
    """
    outlets = _Outlets(numbers)
    dead_letters: dict[str, str] = {}
    found = []
    for place, member in enumerate(members):
        outputs = {}
        for output, number in member.branches.items():
            schema = member.operator.outputs[output]
            if output == DEAD_LETTERS:
                dead_letters |= {name: next(names) for name in schema.names if name not in dead_letters}
                outputs[output] = {name: dead_letters[name] for name in schema.names}
            else:
                outputs[output] = {name: next(names) for name in schema.names}
            outlets.add(place, output, schema, outputs[output], number)
        found.append(outputs)
        outlets.add_engine(place)
    if passing is not None:
        outlets.add(EVERY, PASSING, passing, {name: name for name in passing.names}, None)
    schema = pa.schema(outlets.fields)
    unpacking = Unpacking(outlets=outlets.by_output, schema=schema, key_group=KEY_GROUP, position=POSITION)
    rows = packed.mapInArrow(unpacking.run, from_arrow_schema(schema))
    frame = _observe_counters(members[0].inputs.node.name, rows)
    return StepRows(frame.where(f"{BRANCH} <> {RowKind.COUNTERS}"), found, dead_letters)


class _Outlets:
    """The outlets of an exchange's operators, by number and output, and the columns of all rows."""

    def __init__(self, numbers: Sequence[int] | None) -> None:
        self._numbers = numbers
        self.fields: dict[str, pa.DataType] = {BRANCH: pa.int32()}
        if numbers is not None:
            self.fields |= {SOURCE: pa.int32(), KEY_GROUP: pa.int32(), POSITION: pa.int64()}
        self.by_output: dict[tuple[int, str], Outlet] = {}

    def add(
        self, place: int, output: str, schema: pa.Schema, columns: Mapping[str, str], branch: int | None
    ) -> None:
        """Add an output of the operator at a place, with the names of its columns in the rows."""
        constants = {} if branch is None else {BRANCH: branch}
        if self._numbers is not None and place != EVERY:
            constants[SOURCE] = self._numbers[place]
        self.fields.update({now: schema.field(name).type for name, now in columns.items()})
        self.by_output[place, output] = Outlet(
            schema=schema,
            columns={now: name for name, now in columns.items()},
            constants=constants,
            placed=self._numbers is not None and output not in (PASSING, MARKERS, COUNTERS),
        )

    def add_engine(self, place: int) -> None:
        """Add markers and counters of an operator, and control elements if another exchange needs them."""
        markers = {"event": VALUE, "partition": "partition"}
        self.add(place, MARKERS, MARKER_ROWS, markers, RowKind.MARKER)
        self.add(place, COUNTERS, COUNTER_ROWS, {"counters": _COUNTERS}, RowKind.COUNTERS)
        if self._numbers is not None:
            self.add(place, CONTROL, CONTROL_ROWS, {"element": ELEMENT}, RowKind.CONTROL)


def _observe_counters(name: str, frame: DataFrame) -> DataFrame:
    def counter(name: str) -> str:
        return f"CAST(get_json_object({_COUNTERS}, '$.{name}') AS BIGINT)"

    return frame.observe(
        f"flowcore-keygroups-{name}",
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
