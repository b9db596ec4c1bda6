"""Checks of types, as far as they are known when a flow is declared.

Each raises `PlanError` with the operator's name.
"""

import re
from collections.abc import Sequence

from flowcore.api.checks import refuse
from flowcore.api.operators import Operator, StatefulOperator

__all__ = ["require_comparable", "require_keys", "require_same_types"]

_PLAIN = {
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "DATE",
    "TIMESTAMP", "TIMESTAMP_NTZ",
}  # fmt: skip
"""Types with one spelling each."""


def require_keys(node: Operator) -> None:
    """Check that an operator can find state by its key, as far as its type is known.

    Raises:
        PlanError: A column of the key is a list or a map, or contains one.
    """
    if not isinstance(node, StatefulOperator) or node.compiled().value != "key-group":
        return
    known = node.inputs[0].types()
    for column in node.by:
        kind = known.get(column.lower(), "")
        if re.search(r"\b(ARRAY|MAP)<|^(ARRAY|MAP)$", kind.upper()):
            refuse(
                f"operator {node.name!r}: by={column!r} is {kind}: arrays, maps and structs with them have "
                "no equality for finding state, so a key would not be found again; use its parts as keys, "
                f"or text: 'to_json({column}) as key'"
            )


def require_comparable(left: Operator, right: Operator, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that values of columns joined on can be equal, as far as their types are known.

    Raises:
        PlanError: One column is a list, a map or a struct, and its partner is not.
    """
    mine, theirs = left.types(), right.types()
    for one, other in pairs:
        types = mine.get(one.lower()), theirs.get(other.lower())
        shapes = [None if kind is None else _shape(kind) for kind in types]
        if None not in shapes and shapes[0] != shapes[1]:
            refuse(
                f"operator {name!r}: {one!r} of {left.name!r} is {types[0]} and {other!r} of {right.name!r} "
                f"is {types[1]}: no value of one equals one of the other; join on columns of one type, for "
                "instance an item of the array or to_json(...) of it"
            )


def require_same_types(left: Operator, right: Operator, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that columns joined on by key group have one type, as far as their types are known.

    Raises:
        PlanError: Two columns have different types of single values.
    """
    mine, theirs = left.types(), right.types()
    for one, other in pairs:
        types = mine.get(one.lower(), ""), theirs.get(other.lower(), "")
        if types[0] != types[1] and _PLAIN.issuperset(types):
            refuse(
                f"operator {name!r}: {one!r} of {left.name!r} is {types[0]}, and {other!r} of {right.name!r} "
                f"is {types[1]}: equal values would be in different key groups; cast one of them, for "
                f"instance with_columns({other}='CAST({other} AS {types[0]})')"
            )


def _shape(kind: str) -> str:
    """``ARRAY``, ``MAP`` or ``STRUCT``, or nothing for a type of single values."""
    outer = kind.upper().partition("<")[0].strip()
    return outer if outer in ("ARRAY", "MAP", "STRUCT") else ""
