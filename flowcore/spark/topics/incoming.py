"""Incoming: classify each message of a topic.

A message is a record of a branch, a latency marker's event from the companion topic, a control element such
as a watermark, or bad. A bad message keeps its bytes, its coordinates, and the reason why it is bad.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.event_time import event_time_expression, watermark_expression
from flowcore.api.operators import Read
from flowcore.durations import show_duration
from flowcore.elements import MAX_TIMESTAMP_MS
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
from flowcore.spark.frame.sql import displayable_timestamp, literal, quote
from flowcore.spark.topics import elements
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.values import (
    RECORD,
    describe_misfit,
    fail_with_payload,
    is_bad_record,
    parse_value,
    register_format,
)
from flowcore.spark.topics.watermarks import newest_timestamp, observation_name, observe_watermarks

__all__ = ["Incoming"]

_IS_EVENT = "_is_event"
"""True for messages of the companion topic. They are parsed like records, needlessly: there are few of them,
and a condition upstream of the parser would cost more for each record."""
_NOT_A_RECORD = (
    ", and its topic is value-only and holds records only: turn off watermarks in the flow that writes it, "
    "or set pipeline.force-timestamp-support to true and declare elements='tagged'"
)


@dataclass(frozen=True, slots=True)
class Incoming:
    """Reads the messages of a source.

    Attributes:
        keeps_bad: The query writes bad messages; otherwise they are dropped here, or fail the query.
        may_fail: A record becomes bad if a function fails for it, so records keep their bytes.
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
        """Reads a topic as a table, without side channels."""
        return cls(node, topic, SideChannels(), keeps_bad=topic.on_error != "fail", has_ordinals=False)

    def split(self, messages: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Split messages into records and bad messages; the latter None if the first fails the stage."""
        rows = self._classify(messages, FIRST_BRANCH)
        fields = [f"{RECORD}.{quote(name)}" for name in self.node.columns]
        mine = f"{BRANCH} = {FIRST_BRANCH}"
        if not self.keeps_bad:
            # One filter: Spark may evaluate the second of two filters first.
            return rows.where(_unless_bad(mine)).selectExpr(*fields), None
        return rows.where(mine).selectExpr(*fields), rows.where(f"{BRANCH} = {RowKind.BAD}").drop(RECORD)

    def read(self, messages: DataFrame, branch: Branch, names: Iterator[str]) -> BranchedFrame:
        """The records among messages of Spark's source, with the rows of the side channels."""
        return self._branch_rows(self._classify(messages, branch.number), branch, names)

    def _classify(self, messages: DataFrame, number: int) -> DataFrame:
        """Add the branch of each message, which is ``number`` for records, or its row kind."""
        has_markers, tagged = self.side_channels.has_markers, self._tagged
        if not tagged:
            element, value = "value", "value"
        elif self.topic.headers:
            element = _header(ELEMENT_HEADER)
            value = f"CASE WHEN {elements.is_record(ELEMENT)} THEN value END"
        else:
            element, value = "value", elements.payload("value")
        added = [f"topic = {literal(self.topic.events)} AS {_IS_EVENT}"] if has_markers else []
        if tagged:
            added += [f"{element} AS {ELEMENT}", f"CAST({_header(CHANNEL_HEADER)} AS STRING) AS {CHANNEL}"]
        rows = messages.selectExpr("partition", "offset", "timestamp", "value", *added)
        register_format(self.topic, messages.sparkSession)
        rows = rows.selectExpr("*", parse_value(self.node, value))
        if self._missing_time:
            rows = self._add_time(rows)
        # Not deterministic, so that Spark does not evaluate it again in each filter: see `parse_value`.
        reason = f"CASE WHEN spark_partition_id() >= 0 THEN {self._reason(value, self._ahead(rows))} END"
        rows = rows.selectExpr("*", f"{reason} AS {BAD_REASON}")
        cases = [f"WHEN {BAD_REASON} IS NOT NULL THEN {RowKind.BAD}"]
        cases += [f"WHEN {_IS_EVENT} THEN {RowKind.MARKER}"] if has_markers else []
        cases += [f"WHEN {elements.is_control(ELEMENT)} THEN {RowKind.CONTROL}"] if tagged else []
        branch = f"CASE {' '.join(cases)} ELSE {number} END"
        if self._missing_time and self.node in self.side_channels.untimed_sources:
            # Only other queries need the time: this one processes the record, and emits a bad copy.
            both = f"{BAD_REASON} = {literal(self._missing_time)}"
            branch = f"explode(CASE WHEN {both} THEN array({RowKind.BAD}, {number}) ELSE array({branch}) END)"
        # A constant, or one of two: the message's own column would be a text in every row.
        topic = literal(self.topic.name)
        if has_markers:
            topic = f"CASE WHEN {_IS_EVENT} THEN {literal(self.topic.events)} ELSE {topic} END"
        return rows.selectExpr("*", f"{branch} AS {BRANCH}", f"{topic} AS topic")

    def _add_time(self, rows: DataFrame) -> DataFrame:
        """Add the event time of each record, before the bad ones are known."""
        expression = event_time_expression(self.node)
        if expression is None:
            return rows.selectExpr("*", f"{elements.timestamp_ms(ELEMENT)} AS {TIMESTAMP_MS}")
        # Fields of a struct as columns of a branch, which quotes each name as a whole.
        fields = {name: f"{RECORD}`.`{name.replace('`', '``')}" for name in self.node.columns}
        return _set_time(rows, Branch(FIRST_BRANCH, fields).expression(expression))

    def _branch_rows(self, rows: DataFrame, branch: Branch, names: Iterator[str]) -> BranchedFrame:
        """The rows of the branch and of other kinds, with only the columns that they need."""
        if not self.keeps_bad and self.topic.on_error == "fail":
            rows = rows.where(_unless_bad("true"))
        columns = ["topic", "partition", "offset", BRANCH]
        columns += [BAD_REASON, *self._message_columns()]
        if self.has_ordinals:
            columns.append(f"'0' AS {RECORD_ORDINAL}")
        if self.side_channels.reads_control and self._tagged:
            columns += [ELEMENT, CHANNEL]
        expression = event_time_expression(self.node)
        timed = self.node in self.side_channels.timestamped
        if timed and self._missing_time:
            columns.append(TIMESTAMP_MS)
        elif timed and expression is None:
            stamp = elements.timestamp_ms(ELEMENT) if self._tagged else "unix_millis(timestamp)"
            columns.append(f"{stamp} AS {TIMESTAMP_MS}")
        fields = (f"{RECORD}.{quote(name)} AS {physical}" for name, physical in branch.columns.items())
        rows = rows.selectExpr(*columns, *fields)
        if timed and expression is not None and not self._missing_time:
            rows = _set_time(rows, branch.expression(expression))
        if self.side_channels.has_key_groups:
            rows = rows.selectExpr("*", f"{self.number} AS {SOURCE}", f"{self._newest(branch)} AS {NEWEST}")
        if self.side_channels.writes_watermarks:
            partitions = self.side_channels.partitions[self.topic.name]
            metrics = observe_watermarks(self.node, branch, partitions)
            rows = rows.observe(observation_name(self.node), *metrics)
        kept: list[int] = [RowKind.BAD] if self.keeps_bad else []
        kept += [RowKind.MARKER] if self.side_channels.has_markers else []
        kept += [RowKind.CONTROL] if self.side_channels.has_key_groups and self._tagged else []
        if not self.keeps_bad or self._tagged:
            rows = rows.where(f"{BRANCH} IN ({', '.join(map(str, [*kept, branch.number]))})")
        return BranchedFrame(
            rows,
            names,
            has_coordinates=True,
            has_bad=self.keeps_bad,
            has_markers=self.side_channels.has_markers,
            keeps_dropped=self.side_channels.has_key_groups,
        )

    def _newest(self, branch: Branch) -> str:
        strategy = self.topic.watermark
        if strategy is None or not strategy.generates:
            return "CAST(NULL AS BIGINT)"
        return newest_timestamp(self.node, branch, f"{BRANCH} = {branch.number}")

    def _message_columns(self) -> list[str]:
        """Bytes and time of messages, only for the rows that may be emitted with them."""
        value, time, failed = "value", "unix_millis(timestamp)", f"CAST(NULL AS STRING) AS {FAILED_OPERATOR}"
        if self.may_fail and self.keeps_bad:
            return [f"{value} AS {VALUE}", f"{time} AS {KAFKA_MS}", failed]
        value = f"CASE WHEN {BRANCH} IN ({RowKind.BAD}, {RowKind.MARKER}) THEN {value} END"
        return [f"{value} AS {VALUE}", f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN {time} END AS {KAFKA_MS}"]

    @property
    def _tagged(self) -> bool:
        return self.topic.elements == "tagged"

    @property
    def _missing_time(self) -> str | None:
        """Why a record without event time is bad; None if it is not, or if every record has an event time."""
        if self.node not in self.side_channels.timed_sources | self.side_channels.untimed_sources:
            return None
        expression = event_time_expression(self.node)
        if expression is None:  # Kafka's own time is never null
            return "has no event time: its element has no timestamp" if self._tagged else None
        always = {column.name.lower() for column in self.node.schema.columns if not column.nullable}
        if expression.text.strip("`").lower() in always:
            return None
        return f"has no event time: {' '.join(expression.text.split())} is null"

    def _ahead(self, rows: DataFrame) -> tuple[str, str] | None:
        """Whether an event time or arriving watermark is too far ahead, and the reason; None if unchecked.

        Every query of the source must find the same records bad, since one of them writes the dead letters.
        """
        limit, strategy = self.side_channels.max_ahead_ms, self.topic.watermark
        if not limit or (strategy is None and not self._tagged):
            return None
        if strategy is None:  # watermarks arrive; the last one of a topic is the largest number
            time = elements.timestamp_ms(ELEMENT)
            arrives = f"{elements.is_control(ELEMENT)} AND {time} < {MAX_TIMESTAMP_MS}"
            return _too_far_ahead(time, limit, arrives)
        if not strategy.generates:
            return None
        fields = {name: f"{RECORD}`.`{name.replace('`', '``')}" for name in self.node.columns}
        expressions = [event_time_expression(self.node), watermark_expression(self.node)]
        times = [
            _milliseconds(rows, Branch(FIRST_BRANCH, fields).expression(each)) for each in expressions if each
        ]
        if expressions[0] is None:
            times.append(elements.timestamp_ms(ELEMENT) if self._tagged else "unix_millis(timestamp)")
        return _too_far_ahead(f"greatest({', '.join(times)})" if len(times) > 1 else times[0], limit)

    def _reason(self, value: str, ahead: tuple[str, str] | None) -> str:
        misfit = literal(f"does not fit the schema {self.node.schema} ({self.topic.format})")
        cases = []
        if self.side_channels.has_markers:
            broken = literal("is not an event that this version of flowcore reads")
            whole = f"coalesce({elements.is_event('value')}, false)"
            cases.append(f"WHEN {_IS_EVENT} THEN CASE WHEN NOT {whole} THEN {broken} END")
        if self._tagged:
            known = f"{elements.is_record(ELEMENT)} OR {elements.is_control(ELEMENT)}"
            if self.topic.headers:
                known = f"{elements.is_head(ELEMENT)} OR {elements.is_control(ELEMENT)} AND value IS NULL"
            unknown = literal(
                "is not a tagged element: its tag is unknown, or bytes are missing or left over"
            )
            cases.append(f"WHEN NOT coalesce({known}, false) THEN {unknown}")
            if ahead is not None and self.topic.watermark is None:
                cases.append(f"WHEN {ahead[0]} THEN {ahead[1]}")
            cases.append(f"WHEN {elements.is_control(ELEMENT)} THEN CAST(NULL AS STRING)")
        reason = f"concat({misfit}, {describe_misfit(self.node, value)})"
        if self.topic.elements == "value-only":
            named = f"concat('is ', {elements.show_control('value')}, {literal(_NOT_A_RECORD)})"
            reason = f"CASE WHEN {elements.is_control('value')} THEN {named} ELSE {reason} END"
        cases.append(f"WHEN {is_bad_record(self.node, value)} THEN {reason}")
        if self._missing_time:
            cases.append(f"WHEN {TIMESTAMP_MS} IS NULL THEN {literal(self._missing_time)}")
        if ahead is not None and self.topic.watermark is not None:
            cases.append(f"WHEN {ahead[0]} THEN {ahead[1]}")
        return f"CASE {' '.join(cases)} END"


def _too_far_ahead(time: str, limit_ms: int, condition: str = "true") -> tuple[str, str]:
    """Whether the condition holds and a time is too far ahead of the clock, and the reason, as SQL text."""
    shown = f"coalesce(CAST({displayable_timestamp(time)} AS STRING), {time} || ' ms')"
    after = literal(
        f" UTC, over {show_duration(timedelta(milliseconds=limit_ms))} ahead of the clock "
        "(watermark.max-ahead): windows would close too early"
    )
    return (
        f"{condition} AND {time} > unix_millis(current_timestamp()) + {limit_ms}",
        f"concat('has the event time ', {shown}, {after})",
    )


def _unless_bad(condition: str) -> str:
    """The condition; a bad message fails the query."""
    return f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN {fail_with_payload(BAD_REASON)} ELSE {condition} END"


def _set_time(rows: DataFrame, time: str) -> DataFrame:
    """Add the time in milliseconds, from an expression that is BIGINT or TIMESTAMP."""
    return rows.selectExpr("*", f"{_milliseconds(rows, time)} AS {TIMESTAMP_MS}")


def _milliseconds(rows: DataFrame, time: str) -> str:
    ((_, kind),) = rows.selectExpr(f"{time} AS {TIMESTAMP_MS}").dtypes
    return f"unix_millis({time})" if kind == "timestamp" else time


def _header(name: str) -> str:
    return f"get(filter(headers, h -> h.key = '{name}'), 0).value"
