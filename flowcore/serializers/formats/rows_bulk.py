"""Any format over a whole Arrow array: one value after the other, since only it knows its bytes.

A value that cannot be read is null; one that cannot be written has an error instead. Whatever the
format raises, the other values are not touched by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from flowcore.errors import SerializationError
from flowcore.serializers.formats.fixed import FixedFormat
from flowcore.serializers.formats.fixed_bulk import FixedInBulk
from flowcore.serializers.formats.protobuf import ProtobufFormat
from flowcore.serializers.formats.protobuf_rows import message_of, row_of_message
from flowcore.serializers.formats.value_format import ValueFormat

__all__ = ["BulkFormat", "RowsInBulk", "bulk_format"]


class BulkFormat(Protocol):
    """A format over Arrow arrays."""

    def decode(self, payloads: Any) -> Any:
        """The rows of an array of bytes; null where the bytes are no such value."""
        ...

    def encode(self, rows: Any) -> Any:
        """Structs of ``value``, the bytes, and ``error``, which is null where there are bytes."""
        ...


@dataclass(frozen=True, slots=True)
class RowsInBulk:
    """A format whose values are mappings of columns, or Protobuf messages.

    Args:
        one: The format of one value.
        rows: The Arrow type of its rows: a struct of the columns.
    """

    one: ValueFormat[Any]
    rows: pa.StructType

    def decode(self, payloads: Any) -> Any:
        """The rows of an array of bytes; null where the bytes are no such value."""
        found = [None if data is None else self._row(data) for data in payloads.to_pylist()]
        if not self._fit(found):
            found = [row if self._fit([row]) else None for row in found]
        return pa.array(found, self.rows)

    def encode(self, rows: Any) -> Any:
        """Structs of ``value``, the bytes, and ``error``, which is null where there are bytes."""
        pairs = [self._bytes(row) for row in rows.to_pylist()]
        values = pa.array([value for value, _ in pairs], pa.binary())
        errors = pa.array([error for _, error in pairs], pa.string())
        return pa.StructArray.from_arrays([values, errors], names=["value", "error"])

    def _row(self, data: bytes) -> dict[str, Any] | None:
        try:
            value = self.one.decode(data)
            if isinstance(self.one, ProtobufFormat):
                value = row_of_message(value, self.rows.names)
            return {name: value.get(name) for name in self.rows.names} if isinstance(value, Mapping) else None
        except Exception:  # noqa: BLE001 - a format is anybody's code, and one record must not stop the others
            return None

    def _fit(self, rows: list[dict[str, Any] | None]) -> bool:
        try:
            pa.array(rows, self.rows)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return False
        return True

    def _bytes(self, row: dict[str, Any]) -> tuple[bytes | None, str | None]:
        try:
            value = message_of(self.one.message, row) if isinstance(self.one, ProtobufFormat) else row
            data: object = self.one.encode(value)
            if not isinstance(data, bytes):
                return None, f"the format {self.one.name!r} gave {type(data).__name__} instead of bytes"
        except SerializationError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 - as in `_row`
            return None, f"{type(error).__name__}: {error}"
        return data, None


def bulk_format(one: ValueFormat[Any], rows: pa.StructType) -> BulkFormat:
    """A format over Arrow arrays, as fast as there is one.

    Args:
        one: The format of one value.
        rows: The Arrow type of its rows.
    """
    return FixedInBulk(one, rows) if isinstance(one, FixedFormat) else RowsInBulk(one, rows)
