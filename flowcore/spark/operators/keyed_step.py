"""Select what an operator with state reads: the records of a branch, as its key groups receive them.

The channels of an operator are the partitions of its topics, and the key groups of the operators upstream of
it. Rows have the number of the topic or operator in the column `SOURCE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from flowcore.api.operators import Operator, Read
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.planner.model import LiveQuery, find_senders
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.record_ids import RecordIds
from flowcore.spark.frame.rows import INPUT_ID, KEY_GROUP, RECORD_ID, RECORD_ORDINAL, SOURCE, TIMESTAMP_MS
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.operators.keys import canonical_key, key_group_text
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.watermarks import watermark_source
from flowcore.watermarks.progress import WatermarkSource

__all__ = [
    "COORDINATE_PREFIX", "PREFIX", "RECORD_TIMESTAMP", "KeyGroupContext", "StepInputs", "StepMember",
    "StepOutput", "select_inputs",
]  # fmt: skip

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
        senders: The topics and the operators with state that the operator reads.
    """

    query: LiveQuery
    checkpoint: str
    side_channels: SideChannels
    dead_letter_sources: Sequence[Read]
    record_ids: RecordIds
    numbers: Iterator[int]
    max_cache_bytes: int
    senders: tuple[Operator, ...] = ()

    @property
    def has_ordinals(self) -> bool:
        """Its records carry an ordinal."""
        return self.record_ids.has_ordinals

    def of(self, node: Operator) -> KeyGroupContext:
        """The context of one operator."""
        return replace(self, senders=find_senders(node))

    @property
    def sources(self) -> tuple[Operator, ...]:
        """The topics, then the operators with state, by the number that their rows have."""
        return (*self.query.sources, *(node for exchange in self.query.exchanges for node in exchange))

    @property
    def reads_topics(self) -> bool:
        """Some records come from a topic without another operator with state."""
        return any(isinstance(each, Read) for each in self.senders)

    @property
    def reads_operators(self) -> bool:
        """Some records come from another operator with state."""
        return not all(isinstance(each, Read) for each in self.senders)

    @property
    def coordinates(self) -> dict[str, str]:
        """The columns of a record's coordinates: their name in key groups, and upstream of them.

        A record of another operator with state has its id instead of a place in a topic.
        """
        names = [SOURCE, *(("partition", "offset") if self.reads_topics else ())]
        names += [INPUT_ID] if self.reads_operators else []
        names += [RECORD_ORDINAL] if self.has_ordinals else []
        return {f"{COORDINATE_PREFIX}{name}": name for name in names}

    @property
    def topic_cases(self) -> str:
        """The branches of a SQL ``CASE`` that gives the topic for the number of a source."""
        topics = [source.topic for source in self.query.sources]
        cases = [f"WHEN {number} THEN {literal(topic.name)}" for number, topic in enumerate(topics) if topic]
        return " ".join(cases)

    def coordinate_texts(self, branch: Branch) -> dict[str, str]:
        """SQL texts of the coordinates of a branch's records, by the names that they have upstream."""
        texts = {name: name for name in self.coordinates.values()}
        if self.reads_operators:
            texts[INPUT_ID] = self._input_id(branch)
            if self.reads_topics:  # each record has a place or an id
                texts[INPUT_ID] = f"CASE WHEN {KEY_GROUP} IS NOT NULL THEN {texts[INPUT_ID]} END"
                texts |= {
                    name: f"CASE WHEN {KEY_GROUP} IS NULL THEN {name} END" for name in ("partition", "offset")
                }
        return texts

    def watermark_sources(self) -> dict[str, WatermarkSource]:
        """The channels of the operator's inputs, by name of the input."""
        groups = WatermarkSource(None, tuple(map(str, range(self.query.key_groups))))
        return {
            each.name: _watermark_source(each, self.side_channels) if isinstance(each, Read) else groups
            for each in self.senders
        }

    def _input_id(self, branch: Branch) -> str:
        """SQL text of a record's `RECORD_ID`; its ordinal is another column."""
        if branch.has_record_id:
            return RECORD_ID
        if not branch.has_coordinates:
            return "CAST(NULL AS STRING)"
        return self.record_ids.of_place("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The records that go to an operator's key groups.

    Attributes:
        node: The operator.
        context: The operator's context.
        record: SQL text that is true for its records.
        key_group: SQL text of a record's key group.
        columns: SQL texts of a record's columns, by the names that they have in key groups.
        records: The columns of a record as the operator receives it: its timestamp, then the selected
            columns.
        packed: The columns of a record that are shuffled: without the timestamp if records have none.
    """

    node: Operator
    context: KeyGroupContext
    record: str
    key_group: str
    columns: Mapping[str, str]
    records: pa.Schema
    packed: pa.Schema


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What an operator adds to the rows of its exchange.

    Attributes:
        branches: The branches of its outputs, by the operator whose output it is for its readers.
        columns: SQL texts of new columns.
        by_branch: SQL texts of the engine's columns, by column and number of the branch.
    """

    branches: Mapping[Operator, Branch]
    columns: Mapping[str, str] = field(default_factory=dict)
    by_branch: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepMember:
    """An operator with state in an exchange.

    Attributes:
        inputs: Its records.
        operator: What runs in key groups.
        branches: The branch of each of its outputs that is read.
        finish: Makes its output of the columns' names in the exchange's rows, by output and name in it.
    """

    inputs: StepInputs
    operator: KeyGroupOperator
    branches: Mapping[str, int]
    finish: Callable[[Mapping[str, Mapping[str, str]]], StepOutput]


def select_inputs(  # noqa: PLR0917 - the operator, then its input
    node: Operator,
    keys: Sequence[str],
    branched: BranchedFrame,
    branch: Branch,
    columns: Mapping[str, str],
    context: KeyGroupContext,
    *,
    with_coordinates: bool,
) -> StepInputs:
    """Select the columns of records.

    Args:
        node: The operator.
        keys: Its key's columns.
        branched: The frame of the branch.
        branch: The records.
        columns: A record's columns: their name in key groups, and in the frame.
        context: The operator's context.
        with_coordinates: The operator also needs the coordinates of records.
    """
    schema = branched.frame.schema
    texts = {name: quote(now) for name, now in columns.items()}
    texts |= {name: canonical_key(schema, columns[name], name) for name in keys}
    if with_coordinates:
        found = context.coordinate_texts(branch)
        texts |= {name: found[now] for name, now in context.coordinates.items()}
    selected = branched.frame.selectExpr(*(f"{text} AS {quote(name)}" for name, text in texts.items()))
    others = to_arrow_schema(selected.schema, timezone="UTC")
    records = pa.schema([pa.field(RECORD_TIMESTAMP, pa.int64()), *others])
    timed = TIMESTAMP_MS in branched.frame.columns
    record = branched.is_in(branch)
    if node.needs_timestamps and not context.side_channels.untimed_sources.isdisjoint(context.senders):
        record += f" AND {TIMESTAMP_MS} IS NOT NULL"
    return StepInputs(
        node=node,
        context=context,
        record=record,
        key_group=key_group_text([texts[name] for name in keys], context.query.key_groups),
        columns={RECORD_TIMESTAMP: TIMESTAMP_MS, **texts} if timed else texts,
        records=records,
        packed=records if timed else others,
    )


def _watermark_source(node: Read, side_channels: SideChannels) -> WatermarkSource:
    topic = node.topic
    if topic is None:
        return WatermarkSource(None, ())
    return watermark_source(topic, side_channels.partitions, polls=side_channels.polls_watermarks)
