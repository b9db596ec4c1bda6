"""Fixed layout: the fields of a value one after the other, each of fixed size, big-endian.

=========  =====  =====================================================
type       bytes  content
=========  =====  =====================================================
TINYINT    1      signed
SMALLINT   2      signed
INT        4      signed
BIGINT     8      signed
FLOAT      4      IEEE 754
DOUBLE     8      IEEE 754
BOOLEAN    1      0 or 1
DATE       4      days since 1970-01-01, signed
TIMESTAMP  8      microseconds since 1970-01-01 00:00 UTC, signed
=========  =====  =====================================================

A null cannot be written: every column is NOT NULL. A column given as a pair is NOT NULL, too.
"""

import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Self

from flowcore.errors import FormatError, SerializationError
from flowcore.serializers.formats.columns import (
    ColumnDefinitions,
    ValueColumn,
    parse_columns,
    row_of,
)

__all__ = ["FixedFormat"]

_CODES = {
    "TINYINT": "b", "SMALLINT": "h", "INT": "i", "BIGINT": "q", "FLOAT": "f", "DOUBLE": "d",
    "BOOLEAN": "B", "DATE": "i", "TIMESTAMP": "q",
}  # fmt: skip
_DAY_ONE = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class FixedFormat:
    """Dictionaries of columns to bytes of one size and back.

    DATE is `datetime.date`, TIMESTAMP a `datetime.datetime` with its zone (UTC when read); both are within
    the years 1 to 9999, as in Spark.

    >>> FixedFormat.of([("id", "INT"), ("ok", "BOOLEAN")]).encode({"id": 258, "ok": True}).hex(" ")
    '00 00 01 02 01'
    """

    columns: tuple[ValueColumn, ...]
    layout: str

    name = "fixed"

    @classmethod
    def of(cls, columns: ColumnDefinitions) -> Self:
        """A format of these columns.

        Raises:
            FormatError: A column may be null, or its type has no fixed size.
        """
        given = [ValueColumn(*column, False) if isinstance(column, tuple) else column for column in columns]
        found = parse_columns(cls.name, given, _CODES)
        for column in found:
            if column.nullable:
                msg = (
                    f"column '{column}' may be null, and the fixed format has no place for a null: it would "
                    "be read as zero; declare it NOT NULL, or use another format"
                )
                raise FormatError(msg)
        return cls(found, ">" + "".join(_CODES[column.type] for column in found))

    @property
    def size_bytes(self) -> int:
        return struct.calcsize(self.layout)

    def encode(self, value: object, /) -> bytes:
        row = row_of(self.columns, value)
        fields = [_to_number(column, field) for column, field in zip(self.columns, row, strict=True)]
        try:
            return struct.pack(self.layout, *fields)
        except (struct.error, OverflowError) as error:
            msg = f"the value {value!r:.100} does not fit its columns ({error}): pass smaller numbers"
            raise SerializationError(msg) from error

    def decode(self, data: bytes, /) -> dict[str, Any]:
        if len(data) != self.size_bytes:
            msg = f"{len(data)} bytes where the fixed layout has {self.size_bytes}: they have other columns"
            raise SerializationError(msg)
        fields = struct.unpack(self.layout, data)
        return {
            column.name: _from_number(column, field)
            for column, field in zip(self.columns, fields, strict=True)
        }


def _to_number(column: ValueColumn, field: Any) -> float:
    match column.type, field:
        case "BOOLEAN", bool():
            return int(field)
        case (("FLOAT" | "DOUBLE"), float()):
            return field
        case "DATE", date() if not isinstance(field, datetime):
            return (field - _DAY_ONE).days
        case "TIMESTAMP", datetime() if field.tzinfo is not None:
            return (field - _EPOCH) // _MICROSECOND
        case (("TINYINT" | "SMALLINT" | "INT" | "BIGINT"), int()) if not isinstance(field, bool):
            return field
    zone = " with its zone" if column.type == "TIMESTAMP" else ""
    msg = f"column {column.name!r} holds {field!r:.40}: it is not of type {column.type}{zone}; convert it"
    raise SerializationError(msg)


def _from_number(column: ValueColumn, field: Any) -> Any:
    try:
        match column.type:
            case "BOOLEAN" if field > 1:
                msg = f"column {column.name!r} is BOOLEAN and holds {field}: the bytes have other columns"
                raise SerializationError(msg)
            case "BOOLEAN":
                return bool(field)
            case "DATE":
                return _DAY_ONE + timedelta(days=field)
            case "TIMESTAMP":
                return _EPOCH + timedelta(microseconds=field)
            case _:
                return field
    except OverflowError as error:
        msg = f"column {column.name!r} is {column.type} and holds {field}: it is outside the years 1 to 9999"
        raise SerializationError(msg) from error
