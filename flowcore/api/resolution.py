"""Expressions and column names of a declaration, resolved against the columns of an operator.

Each function raises `PlanError` with the operator's name and the column's.
"""

from collections.abc import Mapping, Sequence

from flowcore.api.checks import refuse, require_distinct
from flowcore.api.connectors import KafkaTopic, Source
from flowcore.api.expression_types import find_types, is_arithmetic
from flowcore.api.expressions import Expression, find_loose_columns, name_columns, resolve
from flowcore.api.operators import Operator, PythonTransform, Read
from flowcore.api.schema import Schema
from flowcore.api.type_checks import require_aggregable, require_fields, require_gap

__all__ = [
    "parse_aggregates",
    "parse_columns",
    "parse_condition",
    "parse_gap",
    "parse_row",
    "parse_selection",
    "rename_selected",
    "resolve_join",
    "resolve_key",
    "resolve_passes",
    "resolve_replaced_key",
    "resolve_uses",
    "select_key",
]


def parse_selection(node: Operator, name: str, texts: Sequence[str]) -> tuple[tuple[str, Expression], ...]:
    """Parse the expressions of a selection over ``node``; ``*`` becomes the columns that it does not name."""
    pairs: list[tuple[str, Expression]] = []
    parsed = [(text, Expression.parse(text, name)) for text in texts]
    named = {each.name.lower() for _, each in parsed if each.name is not None}
    if not texts:
        refuse(f"operator {name!r} selects nothing: its output would have no column; name at least one")
    for text, expression in parsed:
        if expression.star:
            others = [column for column in node.columns if column.lower() not in named]
            pairs += [(column, Expression.parse(f"`{column}`", name)) for column in others]
            continue
        _require_row_wise(node, name, text, expression, explodes=True)
        if expression.name is None:
            refuse(
                f"operator {name!r}: {text!r} has no name: no downstream operator could use it; "
                f"write '{text} as name'"
            )
        pairs.append((expression.name, expression))
    _require_one_generator(node, name, pairs)
    return tuple(pairs)


def parse_columns(node: Operator, name: str, texts: Mapping[str, str]) -> tuple[tuple[str, Expression], ...]:
    """Parse ``column=text`` pairs over single rows of ``node``."""
    pairs = []
    for column, text in texts.items():
        expression = Expression.parse(text, name)
        _require_row_wise(node, name, text, expression, explodes=True)
        pairs.append((column, expression))
    _require_one_generator(node, name, pairs)
    return tuple(pairs)


def parse_row(node: Operator, name: str, text: str, *, where: str | None = None) -> Expression:
    """Parse one expression over single rows of ``node``; ``where`` is how errors call it."""
    expression = Expression.parse(text, name)
    _require_row_wise(node, name, text, expression, where=where)
    if expression.text != text.rstrip():
        refuse(
            f"operator {name!r}: {where or repr(text)} gives {expression.text!r} the name "
            f"{expression.name!r}, and the value has no name here: the rest of the text would have no "
            f"effect; pass {expression.text!r}, if that is meant"
        )
    return expression


def parse_gap(node: Operator, name: str, text: str) -> Expression:
    """Parse the gap of a session; it must be a number, as far as its type is known."""
    gap = parse_row(node, name, text, where=f"gap={text!r}")
    require_gap(node, name, gap)
    return gap


def parse_condition(node: Operator, name: str, text: str) -> Expression:
    """Parse a condition over single rows of ``node``; it must be BOOLEAN, as far as its type is known."""
    condition = parse_row(node, name, text)
    kind = find_types([("", condition)], node.types()).get("", "BOOLEAN")
    if kind.upper() != "BOOLEAN":
        refuse(
            f"operator {name!r}: {text!r} is {kind} and not a condition: Spark would refuse it when it has "
            f"started; compare it, for instance '{text} IS NOT NULL'"
        )
    if is_arithmetic(condition.text):
        refuse(
            f"operator {name!r}: {text!r} computes a value and is not a condition: Spark would refuse it "
            f"when it has started; compare it, for instance with {'a text' if '||' in text else 'a number'}"
        )
    return condition


def parse_aggregates(
    node: Operator, name: str, by: Sequence[str], aggregates: Mapping[str, str]
) -> tuple[tuple[str, Expression], ...]:
    """Parse ``column=text`` pairs over groups of ``node``."""
    grouped = {column.lower() for column in by}
    pairs = []
    for column, text in aggregates.items():
        expression = Expression.parse(text, name)
        resolve(expression.columns, node.columns, name, f"{text!r}")
        require_fields(node, name, text, expression)
        require_aggregable(node, name, f"{column}={text!r}", expression.text)
        loose = [] if expression.star else find_loose_columns(expression.text)
        loose = [read for read in loose if read.lower() not in grouped]
        if expression.star or (loose and not expression.aggregates):
            refuse(
                f"operator {name!r}: {column}={text!r} is not an aggregate: a group has many rows and needs "
                f"one value; write for instance {column}='max({text})'"
            )
        if loose:
            refuse(
                f"operator {name!r}: {column}={text!r} reads {loose[0]!r} outside of an aggregate, and it is "
                "not in by=: a group has many values of it and needs one; write for instance "
                f"'max({loose[0]})' in its place, or add it to by="
            )
        pairs.append((column, expression))
    return tuple(pairs)


