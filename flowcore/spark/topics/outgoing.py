"""Turn each row of a live query into an outgoing Kafka message.

Records go to their sink's topic, bad messages to the dead-letter topic of their source, and latency markers
to the companion topic of every sink. Messages that their topic would refuse go to dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Read, Write
from flowcore.kafka.topics import TopicLimits
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.record_ids import RecordIds
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    FAILED_OPERATOR,
    KAFKA_KEY,
    KAFKA_MS,
    RECORD_ID,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal, visible
from flowcore.spark.topics.messages import (
    LARGEST_BYTES,
    NULL_TEXT,
    bad_record_headers,
    bounded_key,
    headers,
    kafka_key,
    tag,
)
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.values import write_message

__all__ = ["Outgoing"]

_Message = dict[str, str]
"""SQL text of each column that Spark's Kafka sink reads."""
BOUNDED_VERSION_HEADER = "flowcore-bounded-version"
_TO = "_to"
_MISFIT = "_misfit"
"""Why the format of its topic cannot hold a row; null if it can."""
_BATCH_BYTES = 128
"""At most what Kafka adds to a message that is alone in its batch."""
_HEADER_BYTES = (
    "coalesce(aggregate(headers, 0, "
    "(n, h) -> n + 10 + octet_length(h.key) + coalesce(octet_length(h.value), 0)), 0)"
)
"""The headers of a message, with the lengths of their parts."""
_MOST_HEADER_BYTES = 16 << 10
"""More than the headers of a record have: its id with keys of windows and names, a version, a tag."""
_MOST_DEAD_LETTER_HEADER_BYTES = 1 << 20
"""More than the headers of a dead letter have, unless its topic takes less than four times as much."""
_ID = "CAST(filter(headers, h -> h.key = 'flowcore-id')[0].value AS STRING)"
_BY_KEY = "CAST(NULL AS INT)"
"""The partition of a message that Kafka's client chooses by the key."""
_NULL_PARTITION = 0
_ORIGIN = {"topic": "_of_topic", "partition": "_of_partition", "offset": "_of_offset"}
"""Where the source record of a message was, by column; null if no single record made the message."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """How the rows of a query are written.

    Attributes:
        dead_letters: The sources whose bad messages the query writes.
        record_ids: Makes the ids of its records.
        joined_version: The version of the bounded results that the query joins; empty if it joins none.
        assigners: The names of the operators that assign event time.
    """

    sinks: Sequence[tuple[Write, KafkaTopic]]
    dead_letters: Sequence[tuple[Read, KafkaTopic]]
    side_channels: SideChannels
    sources: Sequence[KafkaTopic]
    record_ids: RecordIds
    joined_version: str = ""
    assigners: Sequence[str] = ()

    @property
    def _dead_letter_bytes(self) -> int:
        """The largest message that the topics of dead letters take, which may have been there before."""
        names = {topic.dead_letter for topic in (*self.sources, *(topic for _, topic in self.dead_letters))}
        known = self.side_channels.limits
        return min([LARGEST_BYTES, *(known[name].max_message_bytes for name in names if name in known)])

    def messages(
        self, branched: BranchedFrame, ends: Sequence[tuple[Branch, Write, KafkaTopic]]
    ) -> DataFrame:
        """Topic, key, value and headers of every row of a frame, and the partition of those that need one."""
        frame = branched.frame
        cases: list[tuple[str, _Message]] = []
        if branched.has_bad:
            for node, topic in self.dead_letters:
                mine = f"topic IN ({literal(topic.name)}, {literal(topic.events)})"
                failed = FAILED_OPERATOR if FAILED_OPERATOR in frame.columns else NULL_TEXT
                largest = self._dead_letter_bytes
                key = bounded_key(KAFKA_KEY, largest) if KAFKA_KEY in frame.columns else NULL_TEXT
                record_id = self.record_ids.of_result(node.name) if RECORD_ID in frame.columns else None
                found = bad_record_headers(
                    node, BAD_REASON, KAFKA_MS, failed, record_id, assigners=self.assigners
                )
                value = _cut(VALUE, largest, key)
                message = _message(literal(topic.dead_letter), value, found, key=key)
                cases.append((f"{BRANCH} = {RowKind.BAD} AND {mine}", message))
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
        has_partitions = any(case["partition"] != _BY_KEY for _, case in cases)
        columns = ["topic", "key", "value", "headers", *(["partition"] if has_partitions else [])]
        texts = [f"{_case(cases, column)} AS {column}" for column in (*columns, _MISFIT)]
        if not ends:
            return frame.selectExpr(*texts).drop(_MISFIT)
        placed = [
            branch.number for branch, _, _ in ends if branched.has_coordinates and branch.has_coordinates
        ]
        is_placed = f"{BRANCH} IN ({', '.join(map(str, placed))})" if branched.shared else "true"
        texts += [
            f"CASE WHEN {is_placed} THEN {column} END AS {name}" if placed else f"{NULL_TEXT} AS {name}"
            for column, name in _ORIGIN.items()
        ]
        written = [(sink, topic) for _, sink, topic in ends]
        return self._divert_oversized(frame.selectExpr(*texts), written)

    def _record(self, branched: BranchedFrame, branch: Branch, sink: Write, topic: KafkaTopic) -> _Message:
        columns = {name: branch.column(name) for name in sink.columns}
        value, misfit = write_message(sink, topic, columns, branched.frame)
        found = {}
        if branch.has_record_id:
            found["flowcore-id"] = self.record_ids.of_result(sink.name)
        elif branched.has_coordinates and branch.has_coordinates:
            found["flowcore-id"] = self.record_ids.of_record(sink.name)
        if self.joined_version:
            found[BOUNDED_VERSION_HEADER] = literal(self.joined_version)
        if sink in self.side_channels.tagged_sinks:
            time = TIMESTAMP_MS if TIMESTAMP_MS in branched.frame.columns else None
            value, element = tag(topic, time, value, misfit)
            found |= element
        key = kafka_key(sink.key, columns)
        partition = _BY_KEY
        if sink.is_cut and sink.inputs[0].updating and len(sink.key or ()) == 1 and "flowcore-id" in found:
            # The rows of the null group have no key, and a later one replaces the earlier ones.
            partition = f"CASE WHEN {key} IS NULL THEN {_NULL_PARTITION} END"
        message = _message(literal(topic.name), value, headers(found), key=key, partition=partition)
        return message | {_MISFIT: misfit or NULL_TEXT}

    def _divert_oversized(self, messages: DataFrame, sinks: Sequence[tuple[Write, KafkaTopic]]) -> DataFrame:
        """Divert the messages that the sinks' topics would refuse: to dead letters, or into an error.

        A row may have values that the format of its topic cannot hold: it is written as JSON. A good record
        may grow until it is larger than its topic accepts, or lose the key that a compacted topic needs. If
        its broker refused it, the query would fail, and fail again after each restart.

        A message without a single source record, such as the output of an aggregate, goes to the dead letters
        of the first source.
        """
        refusals = " ".join(_refusals(topic, self.side_channels.limits[topic.name]) for _, topic in sinks)
        reason = f"CASE WHEN {_MISFIT} IS NOT NULL THEN {_MISFIT} {refusals} END"
        if any(source.on_error == "fail" for source in self.sources):
            text = literal("a record for topic %s %s and on_error='fail'; it was made of %s")
            message = f"format_string({text}, topic, {reason}, coalesce({visible(_ID)}, 'several'))"
            diverted = {"topic": f"CAST(raise_error({message}) AS STRING)"}
        else:
            names = (f"WHEN {literal(topic.name)} THEN {literal(sink.name)}" for sink, topic in sinks)
            found = {
                **{f"flowcore-{column}": f"CAST({name} AS STRING)" for column, name in _ORIGIN.items()},
                "flowcore-operator": f"CASE topic {' '.join(names)} END",
                "flowcore-stage": "'sink'",
                "flowcore-reason": reason,
                "flowcore-id": _ID,
            }
            topic = f"concat(coalesce({_ORIGIN['topic']}, {literal(self.sources[0].name)}), '.dead-letter')"
            largest = self._dead_letter_bytes
            key = bounded_key("key", largest)
            value = _cut("value", largest, key)
            diverted = {"topic": topic, "key": key, "value": value, "headers": headers(found)}
        # Not as a filter: Spark would push it below the columns, and compute each value twice.
        return messages.selectExpr(
            *(
                f"CASE WHEN {reason} IS NULL THEN {column} ELSE {diverted[column]} END AS {column}"
                if column in diverted
                else column
                for column in messages.columns
                if column not in (*_ORIGIN.values(), _MISFIT)
            )
        )

    def _marker(self, target: str) -> _Message:
        counts = {topic.events: self.side_channels.sink_partitions[topic.name] for _, topic in self.sinks}
        cases = " ".join(f"WHEN {literal(name)} THEN {count}" for name, count in counts.items())
        partition = f"CAST(partition % CASE {target} {cases} END AS INT)"
        return _message(target, VALUE, headers({}), partition=partition)


def _message(
    topic: str, value: str, headers: str, *, key: str = NULL_TEXT, partition: str = _BY_KEY
) -> _Message:
    return {
        "topic": topic, "key": key, "value": value, "headers": headers, "partition": partition,
        _MISFIT: NULL_TEXT,
    }  # fmt: skip


def _case(cases: list[tuple[str, _Message]], column: str) -> str:
    """The value of the first case that holds; the last needs no condition, since each row is in one case."""
    *first, (_, last) = cases
    tests = " ".join(f"WHEN {condition} THEN {values[column]}" for condition, values in first)
    return f"CASE {tests} ELSE {last[column]} END" if first else last[column]


def _cut(value: str, largest: int, key: str = NULL_TEXT) -> str:
    """The value of a dead letter, or the beginning of one that its topic does not take."""
    most = largest - min(_MOST_DEAD_LETTER_HEADER_BYTES, largest // 4)
    is_large = f"octet_length({value}) + coalesce(octet_length({key}), 0) > {most}"
    return f"CASE WHEN {is_large} THEN substring({value}, 1, {largest // 2}) ELSE {value} END"


def _refusals(topic: KafkaTopic, limits: TopicLimits) -> str:
    """The cases in which a topic would refuse a message, each with its reason."""
    mine = f"topic = {literal(topic.name)}"
    size = "coalesce(octet_length(value), 0) + coalesce(octet_length(key), 0)"
    around = f"{_HEADER_BYTES} + {_BATCH_BYTES}"
    most = limits.max_message_bytes
    large = literal(
        f"becomes a message of %d bytes with %d around it, and the topic takes {most} (max.message.bytes)"
    )
    may_be_large = f"{size} > {most - _MOST_HEADER_BYTES}"
    is_large = f"{may_be_large} AND {size} + {around} > {most}"
    cases = f"WHEN {mine} AND {is_large} THEN format_string({large}, {size}, {around})"
    if limits.needs_key:
        unkeyed = literal("has no key, which a compacted topic needs (cleanup.policy)")
        cases += f" WHEN {mine} AND key IS NULL THEN {unkeyed}"
    return cases
