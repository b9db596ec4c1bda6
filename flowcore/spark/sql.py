"""SQL text: how are names and strings written in Spark SQL?

Live queries are built from text: one call into the JVM for a whole projection, where columns made of
functions need several for each function.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["literal", "quoted", "struct"]


def quoted(name: str) -> str:
    """A name, whatever characters it holds.

    >>> quoted("odd`name")
    '`odd``name`'
    """
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    r"""A string literal.

    >>> print(literal("it's"))
    'it\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def struct(fields: Mapping[str, str]) -> str:
    """A struct of named expressions."""
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in fields.items())})"
