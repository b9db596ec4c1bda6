"""Bounds of Avro: can a few bytes of this schema ask for endless depth, or endless length?

The reader follows nested values without counting, in native code: deep enough, the process dies.
"""

from __future__ import annotations

from typing import Any

from flowcore.errors import FormatError

__all__ = ["check_bounded"]


def check_bounded(schema: Any) -> None:
    """Refuse a parsed schema that holds itself, or an array whose items take no bytes.

    Raises:
        FormatError: It does.
    """
    _no_bytes(schema, frozenset(), set())


def _no_bytes(schema: Any, around: frozenset[str], empty: set[str]) -> bool:
    """True if a value of this part of a schema has no bytes.

    Args:
        schema: A parsed schema, or a part of one.
        around: Names of the records that it is inside of.
        empty: Names of types without bytes; those that are met are added.
    """
    match schema:
        case str() if schema in around:
            msg = (
                f"the Avro schema holds {schema!r} inside {schema!r}: a few bytes could be nested so deep "
                "that the reader dies; send it flat"
            )
            raise FormatError(msg)
        case {"type": "array", "items": items} if _no_bytes(items, around, empty):
            msg = (
                "the Avro schema has an array of items that take no bytes: a few bytes could be an array of "
                "any length; send their number instead"
            )
            raise FormatError(msg)
        case {"type": "record", "name": name, "fields": fields}:
            parts = [_no_bytes(field["type"], around | {name}, empty) for field in fields]
            bare = all(parts)
        case {"type": "fixed", "name": name, "size": size}:
            bare = size == 0
        case list() | {"type": "map"}:
            for part in schema if isinstance(schema, list) else [schema["values"]]:
                _no_bytes(part, around, empty)
            return False
        case {"type": dict() | list() as inner}:
            return _no_bytes(inner, around, empty)
        case {"type": str() as name} | str(name):
            return name == "null" or name in empty
        case _:
            return False
    if bare:
        empty.add(name)
    return bare
