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
from flowcore.spark.frame.branches import (
    BAD,
    EVENT,
    FAILED,
    IDENTITY,
    KAFKA_MS,
    LANE,
    ORDINAL,
    REASON,
    TIME,
    VALUE,
    Lane,
    Tracks,
)
from flowcore.spark.frame.sql import literal
from flowcore.spark.topics import elements
from flowcore.spark.topics.oversized import held_back
from flowcore.spark.topics.side_channels import Beside
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
        beside: What it carries beside its records.
        sources: The topics that it reads.
        counted: Its records carry an ordinal.
        bounded: The version of the bounded results that it joins; empty if it joins none.
    """

    sinks: Sequence[tuple[Write, KafkaTopic]]
    dead_letters: Sequence[tuple[Read, KafkaTopic]]
    beside: Beside
    sources: Sequence[KafkaTopic]
    counted: bool
    bounded: str = ""

    def messages(self, tracks: Tracks, ends: Sequence[tuple[Lane, Write, KafkaTopic]]) -> DataFrame:
        """Topic, key, value and headers of every row of a frame; and the partition, of markers."""
        frame = tracks.frame
        cases: list[tuple[str, _Message]] = []
        if tracks.bad:
            for node, topic in self.dead_letters:
                mine = f"topic IN ({literal(topic.name)}, {literal(topic.events)})"
                failed = FAILED if FAILED in frame.columns else _NOTHING
                cases.append((f"{LANE} = {BAD} AND {mine}", _dead_letter(node, topic, failed)))
        if tracks.marked:
            companions = sorted({topic.events for _, topic in self.sinks})
            target = literal(companions[0])
            if len(companions) > 1:
                every = f"array({', '.join(map(literal, companions))})"
                copies = f"explode(CASE WHEN {LANE} = {EVENT} THEN {every} ELSE array('') END)"
                frame, target = frame.selectExpr("*", f"{copies} AS {_TO}"), _TO
            cases.append((f"{LANE} = {EVENT}", self._marker(target)))
        cases += [(tracks.mine(lane), self._record(tracks, lane, sink, topic)) for lane, sink, topic in ends]
        columns = ["topic", "key", "value", "headers", *(["partition"] if tracks.marked else [])]
        frame = frame.selectExpr(*(f"{_case(cases, column)} AS {column}" for column in columns))
        written = [(sink, topic) for _, sink, topic in ends]
        return held_back(frame, written, self.sources, self.beside.limits) if written else frame

    def _record(self, tracks: Tracks, lane: Lane, sink: Write, topic: KafkaTopic) -> _Message:
        columns = {name: lane.column(name) for name in sink.columns}
        value = kafka_value(topic, columns, tracks.frame)
        found = {}
        if lane.named:
            ordinal = f" || ':' || {ORDINAL}" if self.counted else ""
            found["flowcore-id"] = f"({IDENTITY}{ordinal})"
        elif tracks.identified and lane.identified:
            ordinal = ORDINAL if self.counted else "'0'"
            if Counter(each.name for _, each in self.sinks)[topic.name] > 1:
                ordinal += f" || {literal(f'.{sink.name}')}"  # branches of a record meet in the topic
            found["flowcore-id"] = f"(topic || ':' || partition || ':' || offset || ':' || {ordinal})"
        if self.bounded:
            found[BOUNDED_VERSION_HEADER] = literal(self.bounded)
        if sink in self.beside.tagged:
            if topic.headers:
                found[ELEMENT_HEADER] = elements.tagged_record(TIME, "X''")
            else:
                value = elements.tagged_record(TIME, value)
        return {
            "topic": literal(topic.name),
            "key": kafka_key(sink.key, columns),
            "value": value,
            "headers": headers(found),
            "partition": "CAST(NULL AS INT)",
        }

    def _marker(self, target: str) -> _Message:
        counts = {topic.events: self.beside.partitions[topic.name] for _, topic in self.sinks}
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
        "headers": bad_record_headers(node, REASON, KAFKA_MS, failed),
        "partition": "CAST(NULL AS INT)",
    }


def _case(cases: list[tuple[str, _Message]], column: str) -> str:
    """The value of the first case that holds; the last needs no test, since every row is in a lane."""
    *first, (_, last) = cases
    tests = " ".join(f"WHEN {condition} THEN {values[column]}" for condition, values in first)
    return f"CASE {tests} ELSE {last[column]} END" if first else last[column]
