"""Expressions: Spark SQL text with the columns that it reads and the name of its result.

Spark gets the text unchanged except for renamed columns. sqlglot only reads it, so that a flow is checked
without a JVM.

Idempotent aggregates, of which a later result of a group replaces the earlier ones, are those that FLIP-365
(adjust the interval of emitting results) lists, under Spark SQL's names. Other functions may not be
idempotent, so their output is not buffered unless the flow declares ``output_idempotent``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from flowcore.errors import PlanError

__all__ = [
    "IDEMPOTENT",
    "Expression",
    "find_loose_columns",
    "find_not_idempotent",
    "is_aggregate",
    "name_columns",
    "resolve",
]

_VALUES = (exp.Condition, exp.Alias, exp.Aliases, exp.Star, exp.Interval,
           exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)  # fmt: skip
_GENERATORS = (exp.UDTF, exp.Explode, exp.Posexplode, exp.Inline)
# Functions of Spark that sqlglot parses as unknown ones; a test compares with the list of Spark.
_EXPRESSION = re.compile(r"[-+*/%=<>(]")
"""A sign of an expression where a column is named."""
_MORE_GENERATORS = re.compile(r"inline_outer|json_tuple|sql_keywords|collations")
_MORE_AGGREGATES = re.compile(
    r"any|every|some|mean|std|try_sum|try_avg|measure|collect_union|histogram_numeric|count_min_sketch"
    r"|vector_(sum|avg)|\w+_agg(_\w+)?"
)
_NOT_DETERMINISTIC = re.compile(
    r"(?<![.`\w])((rand\w*|uuid|shuffle|monotonically_increasing_id|spark_partition_id|input_file_\w+|current_\w+|now"
    r"|reflect|try_reflect|java_method|localtime|localtimestamp|session_user)\b"
    r"|(curdate|user|version|uniform|aes_encrypt)\s*\(|unix_timestamp\s*\(\s*\))",
    re.IGNORECASE,
)
"""Chance, the clock, and what the session is; a test compares with the functions of Spark."""
_DAYS = r"""["']\s*(now|today|tomorrow|yesterday)\b"""
_CLOCK_TEXT = re.compile(
    rf"\b(date|timestamp|cast|to_date|to_timestamp)\w*\s*\(?\s*{_DAYS}|{_DAYS}[^\"']*[\"']\s*::",
    re.IGNORECASE,
)
"""A text that Spark reads as a time of the clock."""
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Expression:
    """One parsed expression.

    Attributes:
        text: The expression without its alias, as the user wrote it.
        name: The name of its result, or None.
        references: ``(column, start, end)`` for every column it reads, positions in ``text``.
        fields: For each of them the name after its dot and the end of that name; None without a dot.
        aggregates: It contains an aggregate function of Spark.
        aggregate: It is one call of an aggregate function and nothing else.
        windowed: It contains a window function (``over``).
        distinct: An aggregate in it is over distinct values.
        generates: It may turn one row into several (``explode``).
        star: It is ``*``.
    """

    text: str
    name: str | None
    references: tuple[tuple[str, int, int], ...] = ()
    fields: tuple[tuple[str, int] | None, ...] = ()
    aggregates: bool = False
    aggregate: bool = False
    windowed: bool = False
    distinct: bool = False
    generates: bool = False
    star: bool = False

    @property
    def is_deterministic(self) -> bool:
        """Whether it has the same value each time that it is computed of a row."""
        text, end = "", 0
        for _, first, last in sorted(self.references, key=lambda each: each[1]):
            text, end = f"{text}{self.text[end:first]}_", last
        text += self.text[end:]
        return not (_NOT_DETERMINISTIC.search(_QUOTED.sub("_", text)) or _CLOCK_TEXT.search(text))

    @classmethod
    def parse(cls, text: str, operator: str) -> Expression:
        """Parse Spark SQL text, with or without an alias: ``"price / median as ratio"``.

        Raises:
            PlanError: The text is not exactly one expression, or holds a subquery or a ``struct.*``.
        """
        tree = _parse(text, operator)
        if isinstance(tree, exp.Star):
            return cls(text="*", name=None, star=True)
        body, name = (tree.this, tree.alias) if isinstance(tree, exp.Alias) else (tree, None)
        if name is None and isinstance(tree, (exp.Column, exp.Dot)):
            name = tree.name
        found = {}
        for column in tree.find_all(exp.Column):
            root, *fields = column.parts
            unplaced = any("start" not in part.meta for part in (root, *fields[:1]))
            if unplaced or isinstance(column.this, exp.Star):
                msg = (
                    f"operator {operator!r}: {text!r} names its columns in a way that cannot be checked "
                    f"before Spark runs: name each field ({root.name}.field), or use .apply(...)"
                )
                raise PlanError(msg)
            field = fields[0] if fields else None
            found[root.meta["start"]] = (
                (root.name, root.meta["start"], root.meta["end"] + 1),
                (field.name, field.meta["end"] + 1) if field is not None else None,
            )
        return cls(
            text=_without_alias(text, tree),
            name=name,
            references=tuple(found[start][0] for start in sorted(found)),
            fields=tuple(found[start][1] for start in sorted(found)),
            aggregates=any(map(is_aggregate, body.find_all(exp.Func, exp.Any))),
            aggregate=is_aggregate(body) or isinstance(body, exp.WithinGroup),
            windowed=_contains(body, exp.Window),
            distinct=_contains(body, exp.Distinct),
            generates=_contains(body, *_GENERATORS) or any(map(_makes_several, body.find_all(exp.Anonymous))),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads, each once, as the user spelled them."""
        return tuple(dict.fromkeys(name for name, _, _ in self.references))

    @property
    def exploded(self) -> tuple[Expression, bool] | None:
        """The array of a call of ``explode`` or ``explode_outer``, and whether the call is ``explode_outer``.

        ``explode_outer`` also gives a row for an array that is null or empty. None for any other expression.

        >>> Expression.parse("explode(split(tags, ',')) as tag", "x").exploded[0].text
        "split(tags, ',')"
        """
        tree = sqlglot.parse_one(self.text, dialect="spark")
        if not isinstance(tree, exp.Explode):
            return None
        function, _, first, *_, end = sqlglot.tokenize(self.text, dialect="spark")
        name = function.text.lower()
        if name not in ("explode", "explode_outer") or _contains(tree.this, *_GENERATORS, exp.Distinct):
            return None
        return Expression.parse(self.text[first.start : end.start], name), name == "explode_outer"

    def rename(self, names: Mapping[str, str]) -> str:
        """The text with every column renamed by ``names``, whose keys are lower case.

        >>> Expression.parse("price / Median", "x").rename({"price": "p", "median": "m"})
        '`p` / `m`'
        """
        return self.replace((start, end, f"`{names[name.lower()]}`") for name, start, end in self.references)

    def replace(self, spans: Iterable[tuple[int, int, str]]) -> str:
        """The text with spans ``(start, end, new text)`` replaced, in the order of the text."""
        pieces, done = [], 0
        for start, end, new in spans:
            pieces += [self.text[done:start], new]
            done = end
        return "".join([*pieces, self.text[done:]])


def name_columns(given: object, operator: str, argument: str) -> tuple[str, ...]:
    """The columns that an argument names, which is the text of one column or several of them.

    Raises:
        PlanError: It is neither.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable):
        msg = (
            f"operator {operator!r}: {argument}={given!r} names no column: it would not be known which are "
            f"meant; pass for instance {argument}='id', or a list of columns"
        )
        raise PlanError(msg)
    return tuple(given)


def resolve(wanted: Iterable[str], columns: Iterable[str], operator: str, where: str) -> tuple[str, ...]:
    """Find columns by name, as Spark does without case, and return them as ``columns`` spells them.

    Raises:
        PlanError: A column does not exist; the message names operator, column and the nearest existing
            column.
    """
    given: tuple[object, ...] = tuple(wanted)
    found: list[str] = []
    known = {column.lower(): column for column in columns}
    for name in given:
        if not isinstance(name, str):
            msg = (
                f"operator {operator!r}: {where} names {name!r}, which is not the text of a column; pass for "
                "instance 'price'"
            )
            raise PlanError(msg)
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {known[near[0]]!r}?" if near else f"has {', '.join(known.values())}"
            if _EXPRESSION.search(name):
                hint = "it is an expression: compute it with with_columns(...) before, and pass that column"
            msg = (
                f"operator {operator!r}: {where} names the column {name!r}, which its input does "
                f"not have; {hint}"
            )
            raise PlanError(msg)
        found.append(known[name.lower()])
    return tuple(found)


def is_aggregate(node: exp.Expr) -> bool:
    """True if a part of a parsed expression is a call of an aggregate function of Spark."""
    match node:
        case exp.AggFunc():
            pass
        case exp.Any() if not isinstance(node.parent, exp.Binary):  # any(x), not: a like any ('b', 'c')
            pass
        case exp.Anonymous() if _MORE_AGGREGATES.fullmatch(_name(node)):
            pass
        case _:
            return False
    while isinstance(node.parent, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)):
        node = node.parent
    return not (isinstance(node.parent, exp.Window) and node.parent.this is node)


