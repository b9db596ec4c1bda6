"""Kafka topics as sources and sinks of a flow, as plain descriptions, and what is wrong with one.

Nothing here opens a socket. The default broker is the setting ``kafka.bootstrap.servers``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from flowcore.api.schema import Schema
from flowcore.api.value_formats import check_format
from flowcore.errors import ConfigurationError
from flowcore.watermarks.strategies import WatermarkStrategy

__all__ = [
    "ADDED_LATER",
    "DEDUPLICATE_WITHIN",
    "LONGEST_CHANNEL",
    "RECORD_ID_HEADER",
    "Delivery",
    "Elements",
    "Isolation",
    "KafkaTopic",
    "Position",
]

Position = Literal["earliest", "latest"] | datetime | Mapping[int, int]
"""A position in a topic: its beginning or end, a time with its zone, or an offset per partition."""

Elements = Literal["plain", "tagged", "value-only", "auto"]
"""What a topic carries with its values; see `KafkaTopic`."""

Isolation = Literal["read_committed", "read_uncommitted"]
"""Which records of transactions a source reads."""

Delivery = Literal["at-least-once", "exactly-once"]
"""How often a sink writes a record that is processed again after a failure."""

DEDUPLICATE_WITHIN = timedelta(hours=1)
"""For how long the record ids of a topic are kept at least."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka accepts as the name of a topic."""

RECORD_ID_HEADER = "flowcore-id"
"""The header with a record's id, and the column of a source that reads it."""

LONGEST_CHANNEL = 255
"""The most bytes in the name of a channel of a tagged topic."""

