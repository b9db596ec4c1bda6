"""Limits of JSON that all readers of a topic share: levels of nesting, and digits of a number.

Jackson, Spark's reader, has both, also in fields that are no columns. Readers of Python have others: one that
depends on the depth of its stack, and none for the digits of a number that is skipped.
"""

import re

import numpy as np

__all__ = ["MOST_DIGITS", "MOST_LEVELS", "exceeds_limits", "is_short"]

MOST_LEVELS = 500
"""Levels of arrays and objects: half of those that Python can read with an empty stack."""
MOST_DIGITS = 1_000
"""Digits of a number, those of fraction and exponent among them: Spark's default."""

_LONG = b"0" * (MOST_DIGITS + 1)
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_IN_NUMBERS = b".eE+-"
_NUMBERS = bytes(ord("0") if byte in b"0123456789" + _IN_NUMBERS else ord(" ") for byte in range(256))
_STRIDE = 32
_FEWEST_SAMPLES = b"0" * ((MOST_DIGITS + 1) // _STRIDE)
"""What every 32nd byte of a long number has at least."""
_STEPS = bytes({"[": 1, "{": 1, "]": 255, "}": 255}.get(chr(byte), 0) for byte in range(256))
_OTHERS = bytes(byte for byte in range(256) if not _STEPS[byte])
# Possessive, and without its last quotation mark if that is missing, so that nothing is read twice.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def is_short(size_bytes: int) -> bool:
    """Whether a payload is too short to exceed a limit."""
    return size_bytes <= MOST_DIGITS


def exceeds_limits(data: bytes) -> bool:
    """Whether JSON has a number or a nesting that no reader takes.

    >>> exceeds_limits(b"[" * 500 + b"]" * 500), exceeds_limits(b"[" * 501 + b"]" * 501)
    (False, True)
    """
    if is_short(len(data)):
        return False
    # Most payloads have no text that looks like it, and texts are not searched for in them.
    if data.count(b"[") + data.count(b"{") <= MOST_LEVELS and not _has_long_number(data):
        return False
    bare = _TEXT.sub(b" ", data)
    return _has_long_number(bare) or _levels(bare) > MOST_LEVELS


def _has_long_number(text: bytes) -> bool:
    may_have = _FEWEST_SAMPLES in text[::_STRIDE].translate(_NUMBERS)
    return may_have and _LONG in text.translate(_DIGITS, _IN_NUMBERS)


def _levels(text: bytes) -> int:
    steps = np.frombuffer(text.translate(_STEPS, _OTHERS), np.int8)
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))
