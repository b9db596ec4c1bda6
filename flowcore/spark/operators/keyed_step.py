"""Run an operator with state: a branch's records go to key groups, whose outputs become branches.

This is an *exchange*: rows are shuffled to key groups. Rows of other branches, bad messages and dead letters
pass it as packed batches that nobody opens. If an operator with state is downstream of another one, its
channels are the key groups of that one, which emit watermarks and other control elements between their rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from flowcore.api.operators import Operator, Read
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.packing import InputColumns, Packing
from flowcore.keyed.runtime import Runtime
from flowcore.planner.model import LiveQuery
from flowcore.spark.checkpoint.backlog_status import read_backlog_status
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.record_ids import RecordIds
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    CHANNEL,
    ELEMENT,
    FAILED_OPERATOR,
    INPUT_ID,
    KAFKA_MS,
    KEY_GROUP,
    NEWEST,
    POSITION,
    RECORD_ID,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.operators.key_groups import run_key_groups
from flowcore.spark.operators.keys import canonical_key, key_group_text
from flowcore.spark.operators.step_rows import StepRows, unpack_step
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.watermarks import no_watermarks
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import PeriodicFunction

__all__ = [
    "COORDINATE_PREFIX",
    "PREFIX",
    "RECORD_TIMESTAMP",
    "KeyGroupContext",
    "StepInputs",
    "branch_after",
    "run_step",
    "select_inputs",
]

_PASSING = (
    BRANCH, "topic", "partition", "offset", RECORD_ID, RECORD_ORDINAL, TIMESTAMP_MS, BAD_REASON, VALUE,
    KAFKA_MS, FAILED_OPERATOR,
)  # fmt: skip
"""The columns of rows that pass key groups, besides those of their branches."""
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
        record_ids: What the ids of its records are made of.
        numbers: The numbers of new branches.
        max_cache_bytes: The budget of a worker for decoded states.
        upstream: The name of the upstream operator with state whose key groups are the channels; None if the
            sources are.
        has_downstream: Another operator with state is downstream.
        passing: The columns of other branches that pass the operator, by number of the branch.
    """

    query: LiveQuery
    checkpoint: str
    side_channels: SideChannels
    dead_letter_sources: Sequence[Read]
    record_ids: RecordIds
    numbers: Iterator[int]
    max_cache_bytes: int
    upstream: str | None = None
    has_downstream: bool = False
    passing: Mapping[int, Collection[str]] = field(default_factory=dict)

    @property
    def has_ordinals(self) -> bool:
        """Its records carry an ordinal."""
        return self.record_ids.has_ordinals

    @property
    def coordinates(self) -> dict[str, str]:
        """The columns of a record's coordinates: their name in key groups, and upstream of them.

        A record of another operator with state has its id instead of a place in a topic.
        """
        names = [SOURCE, "partition", "offset"] if self.upstream is None else [SOURCE, INPUT_ID]
        names += [RECORD_ORDINAL] if self.has_ordinals else []
        return {f"{COORDINATE_PREFIX}{name}": name for name in names}

    @property
    def topic_cases(self) -> str:
        """The branches of a SQL ``CASE`` that gives the topic for the number of a source."""
        if self.upstream is not None:
            return "WHEN 0 THEN CAST(NULL AS STRING)"
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
        packed: The columns of a record that are shuffled: without the timestamp if records have none.
        passing: The columns of rows that pass the operator; None if no rows pass it.
    """

    node: Operator
    branched: BranchedFrame
    frame: DataFrame
    records: pa.Schema
    packed: pa.Schema
    passing: pa.Schema | None


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
    if context.upstream is not None and SOURCE not in branched.frame.columns:
        branched.set({SOURCE: "0", INPUT_ID: _input_id(branch, context)})
    canonical = {name: canonical_key(branched.frame.schema, columns[name], name) for name in keys}
    texts = {
        "key_group": key_group_text([*canonical.values()], context.query.key_groups),
        "source": SOURCE,
        **_channel_texts(context),
        "record": branched.is_in(branch),
    }
    if TIMESTAMP_MS in branched.frame.columns:
        texts["timestamp_ms"] = TIMESTAMP_MS
    if ELEMENT in branched.frame.columns:
        texts["element"] = f"CASE WHEN {BRANCH} = {RowKind.CONTROL} THEN {ELEMENT} END"
        texts |= {"sender": CHANNEL} if CHANNEL in branched.frame.columns else {}
    if branched.has_markers:
        texts["event"] = f"CASE WHEN {BRANCH} = {RowKind.MARKER} THEN {VALUE} END"
    passing = _passing_columns(node, branched, context)
    if passing:
        passed = ", ".join(map(str, [*([RowKind.BAD] if branched.has_bad else []), *context.passing]))
        names = ", ".join(map(quote, passing))
        texts["passing"] = f"CASE WHEN {BRANCH} IN ({passed}) THEN struct({names}) END"
    frame = branched.frame.selectExpr(
        *(f"{text} AS {PREFIX}{name}" for name, text in texts.items()),
        *(f"{canonical.get(name, quote(now))} AS {quote(name)}" for name, now in columns.items()),
    )
    selected = to_arrow_schema(StructType([frame.schema[name] for name in columns]), timezone="UTC")
    records = pa.schema([pa.field(RECORD_TIMESTAMP, pa.int64()), *selected])
    passed_row = StructType([branched.frame.schema[name] for name in passing])
    return StepInputs(
        node,
        branched,
        frame,
        records,
        records if RECORD_TIMESTAMP in frame.columns else selected,
        to_arrow_schema(passed_row, timezone="UTC") if passing else None,
    )


def run_step(
    inputs: StepInputs, operator: KeyGroupOperator, branches: Mapping[str, int], context: KeyGroupContext
) -> StepRows:
    """Run an operator on its key groups; latency markers and rows of other branches pass them.

    Args:
        inputs: Its inputs.
        operator: The operator.
        branches: The branch of each of its outputs that is read.
        context: The query.
    """
    query, frame = context.query, inputs.frame
    if context.upstream is None:
        backlog = read_backlog_status(frame.sparkSession, Path(context.checkpoint))
        backlog = backlog.selectExpr(f"at AS {PREFIX}offset", f"backlog AS {PREFIX}backlog")
        frame = frame.unionByName(backlog, allowMissingColumns=True)
        sources = {source.name: _watermark_source(source, context.side_channels) for source in query.sources}
    else:
        groups = tuple(map(str, range(query.key_groups)))
        sources = {context.upstream: WatermarkSource(None, groups)}
    packing = Packing(
        inputs=_input_columns(frame),
        sources=tuple(sources),
        key_groups=query.key_groups,
        rows=inputs.packed,
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
        sources=sources,
        rows=inputs.packed,
        records=inputs.records,
        name=inputs.node.name,
        checks_name=len(query.exchanges) > 1,
        emits_control=context.has_downstream,
        max_cache_bytes=context.max_cache_bytes,
        reads_control=context.upstream is not None,
    )
    schemas = {output: operator.outputs[output] for output in branches}
    packed = run_key_groups(frame, packing, runtime)
    return unpack_step(
        inputs.node, packed, schemas, branches,
        names=inputs.branched.names, passing=inputs.passing, has_downstream=context.has_downstream,
    )  # fmt: skip


def branch_after(
    step: StepRows, inputs: StepInputs, texts: Mapping[str, str], *, has_coordinates: bool, has_bad: bool
) -> BranchedFrame:
    """The frame of a step's outputs and of the rows that passed it, with columns added or replaced.

    Args:
        step: The rows.
        inputs: The inputs of the step.
        texts: SQL text of the columns.
        has_coordinates: Some outputs, or rows that passed, have the coordinates of a record.
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


