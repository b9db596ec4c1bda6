"""Operators that keep state by key group: windows and keyed process functions.

Plain data, like all operators. What a window does is its `flowcore.windows.WindowConfig`, over records
that are mappings from column to value; what a runtime folds column by column it can see in `Window.built_in`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowcore.api.expressions import Expression
from flowcore.api.functions import promises
from flowcore.api.idempotent import IDEMPOTENT
from flowcore.api.node import Node
from flowcore.api.schema import Schema
from flowcore.errors import PlanError
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.config import WindowConfig
from flowcore.windows.functions import PlainProcess, WindowAggregate, WindowReduce

__all__ = ["LATE", "WINDOW_COLUMNS", "KeyedProcess", "SideOutput", "Window", "key_of", "side_columns"]

WINDOW_COLUMNS = ("window_start", "window_end", "firing", "is_late")
"""What every output of a window has behind its own columns: TIMESTAMP, TIMESTAMP, INT, BOOLEAN.

The two times are null where a window has no such time: a global one, or one at the end of time.
"""

LATE = "late"
"""The side output of records that came too late for all their windows."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Window(Node):
    """Windows of records with equal keys, and what each emits.

    Its columns are those of ``by``, those of its values, then `WINDOW_COLUMNS`. A result's timestamp is the
    last millisecond of its window.

    Attributes:
        by: Columns of the key; none for one key for all. As an object, a key is None without columns,
            the value of the only one, or a tuple; see `key_of`.
        config: What is done, in the words of `flowcore.windows`. Values are records: a mapping with the
            columns of ``uses`` and ``computed``; outputs are records of ``values``.
        computed: ``(name, expression)`` of columns that are computed natively in front of it, from the
            input's columns: arguments of aggregates, the gap of a session.
        uses: The input's columns that records need, beside ``by`` and what is computed from others.
        values: The columns of what is emitted.
        schema: Their types, None where they follow from the input's: built-in aggregates, `WindowReduce`.
        timestamp: Of bounded input, the time of a row: BIGINT milliseconds or TIMESTAMP. None for a
            stream, whose records have theirs, and where none is needed.
        sql: ``(column, text)`` of the built-in aggregates as they were written.
    """

    by: tuple[str, ...]
    config: WindowConfig
    computed: tuple[tuple[str, Expression], ...] = ()
    uses: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    schema: Schema | None = None
    timestamp: Expression | None = None
    sql: tuple[tuple[str, str], ...] = ()

    @property
    def built_in(self) -> tuple[tuple[str, BuiltIn], ...]:
        """``(output column, aggregate)`` where the windows fold with built-in aggregates, else nothing."""
        match self.config.function:
            case WindowAggregate(function=BuiltIns(columns=columns)):
                return columns
            case _:
                return ()

    @property
    def functions(self) -> tuple[object, ...]:
        """The user's Python functions in it: the fold, then what makes the outputs."""
        function = self.config.function
        fold = None if self.built_in else getattr(function, "function", None)
        return tuple(each for each in (fold, function.then) if each is not None)

    def key_of(self, values: tuple[Any, ...]) -> Any:
        """The key as functions see it, from the values of the columns of ``by``."""
        return key_of(values)

    def known(self) -> Mapping[str, bool]:
        """Over bounded input it puts out at its end; with a key, later emissions replace earlier ones.

        Its aggregates have to be such (`flowcore.api.idempotent`), or its function has to declare it.
        """
        return {
            **Node.known(self),
            "output_only_at_end": self.bounded,
            "output_idempotent": self.key is not None
            and all(each.function in IDEMPOTENT for _, each in self.built_in),
            **_promised(self),
        }


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeyedProcess(Node):
    """A Python function with state and timers for each key.

    Its columns are those of its schema.

    Attributes:
        by: Columns of the key, as in `Window`.
        function: A `flowcore.process.KeyedProcessFunction`.
        schema: The columns of the records it puts out.
        uses: The input's columns that it reads.
        timestamp: As in `Window`.
        side_outputs: ``(name, schema)`` of what else it puts out.
    """

    by: tuple[str, ...]
    function: Any
    schema: Schema
    uses: tuple[str, ...]
    timestamp: Expression | None = None
    side_outputs: tuple[tuple[str, Schema], ...] = ()

    def key_of(self, values: tuple[Any, ...]) -> Any:
        """The key as the function sees it, from the values of the columns of ``by``."""
        return key_of(values)

    def known(self) -> Mapping[str, bool]:
        """What the function declares; without that, it may use again what it has put out."""
        return {
            "output_only_at_end": False,
            "output_on_checkpoint": False,
            "input_record_stored": False,
            **promises(self.function, self.name),
        }


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SideOutput(Node):
    """What leaves a `Window` or a `KeyedProcess`, its only input, beside its results.

    Attributes:
        output: Its name; `LATE` for late records, which have the columns of the window's input.
        schema: The types of its columns, None for late records: those of the window's input.
    """

    output: str
    schema: Schema | None = None


def side_columns(node: object, output: str) -> tuple[tuple[str, ...], Schema | None]:
    """The columns of a side output, and their types where they do not follow from the input's.

    Raises:
        PlanError: The operator has no such side output.
    """
    found: dict[str, tuple[tuple[str, ...], Schema | None]] = {}
    match node:
        case Window(config=WindowConfig(late="side-output"), inputs=(before,)):
            found = {LATE: (before.columns, None)}
        case KeyedProcess(side_outputs=outputs):
            found = {name: (schema.names, schema) for name, schema in outputs}
    if output not in found:
        name = getattr(node, "name", node)
        what = f"it has {', '.join(found)}" if found else "it has none"
        how = "a window has one with late='side-output', a process function with side_outputs={...}"
        msg = f"operator {name!r} has no side output {output!r}: nothing would ever come out; {what}; {how}"
        raise PlanError(msg)
    return found[output]


def key_of(values: tuple[Any, ...]) -> Any:
    """A key as functions see it: None without columns, the value of the only one, or a tuple.

    >>> key_of(()), key_of(("a",)), key_of(("a", 1))
    (None, 'a', ('a', 1))
    """
    return values if len(values) > 1 else values[0] if values else None


def _promised(node: Window) -> Mapping[str, bool]:
    """Of Python functions, what they declare: kept if one of them keeps, replacing if the last one does.

    A reduce keeps one record for each window, which replaces the one before.
    """
    if not node.functions:
        return {}
    plain = [each.function if isinstance(each, PlainProcess) else each for each in node.functions]
    each = [promises(function, node.name) for function in plain]
    found = {"output_value_stored": any(promised["output_value_stored"] for promised in each)}
    if node.config.function.then is not None:
        found["output_idempotent"] = each[-1]["output_idempotent"]
    elif not isinstance(node.config.function, WindowReduce):
        found["output_idempotent"] = node.key is not None and each[-1]["output_idempotent"]
    return found
