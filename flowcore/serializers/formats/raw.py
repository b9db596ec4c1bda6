"""Raw bytes: the value is bytes already."""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.errors import SerializationError

__all__ = ["RawFormat"]


@dataclass(frozen=True, slots=True)
class RawFormat:
    """Bytes as they are."""

    name = "raw"
    version = 1
    fingerprint = ""

    def encode(self, value: object, /) -> bytes:
        """The value itself."""
        if not isinstance(value, bytes):
            msg = (
                f"{value!r} is {type(value).__name__}, not bytes: the raw format converts nothing; pass bytes"
            )
            raise SerializationError(msg)
        return value

    def decode(self, data: bytes, /) -> bytes:
        """The bytes themselves."""
        return bytes(data)
