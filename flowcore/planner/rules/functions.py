"""Find functions that expressions call and Spark does not have, which Spark reports only after its start.

The names in ``spark_functions.txt`` are those of SHOW SYSTEM FUNCTIONS, beside what Spark's grammar has. A
session may have more functions, registered by the user's own code or by extensions. Where there is such code,
nothing is checked.
"""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import sqlglot
from sqlglot.tokenizer_core import TokenType

from flowcore.api.co_groups import SideAggregate
from flowcore.api.connectors import Frame
from flowcore.api.event_time import event_time_expression, marker_condition, watermark_expression
from flowcore.api.expressions import Expression
from flowcore.api.flow import Flow
from flowcore.api.operators import Apply, Operator, Read
from flowcore.errors import PlanError
from flowcore.settings import Settings

__all__ = ["find_unknown_functions", "require_known_functions"]

_TABLE = Path(__file__).with_name("spark_functions.txt")
_GRAMMAR = {"group", "identifier", "timediff", "timestampadd", "timestampdiff", "try_cast", "zone"}
"""Words before a bracket that are not functions of the table."""

_EXTENDING = (
    "spark.sql.extensions",
    "spark.plugins",
    "spark.sql.catalog",
    "spark.sql.warehouse",
    "spark.hive",
)
"""Settings that may bring functions."""


def require_known_functions(flow: Flow, settings: Settings) -> None:
    """Check that Spark has the functions that a flow calls, for a session that flowcore makes.

    Raises:
        PlanError: Spark does not have a function; the message names operator, expression and the nearest
            function.
    """
    nodes = flow.operators
    registers = any(
        isinstance(node, Apply) or (isinstance(node, Read) and isinstance(node.source, Frame))
        for node in nodes
    )
    if registers or any(key.startswith(_EXTENDING) for key in settings.spark):
        return
    for node in nodes:
        for expression in _expressions(node):
            for name in find_unknown_functions(expression.text):
                near = difflib.get_close_matches(name, _known(), n=1)
                hint = f"did you mean {near[0]!r}?" if near else "see Spark's list of SQL functions"
                msg = (
                    f"operator {node.name!r}: {expression.text!r} calls the function {name!r}, which Spark "
                    f"does not have: the flow would fail when Spark has started; {hint}"
                )
                raise PlanError(msg)


def find_unknown_functions(text: str) -> list[str]:
    """The functions without a schema's name that Spark SQL text calls and Spark does not have.

    >>> find_unknown_functions("uper(trim(name)) in ('a(b)')")
    ['uper']
    """
    tokens = sqlglot.tokenize(text, dialect="spark")
    called = (
        token.text.lower()
        for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False)
        if token.token_type is TokenType.VAR
        and after.token_type is TokenType.L_PAREN
        and (before is None or before.token_type is not TokenType.DOT)
    )
    return [name for name in dict.fromkeys(called) if name not in _known() and name not in _GRAMMAR]


def _expressions(node: Operator) -> Iterator[Expression]:
    yield from _expressions_in(getattr(node, each.name) for each in fields(node) if each.name != "inputs")
    if isinstance(node, Read) and node.topic is not None:
        made = (event_time_expression(node), marker_condition(node), watermark_expression(node))
        yield from (each for each in made if each is not None)


def _expressions_in(values: Iterable[object]) -> Iterator[Expression]:
    for value in values:
        match value:
            case Expression():
                yield value
            case SideAggregate(expression=expression):
                yield expression
            case tuple():
                yield from _expressions_in(value)


@cache
def _known() -> frozenset[str]:
    return frozenset(_TABLE.read_text(encoding="utf-8").split())
