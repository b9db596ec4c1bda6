"""Outgoing: which Kafka message does each row of a live query become?

Records go to their sink's topic, bad messages to the dead-letter topic of their source, latency
markers to the companion topic of every sink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Read, Write
from flowcore.kafka.elements import ELEMENT_HEADER
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    FAILED_OPERATOR,
    KAFKA_MS,
    RECORD_ID,
    RECORD_ORDINAL,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal
from flowcore.spark.topics import elements
from flowcore.spark.topics.oversized import divert_oversized
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.sinks import bad_record_headers, headers, kafka_key, kafka_value

__all__ = ["Outgoing"]

_Message = dict[str, str]
"""SQL text of each column that Spark's Kafka sink reads."""
BOUNDED_VERSION_HEADER = "flowcore-bounded-version"
_NOTHING = "CAST(NULL AS STRING)"
_TO = "_to"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """How the rows of a query are written.

    Attributes:
        sinks: All that the query writes to.
        dead_letters: The sources whose bad messages leave through it.
        side_channels: What it carries beside its records.
        sources: The topics that it reads.
        has_ordinals: Its records carry an ordinal.
        bounded: The version of the bounded results that it joins; empty if it joins none.
    """

    sinks: Sequence[tuple[Write, KafkaTopic]]
    dead_letters: Sequence[tuple[Read, KafkaTopic]]
    side_channels: SideChannels
    sources: Sequence[KafkaTopic]
    has_ordinals: bool
    bounded: str = ""

    def messages(
        self, branched: BranchedFrame, ends: Sequence[tuple[Branch, Write, KafkaTopic]]
    ) -> DataFrame:
        """Topic, key, value and headers of every row of a frame; and the partition, of markers."""
        frame = branched.frame
        cases: list[tuple[str, _Message]] = []
        if branched.has_bad:
            for node, topic in self.dead_letters:
                mine = f"topic IN ({literal(topic.name)}, {literal(topic.events)})"
                failed = FAILED_OPERATOR if FAILED_OPERATOR in frame.columns else _NOTHING
                cases.append((f"{BRANCH} = {RowKind.BAD} AND {mine}", _dead_letter(node, topic, failed)))
        if branched.has_markers:
            companions = sorted({topic.events for _, topic in self.sinks})
            target = literal(companions[0])
            if len(companions) > 1:
                every = f"array({', '.join(map(literal, companions))})"
                copies = f"explode(CASE WHEN {BRANCH} = {RowKind.MARKER} THEN {every} ELSE array('') END)"
                frame, target = frame.selectExpr("*", f"{copies} AS {_TO}"), _TO
            cases.append((f"{BRANCH} = {RowKind.MARKER}", self._marker(target)))
        cases += [
            (branched.is_in(branch), self._record(branched, branch, sink, topic))
            for branch, sink, topic in ends
        ]
        columns = ["topic", "key", "value", "headers", *(["partition"] if branched.has_markers else [])]
        frame = frame.selectExpr(*(f"{_case(cases, column)} AS {column}" for column in columns))
        written = [(sink, topic) for _, sink, topic in ends]
        return divert_oversized(frame, written, self.sources, self.side_channels.limits) if written else frame

    def _record(self, branched: BranchedFrame, branch: Branch, sink: Write, topic: KafkaTopic) -> _Message:
        columns = {name: branch.column(name) for name in sink.columns}
        value = kafka_value(topic, columns, branched.frame)
        found = {}
        if branch.has_record_id:
            ordinal = f" || ':' || {RECORD_ORDINAL}" if self.has_ordinals else ""
            found["flowcore-id"] = f"({RECORD_ID}{ordinal})"
        elif branched.has_coordinates and branch.has_coordinates:
            ordinal = RECORD_ORDINAL if self.has_ordinals else "'0'"
            if Counter(each.name for _, each in self.sinks)[topic.name] > 1:
                ordinal += f" || {literal(f'.{sink.name}')}"  # branches of a record meet in the topic
            found["flowcore-id"] = f"(topic || ':' || partition || ':' || offset || ':' || {ordinal})"
        if self.bounded:
            found[BOUNDED_VERSION_HEADER] = literal(self.bounded)
        if sink in self.side_channels.tagged_sinks:
            if topic.headers:
                found[ELEMENT_HEADER] = elements.tagged_record(TIMESTAMP_MS, "X''")
            else:
                value = elements.tagged_record(TIMESTAMP_MS, value)
        return {
            "topic": literal(topic.name),
            "key": kafka_key(sink.key, columns),
            "value": value,
            "headers": headers(found),
            "partition": "CAST(NULL AS INT)",
        }

    def _marker(self, target: str) -> _Message:
        counts = {topic.events: self.side_channels.partitions[topic.name] for _, topic in self.sinks}
        cases = " ".join(f"WHEN {literal(name)} THEN {count}" for name, count in counts.items())
        return {
            "topic": target,
            "key": _NOTHING,
            "value": VALUE,
            "headers": headers({}),
            "partition": f"CAST(partition % CASE {target} {cases} END AS INT)",
        }


def _dead_letter(node: Read, topic: KafkaTopic, failed: str) -> _Message:
    return {
        "topic": literal(topic.dead_letter),
        "key": _NOTHING,
        "value": VALUE,
        "headers": bad_record_headers(node, BAD_REASON, KAFKA_MS, failed),
        "partition": "CAST(NULL AS INT)",
    }


def _case(cases: list[tuple[str, _Message]], column: str) -> str:
    """The value of the first case that holds; the last needs no test, since every row is in a branch."""
    *first, (_, last) = cases
    tests = " ".join(f"WHEN {condition} THEN {values[column]}" for condition, values in first)
    return f"CASE {tests} ELSE {last[column]} END" if first else last[column]
