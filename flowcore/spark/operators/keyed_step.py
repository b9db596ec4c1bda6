"""Run an operator with state: a branch's records go to key groups, whose outputs become branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from flowcore.api.operators import Operator, Read
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
from flowcore.spark.operators.key_groups import COUNTER_ROWS, MARKER_ROWS, Outlet, Unpacking, run_key_groups
from flowcore.spark.operators.keys import canonical_key, key_group_text
from flowcore.spark.operators.processor import BAD_MESSAGES, COUNTERS, MARKERS
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.watermarks import no_watermarks
from flowcore.watermarks.strategies import PeriodicFunction

__all__ = [
    "COORDINATE_PREFIX",
    "PREFIX",
    "RECORD_TIMESTAMP",
    "KeyGroupContext",
    "StepInputs",
    "StepRows",
    "branch_after",
    "run_step",
    "select_inputs",
]

_COUNTERS = "_counters"
_BAD_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    BAD_REASON: pa.string(),
    VALUE: pa.binary(),
    KAFKA_MS: pa.int64(),
}
_BAD_ROWS = pa.schema(_BAD_TYPES)
"""The columns of bad messages that pass key groups."""
PREFIX = "_flowcore_"
"""The prefix of columns that are not the user's."""
COORDINATE_PREFIX = f"{PREFIX}of_"
"""The prefix of columns with a record's coordinates."""
RECORD_TIMESTAMP = f"{PREFIX}timestamp_ms"
"""The column of a record's timestamp, BIGINT milliseconds, null if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupContext:
    """What operators on key groups need of their query.

    Attributes:
        query: The query.
        checkpoint: The folder of its checkpoint, which distinguishes its state from that of other queries.
        side_channels: What it carries besides its records.
        dead_letter_sources: The sources whose records become dead letters if a function fails.
        has_ordinals: Its records carry an ordinal.
        numbers: The numbers of new branches.
    """

    query: LiveQuery
    checkpoint: str
    side_channels: SideChannels
    dead_letter_sources: Sequence[Read]
    has_ordinals: bool
    numbers: Iterator[int]

    @property
    def coordinates(self) -> dict[str, str]:
        """The columns of a record's coordinates: their name in key groups, and upstream of them."""
        names = [SOURCE, "partition", "offset", *([RECORD_ORDINAL] if self.has_ordinals else [])]
        return {f"{COORDINATE_PREFIX}{name}": name for name in names}

    @property
    def topic_cases(self) -> str:
        """The branches of a SQL ``CASE`` that gives the topic for the number of a source."""
        topics = [source.topic for source in self.query.sources]
        cases = [f"WHEN {number} THEN {literal(topic.name)}" for number, topic in enumerate(topics) if topic]
        return " ".join(cases)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The rows that go to an operator's key groups.

    Attributes:
        node: The operator.
        branched: The frame from which they are selected.
        frame: The rows.
        records: The columns of a record as the operator receives it: its timestamp, then the selected
            columns.
    """

    node: Operator
    branched: BranchedFrame
    frame: DataFrame
    records: pa.Schema


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows that an operator's key groups emit.

    Attributes:
        frame: The rows of all outputs, each in its branch.
        columns: By output, the frame's names of its columns.
    """

    frame: DataFrame
    columns: Mapping[str, Mapping[str, str]]


def select_inputs(  # noqa: PLR0917 - the operator, then its input
    node: Operator,
    keys: Sequence[str],
    branched: BranchedFrame,
    branch: Branch,
    columns: Mapping[str, str],
    context: KeyGroupContext,
) -> StepInputs:
    """Select the columns of records, and those that key groups need besides.

    Args:
        node: The operator.
        keys: Its key's columns.
        branched: The frame of the branch.
        branch: The records.
        columns: A record's columns: their name in key groups, and in the frame.
        context: The query.
    """
    canonical = {name: canonical_key(branched.frame.schema, columns[name], name) for name in keys}
    texts = {
        "key_group": key_group_text([*canonical.values()], context.query.key_groups),
        "source": SOURCE,
        "partition": "partition",
        "offset": "offset",
        "newest_ms": NEWEST,
        "record": branched.is_in(branch),
        "timestamp_ms": TIMESTAMP_MS,
    }
    if ELEMENT in branched.frame.columns:
        texts |= {"element": f"CASE WHEN {BRANCH} = {RowKind.CONTROL} THEN {ELEMENT} END", "sender": CHANNEL}
    if branched.has_markers:
        texts["event"] = f"CASE WHEN {BRANCH} = {RowKind.MARKER} THEN {VALUE} END"
    if branched.has_bad:
        texts["bad"] = f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN struct({', '.join(_BAD_ROWS.names)}) END"
    frame = branched.frame.selectExpr(
        *(f"{text} AS {PREFIX}{name}" for name, text in texts.items()),
        *(f"{canonical.get(name, quote(now))} AS {quote(name)}" for name, now in columns.items()),
    )
    record = StructType([frame.schema[name] for name in (RECORD_TIMESTAMP, *columns)])
    return StepInputs(node, branched, frame, to_arrow_schema(record, timezone="UTC"))


