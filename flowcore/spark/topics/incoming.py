"""Incoming: what does each message of a topic turn out to be?

A record of a branch; a latency marker's event, from the companion topic; a control element, which tells
of watermarks and is no record; or bad. A bad message keeps its bytes, where it was, and why it is bad.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.event_time import event_time_expression, marker_condition, watermark_expression
from flowcore.api.operators import Read
from flowcore.kafka.elements import CHANNEL_HEADER, ELEMENT_HEADER
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    CHANNEL,
    ELEMENT,
    FAILED_OPERATOR,
    FIRST_BRANCH,
    KAFKA_MS,
    NEWEST,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.topics import elements
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.values import RECORD, bad_record, fail_at, parsed, use_format
from flowcore.spark.topics.watermarks import observations, observed_as

__all__ = ["Incoming"]

OF_EVENTS = "_of_events"
"""True of what came from the companion topic. An event is parsed like a record, in vain: there are few, and
looking for them in front of the parser would cost every record more."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """How a source's messages are read.

    Attributes:
        node: The source.
        topic: Its topic.
        side_channels: What the query carries beside its records.
        keeps_bad: Bad messages leave through this query; else they are dropped here, or stop it.
        has_ordinals: Records carry an ordinal.
        number: The source's number in the query.
        may_fail: Records become bad where a function fails for them, so they keep their bytes.
    """

    node: Read
    topic: KafkaTopic
    side_channels: SideChannels
    keeps_bad: bool
    has_ordinals: bool
    number: int = 0
    may_fail: bool = False

    @classmethod
    def bounded(cls, node: Read, topic: KafkaTopic) -> Incoming:
        """Of a topic that is read as a table: records alone."""
        side_channels = SideChannels(
            has_markers=False, tagged_sinks=frozenset(), writes_watermarks=False, partitions={}, limits={}
        )
        return cls(node, topic, side_channels, keeps_bad=topic.on_error != "fail", has_ordinals=False)

    def rows(self, messages: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """The records among messages, and the bad messages; None if the first of them stops what runs."""
        rows = self._classified(messages, FIRST_BRANCH)
        fields = [f"{RECORD}.{quote(name)}" for name in self.node.columns]
        mine = f"{BRANCH} = {FIRST_BRANCH}"
        if not self.keeps_bad:
            # One filter: of two, Spark may ask the second one first.
            return rows.where(_unless_bad(mine)).selectExpr(*fields), None
        return rows.where(mine).selectExpr(*fields), rows.where(f"{BRANCH} = {RowKind.BAD}").drop(RECORD)

    def read(self, messages: DataFrame, branch: Branch, names: Iterator[str]) -> BranchedFrame:
        """The records among messages as Spark's source gives them, and what travels beside them."""
        return self._tracks(self._classified(messages, branch.number), branch, names)

    def _classified(self, messages: DataFrame, number: int) -> DataFrame:
        """Messages, each with its branch; ``number`` is that of records."""
        tracked, tagged = self.side_channels.has_markers, self._tagged
        if not tagged:
            element, value = "value", "value"
        elif self.topic.headers:
            element = _header(ELEMENT_HEADER)
            value = f"CASE WHEN {elements.is_record(ELEMENT)} THEN value END"
        else:
            element, value = "value", elements.payload("value")
        given = [f"topic = {literal(self.topic.events)} AS {OF_EVENTS}"] if tracked else []
        if tagged:
            given += [f"{element} AS {ELEMENT}", f"CAST({_header(CHANNEL_HEADER)} AS STRING) AS {CHANNEL}"]
        rows = messages.selectExpr("partition", "offset", "timestamp", "value", *given)
        use_format(self.topic, messages.sparkSession)
        rows = rows.selectExpr("*", parsed(self.node, value))
        if self._no_time:
            rows = self._with_time(rows)
        # Looked for once: what is not deterministic is not worked out again for each filter (see `parsed`).
        reason = f"CASE WHEN spark_partition_id() >= 0 THEN {self._reason(value)} END"
        rows = rows.selectExpr("*", f"{reason} AS {BAD_REASON}")
        cases = [f"WHEN {BAD_REASON} IS NOT NULL THEN {RowKind.BAD}"]
        cases += [f"WHEN {OF_EVENTS} THEN {RowKind.MARKER}"] if tracked else []
        cases += [f"WHEN {elements.is_control(ELEMENT)} THEN {RowKind.CONTROL}"] if tagged else []
        branch = f"CASE {' '.join(cases)} ELSE {number} END"
        if self._no_time and self.node in self.side_channels.untimed_sources:
            # Only windows elsewhere cannot take it: it goes on here, and leaves for them.
            both = f"{BAD_REASON} = {literal(self._no_time)}"
            branch = f"explode(CASE WHEN {both} THEN array({RowKind.BAD}, {number}) ELSE array({branch}) END)"
        # A constant, or one of two: what the message itself says of it would be a text in every row.
        topic = literal(self.topic.name)
        if tracked:
            topic = f"CASE WHEN {OF_EVENTS} THEN {literal(self.topic.events)} ELSE {topic} END"
        return rows.selectExpr("*", f"{branch} AS {BRANCH}", f"{topic} AS topic")

    def _with_time(self, rows: DataFrame) -> DataFrame:
        """When each record happened, before it is known which are bad."""
        given = event_time_expression(self.node)
        if given is None:
            return rows.selectExpr("*", f"{elements.timestamp_ms(ELEMENT)} AS {TIMESTAMP_MS}")
        # As a branch's columns, which are quoted as one name.
        fields = {name: f"{RECORD}`.`{name.replace('`', '``')}" for name in self.node.columns}
        return _timed(rows, Branch(FIRST_BRANCH, fields).expression(given))

    def _tracks(self, rows: DataFrame, branch: Branch, names: Iterator[str]) -> BranchedFrame:
        """The rows of a branch and those beside it, with no more columns than they need."""
        if not self.keeps_bad and self.topic.on_error == "fail":
            rows = rows.where(_unless_bad("true"))
        columns = ["topic", "partition", "offset", BRANCH]
        columns += [BAD_REASON, *self._of_messages()]
        if self.has_ordinals:
            columns.append(f"'0' AS {RECORD_ORDINAL}")
        if self.side_channels.reads_control and self._tagged:
            columns += [ELEMENT, CHANNEL]
        given = event_time_expression(self.node)
        if self.side_channels.carries_timestamps and self._no_time:
            columns.append(TIMESTAMP_MS)
        elif self.side_channels.carries_timestamps and given is None:
            stamp = elements.timestamp_ms(ELEMENT) if self._tagged else "unix_millis(timestamp)"
            columns.append(f"{stamp} AS {TIMESTAMP_MS}")
        fields = (f"{RECORD}.{quote(name)} AS {physical}" for name, physical in branch.columns.items())
        rows = rows.selectExpr(*columns, *fields)
        if self.side_channels.carries_timestamps and given is not None and not self._no_time:
            rows = _timed(rows, branch.expression(given))
        if self.side_channels.has_key_groups:
            rows = rows.selectExpr("*", f"{self.number} AS {SOURCE}", f"{self._newest(branch)} AS {NEWEST}")
        if self.side_channels.writes_watermarks:
            partitions = self.side_channels.partitions[self.topic.name]
            said = observations(self.node, branch, partitions)
            rows = rows.observe(observed_as(self.node), *said)
        others = ([RowKind.BAD] if self.keeps_bad else []) + (
            [RowKind.MARKER] if self.side_channels.has_markers else []
        )
        others += [RowKind.CONTROL] if self.side_channels.has_key_groups and self._tagged else []
        if not self.keeps_bad or self._tagged:
            rows = rows.where(f"{BRANCH} IN ({', '.join(map(str, [*others, branch.number]))})")
        return BranchedFrame(
            rows,
            names,
            has_coordinates=True,
            has_bad=self.keeps_bad,
            has_markers=self.side_channels.has_markers,
            keeps_dropped=self.side_channels.has_key_groups,
        )

    def _newest(self, branch: Branch) -> str:
        """The timestamp of a record that counts for watermarks, null for others."""
        if self.topic.watermark is None or not self.topic.watermark.generates:
            return "CAST(NULL AS BIGINT)"
        marker, said = marker_condition(self.node), watermark_expression(self.node)
        time = TIMESTAMP_MS if said is None else branch.expression(said)
        counts = f" AND {branch.expression(marker)}" if marker else ""
        return f"CASE WHEN {BRANCH} = {branch.number}{counts} THEN {time} END"

    def _of_messages(self) -> list[str]:
        """Only what may leave with its bytes carries them along."""
        if self.may_fail and self.keeps_bad:
            none = "CAST(NULL AS STRING)"
            return [
                f"value AS {VALUE}",
                f"unix_millis(timestamp) AS {KAFKA_MS}",
                f"{none} AS {FAILED_OPERATOR}",
            ]
        value = f"CASE WHEN {BRANCH} IN ({RowKind.BAD}, {RowKind.MARKER}) THEN value END AS {VALUE}"
        return [value, f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN unix_millis(timestamp) END AS {KAFKA_MS}"]

    @property
    def _tagged(self) -> bool:
        return self.topic.elements == "tagged"

    @property
    def _no_time(self) -> str | None:
        """What is wrong with a record without event time; None if nothing is, or if every record has one."""
        if self.node not in self.side_channels.timed_sources | self.side_channels.untimed_sources:
            return None
        given = event_time_expression(self.node)
        if given is None:  # Kafka's own time is never null
            return "has no event time: its element has no timestamp" if self._tagged else None
        always = {column.name.lower() for column in self.node.schema.columns if not column.nullable}
        if given.text.strip("`").lower() in always:
            return None
        return f"has no event time: {' '.join(given.text.split())} is null"

    def _reason(self, value: str) -> str:
        misfit = literal(f"does not fit the schema {self.node.schema} ({self.topic.format})")
        cases = []
        if self.side_channels.has_markers:
            broken = literal("is no event that this version of flowcore reads")
            whole = f"coalesce({elements.is_event('value')}, false)"
            cases.append(f"WHEN {OF_EVENTS} THEN CASE WHEN NOT {whole} THEN {broken} END")
        if self._tagged:
            known = f"{elements.is_record(ELEMENT)} OR {elements.is_control(ELEMENT)}"
            if self.topic.headers:
                known = f"{elements.is_head(ELEMENT)} OR {elements.is_control(ELEMENT)} AND value IS NULL"
            unknown = literal("is no tagged element: its tag is unknown, or bytes are missing or left over")
            cases.append(f"WHEN NOT coalesce({known}, false) THEN {unknown}")
            cases.append(f"WHEN {elements.is_control(ELEMENT)} THEN CAST(NULL AS STRING)")
        cases.append(f"WHEN {bad_record(self.node, value)} THEN {misfit}")
        if self._no_time:
            cases.append(f"WHEN {TIMESTAMP_MS} IS NULL THEN {literal(self._no_time)}")
        return f"CASE {' '.join(cases)} END"


def _unless_bad(condition: str) -> str:
    """The condition; a bad message stops what runs."""
    return f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN {fail_at(BAD_REASON)} ELSE {condition} END"


def _timed(rows: DataFrame, time: str) -> DataFrame:
    """Rows with their time in milliseconds, of an expression that is BIGINT or TIMESTAMP."""
    ((_, kind),) = rows.selectExpr(f"{time} AS {TIMESTAMP_MS}").dtypes
    milliseconds = f"unix_millis({time})" if kind == "timestamp" else time
    return rows.selectExpr("*", f"{milliseconds} AS {TIMESTAMP_MS}")


def _header(name: str) -> str:
    return f"get(filter(headers, h -> h.key = '{name}'), 0).value"
