"""What every value format can do, and how it identifies itself."""

from __future__ import annotations

from typing import Protocol, TypedDict, TypeVar

__all__ = ["FormatIdentity", "ValueFormat", "identity"]

V = TypeVar("V")


class FormatIdentity(TypedDict):
    """What was written with: kept beside a checkpoint or a topic, as JSON.

    ``schema`` is a fingerprint: equal if and only if the bytes mean the same columns.
    """

    format: str
    version: int
    schema: str


class ValueFormat(Protocol[V]):
    """A value to bytes and back.

    Both raise `flowcore.errors.SerializationError`, and nothing else, for what they cannot convert. A
    format can be pickled, since tasks are sent to workers with it.
    """

    @property
    def name(self) -> str:
        """What it is called in `flowcore.serializers.formats.registry`."""
        ...

    @property
    def version(self) -> int:
        """Counts the layouts that this format has had; 1 is the first."""
        ...

    @property
    def fingerprint(self) -> str:
        """Stands for the schema; the empty text if there is none."""
        ...

    def encode(self, value: V, /) -> bytes:
        """A value's bytes; equal values have equal bytes."""
        ...

    def decode(self, data: bytes, /) -> V:
        """The value of which these are all the bytes."""
        ...


def identity(value_format: ValueFormat[V]) -> FormatIdentity:
    """What a format says of itself, to be kept with what it wrote."""
    return FormatIdentity(
        format=value_format.name, version=value_format.version, schema=value_format.fingerprint
    )
