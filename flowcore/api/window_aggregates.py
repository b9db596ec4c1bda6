"""Built-in aggregates of windows, parsed from text such as ``sum(price * 2)``.

Each is one known aggregate function over any row expressions. The arguments are computed natively upstream
of the windows: a plain column is used as it is, every other expression gets a column.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import sqlglot
from sqlglot.tokenizer_core import Token, TokenType

from flowcore.api.checks import refuse
from flowcore.api.expressions import Expression
from flowcore.api.operators import Operator
from flowcore.api.resolution import parse_row
from flowcore.api.type_checks import require_aggregable
from flowcore.windows.built_in import FOLDS, BuiltIn

__all__ = ["AggregatePlace", "WindowAggregates", "parse_window_aggregates"]

_ALIASES = {
    "mean": "avg", "first": "first_value", "any_value": "first_value", "last": "last_value",
    "every": "bool_and", "some": "bool_or", "any": "bool_or", "stddev": "stddev_samp", "std": "stddev_samp",
    "variance": "var_samp", "array_agg": "collect_list",
}  # fmt: skip
_OPEN = {TokenType.L_PAREN, TokenType.L_BRACKET}
_CLOSE = {TokenType.R_PAREN, TokenType.R_BRACKET}


class WindowAggregates(NamedTuple):
    """Parsed aggregates and the columns that they need.

    Attributes:
        columns: ``(output column, aggregate)``.
        computed: ``(name, expression)`` of the arguments that are not plain columns.
        uses: The plain columns among the arguments, as the input spells them.
    """

    columns: tuple[tuple[str, BuiltIn], ...]
    computed: tuple[tuple[str, Expression], ...]
    uses: tuple[str, ...]


class AggregatePlace(NamedTuple):
    """Where aggregates are declared, in the words of their errors.

    Attributes:
        kind: What the aggregates are of.
        one: What has one value of each aggregate.
        operator: What follows it can do arithmetic.
        instead: A further way out if a function is not built in; empty if there is none.
        functions: The functions to propose.
    """

    kind: str = "windows"
    one: str = "a window"
    operator: str = "window"
    instead: str = "a Python aggregate with .aggregate_with(...)"
    functions: Collection[str] = FOLDS


def parse_window_aggregates(
    node: Operator, name: str, texts: Mapping[str, str], place: AggregatePlace | None = None
) -> WindowAggregates:
    """Parse ``column=text`` pairs over windows of ``node``, or over groups that ``place`` describes.

    Raises:
        PlanError: A text is not one known aggregate, or names a column that does not exist.
    """
    known = {column.lower(): column for column in node.columns}
    computed: dict[str, tuple[str, Expression]] = {}
    uses: dict[str, None] = {}

    def column_of(argument: Expression) -> str:
        plain = known.get(argument.text.strip().strip("`").lower()) if argument.name else None
        if plain is not None:
            uses[plain] = None
            return plain
        new = (f"_flowcore_argument_{len(computed) + 1}", argument)
        return computed.setdefault(argument.text, new)[0]

    columns = tuple(
        (column, _built_in(node, name, column, text, column_of, place=place or AggregatePlace()))
        for column, text in texts.items()
    )
    return WindowAggregates(columns, tuple(computed.values()), tuple(uses))


def _built_in(
    node: Operator,
    name: str,
    column: str,
    text: str,
    column_of: Callable[[Expression], str],
    *,
    place: AggregatePlace,
) -> BuiltIn:
    """Parse one function call with its arguments and its treatment of nulls."""
    where = f"operator {name!r}: {column}={text!r}"
    parsed = Expression.parse(text, name).text
    require_aggregable(node, name, f"{column}={text!r}", parsed, casts=node.bounded)
    tokens = sqlglot.tokenize(text, dialect="spark")
    opening = tokens[1] if len(tokens) > 1 else None
    if opening is None or opening.token_type is not TokenType.L_PAREN:
        refuse(
            f"{where} is not an aggregate: {place.one} has many records and needs one value; write for "
            f"instance {column}='max({text})'"
        )
    function = tokens[0].text.lower()
    function = _ALIASES.get(function, function)
    instead = f", or {place.instead}" if place.instead else ""
    if function not in FOLDS:
        refuse(
            f"{where}: {tokens[0].text!r} is not a built-in aggregate of {place.kind} "
            f"({', '.join(sorted(place.functions))}): it could not be computed; use one of them{instead}"
        )
    end = _closing(tokens)
    suffix = " ".join(token.text.lower() for token in tokens[end + 1 :])
    if suffix not in ("", "ignore nulls", "respect nulls"):
        refuse(
            f"{where} continues with {text[tokens[end + 1].start :]!r} after the aggregate: a column is one "
            "aggregate; instead of a filter use an argument such as if(condition, value, null), for "
            f"arithmetic a select(...) downstream of the {place.operator}"
        )
    inner = tokens[2:end]
    distinct = bool(inner) and inner[0].token_type is TokenType.DISTINCT
    pieces = [] if _is_star(inner) else list(_pieces(text, inner[distinct:]))
    fold, ignores = FOLDS[function], suffix == "ignore nulls"
    if fold.chooses_nulls and pieces[1:] in (["true"], ["false"]):
        ignores = pieces.pop() == "true"
    if len(pieces) != fold.arguments and not (function == "count" and _is_star(inner)):
        takes = "one argument or *" if function == "count" else f"{fold.arguments} argument(s)"
        refuse(f"{where}: {function} takes {takes}, and has {len(pieces)}: it could not be computed")
    if distinct and not (fold.distinct or function in ("min", "max")):
        known = ", ".join(each for each in sorted(FOLDS) if FOLDS[each].distinct)
        refuse(
            f"{where}: {function} of distinct values is not built in: it could not be computed; those that "
            f"are: {known}{instead}"
        )
    if suffix and not fold.chooses_nulls:
        refuse(f"{where}: {function} ignores nulls anyway; leave {suffix!r} out")
    arguments = tuple(column_of(parse_row(node, name, piece)) for piece in pieces)
    return BuiltIn(function, arguments, distinct and fold.distinct, ignores)


def _closing(tokens: list[Token]) -> int:
    """The index of the parenthesis that closes the call; parsed text has one."""
    depth = 0
    for index, token in enumerate(tokens[1:], 1):
        depth += (token.token_type in _OPEN) - (token.token_type in _CLOSE)
        if not depth:
            return index
    raise AssertionError(tokens)


def _is_star(tokens: list[Token]) -> bool:
    return len(tokens) == 1 and tokens[0].token_type is TokenType.STAR


def _pieces(text: str, tokens: list[Token]) -> Iterator[str]:
    """The text of each argument."""
    depth, first = 0, 0
    for index, token in enumerate(tokens):
        depth += (token.token_type in _OPEN) - (token.token_type in _CLOSE)
        if token.token_type is TokenType.COMMA and not depth:
            yield text[tokens[first].start : tokens[index - 1].end + 1]
            first = index + 1
    if tokens:
        yield text[tokens[first].start : tokens[-1].end + 1]
