"""Classify each incoming message of a topic.

A message is a record of a branch, a latency marker's event from the companion topic, a control element such
as a watermark, or bad. A bad message keeps its bytes, its coordinates, and the reason why it is bad.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from flowcore.api.connectors import RECORD_ID_HEADER, KafkaTopic
from flowcore.api.event_time import event_time_expression, watermark_expression
from flowcore.api.operators import Read
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.kafka.elements import CHANNEL_HEADER, ELEMENT_HEADER
from flowcore.signatures import SIGNATURE_HEADER
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.record_ids import id_after_writer, shorten
from flowcore.spark.frame.rows import (
    BACKLOG,
    BAD_REASON,
    BRANCH,
    CHANNEL,
    ELEMENT,
    FAILED_OPERATOR,
    FIRST_BRANCH,
    KAFKA_KEY,
    KAFKA_MS,
    NEWEST,
    RECORD_ID,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    UNWRITABLE,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.topics import elements
from flowcore.spark.topics.arriving_attributes import BacklogColumn
from flowcore.spark.topics.channels import refused_channels
from flowcore.spark.topics.event_times import add_timestamp, milliseconds, too_far_ahead
from flowcore.spark.topics.reports import bad_observation
from flowcore.spark.topics.row_keys import IS_TOMBSTONE, ROW_KEY, RowKey
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.signed import check_signature, register_signatures
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
_SIGNED = "_signed"
"""Whether a control element has a valid signature; null for records, and only for signed topics."""
_SENT_ID = "_sent_id"
"""The record id that the writer of a message gave it, null without one."""
_LONGEST_ID = 1_000  # bytes; each is kept in state
_NOT_A_RECORD = (
    ", and its topic is value-only and holds records only: turn off watermarks in the flow that writes it, "
    "or set pipeline.force-timestamp-support to true and declare elements='tagged'"
)


@dataclass(frozen=True, slots=True)
class Incoming:
    """Reads the messages of a source.

    Attributes:
        topic: Its topic, with the schemas of ids.
        keeps_bad: The query writes bad messages; otherwise they are dropped here, or fail the query.
        may_fail: A record becomes bad if a function fails for it, so records keep their bytes.
        place: For a cut, the SQL text of the `RECORD_ID` of records that were written without an id.
        own_channels: For a cut, how the channels of the flow begin, which writes the topic.
        checkpoint: The folder of the query's checkpoint.
        counts_bad: The bad messages of each batch are counted, for the query that writes them.
    """

    node: Read
    topic: KafkaTopic
    side_channels: SideChannels
    keeps_bad: bool
    has_ordinals: bool
    number: int = 0
    may_fail: bool = False
    place: str | None = None
    own_channels: str | None = None
    checkpoint: str = ""
    counts_bad: bool = False

    @classmethod
    def bounded(cls, node: Read, topic: KafkaTopic) -> Incoming:
        """Reads a topic as a table, without side channels."""
        return cls(node, topic, SideChannels(), keeps_bad=topic.on_error != "fail", has_ordinals=False)

    def split(self, messages: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Split messages into records and bad messages; None for these if a bad message fails the stage."""
        rows = self._classify(messages, FIRST_BRANCH)
        fields = [f"{self._field(name)} AS {quote(name)}" for name in self.node.columns]
        mine = f"{BRANCH} = {FIRST_BRANCH}"
        # One filter: Spark may evaluate the second of two filters first.
        good = rows.where(mine if self.keeps_bad else _unless_bad(mine))
        if (row_key := self.row_key) is not None:
            good = row_key.keep_last(good)
        bad = rows.where(f"{BRANCH} = {RowKind.BAD}").drop(RECORD) if self.keeps_bad else None
        return good.selectExpr(*fields), bad

    def read(self, messages: DataFrame, branch: Branch, names: Iterator[str]) -> BranchedFrame:
        """The records among messages of Spark's source, with the rows of the side channels."""
        return self._branch_rows(self._classify(messages, branch.number), branch, names)

    def _classify(self, messages: DataFrame, number: int) -> DataFrame:
        """Add the branch of each message, which is ``number`` for records, or its row kind."""
        has_markers, tagged = self.side_channels.has_markers, self.tagged
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
        added += self._signed(element)
        sent_id = f"CAST({_header(RECORD_ID_HEADER)} AS STRING)"
        if self.place is not None:
            added.append(f"{id_after_writer(sent_id)} AS {RECORD_ID}")
        if self.topic.deduplicate:
            kept = f"CASE WHEN is_valid_utf8({sent_id}) THEN {shorten(sent_id, _LONGEST_ID)} END"
            added.append(f"{kept} AS {_SENT_ID}")
        if (row_key := self.row_key) is not None:
            added += ["key", row_key.parse()]
        added += [UNWRITABLE] if UNWRITABLE in messages.columns else []
        register_signatures(messages.sparkSession, self.topic.name, self.side_channels.control_key)
        rows = messages.selectExpr("partition", "offset", "timestamp", "value", *added)
        rows = self.judge(rows, value)
        cases = [f"WHEN {BAD_REASON} IS NOT NULL THEN {RowKind.BAD}"]
        cases += [f"WHEN {_IS_EVENT} THEN {RowKind.MARKER}"] if has_markers else []
        cases += [f"WHEN {elements.is_control(ELEMENT)} THEN {RowKind.CONTROL}"] if tagged else []
        branch = f"CASE {' '.join(cases)} ELSE {number} END"
        if self.missing_time and self.node in self.side_channels.untimed_sources:
            # Only other queries need the time: this query processes the record, and emits a bad copy.
            both = f"{BAD_REASON} = {literal(self.missing_time)}"
            branch = f"explode(CASE WHEN {both} THEN array({RowKind.BAD}, {number}) ELSE array({branch}) END)"
        # A constant, or one of two constants: the message's own column would be a text in every row.
        topic = literal(self.topic.name)
        if has_markers:
            topic = f"CASE WHEN {_IS_EVENT} THEN {literal(self.topic.events)} ELSE {topic} END"
        return rows.selectExpr("*", f"{branch} AS {BRANCH}", f"{topic} AS topic")

    def judge(self, rows: DataFrame, value: str, where: str = "true") -> DataFrame:
        """Add the parsed value of each message, an event time, and why it is bad if ``where`` is true."""
        register_format(self.topic, rows.sparkSession)
        rows = rows.selectExpr("*", parse_value(self._typed, value))
        if self.missing_time:
            rows = self._add_time(rows)
        # Not deterministic, so that Spark does not evaluate it again in each filter: see `parse_value`.
        reason = self._reason(value, self._ahead(rows))
        reason = f"coalesce({UNWRITABLE}, {reason})" if UNWRITABLE in rows.columns else reason
        case = f"WHEN spark_partition_id() >= 0 AND {where} THEN {reason}"
        return rows.selectExpr("*", f"CASE {case} END AS {BAD_REASON}")

    @property
    def _typed(self) -> Read:
        """The source with the schemas of ids."""
        return replace(self.node, source=self.topic)

    def _signed(self, element: str) -> list[str]:
        """Whether a control element has a valid signature, if the topic is signed."""
        if not self._checks_signatures:
            return []
        control = f"CASE WHEN {elements.is_control(element)} THEN {element} END"
        headers = map(_header, (CHANNEL_HEADER, SIGNATURE_HEADER))
        return [f"{check_signature(self.topic.name, control, *headers)} AS {_SIGNED}"]

    def _field(self, name: str) -> str:
        """A column of the source: a field of its value or its key, or what else is read of a message."""
        row_key = self.row_key
        if row_key is not None and name in row_key.names:
            return f"{ROW_KEY}.{quote(name)}"
        if row_key is not None and name == self.node.deleted:
            return f"({IS_TOMBSTONE})"
        if self.topic.deduplicate and name == RECORD_ID_HEADER:
            return _SENT_ID
        return f"{RECORD}.{quote(name)}"

    def _add_time(self, rows: DataFrame) -> DataFrame:
        """Add the event time of each record, before the bad ones are known."""
        expression = event_time_expression(self.node)
        if expression is None:
            return rows.selectExpr("*", f"{elements.timestamp_ms(ELEMENT)} AS {TIMESTAMP_MS}")
        # Fields of a struct as columns of a branch, which quotes each name as a whole.
        fields = {name: f"{RECORD}`.`{name.replace('`', '``')}" for name in self.node.columns}
        return add_timestamp(rows, Branch(FIRST_BRANCH, fields).expression(expression))

    def _branch_rows(self, rows: DataFrame, branch: Branch, names: Iterator[str]) -> BranchedFrame:
        """The rows of the branch and of other kinds, with only the columns that they need."""
        if not self.keeps_bad and self.topic.on_error == "fail":
            rows = rows.where(_unless_bad("true"))
        columns = ["topic", "partition", "offset", BRANCH]
        columns += [BAD_REASON, *self._message_columns()]
        columns += [f"'0' AS {RECORD_ORDINAL}"] if self.has_ordinals else []
        if self.place is not None:
            mine = f"{BRANCH} = {branch.number}"
            columns.append(f"CASE WHEN {mine} THEN coalesce({RECORD_ID}, {self.place}) END AS {RECORD_ID}")
        if self.side_channels.reads_control and self.tagged:
            columns += [ELEMENT, f"CASE WHEN {BRANCH} = {RowKind.CONTROL} THEN {CHANNEL} END AS {CHANNEL}"]
        expression, timed = event_time_expression(self.node), self.timed
        if timed and self.missing_time:
            columns.append(TIMESTAMP_MS)
        elif timed and expression is None:
            stamp = elements.timestamp_ms(ELEMENT) if self.tagged else "unix_millis(timestamp)"
            columns.append(f"{stamp} AS {TIMESTAMP_MS}")
        fields = (f"{self._field(name)} AS {physical}" for name, physical in branch.columns.items())
        rows = rows.selectExpr(*columns, *fields)
        if timed and expression is not None and not self.missing_time:
            rows = add_timestamp(rows, branch.expression(expression))
        rows = self._follow_event_time(rows, branch)
        if self.counts_bad:
            bad = F.expr(f"count_if({BRANCH} = {RowKind.BAD}) AS bad")
            rows = rows.observe(bad_observation(self.node), bad)
        kept: list[int] = [RowKind.BAD] if self.keeps_bad else []
        kept += [RowKind.MARKER] if self.side_channels.has_markers else []
        rows = self._add_backlog(rows)
        kept += [RowKind.CONTROL] if self.side_channels.has_key_groups and self.tagged else []
        if not self.keeps_bad or self.tagged:
            rows = rows.where(f"{BRANCH} IN ({', '.join(map(str, [*kept, branch.number]))})")
        return BranchedFrame(
            rows,
            names,
            has_coordinates=True,
            has_bad=self.keeps_bad,
            has_markers=self.side_channels.has_markers,
            keeps_dropped=self.side_channels.has_key_groups,
        )

    def _follow_event_time(self, rows: DataFrame, branch: Branch) -> DataFrame:
        """Add what key groups need of event time, and observe what the sinks' watermarks need."""
        if self.side_channels.has_key_groups:
            rows = rows.selectExpr("*", f"{self.number} AS {SOURCE}", f"{self._newest(branch)} AS {NEWEST}")
        if not self.side_channels.writes_watermarks:
            return rows
        is_record = f"{BRANCH} = {branch.number}"
        partitions = self.side_channels.partitions[self.topic.name] if self.timed else 0
        metrics = observe_watermarks(self.node, branch, partitions, is_record)
        return rows.observe(observation_name(self.node), *metrics) if metrics else rows

    def _add_backlog(self, rows: DataFrame) -> DataFrame:
        """Add whether each record is backlog, if a function asks: the query lags, or its topic says so."""
        topic, lags = self.topic, self.side_channels.lags
        if not self.side_channels.reads_attributes:
            return rows
        if not self.tagged:
            return rows.selectExpr("*", f"{str(lags).lower()} AS {BACKLOG}")
        column = BacklogColumn(self.checkpoint, topic.name, lags=lags, senders=topic.channels)
        schema = StructType([*rows.schema.fields, StructField(BACKLOG, BooleanType())])
        return rows.mapInArrow(column.run, schema)

    def _newest(self, branch: Branch) -> str:
        strategy = self.topic.watermark
        if strategy is None or not strategy.generates or not self.timed:
            return "CAST(NULL AS BIGINT)"
        return newest_timestamp(self.node, branch, f"{BRANCH} = {branch.number}")

    def _message_columns(self) -> list[str]:
        """Bytes, time and key of messages, only for the rows that may be emitted with them."""
        value, time, failed = "value", "unix_millis(timestamp)", f"CAST(NULL AS STRING) AS {FAILED_OPERATOR}"
        key = [f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN key END AS {KAFKA_KEY}"] if self.row_key else []
        if self.may_fail and self.keeps_bad:
            return [f"{value} AS {VALUE}", f"{time} AS {KAFKA_MS}", failed, *key]
        value = f"CASE WHEN {BRANCH} IN ({RowKind.BAD}, {RowKind.MARKER}) THEN {value} END"
        time = f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN {time} END"
        return [f"{value} AS {VALUE}", f"{time} AS {KAFKA_MS}", *key]

    @property
    def timed(self) -> bool:
        """Records carry their timestamps."""
        return self.node in self.side_channels.timestamped

    @property
    def tagged(self) -> bool:
        """Its messages are tagged elements."""
        return self.topic.elements == "tagged"

    @property
    def _checks_signatures(self) -> bool:
        return self.topic.signed and self.side_channels.control_key is not None

    @property
    def row_key(self) -> RowKey | None:
        """The columns of Kafka's key, if its messages replace each other."""
        return RowKey.of_source(self.node)

    @property
    def missing_time(self) -> str | None:
        """Why a record without event time is bad; None if it is not, or if every record has an event time."""
        if self.node not in self.side_channels.timed_sources | self.side_channels.untimed_sources:
            return None
        expression = event_time_expression(self.node)
        if expression is None:  # Kafka's own time is never null
            return "has no event time: its element has no timestamp" if self.tagged else None
        always = {column.name.lower() for column in self.node.schema.columns if not column.nullable}
        if expression.text.strip("`").lower() in always:
            return None
        return f"has no event time: {' '.join(expression.text.split())} is null"

    def _ahead(self, rows: DataFrame) -> tuple[str, str] | None:
        """Whether an event time or arriving watermark is too far ahead, and the reason; None if unchecked.

        Every query of the source must find the same records bad, since one of them writes the dead letters.
        """
        limit, strategy = self.side_channels.max_ahead_ms, self.topic.watermark
        if not limit or (strategy is None and not self.tagged):
            return None
        if strategy is None:  # watermarks arrive; the last one of a topic is the largest number
            time = elements.timestamp_ms(ELEMENT)
            return too_far_ahead(time, limit, f"{time} < {MAX_TIMESTAMP_MS}", of_message=True)
        if not strategy.generates:
            return None
        fields = {name: f"{RECORD}`.`{name.replace('`', '``')}" for name in self.node.columns}
        expressions = [event_time_expression(self.node), watermark_expression(self.node)]
        times = [
            milliseconds(rows, Branch(FIRST_BRANCH, fields).expression(each)) for each in expressions if each
        ]
        if expressions[0] is None:
            times.append(elements.timestamp_ms(ELEMENT) if self.tagged else "unix_millis(timestamp)")
        latest = f"greatest({', '.join(times)})" if len(times) > 1 else times[0]
        return too_far_ahead(latest, limit, of_message=True)

    def _reason(self, value: str, ahead: tuple[str, str] | None) -> str:
        cases = []
        if self.side_channels.has_markers:
            broken = literal("is not an event that this version of flowcore reads")
            whole = f"coalesce({elements.is_event('value')}, false)"
            cases.append(f"WHEN {_IS_EVENT} THEN CASE WHEN NOT {whole} THEN {broken} END")
        if self.tagged:
            known = f"{elements.is_record(ELEMENT)} OR {elements.is_control(ELEMENT)}"
            if self.topic.headers:
                known = f"{elements.is_head(ELEMENT)} OR {elements.is_control(ELEMENT)} AND value IS NULL"
            unknown = literal(
                "is not a tagged element: its tag is unknown, or bytes are missing or left over"
            )
            cases.append(f"WHEN NOT coalesce({known}, false) THEN {unknown}")
            refused = [*refused_channels(self.topic, ELEMENT, CHANNEL, self.own_channels)]
            if self._checks_signatures:
                forged = (
                    f" without a valid signature in the header {SIGNATURE_HEADER}: it does not count; if its "
                    "writer is to be trusted, give it signed=True and the same kafka.control-key"
                )
                reason = f"concat('is ', {elements.show_control(ELEMENT)}, {literal(forged)})"
                refused.append((f"NOT coalesce({_SIGNED}, false)", reason))
            if ahead is not None and self.topic.watermark is None:
                refused.append(ahead)
            why = " ".join(f"WHEN {condition} THEN {reason}" for condition, reason in refused)
            cases.append(f"WHEN {elements.is_control(ELEMENT)} THEN CASE {why} END")
        cases += self._misfit_cases(value)
        if self.missing_time:
            cases.append(f"WHEN {TIMESTAMP_MS} IS NULL THEN {literal(self.missing_time)}")
        if ahead is not None and self.topic.watermark is not None:
            cases.append(f"WHEN {ahead[0]} THEN {ahead[1]}")
        return f"CASE {' '.join(cases)} END"

    def _misfit_cases(self, value: str) -> list[str]:
        """Why key or value of a record are bad."""
        misfit = literal(f"does not fit the schema {self.node.schema} ({self.topic.format})")
        row_key = self.row_key
        keyed = row_key.names if row_key is not None else ()
        reason = f"concat({misfit}, {describe_misfit(self._typed, value, keyed)})"
        if self.topic.elements == "value-only":
            named = f"concat('is ', {elements.show_control('value')}, {literal(_NOT_A_RECORD)})"
            reason = f"CASE WHEN {elements.is_control('value')} THEN {named} ELSE {reason} END"
        is_bad = is_bad_record(self._typed, value, keyed)
        found = [(is_bad, reason)]
        if row_key is not None:
            misfits = (f"NOT ({IS_TOMBSTONE}) AND {is_bad}", reason)
            found = [*row_key.unknown_reasons(), misfits, *row_key.other_reasons()]
        return [f"WHEN {condition} THEN {why}" for condition, why in found]


def _unless_bad(condition: str) -> str:
    """The condition; a bad message fails the query."""
    return f"CASE WHEN {BRANCH} = {RowKind.BAD} THEN {fail_with_payload(BAD_REASON)} ELSE {condition} END"


def _header(name: str) -> str:
    return f"get(filter(headers, h -> h.key = '{name}'), 0).value"
