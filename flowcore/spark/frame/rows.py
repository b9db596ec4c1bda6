"""Rows of a live query's frame: the kinds of rows, and the engine's own columns."""

from enum import IntEnum

__all__ = [
    "BACKLOG",
    "BAD_COLUMNS",
    "BAD_REASON",
    "BRANCH",
    "CHANNEL",
    "ELEMENT",
    "FAILED_OPERATOR",
    "FIRST_BRANCH",
    "INPUT_ID",
    "KAFKA_KEY",
    "KAFKA_MS",
    "KEY_GROUP",
    "NEWEST",
    "POSITION",
    "RECORD_ID",
    "RECORD_ORDINAL",
    "SOURCE",
    "TIMESTAMP_MS",
    "UNWRITABLE",
    "VALUE",
    "RowKind",
]


class RowKind(IntEnum):
    """The value of the column `BRANCH` in a row that is not a record of a branch."""

    BAD = 0
    """A message that could not be read, or a record whose function failed: for the dead-letter topic."""
    MARKER = -1
    """A latency marker's event from a companion topic."""
    CONTROL = -2
    """A control element, such as a watermark, of a tagged topic or of an operator with state."""
    DROPPED = -3
    """A record that a filter dropped; its timestamp still counts for watermarks."""


FIRST_BRANCH = 1
"""Records have the number of their branch, from this one up."""
BRANCH = "_branch"
"""The number of a record's branch, or the row's kind."""
RECORD_ID = "_record_id"
"""The id of an output of a window or process function; only downstream of such an operator."""
RECORD_ORDINAL = "_ordinal"
"""Distinguishes the records that were made of one source record: text, the last part of their ids."""
TIMESTAMP_MS = "_timestamp_ms"
"""The event time of a record; only if a sink writes it or windows need it."""
BACKLOG = "_backlog"
"""Whether a record is backlog; only if a Python function asks for it."""
SOURCE, NEWEST = "_source", "_newest_ms"
"""The number of a record's source; its timestamp if that counts for watermarks. Only upstream of windows."""
KEY_GROUP, POSITION = "_key_group", "_position"
"""The key group that emitted a row, and the row's position among its rows. Only between two operators with
state by key group."""
INPUT_ID = "_input_id"
"""The id of a record that was made of several, or in another operator with state; null if it has none."""
VALUE, BAD_REASON, KAFKA_MS = "_value", "_reason", "_kafka_ms"
"""The bytes of a message; why it is bad; Kafka's timestamp. Only in rows that are not records."""
UNWRITABLE = "_unwritable"
"""Why a row of a history cannot be written in its topic's format; null if it can. Only of a history."""
KAFKA_KEY = "_kafka_key"
"""Kafka's key of a message that could not be read. Only where records replace earlier ones of their key."""
ELEMENT, CHANNEL = "_element", "_channel"
"""The bytes of a tagged element, and the name of its sender. Only if control elements are read."""
FAILED_OPERATOR = "_failed"
"""The operator whose function failed for a bad row, null if the message could not be read. Only where
functions run; then records carry `VALUE` and `KAFKA_MS`, too."""
BAD_COLUMNS = {
    "topic": "STRING", "partition": "INT", "offset": "BIGINT",
    VALUE: "BINARY", BAD_REASON: "STRING", KAFKA_MS: "BIGINT", FAILED_OPERATOR: "STRING",
}  # fmt: skip
"""The columns of bad rows in a query whose functions may fail, with their types in SQL."""