def _channel_texts(context: KeyGroupContext) -> dict[str, str]:
    """SQL texts of a row's channel, of its order there, and of the timestamp that counts for watermarks."""
    if context.upstream is not None:
        return {"partition": KEY_GROUP, "offset": POSITION}
    return {"partition": "partition", "offset": "offset", "newest_ms": NEWEST}


def _input_id(branch: Branch, context: KeyGroupContext) -> str:
    """SQL text of a record's `RECORD_ID`; its ordinal is another column."""
    if branch.has_record_id:
        return RECORD_ID
    if not branch.has_coordinates:
        return "CAST(NULL AS STRING)"
    return f"({context.record_ids.place('topic', 'partition', 'offset')} || ':0')"


def _passing_columns(node: Operator, branched: BranchedFrame, context: KeyGroupContext) -> list[str]:
    """The columns of the rows that pass the operator; none if no rows pass it."""
    if not branched.has_bad and not context.passing:
        return []
    existing = {*branched.frame.columns}
    if not context.query.carries_timestamps(node):  # nothing downstream of it reads them
        existing.discard(TIMESTAMP_MS)
    of_branches = (name for columns in context.passing.values() for name in columns)
    return [*(name for name in _PASSING if name in existing), *dict.fromkeys(of_branches)]


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
        newest=optional("newest_ms"),
        record=f"{PREFIX}record",
        element=optional("element"),
        sender=optional("sender"),
        marker=optional("event"),
        backlog=optional("backlog"),
        passing=optional("passing"),
    )
