"""The protocol of value formats, their identity, and the format of raw bytes."""

from dataclasses import dataclass
from typing import Protocol, TypedDict, TypeVar

from flowcore.errors import SerializationError

__all__ = ["FormatIdentity", "RawFormat", "ValueFormat", "identity"]

V = TypeVar("V")


class FormatIdentity(TypedDict):
    """Identity of the format of written values, as JSON; kept with a checkpoint.

    ``schema`` is a fingerprint, equal if and only if the bytes mean the same columns.
    """

    format: str
    version: int
    schema: str


class ValueFormat(Protocol[V]):
    """A value to bytes and back.

    `encode` and `decode` raise `flowcore.errors.SerializationError`, and nothing else, if they cannot
    convert. A format can be pickled, since it is sent to workers.
    """

    @property
    def name(self) -> str:
        """Its name in `flowcore.serializers.formats.registry`."""
        ...

    @property
    def version(self) -> int:
        """Number of the format's byte layout; 1 is the first."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the schema; empty if there is none."""
        ...

    def encode(self, value: V, /) -> bytes:
        """The bytes of a value; equal values have equal bytes."""
        ...

    def decode(self, data: bytes, /) -> V:
        """The value from all of its bytes."""
        ...


def identity(value_format: ValueFormat[V]) -> FormatIdentity:
    """The identity of a format, to be kept with what it wrote."""
    return FormatIdentity(
        format=value_format.name, version=value_format.version, schema=value_format.fingerprint
    )


@dataclass(frozen=True, slots=True)
class RawFormat:
    """The value is bytes already."""

    name = "raw"
    version = 1
    fingerprint = ""

    def encode(self, value: object, /) -> bytes:
        if not isinstance(value, bytes):
            msg = (
                f"{value!r} is {type(value).__name__}, not bytes: the raw format converts nothing; pass bytes"
            )
            raise SerializationError(msg)
        return value

    def decode(self, data: bytes, /) -> bytes:
        return bytes(data)
