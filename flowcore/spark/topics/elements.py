"""Tagged elements and events as SQL text: read and write their bytes in the JVM.

`flowcore.serializers.tagged` and `flowcore.serializers.events` specify the bytes.
"""

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.serializers.events import EVENT_VERSION, LATENCY_MARKER_EVENT, MAX_EVENT_BYTES
from flowcore.serializers.tagged import TIMESTAMP_BYTES, Tag

__all__ = [
    "event",
    "is_control",
    "is_end",
    "is_event",
    "is_head",
    "is_passing_watermark",
    "is_record",
    "marked_ms",
    "payload",
    "sender",
    "show_control",
    "tagged_record",
    "timestamp_ms",
]

_EVENT_HEAD = f"X'{EVENT_VERSION:02x}{LATENCY_MARKER_EVENT:02x}'"
_MARKED, _SUBTASK, _ID_SIZE, _ID = 3, 11, 15, 16  # positions in an event, from 1 as in SQL
_TIMED = 1 + TIMESTAMP_BYTES


def is_record(element: str) -> str:
    """True if the bytes begin as a record does, with or without timestamp."""
    timed = f"{_has(element, Tag.RECORD_WITH_TIMESTAMP)} AND length({element}) >= {_TIMED}"
    return f"({timed} OR {_has(element, Tag.RECORD)})"


def is_head(element: str) -> str:
    """True if the bytes are a record's tag with or without timestamp, and nothing else."""
    timed = f"{_has(element, Tag.RECORD_WITH_TIMESTAMP)} AND length({element}) = {_TIMED}"
    return f"({timed} OR {element} = X'{Tag.RECORD:02x}')"


def is_control(element: str) -> str:
    """True if the bytes are a whole watermark, status, record attributes or end of input."""
    flagged = f"substring({element}, 2) IN (X'00', X'01')"
    return (
        f"({_has(element, Tag.WATERMARK)} AND length({element}) = {_TIMED}"
        f" OR {_has(element, Tag.WATERMARK_STATUS)} AND {flagged}"
        f" OR {_has(element, Tag.RECORD_ATTRIBUTES)} AND {flagged}"
        f" OR {element} = X'{Tag.END_OF_INPUT:02x}')"
    )


def is_end(element: str) -> str:
    """True if a control element ends its channel: the end of input, or the last watermark of all."""
    is_last = f"{_has(element, Tag.WATERMARK)} AND {_signed(element, 2)} = {MAX_TIMESTAMP_MS}"
    return f"({element} = X'{Tag.END_OF_INPUT:02x}' OR {is_last})"


def is_passing_watermark(element: str) -> str:
    """True if a control element is a watermark that a later one replaces: any but the end of time."""
    return f"({_has(element, Tag.WATERMARK)} AND {_signed(element, 2)} < {MAX_TIMESTAMP_MS})"


def show_control(element: str) -> str:
    """A control element as a message shows it."""
    names = {
        Tag.WATERMARK: f"concat('Watermark(timestamp_ms=', {_signed(element, 2)}, ')')",
        Tag.WATERMARK_STATUS: "'WatermarkStatus'",
        Tag.RECORD_ATTRIBUTES: "'RecordAttributes'",
        Tag.END_OF_INPUT: "'EndOfInput'",
    }
    cases = (f"WHEN {_has(element, tag)} THEN {text}" for tag, text in names.items())
    return f"CASE {' '.join(cases)} END"


def timestamp_ms(element: str) -> str:
    """The timestamp of a record or watermark; null if it has none."""
    number = _signed(element, 2)
    timed = f"{_has(element, Tag.RECORD_WITH_TIMESTAMP)} OR {_has(element, Tag.WATERMARK)}"
    return f"CASE WHEN {timed} THEN {number} END"


def payload(element: str) -> str:
    """The bytes of the value that follows a record's tag; null for other elements."""
    timed = f"WHEN {_has(element, Tag.RECORD_WITH_TIMESTAMP)} THEN substring({element}, {_TIMED + 1})"
    return f"CASE {timed} WHEN {_has(element, Tag.RECORD)} THEN substring({element}, 2) END"


def tagged_record(time: str | None, value: str, *, ansi: bool = False) -> str:
    """The bytes of a record: its tag, its timestamp if it has one, and its value.

    Args:
        time: Milliseconds as BIGINT, or null; None if no record has a timestamp.
        value: The bytes of the value; ``X''`` if the tag is a header.
        ansi: For Spark's ANSI mode, which refuses the cast to BINARY; seven times slower.
    """
    untimed = f"concat(X'{Tag.RECORD:02x}', {value})"
    if time is None:
        return untimed
    stamp = f"unhex(lpad(hex({time}), {2 * TIMESTAMP_BYTES}, '0'))" if ansi else f"CAST({time} AS BINARY)"
    with_time = f"concat(X'{Tag.RECORD_WITH_TIMESTAMP:02x}', {stamp}, {value})"
    return f"CASE WHEN {time} IS NULL THEN {untimed} ELSE {with_time} END"


def is_event(event: str) -> str:
    """True if the bytes are a whole latency marker event of the version that flowcore writes."""
    id_size = f"CAST(conv(hex(substring({event}, {_ID_SIZE}, 1)), 16, 10) AS INT)"
    return (
        f"(length({event}) BETWEEN {_ID} AND {MAX_EVENT_BYTES}"
        f" AND substring({event}, 1, 2) = {_EVENT_HEAD}"
        f" AND substring({event}, {_SUBTASK}, 1) < X'80'"
        f" AND length({event}) = {_ID_SIZE} + {id_size}"
        f" AND is_valid_utf8(CAST(substring({event}, {_ID}) AS STRING)))"
    )


def marked_ms(event: str) -> str:
    """The time of an event's marker, in milliseconds."""
    return _signed(event, _MARKED)


def sender(event: str) -> str:
    """The bytes of an event that name subtask and operator."""
    return f"substring({event}, {_SUBTASK})"


def event(marked_ms: str, sender: str) -> str:
    """The bytes of an event."""
    return f"concat({_EVENT_HEAD}, CAST({marked_ms} AS BINARY), {sender})"


def _signed(data: str, place: int) -> str:
    # conv() to a negative base reads all 64 bits as a signed number.
    return f"CAST(conv(hex(substring({data}, {place}, {TIMESTAMP_BYTES})), 16, -10) AS BIGINT)"


def _has(element: str, tag: Tag) -> str:
    return f"substring({element}, 1, 1) = X'{tag:02x}'"
