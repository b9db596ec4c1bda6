"""By key: a branch's records go to a step of their key groups, whose outputs become branches again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from flowcore.api.operators import KeyedProcess, Operator, Read, Window
from flowcore.errors import PlanError
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.packing import InputColumns, Packing
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.watermark_progress import WatermarkSource
from flowcore.planner.model import LiveQuery
from flowcore.spark.checkpoint.backlog_status import read_backlog_status
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    CHANNEL,
    ELEMENT,
    KAFKA_MS,
    NEWEST,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.operators.key_groups import COUNTER_ROWS, MARKER_ROWS, Outlet, Unpacking, by_key_group
from flowcore.spark.operators.processor import BAD_MESSAGES, COUNTERS, MARKERS
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.watermarks import no_watermarks
from flowcore.watermarks.strategies import PeriodicFunction

__all__ = [
    "OF",
    "OWN",
    "STAMP",
    "ByKey",
    "Stepped",
    "coordinates",
    "counted_as",
    "given",
    "goes_by_clock",
    "one_of_equals",
    "packed",
    "places",
    "put_out",
    "topic_case",
    "with_columns",
]

_KEYS = (
    NumericType, StringType, BooleanType, BinaryType, DateType, TimestampType, TimestampNTZType, NullType,
)  # fmt: skip
_COUNTERS = "_counters"
_OF_BAD: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    BAD_REASON: pa.string(),
    VALUE: pa.binary(),
    KAFKA_MS: pa.int64(),
}
BAD_ROWS = pa.schema(_OF_BAD)
"""What bad messages keep when they pass key groups."""
OWN = "_flowcore_"
"""In front of names beside the user's."""
OF = f"{OWN}of_"
"""In front of what says where a record was."""
STAMP = f"{OWN}timestamp_ms"
"""When a record happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByKey:
    """What an operator on key groups needs to know of its query.

    Attributes:
        query: The query.
        checkpoint: Where its checkpoint is: tells its state from that of others.
        side_channels: What it carries beside its records.
        key_groups: How many key groups there are.
        has_ordinals: Its records carry an ordinal.
        numbers: Of new branches.
    """

    query: LiveQuery
    checkpoint: str
    side_channels: SideChannels
    key_groups: int
    has_ordinals: bool
    numbers: Iterator[int]


@dataclass(frozen=True, slots=True)
class Stepped:
    """What came out of the key groups.

    Attributes:
        frame: Rows of all outputs, each in its branch.
        physical: By output, what its columns are called in the frame.
    """

    frame: DataFrame
    physical: Mapping[str, Mapping[str, str]]


def counted_as(node: Operator) -> str:
    """The name of an operator's counters in a batch's progress."""
    return f"flowcore-keygroups-{node.name}"


def goes_by_clock(query: LiveQuery) -> bool:
    """Whether windows, timers or a buffer may emit because time has passed, without any input."""
    topics = [source.topic for source in query.sources]
    idle = any(topic and topic.watermark and topic.watermark.idle_after_ms for topic in topics)
    windows = [node.config for node in query.operators if isinstance(node, Window)]
    # Only a process function itself knows whether it will ask for timers of the clock.
    processes = any(isinstance(node, KeyedProcess) for node in query.operators)
    return (
        idle
        or processes
        or query.buffer is not None
        or any(config.time == "processing" or config.trigger is not None for config in windows)
    )


def coordinates(of: ByKey) -> dict[str, str]:
    """The columns that say where a record was, and what these are called in front of the key groups."""
    names = [SOURCE, "partition", "offset", *([RECORD_ORDINAL] if of.has_ordinals else [])]
    return {f"{OF}{name}": name for name in names}


def places(frame: DataFrame, texts: Mapping[str, str]) -> dict[str, str]:
    """Columns of where records were; what passed key groups by has them already."""
    return {
        name: f"coalesce({text}, {name})" if name in frame.columns else text for name, text in texts.items()
    }


def topic_case(source: str, of: ByKey) -> str:
    """The topic of a source, by the column of its number."""
    topics = [each.topic for each in of.query.sources]
    cases = [f"WHEN {number} THEN {literal(topic.name)}" for number, topic in enumerate(topics) if topic]
    return f"CASE {source} {' '.join(cases)} END"


def given(
    by: tuple[str, ...], branched: BranchedFrame, branch: Branch, columns: Mapping[str, str], of: ByKey
) -> DataFrame:
    """The input of key groups: columns of records, and what `packed` asks for beside them.

    Args:
        by: The key's columns.
        branched: Rows, the branch's among them.
        branch: The records.
        columns: What a record's columns are called, and what they are called in the frame.
        of: The query.
    """
    one = {name: one_of_equals(branched.frame.schema, columns[name], name) for name in by}
    group = f"CAST(pmod(hash({', '.join(one.values())}), {of.key_groups}) AS INT)" if one else "0"
    texts = {
        "key_group": group,
        "source": SOURCE,
        "partition": "partition",
        "offset": "offset",
        "newest_ms": NEWEST,
        "record": branched.is_in(branch),
        "timestamp_ms": TIMESTAMP_MS,
    }
    there = set(branched.frame.columns)
    if ELEMENT in there:
        texts |= {"element": f"CASE WHEN {BRANCH} = {RowKind.CONTROL} THEN {ELEMENT} END", "sender": CHANNEL}
    if branched.has_markers:
        texts["event"] = f"CASE WHEN {BRANCH} = {RowKind.MARKER} THEN {VALUE} END"
    if branched.has_bad:
        texts["bad"] = f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN struct({', '.join(BAD_ROWS.names)}) END"
    own = (f"{text} AS {OWN}{name}" for name, text in texts.items())
    return branched.frame.selectExpr(
        *own, *(f"{one.get(name, quote(now))} AS {quote(name)}" for name, now in columns.items())
    )


def one_of_equals(schema: StructType, column: str, name: str) -> str:
    """SQL text of a key's column, the same for keys that Spark groups together: 0.0 for -0.0, and one NaN.

    So they are equal or not wherever they are compared: in Spark, in Python, and read back from state.

    Args:
        schema: Of the frame.
        column: The key's column there.
        name: What it is called by the user.

    Raises:
        PlanError: It is of a type whose values cannot be compared everywhere.
    """
    kind = next(field.dataType for field in schema.fields if field.name.lower() == column.lower())
    if not _is_key(kind):
        msg = (
            f"by={name!r} is {kind.simpleString().upper()}: an array, a map and what holds one have no "
            "equality that state could be found by, so that a key would not be found again; go by its parts, "
            f"or by text: 'to_json({name}) as key'"
        )
        raise PlanError(msg)
    return _one_of_equals(kind, quote(column))


def _is_key(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(_is_key(field.dataType) for field in kind.fields)
    return isinstance(kind, _KEYS)


def _one_of_equals(kind: DataType, text: str) -> str:
    match kind:
        case DoubleType() | FloatType():
            name = kind.simpleString()
            nan, zero = f"CAST('NaN' AS {name})", f"CAST(0 AS {name})"
            return f"CASE WHEN isnan({text}) THEN {nan} WHEN {text} = 0 THEN {zero} ELSE {text} END"
        case StructType(fields=fields) if _has_floats(kind):
            parts = (
                f"{literal(field.name)}, {_one_of_equals(field.dataType, f'{text}.{quote(field.name)}')}"
                for field in fields
            )
            return f"CASE WHEN {text} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
        case _:
            return text


def _has_floats(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_floats(field.dataType) for field in kind.fields)
    return isinstance(kind, (DoubleType, FloatType))


def packed(
    node: Operator, frame: DataFrame, operator: KeyGroupOperator, rows: pa.Schema, of: ByKey
) -> DataFrame:
    """What the operator's key groups put out, still packed.

    Args:
        node: The operator.
        frame: What `given` made.
        operator: What is done.
        rows: The columns of records, as `records_of` says.
        of: The query.
    """
    told = read_backlog_status(frame.sparkSession, Path(of.checkpoint))
    told = told.selectExpr(f"at AS {OWN}offset", f"backlog AS {OWN}backlog")
    frame = frame.unionByName(told, allowMissingColumns=True)
    packing = Packing(
        inputs=_inputs(frame),
        sources=tuple(source.name for source in of.query.sources),
        key_groups=of.key_groups,
        rows=rows,
        functions={
            source.name: topic.watermark.generator.function
            for source in of.query.sources
            if (topic := source.topic)
            and topic.watermark
            and isinstance(topic.watermark.generator, PeriodicFunction)
        },
    )
    runtime = Runtime(
        operator=operator,
        query=f"{of.checkpoint}/{node.name}",
        key_groups=of.key_groups,
        sources={source.name: _source(source, of.side_channels) for source in of.query.sources},
        rows=rows,
    )
    return by_key_group(frame, packing, runtime)


def records_of(frame: DataFrame, columns: Mapping[str, str]) -> pa.Schema:
    """The columns of records as Arrow has them: their timestamp, then these."""
    names = [STAMP, *columns]
    return to_arrow_schema(StructType([frame.schema[name] for name in names]), timezone="UTC")


def _source(node: Read, beside: SideChannels) -> WatermarkSource:
    topic = node.topic
    if topic is None:
        return WatermarkSource(None, ())
    partitions = tuple(map(str, range(beside.partitions[topic.name])))
    arriving = topic.watermark is None and topic.elements == "tagged"
    return WatermarkSource(None if arriving else topic.watermark or no_watermarks(), partitions)


def _inputs(frame: DataFrame) -> InputColumns:
    def has_record_id(name: str) -> str | None:
        return OWN + name if OWN + name in frame.columns else None

    return InputColumns(
        key_group=f"{OWN}key_group",
        source=f"{OWN}source",
        partition=f"{OWN}partition",
        offset=f"{OWN}offset",
        newest=f"{OWN}newest_ms",
        record=f"{OWN}record",
        element=has_record_id("element"),
        sender=has_record_id("sender"),
        marker=has_record_id("event"),
        backlog=has_record_id("backlog"),
        bad=has_record_id("bad"),
    )


def put_out(
    node: Operator,
    stepped: DataFrame,
    outputs: Mapping[str, tuple[int, pa.Schema]],
    branched: BranchedFrame,
) -> Stepped:
    """The rows that key groups put out, latency markers, and bad messages where there are any.

    Args:
        node: The operator.
        stepped: What `packed` made.
        outputs: The branch and the columns of each output that goes on.
        branched: What went in.
    """
    schemas = {name: schema for name, (_, schema) in outputs.items()}
    schemas |= {MARKERS: MARKER_ROWS, COUNTERS: COUNTER_ROWS}
    numbers = {name: number for name, (number, _) in outputs.items()}
    numbers |= {MARKERS: RowKind.MARKER, COUNTERS: RowKind.COUNTERS}
    found = {name: {column: next(branched.names) for column in schemas[name].names} for name in outputs}
    beside = {MARKERS: {"event": VALUE, "partition": "partition"}, COUNTERS: {"counters": _COUNTERS}}
    if branched.has_bad:
        schemas[BAD_MESSAGES], numbers[BAD_MESSAGES] = BAD_ROWS, RowKind.BAD
        beside[BAD_MESSAGES] = {name: name for name in BAD_ROWS.names}
    physical = {**found, **beside}
    fields = {BRANCH: pa.int32()}
    for output, columns in physical.items():
        fields |= {now: schemas[output].field(name).type for name, now in columns.items()}
    schema = pa.schema(fields)
    unpacking = Unpacking(
        outlets={
            output: Outlet(
                schema=schemas[output],
                columns={now: name for name, now in columns.items()},
                branch=numbers[output],
            )
            for output, columns in physical.items()
        },
        schema=schema,
        branch=BRANCH,
    )
    frame = stepped.mapInArrow(unpacking.run, from_arrow_schema(schema))
    return Stepped(_observed(node, frame).where(f"{BRANCH} <> {RowKind.COUNTERS}"), found)


def with_columns(frame: DataFrame, texts: Mapping[str, str]) -> DataFrame:
    """A frame with these columns, in place of those that it has of the names; texts are about what it had."""
    replaced = [name for name in frame.columns if name in texts]
    kept = f"* EXCEPT ({', '.join(replaced)})" if replaced else "*"
    return frame.selectExpr(kept, *(f"{text} AS {name}" for name, text in texts.items()))


def _observed(node: Operator, frame: DataFrame) -> DataFrame:
    def total(name: str) -> str:
        return f"CAST(get_json_object({_COUNTERS}, '$.{name}') AS BIGINT)"

    return frame.observe(
        counted_as(node),
        F.expr(f"coalesce(sum({total('late_records')}), 0)").alias("late_records"),
        F.expr(f"coalesce(sum({total('dropped_records')}), 0)").alias("dropped_records"),
        F.expr(f"coalesce(sum({total('saved_records')}), 0)").alias("saved_records"),
        F.expr(f"sum({total('held_records')})").alias("held_records"),
        F.expr(f"min({total('held_since_ms')})").alias("held_since_ms"),
        F.expr(f"coalesce(sum({total('state_bytes')}), 0)").alias("state_bytes"),
        F.expr(f"min({total('watermark_ms')})").alias("watermark_ms"),
        F.expr(f"max({total('backlog')})").alias("backlog"),
    )