def resolve_join(
    left: Operator, right: Operator, name: str, on: str | Sequence[str] | Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The pairs of columns that must be equal, as the inputs spell them."""
    if not isinstance(on, Mapping):
        on = name_columns(on, name, "on")
    pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((column, column) for column in on)
    if not pairs:
        refuse(f"operator {name!r} joins on nothing: every row would meet every row; pass on='column'")
    known = {column.lower() for column in left.columns}
    compared = next(
        (each for each in on if isinstance(each, str) and "=" in each and each.lower() not in known), None
    )
    if compared is not None:
        one, _, other = (part.strip(" =") for part in compared.partition("="))
        refuse(
            f"operator {name!r}: on={compared!r} is an expression, and a join takes columns that are equal: "
            f"pass on={{{one!r}: {other!r}}}, and other conditions to where(...) after it"
        )
    mine, theirs = zip(*pairs, strict=True)
    mine = resolve(mine, left.columns, name, f"on={on!r} (left input {left.name!r})")
    theirs = resolve(theirs, right.columns, name, f"on={on!r} (right input {right.name!r})")
    return tuple(zip(mine, theirs, strict=True))


def resolve_key(node: Operator, name: str, by: str | Sequence[str]) -> tuple[str, ...]:
    """The distinct columns of a key, as ``node`` spells them."""
    keys = resolve(name_columns(by, name, "by"), node.columns, name, f"by={by!r}")
    require_distinct(name, keys)
    return keys


def resolve_replaced_key(name: str, source: Source, schema: Schema) -> tuple[str, ...] | None:
    """The columns by which records of a source replace each other; None if they do not.

    Raises:
        PlanError: A column is unknown, or a Kafka key cannot hold it.
    """
    if not isinstance(source, KafkaTopic) or source.updating_by is None:
        return None
    given = source.updating_by
    keys = resolve(
        (given,) if isinstance(given, str) else given, schema.names, name, f"updating_by={given!r}"
    )
    require_distinct(name, keys)
    for column in keys:
        kind = schema.types[column.lower()]
        if "<" in kind or kind == "VARIANT":
            refuse(
                f"operator {name!r}: updating_by={column!r} is {kind}: the text of a Kafka key has single "
                "values only, so a row would not be found again; name columns of other types"
            )
    return keys


def resolve_uses(node: Operator, name: str, uses: Sequence[str] | None) -> tuple[str, ...] | None:
    """The columns of ``node`` that an operator declares to use, in the order and spelling of ``node``."""
    if uses is None:
        return None
    uses = name_columns(uses, name, "uses")
    found = resolve(uses, node.columns, name, f"uses={uses!r}")
    return tuple(column for column in node.columns if column in found)


def resolve_passes(
    node: Operator, name: str, passes: Sequence[str], schema: Schema, uses: Sequence[str] | None
) -> tuple[str, ...]:
    """The columns that a function passes on unchanged: they are in its input and in its output."""
    passes = name_columns(passes, name, "passes")
    for each in resolve(passes, node.columns, name, f"passes={passes!r}"):
        if uses is not None and each not in uses:
            refuse(
                f"operator {name!r}: passes={passes!r} names {each!r}, and uses={tuple(uses)!r} does not: "
                "the function would not get it; add it to uses"
            )
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


def rename_selected(expressions: Sequence[tuple[str, Expression]]) -> dict[str, str]:
    """The names that a selection gives to the columns that it passes on, by their names in lower case."""
    return {expression.text.strip("`").lower(): column for column, expression in reversed(expressions)}


def select_key(node: Operator, expressions: Sequence[tuple[str, Expression]]) -> tuple[str, ...] | None:
    """The key of ``node`` under the names that a selection gives it, None if a part is not selected."""
    names = rename_selected(expressions)
    if node.key is None or not all(column.lower() in names for column in node.key):
        return None
    return tuple(names[column.lower()] for column in node.key)


def _require_row_wise(
    node: Operator,
    name: str,
    text: str,
    expression: Expression,
    *,
    explodes: bool = False,
    where: str | None = None,
) -> None:
    """Check an expression over single rows; ``explodes``: it may turn one of them into several."""
    resolve(expression.columns, node.columns, name, where or f"{text!r}")
    require_fields(node, name, text, expression)
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
    exploded = expression.exploded if expression.generates else None
    if exploded is not None:
        _require_array(node, name, text, exploded[0])
    if expression.generates and not node.bounded and not (explodes and expression.exploded):
        refuse(
            f"operator {name!r}: {text!r} turns one record of an unbounded input into several, which would "
            "then share one flowcore-id; select a call of explode(array) or explode_outer(array) and "
            "nothing else, such as 'explode(tags) as tag', or use .flat_map(...)"
        )


def _require_array(node: Operator, name: str, text: str, array: Expression) -> None:
    """Check that what is exploded is an array, as far as its type is known."""
    kind = find_types([("", array)], node.types()).get("", "ARRAY")
    if kind.startswith("MAP"):
        refuse(
            f"operator {name!r}: {text!r} explodes a map, which has two columns for each entry, and here is "
            f"one; write 'explode(map_entries({array.text})) as entry' and read entry.key and entry.value, "
            "or use .flat_map(...)"
        )
    if not kind.startswith("ARRAY"):
        refuse(
            f"operator {name!r}: {text!r} explodes a {kind}, and only an array has elements: Spark would "
            f"refuse it when it has started; make an array of it, for instance of text "
            f"'explode(split({array.text}, ','))'"
        )


def _require_one_generator(node: Operator, name: str, pairs: Sequence[tuple[str, Expression]]) -> None:
    columns = [column for column, expression in pairs if expression.generates]
    if len(columns) > 1 and not node.bounded:
        refuse(
            f"operator {name!r}: {' and '.join(columns)} each turn one record into several, and Spark allows "
            "one such column in an operator; put the others in operators of their own"
        )