def _parse(text: str, operator: str) -> exp.Expr:
    if not isinstance(text, str) or not text.strip():
        msg = f"operator {operator!r}: {text!r} is not Spark SQL text; pass for instance 'price * 2 as twice'"
        raise PlanError(msg)
    try:
        trees = sqlglot.parse(text, dialect="spark")
    except (SqlglotError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        # sqlglot raises more than its own errors, for instance for map(a).
        reason = (re.sub(r"\x1b\[\d+m", "", str(error)).splitlines() or ["it cannot be read"])[0]
        reason = re.sub(r"<class '[\w.]*?(\w+)'>", lambda found: found[1].upper(), reason)
        hint = "a column whose name is a SQL keyword needs `backquotes`"
        if "&&" in _QUOTED.sub("", text):
            hint = "SQL writes AND for &&"
        msg = f"operator {operator!r}: {text!r} is not a Spark SQL expression: {reason} ({hint})"
        raise PlanError(msg) from error
    tree = trees[0] if len(trees) == 1 else None
    if isinstance(tree, exp.Alias) and "start" not in tree.args["alias"].meta:
        msg = f"operator {operator!r}: {text!r} cannot be read; write variant_get(...) for column:path"
        raise PlanError(msg)
    if not isinstance(tree, _VALUES) or _contains(tree, exp.Query):
        msg = (
            f"operator {operator!r}: {text!r} is not one expression over its input's columns: "
            "statements and subqueries cannot be planned; join the other table instead"
        )
        raise PlanError(msg)
    return tree


def _without_alias(text: str, tree: exp.Expr) -> str:
    if not isinstance(tree, exp.Alias):
        return text.rstrip()
    start = tree.args["alias"].meta["start"]
    # Tokens and not text, because comments may be anywhere.
    before = [token for token in sqlglot.tokenize(text, dialect="spark") if token.start < start]
    if before[-1].token_type is TokenType.ALIAS:
        before.pop()
    return text[: before[-1].end + 1]


def _name(function: exp.Anonymous) -> str:
    return str(function.name).lower()


def _makes_several(call: exp.Anonymous) -> bool:
    slides = _name(call) == "window" and len(call.expressions) > 2  # noqa: PLR2004 - time, length, slide
    return slides or _MORE_GENERATORS.fullmatch(_name(call)) is not None


def _contains(tree: exp.Expr, *kinds: type[exp.Expr]) -> bool:
    return tree.find(*kinds) is not None


IDEMPOTENT = frozenset({
    "sum", "min", "max", "min_by", "max_by", "count", "avg", "mean", "first_value", "first", "any_value",
    "last_value", "last", "listagg", "string_agg", "stddev_pop", "stddev_samp", "stddev", "std", "var_pop",
    "var_samp", "variance", "collect_list", "array_agg", "collect_set",
})  # fmt: skip
"""Names of the functions. A group without functions (distinct) is idempotent too, and so is an expression
over results of these functions: ``coalesce(sum(x), 0)`` is FLIP-365's sum0."""

_NAMES: dict[type[exp.Expr], str] = {
    exp.Sum: "sum", exp.Min: "min", exp.Max: "max", exp.ArgMin: "min_by", exp.ArgMax: "max_by",
    exp.Count: "count", exp.Avg: "avg", exp.FirstValue: "first_value", exp.First: "first",
    exp.AnyValue: "any_value", exp.LastValue: "last_value", exp.Last: "last", exp.GroupConcat: "listagg",
    exp.StddevPop: "stddev_pop", exp.StddevSamp: "stddev_samp", exp.Stddev: "stddev",
    exp.VariancePop: "var_pop", exp.Variance: "var_samp", exp.ArrayAgg: "collect_list",
    exp.ArrayUniqueAgg: "collect_set",
}  # fmt: skip
"""The functions as sqlglot parses them; several names share a class."""


def find_loose_columns(text: str) -> tuple[str, ...]:
    """The columns that an aggregate expression reads outside of aggregate calls, which may be a user's own.

    >>> find_loose_columns("max(price) + count(*) filter (where hot) + tax")
    ('tax',)
    """
    columns = sqlglot.parse_one(text, dialect="spark").find_all(exp.Column)
    return tuple(each.parts[0].name for each in columns if not any(map(_gathers, _around(each))))


def _around(node: exp.Expr) -> Iterator[exp.Expr]:
    while (parent := node.parent) is not None:
        yield parent
        node = parent


def _gathers(node: exp.Expr) -> bool:
    return isinstance(node, (exp.Filter, exp.WithinGroup, exp.Anonymous)) or is_aggregate(node)


@cache
def find_not_idempotent(text: str) -> tuple[str, ...]:
    """The functions in an aggregate expression that are not known to be idempotent.

    An unknown function may be a user's aggregate, unless it is called with aggregates.

    >>> find_not_idempotent("max(price) / count(*)"), find_not_idempotent("median(price) + sum(price)")
    ((), ('median',))
    """
    tree = sqlglot.parse_one(text, dialect="spark")
    calls = [node for node in tree.find_all(exp.Func, exp.Any) if is_aggregate(node)]
    within = {id(inner) for call in calls for inner in call.walk() if inner is not call}
    unknown = [
        node
        for node in tree.find_all(exp.Anonymous)
        if id(node) not in within and not any(inner is call for inner in node.walk() for call in calls)
    ]
    names = (
        _NAMES.get(type(node)) or node.sql(dialect="spark").partition("(")[0].strip().lower()
        for node in (*calls, *unknown)
    )
    return tuple(dict.fromkeys(name for name in names if name not in IDEMPOTENT))
