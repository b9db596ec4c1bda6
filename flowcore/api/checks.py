"""Checks of a declaration: names, columns, joins, sources and sinks.

Each raises `PlanError` with the operator's name and the column's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from flowcore.api.connectors import KafkaTopic, Sink, Source
from flowcore.api.expressions import Expression, resolve
from flowcore.api.operators import Operator, PythonTransform, Read, upstream
from flowcore.api.schema import Schema
from flowcore.errors import PlanError

__all__ = [
    "parse_aggregates",
    "parse_row",
    "parse_selection",
    "refuse",
    "require_alike",
    "require_attributes",
    "require_distinct",
    "require_join",
    "require_name",
    "require_readable",
    "require_unambiguous",
    "require_writable",
    "resolve_join",
    "resolve_key",
    "resolve_passes",
    "resolve_uses",
    "select_key",
]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def refuse(message: str) -> NoReturn:
    """Raise `PlanError`."""
    raise PlanError(message)


def require_name(kind: str, name: str) -> None:
    """Check that a name can be part of a path, a topic and an asset key."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(
            f"{kind} name {name!r} cannot name a folder or a checkpoint: use letters, digits, '_', "
            "'-' and '.', beginning with a letter"
        )


def require_distinct(operator: str, columns: Sequence[str]) -> None:
    """Check that no two columns have one name; Spark compares names without case."""
    lower = [column.lower() for column in columns]
    twice = sorted({column for column in columns if lower.count(column.lower()) > 1})
    if twice:
        refuse(
            f"operator {operator!r} would have the output column {twice[0]!r} twice: downstream operators "
            f"could not say which one they mean; rename one with '{twice[0]} as another'"
        )


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


def require_join(left: Operator, right: Operator, name: str, how: str) -> None:
    """Check that the right side is bounded, and that the kind of join can run over the left side."""
    if not right.bounded:
        refuse(
            f"operator {name!r} needs a bounded input, and {right.name!r} is unbounded: it would wait for an "
            f"end that never comes; put the unbounded side left ({right.name}.join({left.name}, ...)), or "
            "give its topic until="
        )
    allowed = ("inner", "left", "semi", "anti") + (("right", "full") if left.bounded else ())
    if how not in allowed:
        why = (
            "rows of the right side without a partner are only known when the unbounded left side ends"
            if how in ("right", "full")
            else "there is no such join"
        )
        refuse(f"operator {name!r}: how={how!r}: {why}; pass one of {', '.join(allowed)}")


def require_unambiguous(left: Operator, right: Operator, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that both sides of a join share only the columns joined on."""
    used = {column.lower() for _, column in pairs}
    known = {column.lower() for column in left.columns}
    both = [c for c in right.columns if c.lower() in known and c.lower() not in used]
    if both:
        refuse(
            f"operator {name!r}: both inputs {left.name!r} and {right.name!r} have the column {both[0]!r}, "
            "which is not joined on: downstream operators could not say which one they mean; rename it "
            f"before the join with select(..., '{both[0]} as {right.name}_{both[0]}'), or add it to on="
        )


def require_alike(inputs: Sequence[Operator], name: str) -> None:
    """Check that inputs of a union have the same columns and are all bounded or all unbounded."""
    first = inputs[0]
    for other in inputs[1:]:
        mine, theirs = ({c.lower() for c in node.columns} for node in (first, other))
        if mine != theirs:
            refuse(
                f"operator {name!r}: {first.name!r} and {other.name!r} differ in the columns "
                f"{', '.join(sorted(mine ^ theirs))}: rows of one would not fit the other; "
                "bring both to the same columns with select"
            )
        if first.bounded != other.bounded:
            ends, never = (first, other) if first.bounded else (other, first)
            refuse(
                f"operator {name!r} mixes the bounded {ends.name!r} with the unbounded {never.name!r}: Spark "
                "runs one as a batch and the other as a stream; join the bounded one, or write it to "
                "the stream's topic"
            )
        if first.updating or other.updating:
            node = first if first.updating else other
            refuse(
                f"operator {name!r}: records of {node.name!r} replace earlier ones and would be counted "
                "again in a union; unite the inputs before they are aggregated"
            )


def require_readable(name: str, source: Source) -> None:
    """Check that the form of a source's elements is known."""
    if isinstance(source, KafkaTopic) and source.elements == "auto":
        refuse(
            f"operator {name!r}: elements='auto' of topic {source.name!r} is decided by the plan of the flow "
            "that writes it, and unknown here: timestamps would be read as values, or values as timestamps; "
            "pass 'tagged' or 'value-only', as `flowcore plan` shows for that flow"
        )


def require_writable(node: Operator, name: str, sink: Sink, key: tuple[str, ...] | None) -> None:
    """Check that a sink can store the output of ``node``."""
    if not node.updating:
        return
    if not isinstance(sink, KafkaTopic):
        refuse(
            f"sink {name!r}: {node.name!r} replaces its earlier output, which files cannot do: every change "
            "would be one more row; write to a KafkaTopic"
        )
    if key is None:
        refuse(
            f"sink {name!r}: {node.name!r} replaces its earlier output, and no key says which record "
            f"replaces which: readers would count both; pass key= one of {', '.join(node.columns)}"
        )


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


def require_attributes(node: Operator) -> None:
    """Check that the attributes can be kept, and log those for which a default is assumed."""
    attributes = node.attributes()
    if attributes.output_only_at_end and not node.bounded:
        source = next(each for each in upstream(node) if isinstance(each, Read) and not each.bounded)
        refuse(
            f"operator {node.name!r} declares output_only_at_end=True, and its source {source.name!r} is "
            "unbounded: it would wait for an end that never comes; give the topic until=, or drop the "
            "attribute"
        )
    for name in node.undeclared_attributes():
        _log.debug(
            "operator %r does not declare %s: %s is assumed, which is always safe",
            node.name, name, getattr(attributes, name),
        )  # fmt: skip


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
