"""Plain data: which keys and values can be written down as JSON and read back as they were?"""

from __future__ import annotations

from typing import Any

from flowcore.errors import SerializationError

__all__ = ["check_value", "key_of", "written_key"]

_SCALARS = (bool, int, float, str)


def check_value(value: Any) -> Any:
    """The value itself, if it is JSON's.

    Raises:
        SerializationError: It is not, or something in it.
    """
    # Exact types: a subclass or a tuple would come back as something else.
    if value is None or type(value) in _SCALARS:
        return value
    if type(value) is list:
        return [check_value(item) for item in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: check_value(item) for name, item in value.items()}
    msg = (
        f"{value!r:.80} is {type(value).__name__}, which JSON cannot hold: it would come back as something "
        f"else, or not at all; pass an encoding to and from lists, mappings, text and numbers"
    )
    raise SerializationError(msg)


def written_key(key: Any) -> Any:
    """How a key is written: a tuple as a list.

    Raises:
        SerializationError: It has another type than None, bool, int, float, str or a tuple of these.
    """
    if type(key) is tuple:
        return [written_key(part) for part in key]
    if key is None or type(key) in _SCALARS:
        return key
    msg = (
        f"key {key!r:.80} is {type(key).__name__}, which cannot be written: its record would be lost; "
        f"use a number, text, or a tuple of these as key"
    )
    raise SerializationError(msg)


def key_of(written: Any) -> Any:
    """The key that was written so."""
    return tuple(key_of(part) for part in written) if isinstance(written, list) else written
