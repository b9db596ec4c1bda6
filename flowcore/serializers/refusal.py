"""How serializers refuse bytes: one wording, with coordinates where they are known."""

from __future__ import annotations

from flowcore.errors import SerializationError

__all__ = ["excerpt", "refusal"]

_SHOWN_BYTES = 24


def refusal(where: str, what: str, advice: str) -> SerializationError:
    """The error of bytes that cannot be read.

    Args:
        where: Coordinates such as ``clicks[3]@812``, or what the bytes are.
        what: What is wrong with them.
        advice: What would have happened, or what to do.
    """
    return SerializationError(f"{where} {what}: {advice}")


def excerpt(data: bytes) -> str:
    """Bytes as a message shows them, cut to a readable length."""
    return data[:_SHOWN_BYTES].hex(" ") + (" …" if len(data) > _SHOWN_BYTES else "")
