"""Value formats over Arrow arrays: a fixed layout by column, any other format value by value.

A value that cannot be read is null; one that cannot be written has an error instead. An exception of a format
affects its own value only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.errors import SerializationError
from flowcore.escaping import show_safely
from flowcore.serializers.formats.fixed import FixedFormat
from flowcore.serializers.formats.protobuf import ProtobufFormat, message_of, row_of_message
from flowcore.serializers.formats.value_format import ValueFormat
from flowcore.serializers.python_values import MISFIT_ERRORS, to_arrow

__all__ = ["ArrowFormat", "FixedArrowFormat", "ValueArrowFormat", "arrow_format"]

_NUMPY = {
    "TINYINT": ">i1", "SMALLINT": ">i2", "INT": ">i4", "BIGINT": ">i8", "FLOAT": ">f4", "DOUBLE": ">f8",
    "BOOLEAN": ">u1", "DATE": ">i4", "TIMESTAMP": ">i8",
}  # fmt: skip
_ARROW: dict[str, Any] = {"BOOLEAN": pa.uint8(), "DATE": pa.int32(), "TIMESTAMP": pa.int64()}
_LIMITS = {
    "BOOLEAN": (0, 1),
    "DATE": (-719_162, 2_932_896),
    "TIMESTAMP": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
"""First and last number of the types whose range is smaller than their size."""


class ArrowFormat(Protocol):
    """A format over Arrow arrays."""

    def decode(self, payloads: Any) -> Any:
        """The rows of an array of bytes; null where the bytes are not a value."""

    def encode(self, rows: Any) -> Any:
        """Structs of ``value``, the bytes, and ``error``, which is null where there are bytes."""


@dataclass(frozen=True, slots=True)
class ValueArrowFormat:
    """A format of mappings of columns or of Protobuf messages, value by value.

    Args:
        rows: The Arrow type of a row: a struct of the columns.
    """

    value_format: ValueFormat[Any]
    rows: pa.StructType

    def decode(self, payloads: Any) -> Any:
        return self._to_arrow([None if data is None else self._row(data) for data in payloads.to_pylist()])

    def encode(self, rows: Any) -> Any:
        try:
            pairs = [self._bytes(row) for row in rows.to_pylist()]
        except (OverflowError, UnicodeDecodeError):  # of some row: Python cannot hold a value of it
            pairs = [self._bytes_of(rows.slice(place, 1)) for place in range(len(rows))]
        values = pa.array([value for value, _ in pairs], pa.binary())
        errors = pa.array([error for _, error in pairs], pa.string())
        return pa.StructArray.from_arrays([values, errors], names=["value", "error"])

    def _row(self, data: bytes) -> dict[str, Any] | None:
        try:
            value = self.value_format.decode(data)
            if isinstance(self.value_format, ProtobufFormat):
                value = row_of_message(value, self.rows.names)
            return {name: value.get(name) for name in self.rows.names} if isinstance(value, Mapping) else None
        except Exception:  # noqa: BLE001 - a user's format must not fail the other records
            return None

    def _to_arrow(self, rows: list[dict[str, Any] | None]) -> Any:
        """The rows; null where one does not fit. Halves of them are converted until it is alone."""
        try:
            return to_arrow(rows, self.rows)
        except MISFIT_ERRORS:
            if len(rows) == 1:
                return pa.nulls(1, self.rows)
        half = len(rows) // 2
        return pa.concat_arrays([self._to_arrow(rows[:half]), self._to_arrow(rows[half:])])

    def _bytes_of(self, one: Any) -> tuple[bytes | None, str | None]:
        try:
            (row,) = one.to_pylist()
            return self._bytes(row)
        except (OverflowError, UnicodeDecodeError) as error:
            return None, f"{type(error).__name__}: {show_safely(str, error)}"

    def _bytes(self, row: dict[str, Any]) -> tuple[bytes | None, str | None]:
        try:
            one = self.value_format
            value = message_of(one.message, row) if isinstance(one, ProtobufFormat) else row
            data: object = one.encode(value)
            if not isinstance(data, bytes):
                return None, f"the format {one.name!r} gave {type(data).__name__} instead of bytes"
        except SerializationError as error:
            return None, show_safely(str, error)
        except Exception as error:  # noqa: BLE001 - as in `_row`
            return None, f"{type(error).__name__}: {show_safely(str, error)}"
        return data, None


@dataclass(frozen=True, slots=True)
class FixedArrowFormat:
    """A fixed layout by column, with the same bytes and errors as `FixedFormat`.

    Args:
        rows: The Arrow type of a row: a struct of the columns, in order.
    """

    layout: FixedFormat
    rows: pa.StructType

    def decode(self, payloads: Any) -> Any:
        payloads = payloads.cast(pa.large_binary())
        size: Any = pc.binary_length(payloads)
        fits = pc.equal(size, pa.scalar(self.layout.size_bytes, pa.int64())).fill_null(False)
        table = self._table(payloads.filter(fits))
        good, fields = np.ones(len(table), bool), []
        for place, column in enumerate(self.layout.columns):
            numbers = table[f"f{place}"].astype(table.dtype[place].newbyteorder("="))
            allowed = _allowed(column.type, numbers)
            good &= allowed
            field = pa.array(numbers if allowed.all() else np.where(allowed, numbers, 0))
            fields.append(field.cast(self.rows[place].type))
        found: Any = pa.StructArray.from_arrays(fields, fields=list(self.rows))
        if good.all() and len(table) == len(payloads):
            return found
        row = np.full(len(payloads), -1, np.int64)
        row[np.flatnonzero(fits.to_numpy(zero_copy_only=False))[good]] = np.flatnonzero(good)
        return found.take(pa.array(row, mask=row < 0))

    def encode(self, rows: Any) -> Any:
        table = np.zeros(len(rows), self._dtype)
        errors = np.full(len(rows), None, object)
        for place, column in enumerate(self.layout.columns):
            field: Any = rows.field(place)
            numbers = field.cast(_ARROW.get(column.type, field.type))
            missing = numbers.is_null().to_numpy(zero_copy_only=False)
            given = numbers.fill_null(0).to_numpy(zero_copy_only=False)
            table[f"f{place}"] = given
            errors[~_allowed(column.type, given)] = f"column {column.name!r} is outside the years 1 to 9999"
            errors[missing] = f"column {column.name!r} is null, and the fixed format has no place for a null"
        offsets = np.arange(len(rows) + 1, dtype=np.int64) * self.layout.size_bytes
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(table.tobytes())]
        values: Any = pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)
        texts: Any = pa.array(errors, pa.string())
        values = pc.if_else(texts.is_valid(), pa.scalar(None, pa.large_binary()), values).cast(pa.binary())
        return pa.StructArray.from_arrays([values, texts], names=["value", "error"])

    def _table(self, payloads: Any) -> np.ndarray[Any, Any]:
        """The records as numbers, without a copy, since their bytes are contiguous."""
        _, offsets, data = payloads.buffers()
        if len(payloads) == 0:
            return np.empty(0, self._dtype)
        first = int(np.frombuffer(offsets, np.int64)[payloads.offset])
        return np.frombuffer(data, self._dtype, count=len(payloads), offset=first)

    @property
    def _dtype(self) -> np.dtype[Any]:
        columns = enumerate(self.layout.columns)
        return np.dtype([(f"f{place}", _NUMPY[column.type]) for place, column in columns])


def arrow_format(value_format: ValueFormat[Any], rows: pa.StructType) -> ArrowFormat:
    """The fastest form of a format over Arrow arrays."""
    if isinstance(value_format, FixedFormat):
        return FixedArrowFormat(value_format, rows)
    return ValueArrowFormat(value_format, rows)


def _allowed(kind: str, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if kind not in _LIMITS:
        return np.ones(len(numbers), bool)
    first, last = _LIMITS[kind]
    return (numbers >= first) & (numbers <= last)
