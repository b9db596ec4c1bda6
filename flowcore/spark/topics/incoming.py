"""Incoming: what does each message of a topic turn out to be?

A record of a lane; a latency marker's event, from the companion topic; a control element, which tells
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
from flowcore.spark.frame.branches import (
    BAD,
    EVENT,
    FAILED,
    KAFKA_MS,
    LANE,
    NEWEST,
    ORDINAL,
    REASON,
    SOURCE,
    TIME,
    VALUE,
    Lane,
    Tracks,
)
from flowcore.spark.frame.sql import literal, quoted
from flowcore.spark.topics import elements
from flowcore.spark.topics.side_channels import Beside
from flowcore.spark.topics.values import RECORD, bad_record, fail_at, parsed, use_format
from flowcore.spark.topics.watermarks import CHANNEL, ELEMENT, observations, observed_as

__all__ = ["Incoming"]

CONTROL = -2
OF_EVENTS = "_of_events"
"""True of what came from the companion topic. An event is parsed like a record, in vain: there are few, and
looking for them in front of the parser would cost every record more."""
_RECORDS = 1


@dataclass(frozen=True, slots=True)
class Incoming:
    """How a source's messages are read.

    Attributes:
        node: The source.
        topic: Its topic.
        beside: What the query carries beside its records.
        keeps_bad: Bad messages leave through this query; else they are dropped here, or stop it.
        counted: Records carry an ordinal.
        number: The source's number in the query.
        may_fail: Records become bad where a function fails for them, so they keep their bytes.
    """

    node: Read
    topic: KafkaTopic
    beside: Beside
    keeps_bad: bool
    counted: bool
    number: int = 0
    may_fail: bool = False

    @classmethod
    def bounded(cls, node: Read, topic: KafkaTopic) -> Incoming:
        """Of a topic that is read as a table: records alone."""
        beside = Beside(tracked=False, tagged=frozenset(), watermarked=False, partitions={}, limits={})
        return cls(node, topic, beside, keeps_bad=topic.on_error != "fail", counted=False)

    def rows(self, messages: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """The records among messages, and the bad messages; None if the first of them stops what runs."""
        rows = self._classified(messages, _RECORDS)
        fields = [f"{RECORD}.{quoted(name)}" for name in self.node.columns]
        mine = f"{LANE} = {_RECORDS}"
        if not self.keeps_bad:
            # One filter: of two, Spark may ask the second one first.
            return rows.where(_unless_bad(mine)).selectExpr(*fields), None
        return rows.where(mine).selectExpr(*fields), rows.where(f"{LANE} = {BAD}").drop(RECORD)

    def read(self, messages: DataFrame, lane: Lane, names: Iterator[str]) -> Tracks:
        """The records among messages as Spark's source gives them, and what travels beside them."""
        return self._tracks(self._classified(messages, lane.number), lane, names)

    def _classified(self, messages: DataFrame, number: int) -> DataFrame:
        """Messages, each with its lane; ``number`` is that of records."""
        tracked, tagged = self.beside.tracked, self._tagged
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
        rows = rows.selectExpr("*", f"{reason} AS {REASON}")
        cases = [f"WHEN {REASON} IS NOT NULL THEN {BAD}"]
        cases += [f"WHEN {OF_EVENTS} THEN {EVENT}"] if tracked else []
        cases += [f"WHEN {elements.is_control(ELEMENT)} THEN {CONTROL}"] if tagged else []
        lane = f"CASE {' '.join(cases)} ELSE {number} END"
        if self._no_time and self.node in self.beside.undated:
            # Only windows elsewhere cannot take it: it goes on here, and leaves for them.
            both = f"{REASON} = {literal(self._no_time)}"
            lane = f"explode(CASE WHEN {both} THEN array({BAD}, {number}) ELSE array({lane}) END)"
        # A constant, or one of two: what the message itself says of it would be a text in every row.
        topic = literal(self.topic.name)
        if tracked:
            topic = f"CASE WHEN {OF_EVENTS} THEN {literal(self.topic.events)} ELSE {topic} END"
        return rows.selectExpr("*", f"{lane} AS {LANE}", f"{topic} AS topic")

    def _with_time(self, rows: DataFrame) -> DataFrame:
        """When each record happened, before it is known which are bad."""
        given = event_time_expression(self.node)
        if given is None:
            return rows.selectExpr("*", f"{elements.timestamp_ms(ELEMENT)} AS {TIME}")
        # As a lane's columns, which are quoted as one name.
        fields = {name: f"{RECORD}`.`{name.replace('`', '``')}" for name in self.node.columns}
        return _timed(rows, Lane(_RECORDS, fields).expression(given))

    def _tracks(self, rows: DataFrame, lane: Lane, names: Iterator[str]) -> Tracks:
        """The rows of a lane and those beside it, with no more columns than they need."""
        if not self.keeps_bad and self.topic.on_error == "fail":
            rows = rows.where(_unless_bad("true"))
        columns = ["topic", "partition", "offset", LANE]
        columns += [REASON, *self._of_messages()]
        if self.counted:
            columns.append(f"'0' AS {ORDINAL}")
        if self.beside.tells and self._tagged:
            columns += [ELEMENT, CHANNEL]
        given = event_time_expression(self.node)
        if self.beside.timed and self._no_time:
            columns.append(TIME)
        elif self.beside.timed and given is None:
            stamp = elements.timestamp_ms(ELEMENT) if self._tagged else "unix_millis(timestamp)"
            columns.append(f"{stamp} AS {TIME}")
        fields = (f"{RECORD}.{quoted(name)} AS {physical}" for name, physical in lane.columns.items())
        rows = rows.selectExpr(*columns, *fields)
        if self.beside.timed and given is not None and not self._no_time:
            rows = _timed(rows, lane.expression(given))
        if self.beside.windowed:
            rows = rows.selectExpr("*", f"{self.number} AS {SOURCE}", f"{self._newest(lane)} AS {NEWEST}")
        if self.beside.watermarked:
            partitions = self.beside.partitions[self.topic.name]
            said = observations(self.node, lane, CONTROL, partitions)
            rows = rows.observe(observed_as(self.node), *said)
        others = ([BAD] if self.keeps_bad else []) + ([EVENT] if self.beside.tracked else [])
        others += [CONTROL] if self.beside.windowed and self._tagged else []
        if not self.keeps_bad or self._tagged:
            rows = rows.where(f"{LANE} IN ({', '.join(map(str, [*others, lane.number]))})")
        return Tracks(
            rows, names, identified=True, bad=self.keeps_bad, marked=self.beside.tracked,
            telling=self.beside.windowed,
        )  # fmt: skip

    def _newest(self, lane: Lane) -> str:
        """The timestamp of a record that counts for watermarks, null for others."""
        if self.topic.watermark is None or not self.topic.watermark.generates:
            return "CAST(NULL AS BIGINT)"
        marker, said = marker_condition(self.node), watermark_expression(self.node)
        time = TIME if said is None else lane.expression(said)
        counts = f" AND {lane.expression(marker)}" if marker else ""
        return f"CASE WHEN {LANE} = {lane.number}{counts} THEN {time} END"

    def _of_messages(self) -> list[str]:
        """Only what may leave with its bytes carries them along."""
        if self.may_fail and self.keeps_bad:
            none = "CAST(NULL AS STRING)"
            return [f"value AS {VALUE}", f"unix_millis(timestamp) AS {KAFKA_MS}", f"{none} AS {FAILED}"]
        value = f"CASE WHEN {LANE} IN ({BAD}, {EVENT}) THEN value END AS {VALUE}"
        return [value, f"CASE WHEN {LANE} = {BAD} THEN unix_millis(timestamp) END AS {KAFKA_MS}"]

    @property
    def _tagged(self) -> bool:
        return self.topic.elements == "tagged"

    @property
    def _no_time(self) -> str | None:
        """What is wrong with a record without event time; None if nothing is, or if every record has one."""
        if self.node not in self.beside.dated | self.beside.undated:
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
        if self.beside.tracked:
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
            cases.append(f"WHEN {TIME} IS NULL THEN {literal(self._no_time)}")
        return f"CASE {' '.join(cases)} END"


def _unless_bad(condition: str) -> str:
    """The condition; a bad message stops what runs."""
    return f"CASE WHEN {LANE} = {BAD} THEN {fail_at(REASON)} ELSE {condition} END"


def _timed(rows: DataFrame, time: str) -> DataFrame:
    """Rows with their time in milliseconds, of an expression that is BIGINT or TIMESTAMP."""
    ((_, kind),) = rows.selectExpr(f"{time} AS {TIME}").dtypes
    milliseconds = f"unix_millis({time})" if kind == "timestamp" else time
    return rows.selectExpr("*", f"{milliseconds} AS {TIME}")


def _header(name: str) -> str:
    return f"get(filter(headers, h -> h.key = '{name}'), 0).value"
