"""Signatures of control elements: proof that their writer has a key, so that a forged one does not count.

A signature is the HMAC-SHA256 of the element with its topic, partition and channel. So a signature from
another place or channel is not valid. An old element of the same place stays valid: see docs/event-time.md.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from struct import Struct

from flowcore.errors import ConfigurationError
from flowcore.settings import Settings

__all__ = ["SIGNATURE_BYTES", "SIGNATURE_HEADER", "is_signed", "require_control_key", "sign"]

SIGNATURE_HEADER = "flowcore-signature"
SIGNATURE_BYTES = 32

_VERSION = b"flowcore control element 1"
_SIZE = Struct(">q")
_SHORTEST_KEY = 16


def sign(key: bytes, topic: str, partition: int, channel: bytes, element: bytes) -> bytes:
    """The signature of a control element."""
    fields = (_VERSION, topic.encode(), _SIZE.pack(partition), channel, element)
    # With their lengths, so that no byte can move from one field to the next.
    message = b"".join(_SIZE.pack(len(each)) + each for each in fields)
    return hmac.new(key, message, hashlib.sha256).digest()


def is_signed(
    signature: bytes, key: bytes, *, topic: str, partition: int, channel: bytes, element: bytes
) -> bool:
    """Whether a control element was signed with the key; takes the same time for any wrong signature.

    >>> right = sign(b"key", "bids", 0, b"sales/bids", b"element")
    >>> place = {"topic": "bids", "channel": b"sales/bids", "element": b"element"}
    >>> is_signed(right, b"key", partition=0, **place), is_signed(right, b"key", partition=1, **place)
    (True, False)
    """
    return hmac.compare_digest(sign(key, topic, partition, channel, element), signature)


def require_control_key(settings: Settings, signed: Iterable[str]) -> bytes | None:
    """The key of `kafka.control-key`, for topics that are declared as signed; None if there are none.

    Raises:
        ConfigurationError: The key is missing, or too short.
    """
    names = sorted(set(signed))
    if not names:
        return None
    key = (settings.control_key or "").encode()
    if len(key) >= _SHORTEST_KEY:
        return key
    has = f"has {len(key)} bytes, which can be guessed" if key else "is not set"
    msg = (
        f"topic {names[0]!r} is declared with signed=True and kafka.control-key {has}: its control elements "
        f"could be forged; set FLOWCORE_KAFKA_CONTROL_KEY or kafka.control-key.file to the same secret of "
        f"{_SHORTEST_KEY} bytes or more in all flows that write or read the topic"
    )
    raise ConfigurationError(msg)
