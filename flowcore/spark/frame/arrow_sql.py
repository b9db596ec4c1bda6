"""SQL text as an expression that Arrow evaluates as Spark does: a small part of SQL, in which both agree."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from flowcore.keyed.arrow_expressions import ArrowExpression, Constant, FunctionCall
from flowcore.spark.frame.sql import JSON_OPTIONS

__all__ = ["ARROW_TYPES", "NULL", "VOID", "TypedExpression", "parse_expression"]

TypedExpression = tuple[ArrowExpression, str]
"""An expression with its type as SQL text; `VOID` for null of any type."""
_Columns = Mapping[str, TypedExpression | None]

VOID = "VOID"
NULL: TypedExpression = Constant(None), VOID
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(),
    "STRING": pa.string(), "BOOLEAN": pa.bool_(), "TIMESTAMP": pa.timestamp("us", "UTC"),
}  # fmt: skip
"""The types that expressions make, by SQL text."""
_BITS = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}
_TEXT = "STRING"
_UNLIKE = re.compile(r"\\|\b(var)?char\b|\bstruct\s*\(", re.IGNORECASE)
"""What sqlglot reads differently from Spark: escapes, CHAR and VARCHAR, and ``struct(...)``, whose names it
invents."""
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "equal", exp.NEQ: "not_equal", exp.LT: "less", exp.LTE: "less_equal", exp.GT: "greater",
    exp.GTE: "greater_equal",
}  # fmt: skip
_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}
_JOINS: dict[type[exp.Expr], str] = {exp.Concat: "concat", exp.ConcatWs: "concat_ws"}
_LOGIC: dict[type[exp.Expr], str] = {exp.And: "and_kleene", exp.Or: "or_kleene"}


_DEEPEST = 60
"""Levels of an expression. Python pickles and evaluates it recursively, and fails somewhere beyond 200."""


class _UnknownError(Exception):
    """Only Spark evaluates the text."""


def parse_expression(text: str, columns: _Columns, *, is_utf8: bool = True) -> TypedExpression | None:
    """The expression of a SQL text; None if only Spark can evaluate it.

    It has columns, whole numbers, texts, truth values and null; comparisons of whole numbers, and of texts
    for equality; sums, differences and products of whole numbers, which wrap as in a live session;
    ``IN``, ``BETWEEN``, ``IS NULL``, ``AND``, ``OR``, ``NOT``; ``CASE``, ``if``, ``coalesce``, ``nullif``;
    ``concat``, ``concat_ws`` and ``||`` of texts and whole numbers, which may also be cast to STRING; truth
    values as whole numbers; ``to_json`` of a struct of such values, ``octet_length``, ``sha2``; and
    ``timestamp_millis``.

    Args:
        columns: What each column is, by its name in the text; None for one that only Spark can evaluate.
        is_utf8: All texts in columns are UTF-8.

    >>> from flowcore.keyed.arrow_expressions import Field
    >>> parse_expression("`c1` || ':' || `c2`", {"c1": (Field("shop"), "STRING"), "c2": (Field("n"), "INT")})
    ... # doctest: +ELLIPSIS
    (FunctionCall(function='concat', arguments=(FunctionCall(...), FunctionCall(...))), 'STRING')
    """
    text = text.replace(f", {JSON_OPTIONS})", ")")  # they only concern times, which are not members here
    if _UNLIKE.search(text):
        return None
    try:
        if _doubles_quotes(text):
            return None
        found = _Parser(columns, is_utf8=is_utf8).parse(sqlglot.parse_one(text, dialect="spark"))
        return found if _depth(found[0], {}) <= _DEEPEST else None
    except (SqlglotError, _UnknownError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None  # sqlglot fails in many ways on text that Spark accepts


def _depth(expression: ArrowExpression, known: dict[int, int]) -> int:
    """The levels of an expression.

    Args:
        known: Those of its parts, by identity, since parts are shared; this function adds them.
    """
    if not isinstance(expression, FunctionCall):
        return 1
    if id(expression) not in known:
        known[id(expression)] = 1 + max((_depth(each, known) for each in expression.arguments), default=0)
    return known[id(expression)]


def _doubles_quotes(text: str) -> bool:
    """Whether a text has a literal with a doubled quote, which sqlglot reads as two literals."""
    if "''" not in text and '""' not in text:
        return False
    tokens = sqlglot.tokenize(text, dialect="spark")
    kind = sqlglot.TokenType.STRING
    return any(
        one.token_type == other.token_type == kind and one.end + 1 == other.start
        for one, other in pairwise(tokens)
    )


class _Parser:
    def __init__(self, columns: _Columns, *, is_utf8: bool) -> None:
        self._columns = columns
        self._is_utf8 = is_utf8
        self._calls: dict[tuple[str, tuple[int, ...]], FunctionCall] = {}
        self._constants: dict[tuple[type, object], Constant] = {}

    def _call(self, function: str, *arguments: ArrowExpression) -> FunctionCall:
        """A call, the same for the same arguments, which is computed once."""
        key = function, tuple(map(id, arguments))
        return self._calls.setdefault(key, FunctionCall(function, arguments))

    def _same(self, constant: TypedExpression) -> TypedExpression:
        expression, kind = constant
        if isinstance(expression, Constant):
            key = type(expression.value), expression.value
            expression = self._constants.setdefault(key, expression)
        return expression, kind

    def parse(self, tree: exp.Expr) -> TypedExpression:
        if isinstance(tree, exp.Paren):
            return self.parse(tree.this)
        if isinstance(tree, exp.Column):
            return self._column(tree)
        constant = _constant(tree)
        if constant is not None:
            return self._same(constant)
        condition = self._condition(tree)
        return self._value(tree) if condition is None else (condition, "BOOLEAN")

    def _column(self, tree: exp.Column) -> TypedExpression:
        found = None if tree.table else self._columns.get(tree.name)
        if found is None:
            raise _UnknownError
        return found

    def _condition(self, tree: exp.Expr) -> ArrowExpression | None:
        """A comparison, a test, or logic; None for anything else."""
        match tree:
            case exp.And() | exp.Or():
                return self._call(_LOGIC[type(tree)], self._truth(tree.left), self._truth(tree.right))
            case exp.Not():
                return self._call("invert", self._truth(tree.this))
            case exp.Is() if isinstance(tree.expression, exp.Null):
                return self._call("is_null", self.parse(tree.this)[0])
            case exp.In() if not _has_more(tree):
                return self._in(tree.this, tree.expressions)
            case exp.Between() if not tree.args.get("symmetric"):
                low = self._compare("greater_equal", tree.this, tree.args["low"])
                high = self._compare("less_equal", tree.this, tree.args["high"])
                return self._call("and_kleene", low, high)
            case _ if type(tree) in _COMPARISONS:
                return self._compare(_COMPARISONS[type(tree)], tree.this, tree.expression)
            case _:
                return None

    def _truth(self, tree: exp.Expr) -> ArrowExpression:
        return self._typed(tree, ["BOOLEAN"])

    def _in(self, value: exp.Expr, given: Sequence[exp.Expr]) -> ArrowExpression:
        """One call, however long the list is."""
        return self._call("in", *self._comparable("equal", value, *given))

    def _compare(self, function: str, left: exp.Expr, right: exp.Expr) -> ArrowExpression:
        """A comparison of whole numbers, or of texts for equality."""
        return self._call(function, *self._comparable(function, left, right))

    def _comparable(self, function: str, *trees: exp.Expr) -> list[ArrowExpression]:
        operands = [self.parse(each) for each in trees]
        kinds = {kind for _, kind in operands}
        is_text = kinds == {_TEXT} and function in ("equal", "not_equal")
        if not (is_text or kinds <= _BITS.keys()):
            raise _UnknownError
        return [each for each, _ in operands]

    def _value(self, tree: exp.Expr) -> TypedExpression:
        match tree:
            case exp.Case():
                return self._case(tree)
            case exp.Coalesce():
                found = [self.parse(each) for each in (tree.this, *tree.expressions)]
                return self._call("coalesce", *(each for each, _ in found)), _common([k for _, k in found])
            case exp.If():
                return self._choose([(self._truth(tree.this), tree.args["true"])], tree.args.get("false"))
            case exp.Nullif():
                self._compare("equal", tree.this, tree.expression)  # whether they can be compared
                value, other = self.parse(tree.this), self.parse(tree.expression)
                return self._call("nullif", value[0], other[0]), value[1]
            case _ if type(tree) in _ARITHMETIC:
                return self._arithmetic(_ARITHMETIC[type(tree)], tree.this, tree.expression)
            case _:
                return self._text_function(tree)

    def _text_function(self, tree: exp.Expr) -> TypedExpression:
        match tree:
            case exp.ConcatWs(expressions=[separator, *texts]) if not (
                isinstance(separator, exp.Literal) and any(isinstance(each, exp.Literal) for each in texts)
            ):  # Arrow 26 leaves out the rows in which all texts are null
                raise _UnknownError
            case exp.Concat():  # concat_ws, too
                return self._join(_JOINS[type(tree)], tree.expressions)
            case exp.DPipe() if isinstance(tree.expression, (exp.Add, exp.Sub)):
                raise _UnknownError  # to Spark, both operators have one precedence
            case exp.DPipe():
                return self._join("concat", (tree.this, tree.expression))
            case exp.Cast() if tree.to.this == exp.DataType.Type.TEXT and not tree.to.args.get("collate"):
                return self._as_text(tree.this), _TEXT
            case exp.JSONFormat(this=exp.Struct() as struct) if not tree.args.get("options"):
                return self._json_object(struct.expressions), _TEXT
            case exp.SHA2(this=text) if _constant(tree.args.get("length") or tree) == (Constant(256), "INT"):
                return self._call("sha2", self._typed(text, [_TEXT], utf8=True)), _TEXT
            case _:
                return self._other_function(tree)

    def _other_function(self, tree: exp.Expr) -> TypedExpression:
        match tree:
            case exp.Anonymous(expressions=[text]) if str(tree.this).lower() == "make_valid_utf8":
                return self._typed(text, [_TEXT], utf8=True), _TEXT
            case exp.Cast() if (kind := tree.to.sql(dialect="spark")) in _BITS:
                # Of another number it may be too large: CAST and TRY_CAST are the same tree.
                return self._integer(self._typed(tree.this, ["BOOLEAN"]), kind), kind
            case exp.Anonymous(expressions=[text]) if str(tree.this).lower() == "octet_length":
                return self._call("octet_length", self._typed(text, [_TEXT])), "INT"
            case exp.Anonymous(expressions=[time]) if str(tree.this).lower() == "timestamp_millis":
                return self._call("timestamp_millis", self._typed(time, [*_BITS])), "TIMESTAMP"
            case _:
                raise _UnknownError

    def _typed(self, tree: exp.Expr, kinds: Sequence[str], *, utf8: bool = False) -> ArrowExpression:
        """A value of one of some types; a text is UTF-8, if it has to be."""
        found, kind = self.parse(tree)
        if kind not in kinds or (utf8 and kind == _TEXT and not self._is_utf8):
            raise _UnknownError
        return found

    def _integer(self, value: ArrowExpression, kind: str) -> ArrowExpression:
        bits, _ = self._same((Constant(_BITS[kind] + 1), "INT"))
        return self._call("integer", value, bits)

    def _arithmetic(self, function: str, *operands: exp.Expr) -> TypedExpression:
        """Both have the type of the result, in which it wraps."""
        found = [self.parse(each) for each in operands]
        kind = _common([kind for _, kind in found])
        if kind not in _BITS:
            raise _UnknownError
        return self._call(function, *(self._integer(each, kind) for each, _ in found)), kind

    def _json_object(self, members: Sequence[exp.Expr]) -> ArrowExpression:
        arguments: list[ArrowExpression] = []
        for member in members:
            if not (isinstance(member, exp.PropertyEQ) and isinstance(member.this, exp.Identifier)):
                raise _UnknownError
            name, _ = self._same((Constant(member.this.name), _TEXT))
            arguments += [name, self._typed(member.expression, [_TEXT, "BOOLEAN", *_BITS], utf8=True)]
        return self._call("json_object", *arguments)

    def _case(self, tree: exp.Case) -> TypedExpression:
        """``CASE``, also the form that compares one value with others."""

        def test(each: exp.Expr) -> ArrowExpression:
            return self._truth(each) if tree.this is None else self._compare("equal", tree.this, each)

        cases = [(test(each.this), each.args["true"]) for each in tree.args["ifs"]]
        return self._choose(cases, tree.args.get("default"))

    def _choose(
        self, cases: Sequence[tuple[ArrowExpression, exp.Expr]], default: exp.Expr | None
    ) -> TypedExpression:
        values = [self.parse(value) for _, value in cases]
        otherwise = self.parse(default or exp.Null())
        kind = _common([*(found for _, found in values), otherwise[1]])
        pairs = zip((condition for condition, _ in cases), (value for value, _ in values), strict=True)
        return self._call("case", *(each for pair in pairs for each in pair), otherwise[0]), kind

    def _join(self, function: str, parts: Sequence[exp.Expr]) -> TypedExpression:
        return self._call(function, *map(self._as_text, parts)), _TEXT

    def _as_text(self, tree: exp.Expr) -> ArrowExpression:
        found, kind = self.parse(tree)
        if kind == _TEXT:
            return found
        if kind in _BITS or kind == VOID:
            return self._call("text", found)
        raise _UnknownError


def _common(kinds: Sequence[str]) -> str:
    """The type of a value that has one of several types: the same, but for the size of whole numbers."""
    found = {*kinds} - {VOID}
    if found and found <= _BITS.keys():
        return max(found, key=_BITS.__getitem__)
    if len(found) > 1:
        raise _UnknownError
    return found.pop() if found else VOID


def _has_more(tree: exp.In) -> bool:
    """Whether a test of membership has more than a list."""
    return not tree.expressions or any(tree.args.get(each) for each in ("query", "unnest", "field"))


def _constant(tree: exp.Expr) -> TypedExpression | None:
    """A literal with its type; None for anything that is no literal."""
    match tree:
        case exp.Null():
            return NULL
        case exp.Boolean():
            return Constant(bool(tree.this)), "BOOLEAN"
        case exp.Literal(is_string=True):
            return Constant(tree.this), _TEXT
        case exp.Literal():
            return _whole_number(tree.this, 1)
        case exp.Neg(this=exp.Literal(is_string=False) as number):
            return _whole_number(number.this, -1)
        case exp.Cast(this=exp.Literal(is_string=False) as number):
            found, kind = _whole_number(number.this, 1), tree.to.sql(dialect="spark")
            if kind not in _BITS or not isinstance(found[0], Constant) or _bits(found[0].value) > _BITS[kind]:
                raise _UnknownError
            return found[0], kind
        case _:
            return None


def _whole_number(digits: str, sign: int) -> TypedExpression:
    if not (digits.isascii() and digits.isdecimal()) or _bits(int(digits)) > _BITS["BIGINT"]:
        raise _UnknownError
    number = sign * int(digits)
    return Constant(number), "INT" if -(1 << 31) <= number < 1 << 31 else "BIGINT"


def _bits(number: object) -> int:
    assert isinstance(number, int)  # noqa: S101 - of a literal
    return number.bit_length()