ADDED_LATER = {"fingerprint": "unless default"}
"""Metadata of a field that was added later: with its default value it does not change a fingerprint."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A Kafka topic. Unbounded, unless ``until`` is given.

    A record that does not fit format and schema (not JSON, a field of another type, a ``NOT NULL``
    field without value) is written to the topic ``<name>.dead-letter`` with its bytes and coordinates.

    Args:
        schema: The fields of a value, as Spark DDL; needed to read, and to write other formats than JSON.
        start: Where the first run begins; later runs of a stream continue where it stopped.
        until: Where reading ends, which makes the topic a bounded source. ``"latest"`` is the end
            at the start of the stage.
        key: Sinks only: the columns of the Kafka key. Default: the key of the stream, if any.
        partitions: Create a missing topic with this many partitions. A sink is always created; a source
            only if this is given. A topic that exists keeps its number, which a run logs as a warning.
        servers: ``host:port[,host:port]`` of its broker. Default: the setting.
        on_error: ``"dead-letter"``, or ``"fail"`` to stop at the first bad record.
        event_time: Sources only: column or Spark SQL expression of a record's timestamp, BIGINT
            milliseconds since 1970 or TIMESTAMP. Default: Kafka's timestamp.
        watermark: Sources only: how records advance event time; see `flowcore.watermarks`. If the topic is
            bounded, only the end of the input advances it.
        elements: What the topic carries with its values. ``"plain"``: nothing, a value is a JSON object.
            ``"tagged"``: timestamps and watermarks, before the value or in headers, for another
            flow to read. ``"value-only"``: stream elements of which only the values are written, byte
            for byte as ``"plain"``; a watermark that would have to be written is an error. ``"auto"``,
            sinks only: tagged if the flow needs timestamps, else value-only; the plan decides.
        headers: Write tag and timestamp of tagged elements to Kafka headers, so that other readers find the
            value unchanged.
        channels: Sources of tagged elements only: the channels whose watermarks and other control elements
            count, ``flow/query`` as in the header ``flowcore-channel``. Those of other channels are dead
            letters. Default: any channel, of which the first 64 of a partition count; the end of input is
            a dead letter then, unless it is signed, or the flow itself wrote it (``through``).
        signed: Of tagged elements only: a sink signs its control elements with the setting
            ``kafka.control-key``, and for a source those without a valid signature are dead letters.
        deduplicate: Sources only: drop records whose header ``flowcore-id`` was read before. So a flow counts
            each record once that another flow wrote at least once. Records without the header pass, and are
            counted.
        deduplicate_within: How far apart a record and its repeats are at most, as `Stream.deduplicate`'s
            ``within``; None to keep every id for ever. Repeats are written when the other flow continues
            after a failure, so it is longer than the longest time for which that flow may be down; in
            processing time, the reader too. The default suits flows that are restarted by supervision, and
            limits the state. A bounded topic is deduplicated as a whole.
        updating_by: Sources only: the columns of the Kafka key, if a record replaces the earlier one of its
            key, as in a compacted topic. A record without a value, a tombstone, deletes its key: it is a row
            with true in ``is_deleted``, the last column of an unbounded source. A bounded one has the last
            row of each key. The key is in the form that sinks write: the text of one column, or a JSON object
            of several. Values may lack its columns.
        flushed: Sources only: the flush interval of the flow that writes the topic. Downstream buffers are
            then flushed right after its records arrive, and not an interval later.
        isolation: Sources only: ``"read_committed"`` leaves out records of transactions that were aborted and
            waits for open ones, where ``until="latest"`` ends; ``"read_uncommitted"`` reads all.
        delivery: Sinks of a live query only: ``"exactly-once"`` writes each batch in transactions, so that
            readers of committed records see each record once. The query then runs in micro-batches or slices.
        format: The encoding of a value: ``json``, ``avro``, ``avro-confluent``, ``fixed``,
            ``protobuf``, ``raw``, or one that you `flowcore.serializers.formats.register`.
        format_options: ``schema`` for Avro; ``schema_id`` for ``avro-confluent``, or ``subject`` if a schema
            registry is asked for the id; ``message`` for Protobuf.

    Raises:
        ConfigurationError: Kafka does not accept the name, ``start`` is after the end, an offset or the
            number of partitions is none, a time has no zone, the
            watermark is not a strategy, headers or channels are set for elements without tags, or a tombstone
            could not have what is declared.
        FormatError: The format is unknown, does not accept the options, or cannot hold a column.
    """

    name: str
    schema: Schema | str | None = None
    start: Position = field(default="earliest", hash=False)  # a dict of offsets cannot be hashed
    until: Position | None = field(default=None, hash=False)
    key: str | Sequence[str] | None = None
    partitions: int | None = None
    servers: str | None = None
    on_error: Literal["dead-letter", "fail"] = "dead-letter"
    event_time: str | None = field(default=None, metadata=ADDED_LATER)
    watermark: WatermarkStrategy | None = field(default=None, metadata=ADDED_LATER)
    elements: Elements = field(default="plain", metadata=ADDED_LATER)
    headers: bool = field(default=False, metadata=ADDED_LATER)
    channels: Sequence[str] | None = field(default=None, metadata=ADDED_LATER)
    signed: bool = field(default=False, metadata=ADDED_LATER)
    updating_by: str | Sequence[str] | None = field(default=None, metadata=ADDED_LATER)
    flushed: timedelta | None = field(default=None, metadata=ADDED_LATER)
    isolation: Isolation = field(default="read_committed", metadata=ADDED_LATER)
    delivery: Delivery = field(default="at-least-once", metadata=ADDED_LATER)
    deduplicate: bool = field(default=False, metadata=ADDED_LATER)
    deduplicate_within: timedelta | None = field(default=DEDUPLICATE_WITHIN, metadata=ADDED_LATER)
    format: str = field(default="json", metadata=ADDED_LATER)
    format_options: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        for name in ("key", "channels", "updating_by"):
            value: object = getattr(self, name)
            if isinstance(value, list):  # a list cannot be hashed, and topics are keys of mappings
                object.__setattr__(self, name, tuple(value))
        problem = next(_problems(self), None)
        if problem is not None:
            raise ConfigurationError(problem)
        check_format(self)

    @property
    def dead_letter(self) -> str:
        """The topic of its bad records."""
        return f"{self.name}.dead-letter"

    @property
    def events(self) -> str:
        """The companion topic of events such as latency markers."""
        return f"{self.name}.events"


