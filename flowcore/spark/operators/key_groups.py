"""Run an exchange on key groups in Spark, with state in Spark's state store.

Spark's Python state operators handle single rows, so rows are packed before them and unpacked after them,
both with ``mapInArrow``. Between is one call for each key group in a batch, whatever the number of its rows.
Each unpacked row is in the branch of its output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from flowcore.keyed.dead_letters import DEAD_LETTERS
from flowcore.keyed.exchange import Exchange
from flowcore.keyed.operator import CONTROL, CONTROL_ROWS
from flowcore.keyed.packed import EVERY
from flowcore.keyed.packing import Packing
from flowcore.metrics.tally import COUNTS
from flowcore.spark.busy_times import TaskTimes
from flowcore.spark.frame.rows import BACKLOG, BRANCH, ELEMENT, KEY_GROUP, POSITION, SOURCE, VALUE, RowKind
from flowcore.spark.operators.keyed_step import StepMember
from flowcore.spark.operators.processor import COUNTERS, MARKERS, PASSING, Processor
from flowcore.spark.operators.unpacking import Outlet, Unpacking

__all__ = [
    "MARKER_ROWS",
    "WORKER_POOL",
    "StepRows",
    "run_key_groups",
    "text_by_branch",
    "unpack_step",
    "worker_pool",
]


_MARKER: dict[str, pa.DataType] = {"event": pa.binary(), "partition": pa.int32()}
MARKER_ROWS = pa.schema(_MARKER)
"""The columns of the output `MARKERS` of `flowcore.spark.operators.processor`."""
_PACKED = "key_group INT, kind TINYINT, channel STRING, at BIGINT, payload BINARY, operator INT"
_OUTPUT = "output STRING, content BINARY, key_group INT, operator INT"
WORKER_POOL = "FLOWCORE_KEY_GROUPS"
"""The environment variable that names the pool of a Python worker which runs key groups."""
_environments = Lock()
"""Queries that start concurrently share the Spark context whose environment is changed."""


def run_key_groups(frame: DataFrame, packing: Packing, exchange: Exchange, times: TaskTimes) -> DataFrame:
    """Pack rows and run operators on them; the result is packed, for `Unpacking`.

    Args:
        frame: The rows, with the columns of ``packing``.
        exchange: The operators. A pool of Python workers is for one query, so that its few workers keep
            decoded state that others could not use. `WORKER_POOL` in the environment of the Spark context
            names another pool.
    """
    packed = frame.mapInArrow(packing.run, _PACKED)
    with worker_pool(frame.sparkSession, exchange.query):
        stepped: DataFrame = packed.groupBy("key_group").transformWithStateInPandas(
            Processor(exchange, times),
            outputStructType=_OUTPUT,
            outputMode="Update",
            timeMode="ProcessingTime",
        )
    return stepped


@contextmanager
def worker_pool(spark: SparkSession, pool: str) -> Iterator[None]:
    """Name the pool of the Python functions that are applied to frames meanwhile.

    Spark separates pools of Python workers by the environment variables they are requested with, one of which
    it sets for functions over frames and not for operators with state.
    """
    context = spark.sparkContext
    with _environments:
        before = context.environment
        # A new dict, since another thread may read the old one.
        context.environment = {WORKER_POOL: pool, "SPARK_SIMPLIFIED_TRACEBACK": "1", **before}
        try:
            yield
        finally:
            context.environment = before


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows that key groups emit.

    Attributes:
        packed: The packed outputs, also those that hold no rows, such as counters.
        frame: The rows of all outputs, each in its branch.
        columns: For each operator, by output, the frame's names of its columns.
        dead_letters: The frame's names of the columns of all operators' dead letters.
    """

    packed: DataFrame
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
    with_backlog: bool,
    numbers: Sequence[int] | None,
) -> StepRows:
    """Unpack what key groups emit, and observe their counters.

    Args:
        passing: The columns of rows that passed the key groups; None if no rows did.
        with_backlog: Add the column `BACKLOG` to the operators' outputs.
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
    outlets.fields |= {BACKLOG: pa.bool_()} if with_backlog else {}
    schema = pa.schema(outlets.fields)
    unpacking = Unpacking(
        outlets=outlets.by_output, schema=schema, key_group=KEY_GROUP, position=POSITION, backlog=BACKLOG
    )
    packed = _observe_counters(members[0].step.node.name, packed)
    frame = packed.mapInArrow(unpacking.run, from_arrow_schema(schema))
    return StepRows(packed, frame, found, dead_letters)


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
            placed=self._numbers is not None and output not in (PASSING, MARKERS),
        )

    def add_engine(self, place: int) -> None:
        """Add markers of an operator, and control elements if another exchange needs them."""
        markers = {"event": VALUE, "partition": "partition"}
        self.add(place, MARKERS, MARKER_ROWS, markers, RowKind.MARKER)
        if self._numbers is not None:
            self.add(place, CONTROL, CONTROL_ROWS, {"element": ELEMENT}, RowKind.CONTROL)


def _observe_counters(name: str, packed: DataFrame) -> DataFrame:
    def text(name: str) -> str:
        counters = f"CASE WHEN output = '{COUNTERS}' THEN CAST(content AS STRING) END"
        return f"get_json_object({counters}, '$.{name}')"

    def counter(name: str) -> str:
        return f"CAST({text(name)} AS BIGINT)"

    sums = (*(f"{each}_records" for each in COUNTS), "state_bytes")
    return packed.observe(
        f"flowcore-keygroups-{name}",
        *(F.expr(f"coalesce(sum({counter(each)}), 0)").alias(each) for each in sums),
        F.expr(f"sum({counter('buffered_records')})").alias("buffered_records"),
        F.expr(f"min({counter('buffered_since_ms')})").alias("buffered_since_ms"),
        F.expr(f"min({counter('watermark_ms')})").alias("watermark_ms"),
        F.expr(f"max({counter('backlog')})").alias("backlog"),
        F.expr(f"collect_list({text('emitted')})").alias("emitted"),
    )
