"""The context of operators on key groups in their query, and SQL texts of their records' coordinates.

The channels of an operator are the partitions of its topics, and the key groups of the operators upstream of
it. Rows have the number of the topic or operator in the column `SOURCE`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowcore.api.operators import (
    Deduplicate,
    EventTimeSort,
    MapBatches,
    Operator,
    Read,
    SideOutput,
    WithEventTime,
)
from flowcore.keyed.content import StoredSchemas
from flowcore.keyed.task_elements import SenderFiles
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings
from flowcore.spark.busy_times import TaskTimes
from flowcore.spark.frame.branches import Branch
from flowcore.spark.frame.record_ids import RecordIds
from flowcore.spark.frame.rows import (
    FAILED_OPERATOR,
    INPUT_ID,
    KAFKA_MS,
    KEY_GROUP,
    RECORD_ID,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
)
from flowcore.spark.frame.sql import literal
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.watermarks import declared_senders, watermark_source
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import PeriodicFunction

__all__ = ["COORDINATE_PREFIX", "PASSED", "PREFIX", "RECORD_TIMESTAMP", "KeyGroupContext", "begins_channels"]


PREFIX = "_flowcore_"
"""The prefix of columns that are not the user's."""
COORDINATE_PREFIX = f"{PREFIX}of_"
"""The prefix of columns with a record's coordinates."""
PASSED = f"{PREFIX}row_"
"""The prefix of a record's own columns in key groups, where its key has one form for equal values."""
RECORD_TIMESTAMP = f"{PREFIX}timestamp_ms"
"""The column of a record's timestamp, BIGINT milliseconds, null if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupContext:
    """What operators on key groups need of their query.

    Attributes:
        checkpoint: The folder of its checkpoint, which distinguishes its state from that of other queries.
        side_channels: The query's side channels.
        record_ids: Makes the ids of the query's records.
        numbers: The numbers of new branches.
        times: Takes how long the operators were busy.
        schemas: The schemas of the operators' states, by name; filled when their exchange is compiled.
        senders: The topics and the operators with state that the operator reads.
        side_outputs: The operators that read its side outputs, by name of the output.
    """

    query: LiveQuery
    settings: Settings
    checkpoint: str
    side_channels: SideChannels
    record_ids: RecordIds
    numbers: Iterator[int]
    times: TaskTimes
    schemas: dict[str, StoredSchemas] = field(default_factory=dict)
    senders: tuple[Operator, ...] = ()
    side_outputs: Mapping[str, Sequence[SideOutput]] = field(default_factory=dict)

    @property
    def has_ordinals(self) -> bool:
        """Its records carry an ordinal."""
        return self.record_ids.has_ordinals

    def of(self, node: Operator) -> KeyGroupContext:
        """The context of one operator."""
        side_outputs: dict[str, list[SideOutput]] = {}
        for each in self.query.operators:
            if isinstance(each, SideOutput) and node in each.inputs:
                side_outputs.setdefault(each.output, []).append(each)
        return replace(self, senders=self.query.find_senders(node), side_outputs=side_outputs)

    @property
    def sources(self) -> tuple[Operator, ...]:
        """The topics, then operators with state, then those that assign event time, by number in rows."""
        keyed = (node for exchange in self.query.exchanges for node in exchange)
        return (*self.query.sources, *keyed, *self.query.assigners)

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics that rows are from, by number; empty for those of operators with state."""
        topics = (_source(each).topic for each in self.sources)
        return tuple(topic.name if topic else "" for topic in topics)

    @property
    def derived(self) -> dict[str, list[str]]:
        """By source, the operators that assign event time to its records."""
        found: dict[str, list[str]] = {}
        for each in self.query.assigners:
            found.setdefault(_source(each).name, []).append(each.name)
        return found

    @property
    def functions(self) -> dict[str, Callable[[Any], int | None]]:
        """By topic or operator, the Python function that makes its watermarks, if there is one."""
        return {
            each.name: each.watermark.generator.function
            for each in self.sources
            if each.watermark and isinstance(each.watermark.generator, PeriodicFunction)
        }

    @property
    def sender_files(self) -> SenderFiles:
        """The files of senders to topics whose channels are not declared."""
        undeclared = (each.name for each in self.query.sources if declared_senders(each) is None)
        return SenderFiles(self.checkpoint, frozenset(undeclared))

    @property
    def reads_topics(self) -> bool:
        """Some records come from a topic without another operator with state."""
        return any(begins_channels(each) for each in self.senders)

    @property
    def reads_operators(self) -> bool:
        """Some records come from another operator with state."""
        return not all(map(begins_channels, self.senders))

    @property
    def reads_ids(self) -> bool:
        """Some records have an id: those of another operator with state, and those of a cut."""
        return self.reads_operators or bool(self._cuts)

    def message_columns(self, existing: Collection[str]) -> tuple[str, ...]:
        """The columns of a record's message, for the dead letter if a function fails downstream.

        Records that an operator with state has made have no message. ``existing`` are the frame's columns.
        """
        passes = all(
            begins_channels(each) or isinstance(each, Deduplicate | EventTimeSort) for each in self.senders
        )
        return (VALUE, KAFKA_MS) if passes and FAILED_OPERATOR in existing else ()

    @property
    def _cuts(self) -> list[int]:
        """The numbers of the cuts that it reads."""
        cuts = [each for each in self.senders if getattr(_source(each), "written_by", None) is not None]
        return [self.sources.index(each) for each in cuts]

    @property
    def _assigned(self) -> dict[int, int]:
        """By the number of an operator that assigns event time, that of the topic of its records."""
        sources = self.sources
        return {
            sources.index(each): sources.index(_source(each))
            for each in self.query.assigners
            if _source(each).topic
        }

    @property
    def coordinates(self) -> dict[str, str]:
        """The columns of a record's coordinates: their name in key groups, and upstream of them.

        A record of another operator with state has its id instead of a place in a topic, one of a cut both.
        """
        names = [SOURCE, *(("partition", "offset") if self.reads_topics else ())]
        names += [INPUT_ID] if self.reads_ids else []
        names += [RECORD_ORDINAL] if self.has_ordinals else []
        return {f"{COORDINATE_PREFIX}{name}": name for name in names}

    @property
    def topic_cases(self) -> str:
        """The branches of a SQL ``CASE`` that gives the topic for the number of a source."""
        cases = [f"WHEN {number} THEN {literal(topic)}" for number, topic in enumerate(self.topics) if topic]
        return " ".join(cases)

    def coordinate_texts(self, branch: Branch) -> dict[str, str]:
        """SQL texts of the coordinates of a branch's records, by the names that they have in key groups."""
        texts = {name: name for name in self.coordinates.values()}
        if self.reads_topics and any(isinstance(each, MapBatches) for each in self.query.operators):
            # The place of an output of a batch is that of the batch's first record.
            numbers = {
                each.topic.name: number for number, each in enumerate(self.query.sources) if each.topic
            }
            cases = " ".join(f"WHEN {literal(name)} THEN {number}" for name, number in numbers.items())
            texts[SOURCE] = f"coalesce({SOURCE}, CASE topic {cases} END)"
        if self.reads_topics and (assigned := self._assigned):
            # State keeps it, and the number of an operator changes when others are added.
            cases = " ".join(f"WHEN {number} THEN {topic}" for number, topic in assigned.items())
            texts[SOURCE] = f"CASE {texts[SOURCE]} {cases} ELSE {texts[SOURCE]} END"
        if self.reads_ids:
            if branch.has_record_id:
                texts[INPUT_ID] = RECORD_ID  # its ordinal is another column
            elif branch.has_coordinates:
                texts[INPUT_ID] = self.record_ids.of_place("topic", "partition", "offset")
            else:
                texts[INPUT_ID] = "CAST(NULL AS STRING)"
        if self.reads_ids and self.reads_topics:
            is_result = f"{KEY_GROUP} IS NOT NULL" if self.reads_operators else "false"
            is_cut = f"{SOURCE} IN ({', '.join(map(str, self._cuts))})" if self._cuts else "false"
            texts[INPUT_ID] = f"CASE WHEN {is_result} OR {is_cut} THEN {texts[INPUT_ID]} END"
            if self.reads_operators:
                texts |= {
                    name: f"CASE WHEN {KEY_GROUP} IS NULL THEN {name} END" for name in ("partition", "offset")
                }
        return {name: texts[now] for name, now in self.coordinates.items()}

    def origins(self, found: Mapping[str, str]) -> str:
        """SQL texts, separated by commas, of the origin of an output in its id: one of them is not null.

        Args:
            found: The names of the columns with the coordinates of its record, by name in key groups.
        """
        ids = [found[COORDINATE_PREFIX + INPUT_ID]] if self.reads_ids else []
        if self.reads_topics:
            ids.append(self.record_ids.place(*self._place_texts(found).values()))
        return ", ".join(ids)

    def result_id(self, node: Operator, found: Mapping[str, str], *parts: str) -> str:
        """SQL text of the id of an output that was made from one record: operator, record, and parts."""
        ids = [literal(self.record_ids.states[node]), f"coalesce({self.origins(found)})"]
        if self.has_ordinals:
            ids.append(f"nullif({found[COORDINATE_PREFIX + RECORD_ORDINAL]}, '0')")
        return f"concat_ws(':', {', '.join([*ids, *parts])})"

    def passed_texts(self, nodes: Collection[Operator], found: Mapping[str, str]) -> dict[str, str]:
        """SQL texts of the engine's columns of records that an operator passes on as they are.

        They keep their coordinates, their id if they have one, and their timestamp.

        Args:
            nodes: The operators whose output they are for their readers.
            found: The names of the output's columns in the rows, by name in key groups.
        """
        texts = self._place_texts(found) if self.reads_topics else {}
        if self.reads_ids:
            ids = [self.record_ids.of_place(*texts.values())] if texts else []
            texts[RECORD_ID] = f"coalesce({', '.join([found[COORDINATE_PREFIX + INPUT_ID], *ids])})"
        if self.has_ordinals:
            texts[RECORD_ORDINAL] = f"coalesce({found[COORDINATE_PREFIX + RECORD_ORDINAL]}, '0')"
        if not self.query.timestamped.isdisjoint(nodes):
            texts[TIMESTAMP_MS] = found[RECORD_TIMESTAMP]
        return texts

    def watermark_sources(self) -> dict[str, WatermarkSource]:
        """The channels of the operator's inputs, by name of the input."""
        groups = WatermarkSource(None, tuple(map(str, range(self.query.key_groups))))
        carried = self.side_channels
        return {
            each.name: watermark_source(
                each, carried.partitions, polls=carried.polls_watermarks, expiry_ms=carried.channel_expiry_ms
            )
            if begins_channels(each)
            else groups
            for each in self.senders
        }

    def _place_texts(self, found: Mapping[str, str]) -> dict[str, str]:
        """SQL texts of the topic, partition and offset of an output's record, from its coordinates."""
        partition, offset = found[f"{COORDINATE_PREFIX}partition"], found[f"{COORDINATE_PREFIX}offset"]
        topic = f"CASE {found[COORDINATE_PREFIX + SOURCE]} {self.topic_cases} END"
        return {"topic": topic, "partition": partition, "offset": offset}


def begins_channels(node: Operator) -> bool:
    """Whether the channels of an operator's records are partitions of a topic."""
    return isinstance(node, Read | WithEventTime)


def _source(node: Operator) -> Operator:
    """The source of the records of one that begins channels; itself for another."""
    return node.live_sources[0] if isinstance(node, WithEventTime) else node