def _problems(topic: KafkaTopic) -> Iterator[str]:
    """What is wrong with the settings of a topic."""
    of_topic = f"of topic {topic.name!r}"
    watermark: object = topic.watermark
    flushed: object = topic.flushed
    yield from _creation_problems(of_topic, topic)
    if topic.on_error not in ("dead-letter", "fail"):
        yield f"on_error={topic.on_error!r} {of_topic} is not 'dead-letter' or 'fail'"
    yield from _position_problems(of_topic, "start", topic.start)
    yield from _position_problems(of_topic, "until", topic.until)
    yield from _deduplication_problems(of_topic, topic)
    yield from _channel_problems(of_topic, topic)
    yield from _updating_problems(of_topic, topic)
    yield from _order_problems(of_topic, topic.start, topic.until)
    if topic.until == "earliest":
        yield f"until='earliest' {of_topic} ends before its first record; pass 'latest'"
    if watermark is not None and not isinstance(watermark, WatermarkStrategy):
        yield (
            f"watermark={watermark!r} {of_topic} is not a strategy: event time would not advance; pass for "
            "instance bounded_out_of_orderness(timedelta(seconds=4))"
        )
    if topic.elements not in get_args(Elements):
        yield f"elements={topic.elements!r} {of_topic} is not one of {', '.join(get_args(Elements))}"
    if topic.isolation not in get_args(Isolation):
        yield f"isolation={topic.isolation!r} {of_topic} is not one of {', '.join(get_args(Isolation))}"
    if topic.delivery not in get_args(Delivery):
        yield f"delivery={topic.delivery!r} {of_topic} is not one of {', '.join(get_args(Delivery))}"
    if topic.headers and topic.elements in ("plain", "value-only"):
        yield (
            f"headers=True {of_topic} with elements={topic.elements!r}: there is neither tag nor timestamp "
            "to write to headers; pass elements='tagged', or leave headers out"
        )
    if flushed is not None and (not isinstance(flushed, timedelta) or flushed <= timedelta(0)):
        yield (
            f"flushed={flushed!r} {of_topic} is not a time between two flushes of its writer; pass for "
            "instance timedelta(minutes=2), or leave it out"
        )


