"""The value-only form of a record: exactly the bytes of its value.

It is for flows that do not use event time. Only records have this form, and reading the timestamp of a record
that was read value-only is an error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn

from flowcore.elements import Record, StreamElement
from flowcore.errors import NoTimestampError, OnlyRecordsError, SerializationError
from flowcore.serializers.formats.value_format import V, ValueFormat

__all__ = ["ValueOnlyRecord", "ValueOnlySerializer"]


class ValueOnlyRecord(Record[V]):
    """A record that was read without its timestamp; reading the timestamp is an error.

    It is a `Record` to ``match`` and to `isinstance`. The timestamp of a `Record` that was created without
    one is None instead.
    """

    __slots__ = ("operator",)
    operator: str

    def __init__(self, value: V, operator: str) -> None:
        # Record is frozen, and its constructor would set a timestamp.
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "operator", operator)

    @property
    def timestamp_ms(self) -> NoReturn:
        """Raises NoTimestampError."""
        msg = (
            f"operator {self.operator!r} reads the timestamp of a record that was read value-only: it was "
            "not sent, because nothing in this flow needs timestamps; set a watermark strategy on the source"
        )
        raise NoTimestampError(msg)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueOnlyRecord) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((ValueOnlyRecord, self.value))

    def __repr__(self) -> str:
        return f"ValueOnlyRecord(value={self.value!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return ValueOnlyRecord, (self.value, self.operator)


@dataclass(frozen=True, slots=True)
class ValueOnlySerializer(Generic[V]):
    """Records to exactly their values' bytes and back.

    Args:
        operator: Name of the operator, for error messages.

    >>> from flowcore.serializers.formats import RawFormat
    >>> ValueOnlySerializer(RawFormat(), "clicks").encode(Record(b"x", timestamp_ms=7))
    b'x'
    """

    value_format: ValueFormat[V]
    operator: str = "unnamed"

    def encode(self, element: StreamElement[V]) -> bytes:
        """A record's value as bytes.

        Raises:
            OnlyRecordsError: The element is not a record.
            SerializationError: The value format refuses the value.
        """
        if not isinstance(element, Record):
            msg = (
                f"operator {self.operator!r} sends {element!r}, but its output is value-only and holds "
                "records only: it would be read as a record's value; turn off watermarks for this flow, or "
                "set pipeline.force-timestamp-support to true"
            )
            raise OnlyRecordsError(msg)
        try:
            return self.value_format.encode(element.value)
        except SerializationError as error:
            msg = f"a record of operator {self.operator!r} cannot be written: {error}"
            raise SerializationError(msg) from error

    def decode(self, data: bytes, where: str | None = None) -> ValueOnlyRecord[V]:
        """The record whose value these bytes are.

        Args:
            where: Coordinates for the error message, such as ``clicks[3]@812``.

        Raises:
            SerializationError: The value format refuses the bytes.
        """
        try:
            return ValueOnlyRecord(self.value_format.decode(data), self.operator)
        except SerializationError as error:
            msg = f"{where or f'a record of operator {self.operator!r}'} cannot be read: {error}"
            raise SerializationError(msg) from error
