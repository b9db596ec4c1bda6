"""Windowed streams: what is declared between ``stream.window(...)`` and the stream that comes out?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowcore.api import checks, window_checks
from flowcore.api.expressions import Expression, resolve
from flowcore.api.flushing import flush_ms
from flowcore.api.functions import require_function
from flowcore.api.operators import Operator
from flowcore.api.schema import Schema
from flowcore.api.stateful import WINDOW_COLUMNS, KeyedProcess, Window
from flowcore.api.window_aggregates import window_aggregates
from flowcore.api.window_assigners import (
    GAP_COLUMN,
    Length,
    Session,
    WindowDeclaration,
    assigner_of,
    whole_ms,
)
from flowcore.errors import PlanError
from flowcore.process import KeyedProcessFunction
from flowcore.windows import (
    AggregateFunction,
    Evictor,
    ProcessFunction,
    WindowAggregate,
    WindowConfig,
    WindowProcess,
    WindowReduce,
)
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.config import LateRecords, WindowTime
from flowcore.windows.functions import WindowFunction
from flowcore.windows.triggers import Trigger

if TYPE_CHECKING:
    from flowcore.api.flow import Flow
    from flowcore.api.stream import Stream

__all__ = ["Then", "WindowedStream", "keyed_process", "window"]

Then = ProcessFunction | Callable[[Any, Sequence[Any]], Any]
"""A process function: an object of that kind, or a plain function ``(context, values) -> outputs``."""

_NOTHING_YET = WindowAggregate(BuiltIns(()))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedStream:
    """Windows of which it is not said yet what they emit; `Stream.window` makes them.

    Each method gives the stream of results: the columns of ``by``, those that the function makes, then
    ``window_start`` and ``window_end`` (TIMESTAMP), ``firing`` (INT, from 1) and ``is_late`` (BOOLEAN).
    """

    flow: Flow
    node: Operator
    given_name: str | None
    by: tuple[str, ...]
    windows: WindowConfig
    computed: tuple[tuple[str, Expression], ...]
    uses: tuple[str, ...]
    timestamp: Expression | None
    given: Mapping[str, bool]
    flush_ms: int | None

    @property
    def name(self) -> str:
        """What the operator will be called."""
        return self.given_name or self.flow.free_name("window")

    def aggregate(
        self, *, then: Then | None = None, schema: Schema | str | None = None, **aggregates: str
    ) -> Stream:
        """Built-in aggregates: ``aggregate(total="sum(price)", n="count(*)")``; no Python per record.

        Args:
            then: Makes the outputs: gets a record of the aggregates, and sees the window.
            schema: The columns of what ``then`` puts out, as Spark DDL.
            aggregates: Output column to one Spark SQL aggregate over any row expressions.

        Raises:
            PlanError: A text is not one known aggregate, a column is unknown or named twice, or only
                one of ``then`` and ``schema`` is given.
        """
        if not aggregates:
            msg = f"operator {self.name!r} computes nothing; pass for instance total='sum(price)'"
            raise PlanError(msg)
        found = window_aggregates(self.node, self.name, aggregates)
        seen = self.uses if window_checks.looks_at_records(self.windows) else ()
        return self._added(
            WindowAggregate(BuiltIns(found.columns), self._then(then, schema)),
            uses=tuple(dict.fromkeys((*seen, *found.uses))),
            values=tuple(aggregates),
            schema=schema,
            computed=found.computed,
            sql=tuple(aggregates.items()),
        )

    def aggregate_with(
        self, function: AggregateFunction, *, schema: Schema | str, then: Then | None = None
    ) -> Stream:
        """A Python aggregate: records are folded as they come, one accumulator is kept.

        Args:
            function: ``create()``, ``add(accumulator, record)``, ``merge(first, second)`` and
                ``result(accumulator)``, which gives a record; accumulators are plain data.
            schema: The columns of what comes out, as Spark DDL.
            then: Makes the outputs of the one result.

        Raises:
            PlanError: It is no aggregate function.
        """
        window_checks.require_aggregate_function(function, self.name)
        return self._added(
            WindowAggregate(function, None if then is None else self._then(then, schema)),
            uses=self.uses, values=(), schema=schema,
        )  # fmt: skip

    def reduce(
        self,
        function: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]],
        *,
        then: Then | None = None,
        schema: Schema | str | None = None,
    ) -> Stream:
        """Fold two records into one of the same columns; one record is kept.

        Args:
            function: ``(kept, new) -> kept``; associative.
            then: Makes the outputs of the one record.
            schema: The columns of what ``then`` puts out, as Spark DDL.

        Raises:
            PlanError: It is no function, or only one of ``then`` and ``schema`` is given.
        """
        require_function(function, self.name)
        values = tuple(column for column in self.uses if column not in self.by)
        return self._added(
            WindowReduce(function, self._then(then, schema)), uses=self.uses, values=values, schema=schema
        )

    def process(self, function: Then, *, schema: Schema | str) -> Stream:
        """A Python function that sees all records of a window; all of them are kept until it ends.

        Args:
            function: ``(context, records) -> outputs``, or an object with ``process`` and ``clear``; see
                `flowcore.windows.ProcessFunction`.
            schema: The columns of the records it puts out, as Spark DDL.

        Raises:
            PlanError: It is no function.
        """
        then = window_checks.process_function(function, self.name)
        return self._added(WindowProcess(then), uses=self.uses, values=(), schema=schema)

    def _then(self, then: Then | None, schema: Schema | str | None) -> ProcessFunction | None:
        if (then is None) != (schema is None):
            given, missing = ("then", "schema") if schema is None else ("schema", "then")
            msg = (
                f"operator {self.name!r}: {given}= without {missing}=: it would not be known what comes out; "
                "pass both, for instance then=label, schema='label STRING', or neither"
            )
            raise PlanError(msg)
        return None if then is None else window_checks.process_function(then, self.name)

    def _added(
        self,
        function: WindowFunction,
        *,
        uses: tuple[str, ...],
        values: tuple[str, ...],
        schema: Schema | str | None,
        computed: tuple[tuple[str, Expression], ...] = (),
        sql: tuple[tuple[str, str], ...] = (),
    ) -> Stream:
        config = replace(self.windows, function=function)
        types = None if schema is None else Schema.parse(schema)
        values = values if types is None else types.names
        columns = (*self.by, *values, *WINDOW_COLUMNS)
        checks.require_distinct(self.name, columns)
        replacing = window_checks.replaces_itself(config)
        return self.flow.add(
            Window(
                name=self.name, inputs=(self.node,), columns=columns, bounded=self.node.bounded,
                key=(*self.by, *WINDOW_COLUMNS[:2]) if replacing else None,
                by=self.by, config=config, computed=(*self.computed, *computed), uses=uses, values=values,
                schema=types, timestamp=self.timestamp, sql=sql, declared_attributes=self.given,
                flush_ms=self.flush_ms,
            )
        )  # fmt: skip


def window(
    flow: Flow,
    node: Operator,
    given_name: str | None,
    windows: WindowDeclaration,
    *,
    by: str | Sequence[str],
    trigger: Trigger | None,
    evictor: Evictor | None,
    allowed_lateness: Length,
    late: LateRecords,
    time: WindowTime,
    timestamp: str | None,
    uses: Sequence[str] | None,
    given: Mapping[str, bool],
    flush: timedelta | None,
) -> WindowedStream:
    """Windows over ``node``; the arguments are those of `Stream.window`."""
    name = given_name or flow.free_name("window")
    config = WindowConfig(
        assigner=assigner_of(windows, name),
        function=_NOTHING_YET,
        time=time,
        trigger=trigger,
        evictor=evictor,
        allowed_lateness_ms=whole_ms("allowed_lateness", allowed_lateness),
        late=late,
    )
    time_of_row = None if timestamp is None else checks.row_expression(node, name, timestamp)
    window_checks.require_output(node, name, config)
    window_checks.require_timestamp(node, name, time_of_row, needed=config.assigner.bounded)
    if window_checks.needs_event_time(config):
        window_checks.require_watermarks(node, name)
    gap = windows.gap if isinstance(windows, Session) and isinstance(windows.gap, str) else None
    computed = () if gap is None else ((GAP_COLUMN, checks.row_expression(node, name, gap)),)
    return WindowedStream(
        flow=flow, node=node, given_name=given_name, by=_keys(node, name, by), windows=config,
        computed=computed, uses=_used(node, name, uses), timestamp=time_of_row, given=given,
        flush_ms=flush_ms(name, flush),
    )  # fmt: skip


def keyed_process(
    node: Operator,
    name: str,
    function: KeyedProcessFunction,
    *,
    schema: Schema | str,
    by: str | Sequence[str],
    side_outputs: Mapping[str, Schema | str],
    timestamp: str | None,
    uses: Sequence[str] | None,
    given: Mapping[str, bool],
    flush: timedelta | None,
) -> KeyedProcess:
    """A keyed process over ``node``; the arguments are those of `Stream.process`."""
    window_checks.require_keyed_process(function, name)
    time_of_row = None if timestamp is None else checks.row_expression(node, name, timestamp)
    window_checks.require_timestamp(node, name, time_of_row, needed=False)
    types = Schema.parse(schema)
    for output in side_outputs:
        checks.require_name("side output", output)
    return KeyedProcess(
        name=name, inputs=(node,), columns=types.names, bounded=node.bounded, by=_keys(node, name, by),
        function=function, schema=types, uses=_used(node, name, uses), timestamp=time_of_row,
        side_outputs=tuple((output, Schema.parse(each)) for output, each in side_outputs.items()),
        declared_attributes=given, flush_ms=flush_ms(name, flush),
    )  # fmt: skip


def _keys(node: Operator, name: str, by: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of a key, as the input spells them."""
    named = (by,) if isinstance(by, str) else tuple(by)
    resolve(named, node.columns, name, f"by={by!r}")
    checks.require_distinct(name, named)
    known = {column.lower(): column for column in node.columns}
    return tuple(known[column.lower()] for column in named)


def _used(node: Operator, name: str, uses: Sequence[str] | None) -> tuple[str, ...]:
    named = checks.columns_named(node, name, uses)
    return node.columns if named is None else named