def _creation_problems(of_topic: str, topic: KafkaTopic) -> Iterator[str]:
    """Why a topic could not be found or created."""
    name: object = topic.name
    if name == "":
        yield "KafkaTopic name='' names no topic; pass the topic's name"
    elif not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        yield (
            f"KafkaTopic name={name!r} cannot name a topic: Kafka has letters, digits, '.', '_' and '-' in "
            "names, and at most 249 of them; pass the topic's name"
        )
    servers: object = topic.servers
    if servers is not None and not (isinstance(servers, str) and servers):
        yield (
            f"servers={servers!r} {of_topic} is not the text of an address: no broker would be found; pass "
            "'host:port', or 'host:port,host:port' for several"
        )
    partitions: object = topic.partitions
    if partitions is not None and not (_is_count(partitions) and partitions):
        yield (
            f"partitions={partitions!r} {of_topic} is not a number of partitions: a missing topic could not "
            "be created; pass for instance partitions=4, or leave it out"
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _channel_problems(of_topic: str, topic: KafkaTopic) -> Iterator[str]:
    if topic.signed and topic.elements != "tagged":
        yield (
            f"signed=True {of_topic} with elements={topic.elements!r}: only the control elements of tagged "
            "topics are signed; pass elements='tagged', or leave signed out"
        )
    channels: object = topic.channels
    if channels is None:
        return
    shown = f"channels={channels!r} {of_topic}"
    if not isinstance(channels, tuple) or not channels or not all(isinstance(each, str) for each in channels):
        yield f"{shown} are not the names of channels; pass for instance channels=('sales/bids',)"
        return
    for name in channels:
        size = len(name.encode(errors="surrogatepass"))
        if not name or size > LONGEST_CHANNEL:
            yield (
                f"{shown}: the name {name[:100]!r} has {size} bytes, and names have 1 to "
                f"{LONGEST_CHANNEL}: no control element would count; pass the name of the query that writes "
                "them, such as 'sales/bids'"
            )
    if topic.elements != "tagged":
        yield (
            f"{shown} with elements={topic.elements!r}: only tagged elements have channels; pass "
            "elements='tagged', or leave channels out"
        )


def _updating_problems(of_topic: str, topic: KafkaTopic) -> Iterator[str]:
    columns: object = topic.updating_by
    if columns is None:
        return
    shown = f"updating_by={columns!r} {of_topic}"
    if isinstance(columns, str):
        columns = (columns,)
    if not isinstance(columns, tuple) or not columns or not all(isinstance(each, str) for each in columns):
        yield (
            f"{shown} names no columns: it would not be known which record replaces which; pass the columns "
            "of the Kafka key, for instance updating_by='id'"
        )
    if topic.elements == "tagged":
        yield (
            f"{shown} with elements='tagged': a tombstone has no value that a tag could precede, so that "
            "deletions would be bad records; let the writer of the topic declare elements='value-only', and "
            "leave elements out here"
        )
    if topic.event_time is not None:
        yield (
            f"{shown} with event_time={topic.event_time!r}: a tombstone has no value, so that it would have "
            "no event time; leave event_time out: the timestamp that Kafka keeps counts"
        )
    if topic.deduplicate:
        yield (
            f"{shown} with deduplicate=True: a record that is written again replaces itself, and its id "
            "would be kept for nothing; leave deduplicate out"
        )


def _deduplication_problems(of_topic: str, topic: KafkaTopic) -> Iterator[str]:
    within: object = topic.deduplicate_within
    if within is not None and (not isinstance(within, timedelta) or within <= timedelta(0)):
        yield (
            f"deduplicate_within={within!r} {of_topic} is not a time above 0: no repeat would be found; pass "
            "for instance timedelta(hours=6), or None to keep every id for ever"
        )
    if within != DEDUPLICATE_WITHIN and not topic.deduplicate:
        yield (
            f"deduplicate_within={within!r} {of_topic} without deduplicate=True: repeats would not be "
            "dropped; pass deduplicate=True too, or leave it out"
        )


def _order_problems(of_topic: str, start: object, until: object) -> Iterator[str]:
    """Whether reading would end before it begins, as far as both positions can be compared."""
    match start, until:
        case datetime(), datetime() if start.tzinfo and until.tzinfo and start > until:
            yield f"start={start} {of_topic} is after until={until}: nothing would be read; exchange them"
        case Mapping(), Mapping():
            for partition, first in start.items():
                last = until.get(partition)
                if isinstance(first, int) and isinstance(last, int) and first > last:
                    yield (
                        f"start={dict(start)} {of_topic} is after until={dict(until)} in partition "
                        f"{partition}, of which nothing would be read; correct one of them"
                    )


def _position_problems(of_topic: str, what: str, place: object) -> Iterator[str]:
    match place:
        case None | "earliest" | "latest":
            return
        case Mapping():
            for partition, offset in place.items():
                if not (_is_count(partition) and _is_count(offset)):
                    yield (
                        f"{what}={dict(place)!r} {of_topic}: {partition!r}: {offset!r} is not a partition "
                        "and its offset, which are numbers from 0 up; pass for instance {0: 5, 1: 7}"
                    )
        case datetime() if place.tzinfo is not None:
            return
        case datetime():
            yield (
                f"{what}={place} {of_topic} has no time zone: it would mean another moment on another "
                "machine; pass datetime(..., tzinfo=UTC)"
            )
        case _:
            yield (
                f"{what}={place!r} {of_topic} is not a position in a topic; pass 'earliest', 'latest', a "
                "datetime with its zone, or {partition: offset}"
            )
