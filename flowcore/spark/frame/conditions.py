"""SQL text as a condition that Python evaluates as Spark does: a small part of SQL, in which both agree."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from flowcore.keyed.conditions import Call, Condition, Constant, Field

__all__ = ["parse_condition"]

_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "equal", exp.NEQ: "not_equal", exp.LT: "less", exp.LTE: "less_equal", exp.GT: "greater",
    exp.GTE: "greater_equal",
}  # fmt: skip
_LOGIC: dict[type[exp.Expr], str] = {exp.And: "and_kleene", exp.Or: "or_kleene"}
_BITS = 63
_Fields = Mapping[str, tuple[str, str]]


class _UnknownError(Exception):
    """Only Spark evaluates the text."""


def parse_condition(text: str, fields: _Fields) -> Condition | None:
    """The condition of a SQL text; None if only Spark can evaluate it.

    It compares columns of whole numbers with numbers and each other, and columns of text with texts for
    equality; ``IN``, ``BETWEEN``, ``IS NULL``, ``AND``, ``OR``, ``NOT``, and columns that are BOOLEAN.

    Args:
        fields: For each column, by its name in the text: the field that it is, and its type as SQL text.

    >>> parse_condition("`c1` IS NULL", {"c1": ("price", "BIGINT")})
    Call(function='is_null', arguments=(Field(name='price'),))
    """
    if "\\" in text:  # an escape, of which sqlglot knows fewer
        return None
    try:
        return _condition(sqlglot.parse_one(text, dialect="spark"), fields)
    except (SqlglotError, _UnknownError):
        return None


def _condition(tree: exp.Expr, fields: _Fields) -> Condition:
    match tree:
        case exp.Paren():
            return _condition(tree.this, fields)
        case exp.And() | exp.Or():
            sides = (_condition(tree.left, fields), _condition(tree.right, fields))
            return Call(_LOGIC[type(tree)], sides)
        case exp.Not():
            return Call("invert", (_condition(tree.this, fields),))
        case exp.Is() if isinstance(tree.expression, exp.Null):
            return Call("is_null", (_field(tree.this, fields)[0],))
        case exp.In() if not _has_more(tree):
            given = [_compare("equal", tree.this, each, fields) for each in tree.expressions]
            return reduce(lambda left, right: Call("or_kleene", (left, right)), given)
        case exp.Between() if not tree.args.get("symmetric"):
            low = _compare("greater_equal", tree.this, tree.args["low"], fields)
            return Call("and_kleene", (low, _compare("less_equal", tree.this, tree.args["high"], fields)))
        case exp.Column():
            field, kind = _field(tree, fields)
            if kind != "BOOLEAN":
                raise _UnknownError
            return field
        case _ if type(tree) in _COMPARISONS:
            return _compare(_COMPARISONS[type(tree)], tree.this, tree.expression, fields)
        case _:
            raise _UnknownError


def _has_more(tree: exp.In) -> bool:
    """Whether a test of membership has more than a list."""
    return not tree.expressions or any(tree.args.get(each) for each in ("query", "unnest", "field"))


def _compare(function: str, left: exp.Expr, right: exp.Expr, fields: _Fields) -> Condition:
    """A comparison of whole numbers, or of texts for equality."""
    operands = [_operand(each, fields) for each in (left, right)]
    kinds = {kind for _, kind in operands}
    is_text = kinds == {"STRING"} and function in ("equal", "not_equal")
    if not (is_text or kinds <= _INTEGERS) or all(isinstance(each, Constant) for each, _ in operands):
        raise _UnknownError
    return Call(function, tuple(each for each, _ in operands))


def _field(tree: exp.Expr, fields: _Fields) -> tuple[Field, str]:
    """A column with its type."""
    if isinstance(tree, exp.Column) and not tree.table and tree.name in fields:
        name, kind = fields[tree.name]
        return Field(name), kind
    raise _UnknownError


def _operand(tree: exp.Expr, fields: _Fields) -> tuple[Condition, str]:
    """A column or a literal, with its type."""
    match tree:
        case exp.Paren():
            return _operand(tree.this, fields)
        case exp.Column():
            return _field(tree, fields)
        case exp.Neg(this=exp.Literal(is_string=False) as number):
            value, kind = _operand(number, fields)
            assert isinstance(value, Constant)  # noqa: S101 - of a literal
            return Constant(-int(value.value)), kind
        case exp.Literal(is_string=True):
            return Constant(tree.this), "STRING"
        case exp.Literal() if tree.this.isascii() and tree.this.isdecimal() and int(tree.this) >> _BITS == 0:
            return Constant(int(tree.this)), "BIGINT"
        case _:
            raise _UnknownError