def run_step(
    inputs: StepInputs, operator: KeyGroupOperator, branches: Mapping[str, int], context: KeyGroupContext
) -> StepRows:
    """Run an operator on its key groups; latency markers and bad messages pass them.

    Args:
        inputs: Its inputs.
        operator: The operator.
        branches: The branch of each of its outputs that is read.
        context: The query.
    """
    query = context.query
    backlog = read_backlog_status(inputs.frame.sparkSession, Path(context.checkpoint))
    backlog = backlog.selectExpr(f"at AS {PREFIX}offset", f"backlog AS {PREFIX}backlog")
    frame = inputs.frame.unionByName(backlog, allowMissingColumns=True)
    packing = Packing(
        inputs=_input_columns(frame),
        sources=tuple(source.name for source in query.sources),
        key_groups=query.key_groups,
        rows=inputs.records,
        functions={
            source.name: topic.watermark.generator.function
            for source in query.sources
            if (topic := source.topic)
            and topic.watermark
            and isinstance(topic.watermark.generator, PeriodicFunction)
        },
    )
    runtime = Runtime(
        operator=operator,
        query=f"{context.checkpoint}/{inputs.node.name}",
        key_groups=query.key_groups,
        sources={source.name: _watermark_source(source, context.side_channels) for source in query.sources},
        rows=inputs.records,
        name=inputs.node.name,
        checks_name=len(query.exchanges) > 1,
    )
    schemas = {output: operator.outputs[output] for output in branches}
    return _unpack(inputs, run_key_groups(frame, packing, runtime), schemas, branches)


def branch_after(
    step: StepRows, inputs: StepInputs, texts: Mapping[str, str], *, has_coordinates: bool, has_bad: bool
) -> BranchedFrame:
    """The frame of a step's outputs, with columns added or replaced.

    Args:
        step: The rows.
        inputs: The inputs of the step.
        texts: SQL text of the columns.
        has_coordinates: Some outputs have the coordinates of a record.
        has_bad: Bad records may be among the rows.
    """
    replaced = [name for name in step.frame.columns if name in texts]
    kept = f"* EXCEPT ({', '.join(replaced)})" if replaced else "*"
    frame = step.frame.selectExpr(kept, *(f"{text} AS {name}" for name, text in texts.items()))
    branched = BranchedFrame(
        frame,
        inputs.branched.names,
        has_coordinates=has_coordinates,
        has_markers=inputs.branched.has_markers,
        has_bad=has_bad,
    )
    branched.shared = True
    return branched


def _watermark_source(node: Read, side_channels: SideChannels) -> WatermarkSource:
    topic = node.topic
    if topic is None:
        return WatermarkSource(None, ())
    partitions = tuple(map(str, range(side_channels.partitions[topic.name])))
    arriving = topic.watermark is None and topic.elements == "tagged"
    return WatermarkSource(None if arriving else topic.watermark or no_watermarks(), partitions)


def _input_columns(frame: DataFrame) -> InputColumns:
    def optional(name: str) -> str | None:
        return PREFIX + name if PREFIX + name in frame.columns else None

    return InputColumns(
        key_group=f"{PREFIX}key_group",
        source=f"{PREFIX}source",
        partition=f"{PREFIX}partition",
        offset=f"{PREFIX}offset",
        newest=f"{PREFIX}newest_ms",
        record=f"{PREFIX}record",
        element=optional("element"),
        sender=optional("sender"),
        marker=optional("event"),
        backlog=optional("backlog"),
        bad=optional("bad"),
    )


def _unpack(
    inputs: StepInputs, packed: DataFrame, schemas: Mapping[str, pa.Schema], branches: Mapping[str, int]
) -> StepRows:
    own = {
        output: {name: next(inputs.branched.names) for name in schemas[output].names} for output in branches
    }
    schemas = {**schemas, MARKERS: MARKER_ROWS, COUNTERS: COUNTER_ROWS, BAD_MESSAGES: _BAD_ROWS}
    kinds = {MARKERS: RowKind.MARKER, COUNTERS: RowKind.COUNTERS, BAD_MESSAGES: RowKind.BAD}
    columns = {
        **own,
        MARKERS: {"event": VALUE, "partition": "partition"},
        COUNTERS: {"counters": _COUNTERS},
        **({BAD_MESSAGES: {name: name for name in _BAD_ROWS.names}} if inputs.branched.has_bad else {}),
    }
    fields = {BRANCH: pa.int32()}
    for output, names in columns.items():
        fields |= {now: schemas[output].field(name).type for name, now in names.items()}
    schema = pa.schema(fields)
    outlets = {
        output: Outlet(
            schema=schemas[output],
            columns={now: name for name, now in names.items()},
            branch={**branches, **kinds}[output],
        )
        for output, names in columns.items()
    }
    unpacking = Unpacking(outlets=outlets, schema=schema, branch=BRANCH)
    frame = _observe_counters(inputs.node, packed.mapInArrow(unpacking.run, from_arrow_schema(schema)))
    return StepRows(frame.where(f"{BRANCH} <> {RowKind.COUNTERS}"), own)


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
    )
