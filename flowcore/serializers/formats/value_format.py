"""The protocol of value formats, and the format of raw bytes."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from flowcore.errors import SerializationError

__all__ = ["RawFormat", "ValueFormat"]

V = TypeVar("V")


class ValueFormat(Protocol[V]):
    """A value to bytes and back.

    `encode` and `decode` raise `flowcore.errors.SerializationError`, and nothing else, if they cannot
    convert. A format can be pickled, since it is sent to workers.
    """

    @property
    def name(self) -> str:
        """Its name in `flowcore.serializers.formats.registry`."""

    def encode(self, value: V, /) -> bytes:
        """The bytes of a value; equal values have equal bytes."""

    def decode(self, data: bytes, /) -> V:
        """The value from all of its bytes."""


@dataclass(frozen=True, slots=True)
class RawFormat:
    """The value is bytes already."""

    name = "raw"

    def encode(self, value: object, /) -> bytes:
        if not isinstance(value, bytes):
            msg = (
                f"{value!r} is {type(value).__name__}, not bytes: the raw format converts nothing; pass bytes"
            )
            raise SerializationError(msg)
        return value

    def decode(self, data: bytes, /) -> bytes:
        return bytes(data)
