"""Types of states, and whether a value fits one.

A type is Spark DDL text. Values are those that Spark passes to Python: ``int`` for whole numbers,
``datetime`` for TIMESTAMP, ``list`` for ARRAY, ``dict`` for MAP and STRUCT. The items of lists and dicts are
not checked.
"""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

from flowcore.errors import SchemaError, StateError
from flowcore.escaping import show_safely

__all__ = ["StateType"]

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_KINDS: dict[str, tuple[type, ...]] = {
    "BOOLEAN": (bool,), "FLOAT": (float, int), "DOUBLE": (float, int), "DECIMAL": (Decimal,),
    "TEXT": (str,), "VARCHAR": (str,), "CHAR": (str,), "BINARY": (bytes,),
    "DATE": (dt.date,), "TIMESTAMP": (dt.datetime,), "TIMESTAMPTZ": (dt.datetime,),
    "TIMESTAMPLTZ": (dt.datetime,), "TIMESTAMPNTZ": (dt.datetime,),
    "ARRAY": (list,), "MAP": (dict,), "STRUCT": (dict,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StateType:
    """A type: its DDL text, and its kind without parameters."""

    text: str
    kind: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read Spark DDL text such as ``"INT"`` or ``"ARRAY<STRING>"``.

        Raises:
            SchemaError: A state cannot have this type.
        """
        from sqlglot import exp  # noqa: PLC0415 - workers need no parser
        from sqlglot.errors import SqlglotError  # noqa: PLC0415

        try:
            found = exp.DataType.build(text, dialect="spark")
        except (SqlglotError, ValueError, TypeError, AttributeError):
            found = None
        kind = "" if found is None else str(found.this.name)
        if found is None or (kind not in _BITS and kind not in _KINDS):
            msg = (
                f"{text!r} is not a type of a state: its values could not be restored after a restart; pass "
                "Spark DDL such as 'BIGINT' or 'ARRAY<STRING>'"
            )
            raise SchemaError(msg)
        return cls(found.sql("spark"), kind)

    def require(self, name: str, value: Any) -> None:
        """Require a value of this type.

        Raises:
            StateError: The value is None or has another type.
        """
        bits = _BITS.get(self.kind)
        if bits is not None:
            fits = type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1
        else:
            # Exact types: a subclass would be restored as its base.
            fits = type(value) in _KINDS[self.kind]
        if not fits:
            shown = show_safely(repr, value)
            msg = (
                f"state {name!r} is {self.text}, and {shown} ({type(value).__qualname__}) does not fit: it "
                "would be restored as something else after a restart; convert it, or declare another type"
            )
            raise StateError(msg)
