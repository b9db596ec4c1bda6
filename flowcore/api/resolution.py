"""Expressions and column names of a declaration, resolved against the columns of an operator.

Each function raises `PlanError` with the operator's name and the column's.
"""

from collections.abc import Mapping, Sequence

from flowcore.api.checks import refuse, require_distinct
from flowcore.api.expressions import Expression, resolve
from flowcore.api.operators import Operator, PythonTransform, Read
from flowcore.api.schema import Schema

__all__ = [
    "parse_aggregates",
    "parse_row",
    "parse_selection",
    "resolve_join",
    "resolve_key",
    "resolve_passes",
    "resolve_uses",
    "select_key",
]


def parse_selection(node: Operator, name: str, texts: Sequence[str]) -> tuple[tuple[str, Expression], ...]:
    """Parse the expressions of a selection over ``node``; ``*`` becomes its columns."""
    pairs: list[tuple[str, Expression]] = []
    if not texts:
        refuse(f"operator {name!r} selects nothing: its output would have no column; name at least one")
    for text in texts:
        expression = Expression.parse(text, name)
        if expression.star:
            pairs += [(column, Expression.parse(f"`{column}`", name)) for column in node.columns]
            continue
        _require_row_wise(node, name, text, expression)
        if expression.name is None:
            refuse(
                f"operator {name!r}: {text!r} has no name: no downstream operator could use it; "
                f"write '{text} as name'"
            )
        pairs.append((expression.name, expression))
    return tuple(pairs)


def parse_row(node: Operator, name: str, text: str) -> Expression:
    """Parse one expression over single rows of ``node``."""
    expression = Expression.parse(text, name)
    _require_row_wise(node, name, text, expression)
    return expression


def parse_aggregates(
    node: Operator, name: str, by: Sequence[str], aggregates: Mapping[str, str]
) -> tuple[tuple[str, Expression], ...]:
    """Parse ``column=text`` pairs over groups of ``node``."""
    grouped = {column.lower() for column in by}
    pairs = []
    for column, text in aggregates.items():
        expression = Expression.parse(text, name)
        resolve(expression.columns, node.columns, name, f"{text!r}")
        loose = [read for read in expression.columns if read.lower() not in grouped]
        if expression.star or (loose and "(" not in expression.text):
            refuse(
                f"operator {name!r}: {column}={text!r} is not an aggregate: a group has many rows and needs "
                f"one value; write for instance {column}='max({text})'"
            )
        if expression.distinct and not node.bounded:
            refuse(
                f"operator {name!r}: {text!r} counts distinct values of an unbounded input: Spark would "
                "have to keep every value for ever and refuses; use approx_count_distinct(...)"
            )
        pairs.append((column, expression))
    return tuple(pairs)


def resolve_join(
    left: Operator, right: Operator, name: str, on: str | Sequence[str] | Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The pairs of columns that must be equal, as the inputs spell them."""
    if isinstance(on, str):
        on = [on]
    pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((column, column) for column in on)
    if not pairs:
        refuse(f"operator {name!r} joins on nothing: every row would meet every row; pass on='column'")
    mine, theirs = zip(*pairs, strict=True)
    mine = resolve(mine, left.columns, name, f"on={on!r} (left input {left.name!r})")
    theirs = resolve(theirs, right.columns, name, f"on={on!r} (right input {right.name!r})")
    return tuple(zip(mine, theirs, strict=True))


def resolve_key(node: Operator, name: str, by: str | Sequence[str]) -> tuple[str, ...]:
    """The distinct columns of a key, as ``node`` spells them."""
    keys = resolve((by,) if isinstance(by, str) else by, node.columns, name, f"by={by!r}")
    require_distinct(name, keys)
    return keys


def resolve_uses(node: Operator, name: str, uses: Sequence[str] | None) -> tuple[str, ...] | None:
    """The columns of ``node`` that an operator declares to use, in the order and spelling of ``node``."""
    if uses is None:
        return None
    uses = (uses,) if isinstance(uses, str) else tuple(uses)
    found = resolve(uses, node.columns, name, f"uses={uses!r}")
    return tuple(column for column in node.columns if column in found)


def resolve_passes(
    node: Operator, name: str, passes: Sequence[str], schema: Schema, uses: Sequence[str] | None
) -> tuple[str, ...]:
    """The columns that a function passes on unchanged: they are in its input and in its output."""
    passes = (passes,) if isinstance(passes, str) else tuple(passes)
    resolve(passes, node.columns if uses is None else uses, name, f"passes={passes!r}")
    passed = resolve(passes, schema.names, name, f"passes={passes!r} (of its schema)")
    types = {column.name.lower(): column.type for column in schema.columns if column.name in passed}
    for column in node.schema.columns if isinstance(node, Read | PythonTransform) else ():
        after = types.get(column.name.lower(), column.type)
        if column.type != after:
            refuse(
                f"operator {name!r}: passes={passes!r} says that {column.name!r} is unchanged, and it is "
                f"{column.type} in {node.name!r} and {after} in its schema: a filter could find another "
                "value; give both the same type, or drop it from passes"
            )
    return tuple(column for column in schema.names if column in passed)


def select_key(node: Operator, expressions: Sequence[tuple[str, Expression]]) -> tuple[str, ...] | None:
    """The key of ``node`` under the names that a selection gives it, None if a part is not selected."""
    names = {expression.text.strip("`").lower(): column for column, expression in reversed(expressions)}
    if node.key is None or not all(column.lower() in names for column in node.key):
        return None
    return tuple(names[column.lower()] for column in node.key)


def _require_row_wise(node: Operator, name: str, text: str, expression: Expression) -> None:
    resolve(expression.columns, node.columns, name, f"{text!r}")
    if expression.star:
        refuse(f"operator {name!r}: '*' stands for all columns, and one value is needed here; name a column")
    if expression.windowed and not node.bounded:
        refuse(
            f"operator {name!r}: {text!r} reads neighbouring rows, which an unbounded input does not "
            "have; use .aggregate(by=..., name='...'), or compute it on the bounded side of a join"
        )
    if expression.aggregates:
        refuse(
            f"operator {name!r}: {text!r} aggregates over several rows, and here each row stands alone; "
            "use .aggregate(by=..., name='...')"
        )
    if expression.generates and not node.bounded:
        refuse(
            f"operator {name!r}: {text!r} turns one record of an unbounded input into several, which would "
            "then share one flowcore-id; use .apply(lambda frame: ...)"
        )
